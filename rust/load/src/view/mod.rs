//! `virtoll-load view`: viewers that do not decode, but check what comes and know what a player would make of it.
//!
//! The specification is one line of standard input; each further line is an order: so many viewers are to be there. Those
//! who come join by their schedule; when the last has joined and all have watched for a while, a window begins, of which
//! one line is said. Who is there watches on until the next order; at the end of standard input all leave. When one leaves
//! (its time is over, the media end, something failed), another joins in its place, so that there are always as many.
//! Who is to pause between windows asks for nothing meanwhile, and goes on over its connection: that is no join.
//! Start-up delays are those of all joins of an order, those before its window too, or of those within it alone; all else
//! is of the window.
//!
//! `player.rs` is the player, the same for all protocols; `protocol.rs` what a protocol is; `worker.rs` who drives them.

mod asking;
mod fetch;
mod library;
mod live;
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

use serde::Serialize;
use virtoll_generator::crew::{self, Crew, Seat};
use virtoll_generator::random::Random;
use virtoll_generator::reception::Received;
use virtoll_generator::time::not_passed;
use virtoll_generator::{sys, Failed};
use virtoll_wire::hist::Histogram;

use live::clock::{Clock, Held};
use protocol::SeenLive;
use spec::{Asked, Order, ViewSpec};
use tally::Tally;
use worker::{Task, Worker};

/// For all threads to be ready.
const START_DELAY_NS: i64 = 2_000_000;
/// The same of threads that serve a crowd: one of them may have to wait for a CPU before it reads the order.
const STANDING_DELAY_NS: i64 = 20_000_000;

/// What happened since an order was given, as JSON on standard output. Times are CLOCK_MONOTONIC nanoseconds; sums are
/// over all viewers.
#[derive(Debug, Serialize)]
pub struct Report {
    window: Window,
    joins: Joins,
    views: Views,
    connects: u64,
    /// Of the window: timers of viewers that waited for one, and those that were looked at more than 10 ms late; each of
    /// these counts in both as often as a tenth of a second of its lateness was begun within.
    wakes: u64,
    wakes_late: u64,
    /// Start-up delays of those that began to play, from when each was to join: (lower_ns, upper_ns, count).
    histogram: Vec<(u64, u64, u64)>,
    /// How long each of these joins waited for the generator itself, until play began, or it failed.
    lateness: Vec<(u64, u64, u64)>,
    /// From when on nothing was asked for, of those who pause.
    rests_ns: Option<i64>,
}

/// The stretch in which all were there. Each viewer's time in it is in one of the four states, but for the silence by which
/// it is known that a film that was played to its end (RTSP) has no more.
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
    /// Viewers who played all through it and whose media had not all come; by how much their buffers fell, all together
    /// (less than nothing: they filled); and the most media that came to one at once.
    standing: u64,
    fallen_ns: i64,
    most_ns: i64,
    media_bytes: u64,
    answers: u64,
    segments: u64,
    messages: u64,
    ages: u64,
    age_ns: i64,
    skipped: u64,
    switches: u64,
    reads: u64,
    /// None, where no packets of RTP were asked for.
    rtp: Option<Received>,
    /// None, where no live playlist was.
    live: Option<Live>,
    cpu_user_ns: i64,
    cpu_system_ns: i64,
}

/// Low-latency HLS. Ages are told, here and in the window, where the server's clock held.
#[derive(Debug, Serialize)]
pub struct Live {
    hinted: u64,
    unkept: u64,
    reloads: u64,
    /// Of the parts that came: (lower_ns, upper_ns, count).
    ages: Vec<(u64, u64, u64)>,
    latencies: Vec<(u64, u64, u64)>,
    /// None: it could not be compared before the window, or after it.
    clock: Option<Held>,
}

/// All joins from the order, or from the window's begin, to the window's end: each began to play or is in `failures`.
/// Those between a window's end and the next order are told by nobody.
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

/// Viewers that played when the order came, or began to until the window's end: those that `left` as they should, and
/// those that failed. The others watched to the window's end. `absent`: who had not begun by then, and whose join is none
/// of `Joins`: it gathered before the window, and nobody plays in its place.
#[derive(Debug, Serialize)]
pub struct Views {
    begun: u64,
    left: u64,
    absent: u64,
    failures: BTreeMap<String, u64>,
}

