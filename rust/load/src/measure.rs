//! `virtoll-load http` and `redis`: run a measurement and report it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Serialize;
use virtoll_generator::books::{Books, Used};
use virtoll_generator::time::not_passed;
use virtoll_generator::{sys, Failed};

use crate::dialogue::{Ask, Dialogue, Place};
use crate::log::Extent;
use crate::schedule::{Arrivals, Budget, Supply};
use crate::spec::{Loop, Spec};
use crate::tally::{Failure, Tally, TlsTally};
use crate::worker::Worker;

/// An open schedule begins a little later, when all threads are ready.
const OPEN_START_DELAY_NS: i64 = 2_000_000;

/// After the last time-out of a closed loop, for the clock tick that notices it.
const CLOSED_GRACE_NS: i64 = 200_000_000;

/// The stretch in which the generator asked, after the lead-in: to the time limit, or until the last of the requests
/// asked for was handed out (closed loop); the length of the schedule (open loop). Rate and cost are those of the window
/// alone.
#[derive(Debug, Serialize)]
pub struct Window {
    start_ns: i64,
    end_ns: i64,
    /// Sent and answered correctly within it.
    completed: u64,
    /// What was under way at its begin or its end and answered correctly, each for the share of its time within the
    /// window. None where all that was asked for was sent before anything ended, and nothing before: such a window is as
    /// long as sending takes.
    partial: Option<f64>,
    /// Of the bodies of all that was answered correctly within it.
    body_bytes: u64,
    /// What the generator's threads used within it.
    cpu_user_ns: i64,
    cpu_system_ns: i64,
    /// What was booked within it of those whose books were to be looked at. Null: of nobody, or they could not be read.
    booked: Option<Used>,
}

/// What was under way at the window's end was waited for: cutting it off would drop the slowest requests, and with them
/// the truth about a slow server. It counts among the latencies, and in the rate for its part within the window.
#[derive(Debug, Serialize)]
pub struct Drain {
    under_way: u64,
    completed: u64,
    /// End of the last of them, whatever its fate.
    end_ns: i64,
}

/// What was asked right before the window, by the same connections.
#[derive(Debug, Serialize)]
pub struct LeadIn {
    /// When the generator began to ask.
    start_ns: i64,
    /// Answered correctly, or failed (by kind), at any time: no event of the window, and in no percentile.
    completed: u64,
    failures: BTreeMap<&'static str, u64>,
    /// End of the last of them, where it was after the window's; else that.
    end_ns: i64,
}

/// Whether the window had as many users as connections were asked for.
#[derive(Debug, Serialize)]
pub struct Users {
    /// Within it, and added up: for how long they had not been answered once, when thrice as many requests had been
    /// answered as there are users. Whoever is not taken up keeps nobody else waiting, and the others are served the
    /// faster; where users are served in turn, however slowly, there is no such time.
    beginning_ns: i64,
    /// All their time.
    there_ns: i64,
}

/// What happened, as JSON on standard output. Times are CLOCK_MONOTONIC nanoseconds.
///
/// Closed loop: `intended` is the number of requests asked for, or of those offered where only time was the bound.
/// Open loop: the arrivals of the schedule. Each of the `offered` (started) requests was `completed`, within the window
/// or after it, or is in `failures`. Kind `unfinished` holds what an open loop had under way one time-out after its
/// last arrival, and what it never started.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(rename = "loop")]
    loop_: &'static str,
    intended: u64,
    offered: u64,
    completed: u64,
    failures: BTreeMap<&'static str, u64>,
    /// Requests without a latency: all the failures.
    censored: u64,
    window: Window,
    /// Where a start was asked for: when the last thread awoke to begin, at it or later. Null without one.
    begun_ns: Option<i64>,
    /// Null without one.
    lead_in: Option<LeadIn>,
    drain: Option<Drain>,
    /// Closed loop.
    users: Option<Users>,
    /// Open loop: requests that had to wait for a free connection, and the longest such wait.
    queued: Option<u64>,
    queue_max_ns: Option<i64>,
    connects: u64,
    /// With TLS: handshakes that were done, and what was agreed on.
    handshakes: Option<u64>,
    tls: Option<TlsReport>,
    log: Option<Extent>,
    /// Latencies of completed requests: (lower_ns, upper_ns, count), lower <= latency < upper.
    histogram: Vec<(u64, u64, u64)>,
    /// Open loop: how long each offered request waited for the generator itself.
    lateness: Option<Vec<(u64, u64, u64)>>,
}

