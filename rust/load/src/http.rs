//! `virtoll-load http`: run a measurement and report it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::thread;

use serde::Serialize;

use crate::schedule::{Arrivals, Supply};
use crate::spec::{HttpSpec, Loop};
use crate::tally::{Failure, Tally};
use crate::worker::Worker;
use crate::{log, sys, Failed};

/// An open schedule begins a little later, when all threads are ready.
const OPEN_START_DELAY_NS: i64 = 2_000_000;

/// After the last time-out of a closed loop, for the clock tick that notices it.
const CLOSED_GRACE_NS: i64 = 200_000_000;

/// What happened, as JSON on standard output. Times are CLOCK_MONOTONIC nanoseconds.
///
/// Closed loop: `intended` is the number of requests asked for, or of those offered where only time was the bound.
/// Open loop: the arrivals of the schedule. Each of the `offered` (started) requests was `completed` or is in
/// `failures`. The time limit of a closed loop is that of the last start: what is under way then is waited for, for
/// cutting it off would drop the slowest requests and with them the truth about a slow server. Kind `unfinished`
/// holds what an open loop had under way one time-out after its last arrival, and what it never started.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(rename = "loop")]
    loop_: &'static str,
    intended: u64,
    offered: u64,
    completed: u64,
    failures: BTreeMap<&'static str, u64>,
    /// First start (closed) or start of the schedule (open).
    start_ns: i64,
    /// End of the last request, whatever its fate.
    end_ns: i64,
    body_bytes: u64,
    cpu_user_ns: i64,
    cpu_system_ns: i64,
    /// Open loop: how late the generator sent although a connection was free.
    lag_max_ns: Option<i64>,
    /// Open loop: requests that had to wait for a free connection, and the longest such wait.
    queued: Option<u64>,
    queue_max_ns: Option<i64>,
    connects: u64,
    logged: usize,
    /// Latencies of completed requests: (lower_ns, upper_ns, count), lower <= latency < upper.
    histogram: Vec<(u64, u64, u64)>,
}

/// Run a measurement to its end.
pub fn run(spec: &HttpSpec) -> Result<Report, Failed> {
    sys::raise_open_files(2 * spec.loop_.connections() as u64 + 64)
        .map_err(|error| Failed::system("setrlimit(open files)", &error))?;
    let budget = match spec.loop_ {
        Loop::Closed {
            requests: Some(requests),
            ..
        } => Some(AtomicU64::new(requests)),
        _ => None,
    };
    let (cpu_before, start_ns) = (sys::cpu_ns(), sys::now_ns());
    let workers = (0..spec.threads)
        .map(|index| worker(spec, index, start_ns, budget.as_ref()))
        .collect::<Result<Vec<_>, _>>()?;
    let tallies = run_all(spec, workers)?;
    let cpu_after = sys::cpu_ns();
    let mut tally = Tally::sum(tallies);
    let mut report = Report::new(spec, &tally, start_ns);
    (report.cpu_user_ns, report.cpu_system_ns) =
        (cpu_after.0 - cpu_before.0, cpu_after.1 - cpu_before.1);
    if let Some(path) = &spec.request_log {
        report.logged =
            log::write(path, &mut tally.log, report.start_ns, spec.log_limit).map_err(|error| {
                Failed(format!(
                    "cannot write the request log {}: {error}",
                    path.display()
                ))
            })?;
    }
    Ok(report)
}

fn worker<'a>(
    spec: &HttpSpec,
    index: usize,
    start_ns: i64,
    budget: Option<&'a AtomicU64>,
) -> Result<Worker<'a>, Failed> {
    let (supply, end_ns) = match spec.loop_ {
        Loop::Closed { time_limit_ns, .. } => {
            let last_start_ns = start_ns + time_limit_ns;
            (
                Supply::closed(budget, last_start_ns),
                last_start_ns + spec.timeout_ns + CLOSED_GRACE_NS,
            )
        }
        Loop::Open {
            rate_per_s,
            arrival,
            duration_ns,
            seed,
            ..
        } => {
            let start_ns = start_ns + OPEN_START_DELAY_NS;
            let arrivals =
                Arrivals::new(arrival, rate_per_s, duration_ns, seed, index, spec.threads);
            (
                Supply::open(arrivals, start_ns),
                start_ns + duration_ns + spec.timeout_ns,
            )
        }
    };
    // The first threads take what does not divide evenly.
    let connections = spec.loop_.connections();
    let share = connections / spec.threads + usize::from(index < connections % spec.threads);
    Worker::new(spec, supply, share, end_ns)
}

/// Run each worker on a thread, the first on this one.
fn run_all(spec: &HttpSpec, workers: Vec<Worker>) -> Result<Vec<Tally>, Failed> {
    let run_one = |index: usize, worker: Worker| {
        sys::no_timer_slack();
        if !spec.cpus.is_empty() {
            let cpu = spec.cpus[index % spec.cpus.len()];
            sys::pin_to(cpu)
                .map_err(|error| Failed(format!("cannot pin a thread to CPU {cpu}: {error}")))?;
        }
        worker.run()
    };
    thread::scope(|scope| {
        let mut workers = workers.into_iter().enumerate();
        let first = workers.next();
        let others: Vec<_> = workers
            .map(|(index, worker)| scope.spawn(move || run_one(index, worker)))
            .collect();
        let mut tallies = Vec::new();
        if let Some((index, worker)) = first {
            tallies.push(run_one(index, worker)?);
        }
        for other in others {
            let joined = other
                .join()
                .map_err(|_| Failed("a thread of the generator panicked".into()))?;
            tallies.push(joined?);
        }
        Ok(tallies)
    })
}

impl Report {
    fn new(spec: &HttpSpec, tally: &Tally, start_ns: i64) -> Self {
        let failures = Failure::ALL.map(|(kind, name)| (name, tally.failures[kind as usize]));
        let unfinished = tally.failures[Failure::Unfinished as usize];
        let fates = tally.completed + tally.failures.iter().sum::<u64>();
        let (loop_, intended, start_ns) = match spec.loop_ {
            Loop::Closed { requests, .. } => (
                "closed",
                requests.unwrap_or(tally.offered),
                tally.first_ns.unwrap_or(start_ns),
            ),
            // Whatever was never started stands among the unfinished.
            Loop::Open { .. } => ("open", fates, start_ns + OPEN_START_DELAY_NS),
        };
        debug_assert!(fates - unfinished <= tally.offered && tally.offered <= fates);
        let open = loop_ == "open";
        Report {
            loop_,
            intended,
            offered: tally.offered,
            completed: tally.completed,
            failures: failures
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect(),
            start_ns,
            end_ns: tally.last_ns.unwrap_or(start_ns),
            body_bytes: tally.body_bytes,
            cpu_user_ns: 0,
            cpu_system_ns: 0,
            lag_max_ns: open.then_some(tally.lag_max_ns),
            queued: open.then_some(tally.queued),
            queue_max_ns: open.then_some(tally.queue_max_ns),
            connects: tally.connects,
            logged: 0,
            histogram: tally.latencies.buckets().collect(),
        }
    }
}
