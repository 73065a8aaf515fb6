//! `virtoll-load view`: viewers that do not decode, but check what comes and know what a player would make of it.
//!
//! Viewers join by their schedule; when the last has joined and all have watched for a while, the window begins. When
//! one leaves (its time is over, the media end, something failed), another joins in its place, so that there are always
//! as many. Start-up delays are those of all joins, all else is of the window.
//!
//! `player.rs` is the player, the same for all protocols; `protocol.rs` what a protocol is; `worker.rs` who drives them.

pub mod datagrams;
mod fetch;
mod library;
mod mpd;
mod player;
mod playlist;
mod progressive;
mod protocol;
mod rtmp;
pub mod rtsp;
mod segmented;
mod spec;
mod tally;
mod text;
mod timeline;
mod track;
mod worker;

use std::collections::BTreeMap;
use std::thread;

use serde::Serialize;

use crate::measure::not_passed;
use crate::{sys, Failed};
use rtsp::reception::Received;
use spec::Asked;
pub use spec::ViewSpec;
use tally::Tally;
use worker::Worker;

/// For all threads to be ready.
const START_DELAY_NS: i64 = 2_000_000;

/// What happened, as JSON on standard output. Times are CLOCK_MONOTONIC nanoseconds; sums are over all viewers.
#[derive(Debug, Serialize)]
pub struct Report {
    window: Window,
    joins: Joins,
    views: Views,
    connects: u64,
    /// Of the window: timers of viewers that waited for one, and those that were looked at more than 10 ms late.
    wakes: u64,
    wakes_late: u64,
    /// Start-up delays of those that began to play, from when each was to join: (lower_ns, upper_ns, count).
    histogram: Vec<(u64, u64, u64)>,
    /// How long each join waited for the generator itself.
    lateness: Vec<(u64, u64, u64)>,
}

/// The stretch in which all were there. Each viewer's time in it is in one of the four states.
#[derive(Debug, Serialize)]
pub struct Window {
    start_ns: i64,
    end_ns: i64,
    starting_ns: i64,
    playing_ns: i64,
    stalled_ns: i64,
    /// After a failure, until another joined.
    gone_ns: i64,
    /// Media played; unpaced: media that came.
    media_ns: i64,
    stalls: u64,
    media_bytes: u64,
    answers: u64,
    segments: u64,
    messages: u64,
    ages: u64,
    age_ns: i64,
    oldest_ns: i64,
    skipped: u64,
    switches: u64,
    reads: u64,
    /// None, where no packets of RTP were asked for.
    rtp: Option<Received>,
    cpu_user_ns: i64,
    cpu_system_ns: i64,
}

/// All joins, from the first on: each began to play or is in `failures`.
#[derive(Debug, Serialize)]
pub struct Joins {
    offered: u64,
    started: u64,
    failures: BTreeMap<String, u64>,
    drain: Option<Drain>,
}

/// What was still to begin at the window's end was waited for.
#[derive(Debug, Serialize)]
pub struct Drain {
    under_way: u64,
    started: u64,
    end_ns: i64,
}

/// Viewers that began to play, until the window's end: those that `left` as they should, and those that failed. The
/// others watched to the window's end.
#[derive(Debug, Serialize)]
pub struct Views {
    begun: u64,
    left: u64,
    failures: BTreeMap<String, u64>,
}

/// Run to the window's end.
pub fn run(spec: &ViewSpec) -> Result<Report, Failed> {
    let descriptors = spec.viewers as u64 * spec.descriptors_each() + spec.threads as u64 + 64;
    sys::raise_open_files(descriptors).map_err(|error| Failed::own_limit(&error))?;
    let asked = spec.asked()?;
    let joins_ns = spec.joins_ns();
    let before_ns = joins_ns.last().unwrap_or(&0) + spec.settle_ns;
    let now_ns = sys::now_ns();
    let first_ns = match spec.start_ns {
        None => now_ns + START_DELAY_NS,
        Some(start_ns) => not_passed(start_ns.saturating_sub(before_ns), now_ns, "it was read")?,
    };
    let window_ns = (
        first_ns + before_ns,
        first_ns + before_ns + spec.duration_ns,
    );
    let run_one = |thread: usize| {
        sys::no_timer_slack();
        if !spec.cpus.is_empty() {
            let cpu = spec.cpus[thread % spec.cpus.len()];
            sys::pin_to(cpu)
                .map_err(|error| Failed(format!("cannot pin a thread to CPU {cpu}: {error}")))?;
        }
        // Not in epoll, whose long waits the kernel ends late on purpose: by a thousandth of their length, or by five of
        // a process that is nice (fs/select.c, `select_estimate_accuracy`).
        sys::sleep_until(first_ns - START_DELAY_NS);
        let joins = joins_ns
            .iter()
            .enumerate()
            .skip(thread)
            .step_by(spec.threads);
        let joins = joins.map(|(number, at_ns)| (number, first_ns + at_ns));
        Worker::new(spec, &asked, joins, window_ns)?.run()
    };
    let mut tally = Tally::within(window_ns.0, window_ns.1);
    thread::scope(|scope| {
        let run_one = &run_one;
        let others: Vec<_> = (1..spec.threads)
            .map(|thread| {
                thread::Builder::new()
                    .spawn_scoped(scope, move || run_one(thread))
                    .map_err(|error| Failed::no_thread(thread, &error))
            })
            .collect::<Result<_, _>>()?;
        tally.add(&run_one(0)?);
        for other in others {
            let joined = other
                .join()
                .map_err(|_| Failed("a thread of the generator panicked".into()))?;
            tally.add(&joined?);
        }
        Ok(())
    })?;
    Ok(Report::new(&tally, &asked))
}

impl Report {
    fn new(tally: &Tally, asked: &Asked) -> Self {
        let (watched, seen) = (&tally.watched, &tally.seen);
        let drain = Drain {
            under_way: tally.under_way,
            started: tally.started_late,
            end_ns: tally.last_ns,
        };
        Report {
            window: Window {
                start_ns: watched.from_ns,
                end_ns: watched.until_ns,
                starting_ns: watched.starting_ns,
                playing_ns: watched.playing_ns,
                stalled_ns: watched.stalled_ns,
                gone_ns: tally.gone_ns,
                media_ns: watched.media_ns,
                stalls: watched.stalls,
                media_bytes: seen.media_bytes,
                answers: seen.answers,
                segments: seen.segments,
                messages: seen.messages,
                ages: seen.ages,
                age_ns: seen.age_ns,
                oldest_ns: seen.oldest_ns,
                skipped: seen.skipped,
                switches: seen.switches,
                reads: seen.reads,
                rtp: matches!(asked, Asked::Rtsp(_)).then(|| seen.rtp.clone()),
                cpu_user_ns: tally.cpu.user_ns,
                cpu_system_ns: tally.cpu.system_ns,
            },
            joins: Joins {
                offered: tally.joins,
                started: tally.started,
                failures: tally.not_started.by_kind(),
                drain: (tally.under_way > 0).then_some(drain),
            },
            views: Views {
                begun: tally.started - tally.started_late,
                left: tally.left,
                failures: tally.broken.by_kind(),
            },
            connects: tally.connects,
            wakes: tally.wakes,
            wakes_late: tally.wakes_late,
            histogram: tally.delays.buckets().collect(),
            lateness: tally.lateness.buckets().collect(),
        }
    }
}