/// TLS 1.3 as it was spoken: cipher suite and key exchange of the first handshake, null where none was done, and what
/// the failures of kind `tls` were.
#[derive(Debug, Serialize)]
pub struct TlsReport {
    suite: Option<String>,
    group: Option<String>,
    reasons: BTreeMap<String, u64>,
}

impl TlsReport {
    fn new(tally: &TlsTally) -> Self {
        let (suite, group) = tally.agreed.clone().unzip();
        TlsReport {
            suite,
            group,
            reasons: tally.reasons.clone(),
        }
    }
}

/// Run a measurement to its end.
pub fn run<A: Ask>(spec: &Spec<A>) -> Result<Report, Failed> {
    let descriptors = 2 * spec.loop_.connections() as u64 + spec.threads as u64 + 64;
    sys::raise_open_files(descriptors).map_err(|error| Failed::own_limit(&error))?;
    let start_ns = start_ns(spec, sys::now_ns())?;
    let from_ns = start_ns + spec.lead_in_ns;
    let budget = match spec.loop_ {
        Loop::Closed {
            requests,
            time_limit_ns,
            ..
        } => {
            let budget = Budget::new(requests, from_ns, from_ns + time_limit_ns);
            budget.waiting(spec.loop_.connections(), from_ns + waits_ns(spec))
        }
        Loop::Open { .. } => Budget::new(None, from_ns, from_ns),
    };
    let place = spec.ask.place()?;
    let workers = (0..spec.threads)
        .map(|index| worker(spec, &place, index, start_ns, &budget))
        .collect::<Result<Vec<_>, _>>()?;
    let (begun_ns, tallies): (Vec<_>, Vec<_>) = run_all(spec, workers)?.into_iter().unzip();
    let mut tally = Tally::sum(tallies);
    let mut report = Report::new(spec, &place, &tally, start_ns, &budget)?;
    report.begun_ns = spec.start_ns.and(begun_ns.into_iter().max());
    if let Some(path) = &spec.request_log {
        let extent = tally.log.write(path, report.window.start_ns);
        report.log = Some(extent.map_err(|error| {
            Failed(format!(
                "cannot write the request log {}: {error}",
                path.display()
            ))
        })?);
    }
    Ok(report)
}

/// How much longer than asked for a lead-in may be, for the sake of who is not there yet.
fn waits_ns<A>(spec: &Spec<A>) -> i64 {
    let is_free = spec.start_ns.is_none() && matches!(spec.loop_, Loop::Closed { .. });
    match spec.lead_in_ns {
        lead_in_ns if is_free && lead_in_ns > 0 => (spec.lead_in_most_ns - lead_in_ns).max(0),
        _ => 0,
    }
}

/// When the generator begins to ask, at the earliest.
fn start_ns<A>(spec: &Spec<A>, now_ns: i64) -> Result<i64, Failed> {
    match (spec.start_ns, &spec.loop_) {
        (Some(start_ns), _) => not_passed(start_ns, now_ns, "it was read"),
        (None, Loop::Closed { .. }) => Ok(now_ns),
        (None, Loop::Open { .. }) => Ok(now_ns + OPEN_START_DELAY_NS),
    }
}