/// Carry out the orders of standard input.
pub fn run() -> Result<(), Failed> {
    let (spec, orders) = crew::asked::<ViewSpec>()?;
    carried_out(&spec.checked()?, orders, &mut |report| crew::say(report))
}

fn carried_out(
    spec: &ViewSpec,
    orders: impl Iterator<Item = Result<String, Failed>>,
    say: &mut dyn FnMut(&Report) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let asked = spec.asked()?;
    let granted = sys::receive_bytes_granted(spec.receive_bytes);
    is_enough(
        spec.receive_bytes,
        granted.map_err(|error| Failed::own_limit(&error))?,
    )?;
    let work = |seat: Seat<Task, Tally>| Worker::new(spec, &asked, seat)?.run();
    crew::at_work(spec.threads, &spec.cpus, work, |crew| {
        in_turn(spec, &asked, crew, orders, say)
    })
}

/// A viewer whose window is smaller than asked for would starve by our own doing.
fn is_enough(receive_bytes: u32, granted_bytes: u32) -> Result<(), Failed> {
    let asked_bytes = receive_bytes / 2 * 2;
    if granted_bytes >= asked_bytes {
        return Ok(());
    }
    Err(Failed(format!(
        "a viewer is to have {asked_bytes} bytes of kernel memory for what comes (`receive`), and the generator's machine \
         allows {granted_bytes}: run as root, or `sysctl net.core.rmem_max={}`, or ask for less",
        asked_bytes / 2
    )))
}

/// Said before the first of them joins: the last would end all that the others saw.
fn are_enough(viewers: usize, descriptors: u64, allowed: u64) -> Result<(), Failed> {
    if allowed >= descriptors {
        return Ok(());
    }
    Err(Failed(format!(
        "{viewers} viewers take {descriptors} open files, and the generator's machine allows {allowed}: raise the hard \
         limit (`ulimit -Hn {descriptors}`; root's own up to fs.nr_open), or ask for fewer viewers"
    )))
}

/// One order after another.
fn in_turn(
    spec: &ViewSpec,
    asked: &Asked,
    crew: &Crew<Task, Tally>,
    orders: impl Iterator<Item = Result<String, Failed>>,
    say: &mut dyn FnMut(&Report) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut crowd = Crowd::new(spec.seed);
    let clock = match asked {
        Asked::Live(source) => source.clock.as_ref(),
        _ => None,
    };
    for line in orders {
        let order = crew::order::<Order>(&line?)?.checked(spec)?;
        let descriptors = |each: u64| order.viewers as u64 * each + 4 * spec.threads as u64 + 64;
        let (least, most) = spec.descriptors_each();
        let allowed = sys::raise_open_files(descriptors(most));
        let allowed = allowed.map_err(|error| Failed::own_limit(&error))?;
        are_enough(order.viewers, descriptors(least), allowed)?;
        // Of a crowd that only gathers no ages are told.
        let clock = clock.filter(|_| order.anew != Some(0));
        if let Some(clock) = clock {
            clock.compare();
        }
        let task = crowd.task(spec, &order, sys::now_ns())?;
        let Some(mut tallies) = crew.carried_out(&task) else {
            return Ok(());
        };
        let held = clock.and_then(Clock::held);
        let mut sum = tallies.swap_remove(0);
        tallies.iter().for_each(|tally| sum.add(tally));
        let mut report = Report::new(&sum, asked, held);
        report.rests_ns = order.pauses_over_ns.map(|_| sys::now_ns());
        say(&report)?;
    }
    Ok(())
}

/// Who is there by the last order.
struct Crowd {
    viewers: usize,
    pauses_over_ns: Option<i64>,
    /// Who is the next to leave and come anew: all in turn.
    next: usize,
    random: Random,
}

impl Crowd {
    /// Nobody is there yet.
    fn new(seed: u64) -> Self {
        Crowd {
            viewers: 0,
            pauses_over_ns: None,
            next: 0,
            random: Random(seed),
        }
    }