fn worker<'a, A: Ask>(
    spec: &Spec<A>,
    place: &Place,
    index: usize,
    start_ns: i64,
    budget: &'a Budget,
) -> Result<Worker<'a, A::Dialogue>, Failed> {
    let (supply, end_ns) = match spec.loop_ {
        Loop::Closed { time_limit_ns, .. } => (
            Supply::closed(budget),
            start_ns
                + spec.lead_in_ns
                + waits_ns(spec)
                + time_limit_ns
                + spec.timeout_ns
                + CLOSED_GRACE_NS,
        ),
        Loop::Open {
            rate_per_s,
            arrival,
            duration_ns,
            seed,
            ..
        } => {
            let from_ns = start_ns + spec.lead_in_ns;
            let end_ns = from_ns + duration_ns;
            let whole_ns = spec.lead_in_ns + duration_ns;
            let arrivals = Arrivals::new(arrival, rate_per_s, whole_ns, seed, index, spec.threads);
            (
                Supply::open(arrivals, start_ns, from_ns, end_ns),
                end_ns + spec.timeout_ns,
            )
        }
    };
    // The first threads take what does not divide evenly.
    let share = |whole: usize| whole / spec.threads + usize::from(index < whole % spec.threads);
    let log_limit = match spec.request_log {
        Some(_) => share(spec.log_limit),
        None => 0,
    };
    let connections = share(spec.loop_.connections());
    let dialogue = spec.ask.dialogue(index)?;
    let mut worker = Worker::new(
        dialogue,
        place,
        supply,
        connections,
        log_limit,
        spec.timeout_ns,
        end_ns,
    )?;
    if index == 0 {
        worker.books = Books::open(&spec.books);
    }
    Ok(worker)
}

/// Run each worker on a thread, the first on this one; none where one of them could not be started. When each began
/// comes with what it tells.
fn run_all<A: Sync, D: Dialogue>(
    spec: &Spec<A>,
    workers: Vec<Worker<D>>,
) -> Result<Vec<(i64, Tally)>, Failed> {
    let run_one = |index: usize, worker: Worker<D>| {
        sys::no_timer_slack();
        if !spec.cpus.is_empty() {
            let cpu = spec.cpus[index % spec.cpus.len()];
            sys::pin_to(cpu)
                .map_err(|error| Failed(format!("cannot pin a thread to CPU {cpu}: {error}")))?;
        }
        if let Some(start_ns) = spec.start_ns {
            sys::sleep_until(start_ns);
        }
        let begun_ns = sys::now_ns();
        worker.run().map(|tally| (begun_ns, tally))
    };
    // Whoever is started waits here until all are.
    let all_started = Mutex::new(false);
    thread::scope(|scope| {
        let mut started = all_started.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workers = workers.into_iter().enumerate();
        let first = workers.next();
        let others: Vec<_> = workers
            .map(|(index, worker)| {
                let all_started = &all_started;
                let begin = move || {
                    let all_are = *all_started.lock().unwrap_or_else(PoisonError::into_inner);
                    all_are.then(|| run_one(index, worker))
                };
                thread::Builder::new()
                    .spawn_scoped(scope, begin)
                    .map_err(|error| Failed::no_thread(index, &error))
            })
            .collect::<Result<_, _>>()?;
        if let Some(start_ns) = spec.start_ns {
            not_passed(start_ns, sys::now_ns(), "all threads were ready")?;
        }
        *started = true;
        drop(started);
        let mut tallies = Vec::new();
        if let Some((index, worker)) = first {
            tallies.push(run_one(index, worker)?);
        }
        for other in others {
            let joined = other
                .join()
                .map_err(|_| Failed("a thread of the generator panicked".into()))?;
            if let Some(tally) = joined {
                tallies.push(tally?);
            }
        }
        Ok(tallies)
    })
}

impl Report {
    fn new<A>(
        spec: &Spec<A>,
        place: &Place,
        tally: &Tally,
        start_ns: i64,
        budget: &Budget,
    ) -> Result<Self, Failed> {
        let (window, drain) = stretches(spec, tally, start_ns, budget)?;
        let (loop_, intended) = match spec.loop_ {
            Loop::Closed { requests, .. } => ("closed", requests.unwrap_or(tally.offered)),
            // Whatever was never started stands among the unfinished.
            Loop::Open { .. } => ("open", tally.completed + tally.censored()),
        };
        let open = loop_ == "open";
        let with_tls = place.tls.is_some();
        let (from_ns, end_ns) = (window.start_ns, window.end_ns);
        Ok(Report {
            loop_,
            intended,
            offered: tally.offered,
            completed: tally.completed,
            failures: by_kind(&tally.failures),
            censored: tally.censored(),
            window,
            begun_ns: None,
            lead_in: (spec.lead_in_ns > 0).then_some(LeadIn {
                start_ns,
                completed: tally.early_completed,
                failures: by_kind(&tally.early_failures),
                end_ns: tally.early_end_ns.unwrap_or(end_ns).max(end_ns),
            }),
            drain,
            users: (!open).then(|| Users {
                beginning_ns: tally.window.beginning_ns,
                there_ns: (end_ns - from_ns).saturating_mul(spec.loop_.connections() as i64),
            }),
            queued: open.then_some(tally.queued),
            queue_max_ns: open.then_some(tally.queue_max_ns),
            connects: tally.connects,
            handshakes: with_tls.then_some(tally.tls.handshakes),
            tls: with_tls.then(|| TlsReport::new(&tally.tls)),
            log: None,
            histogram: tally.latencies.buckets().collect(),
            lateness: open.then(|| tally.lateness.buckets().collect()),
        })
    }
}

/// The kinds of failures that there were.
fn by_kind(failures: &[u64; Failure::ALL.len()]) -> BTreeMap<&'static str, u64> {
    let all = Failure::ALL.map(|(kind, name)| (name, failures[kind as usize]));
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Where the window ends, and what was under way then. Fails where the counts do not add up.
fn stretches<A>(
    spec: &Spec<A>,
    tally: &Tally,
    start_ns: i64,
    budget: &Budget,
) -> Result<(Window, Option<Drain>), Failed> {
    let unfinished = tally.failures[Failure::Unfinished as usize];
    let ended = tally.window.completed + tally.window.failed;
    let under_way = tally.offered.checked_sub(ended);
    let ends = tally.completed + tally.censored();
    let Some(under_way) =
        under_way.filter(|_| ends - unfinished <= tally.offered && tally.offered <= ends)
    else {
        return Err(Failed(format!(
            "lost count of its requests ({} offered, {ends} ended, {ended} in the window): report this as a defect",
            tally.offered
        )));
    };
    let from_ns = start_ns + spec.lead_in_ns;
    let begins_at_once = spec.start_ns.is_none() && spec.lead_in_ns == 0;
    let (start_ns, end_ns) = match spec.loop_ {
        Loop::Closed { .. } if begins_at_once => {
            (tally.first_ns.unwrap_or(start_ns), budget.until_ns())
        }
        Loop::Closed { .. } => (budget.begin_ns(), budget.until_ns()),
        Loop::Open { duration_ns, .. } => (from_ns, from_ns + duration_ns),
    };
    let sent_at_once = match spec.loop_ {
        Loop::Closed { .. } => spec.lead_in_ns == 0 && budget.is_used_up() && ended == 0,
        Loop::Open { .. } => false,
    };
    let window = Window {
        start_ns,
        end_ns,
        completed: tally.window.completed,
        partial: (!sent_at_once).then_some(tally.window.partial),
        body_bytes: tally.window.body_bytes,
        cpu_user_ns: tally.window.cpu.user_ns,
        cpu_system_ns: tally.window.cpu.system_ns,
        booked: tally.used.clone(),
    };
    let drain = Drain {
        under_way,
        completed: tally.completed - tally.window.completed,
        end_ns: tally.last_ns.unwrap_or(end_ns).max(end_ns),
    };
    Ok((window, (under_way > 0).then_some(drain)))
}

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