    /// When who joins, and when the window is.
    fn task(&mut self, spec: &ViewSpec, order: &Order, now_ns: i64) -> Result<Task, Failed> {
        let stay = self.viewers.min(order.viewers);
        let mut joins_ns = spec.joins_ns(order.viewers - stay, &mut self.random);
        let before_ns = joins_ns.last().unwrap_or(&0) + order.settle_ns;
        let over_ns = self
            .pauses_over_ns
            .map(|over_ns| over_ns.min(order.settle_ns));
        let first_ns = match order.start_ns {
            // From any moment of the live stream's parts: when an order is given has to do with them, since the last
            // window was told when a part had come, and with how long this service takes to be asked for its clock.
            None if over_ns.is_some() => {
                let drawn_ns = self.random.below(over_ns.unwrap_or(0).max(1) as u64);
                now_ns + STANDING_DELAY_NS + drawn_ns as i64
            }
            None if self.viewers > 0 => now_ns + STANDING_DELAY_NS,
            None => now_ns + START_DELAY_NS,
            Some(start_ns) => {
                not_passed(start_ns.saturating_sub(before_ns), now_ns, "it was read")?
            }
        };
        joins_ns.iter_mut().for_each(|at_ns| *at_ns += first_ns);
        let from_ns = first_ns + before_ns;
        let gathered_ns = from_ns - order.settle_ns;
        let anew = order.anew.unwrap_or(0).min(order.viewers);
        let task = Task {
            viewers: order.viewers,
            stay,
            anew,
            first_anew: self.next % order.viewers,
            tells_after_ns: order.anew.map_or(i64::MIN, |_| from_ns),
            gathered_ns: (order.viewers != self.viewers).then_some(gathered_ns),
            first_ns,
            joins_ns: joins_ns.into(),
            goes_on_every_ns: over_ns.map(|over_ns| over_ns / stay.max(1) as i64),
            pauses: order.pauses_over_ns.is_some(),
            window_ns: (from_ns, from_ns + order.duration_ns),
        };
        (self.viewers, self.next) = (order.viewers, task.first_anew + anew);
        self.pauses_over_ns = order.pauses_over_ns;
        Ok(task)
    }
}

impl Report {
    /// `held`: how well a server's clock is known that ages go by.
    fn new(tally: &Tally, asked: &Asked, held: Option<Held>) -> Self {
        let (watched, seen) = (&tally.watched, &tally.seen);
        let is_live = matches!(asked, Asked::Live(_));
        let is_told = !is_live || held.is_some_and(|held| held.is_sure);
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
                standing: tally.standing,
                fallen_ns: tally.fallen_ns,
                most_ns: watched.most_ns,
                media_bytes: seen.media_bytes,
                answers: seen.answers,
                segments: seen.segments,
                messages: seen.messages,
                ages: if is_told { seen.ages } else { 0 },
                age_ns: seen.age_ns,
                skipped: seen.skipped,
                switches: seen.switches,
                reads: seen.reads,
                rtp: matches!(asked, Asked::Rtsp(_)).then(|| seen.rtp.clone()),
                live: is_live.then(|| Live::new(&seen.live, is_told, held)),
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
                begun: tally.begun,
                left: tally.left,
                absent: tally.absent,
                failures: tally.broken.by_kind(),
            },
            connects: tally.connects,
            wakes: tally.wakes,
            wakes_late: tally.wakes_late,
            histogram: tally.delays.buckets().collect(),
            lateness: tally.lateness.buckets().collect(),
            rests_ns: None,
        }
    }
}

impl Live {
    fn new(seen: &SeenLive, is_told: bool, clock: Option<Held>) -> Self {
        let told = |ages: &Histogram| match is_told {
            true => ages.buckets().collect(),
            false => Vec::new(),
        };
        Live {
            hinted: seen.hinted,
            unkept: seen.unkept,
            reloads: seen.reloads,
            ages: told(&seen.ages),
            latencies: told(&seen.latencies),
            clock,
        }
    }
}

#[cfg(test)]
#[path = "crowd_tests.rs"]
mod tests;
