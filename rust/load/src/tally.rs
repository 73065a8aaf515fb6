//! What happened to the requests, counted by each thread for itself and added up at the end.

use virtoll_wire::hist::Histogram;

use crate::log::Log;
use crate::sys::CpuTime;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection could be made.
    Connect,
    /// No complete answer within the time-out.
    Timeout,
    /// The connection ended before the head of an answer was complete, or was reset at any time.
    Reset,
    /// Another status than expected.
    Status,
    /// Another body length than expected, or the stream ended within the body.
    Length,
    /// What came was not HTTP.
    Parse,
    /// Not answered when the measurement ended, or (open loop) never sent.
    Unfinished,
}

impl Failure {
    pub const ALL: [(Failure, &'static str); 7] = [
        (Failure::Connect, "connect"),
        (Failure::Timeout, "timeout"),
        (Failure::Reset, "reset"),
        (Failure::Status, "status"),
        (Failure::Length, "length"),
        (Failure::Parse, "parse"),
        (Failure::Unfinished, "unfinished"),
    ];

    /// How the request log shows it, where there is no HTTP status to show.
    pub fn code(self) -> i16 {
        -1 - self as i16
    }
}

/// What ended while the generator was still asking, and what the generator itself used until then.
#[derive(Clone, Copy, Debug, Default)]
pub struct InWindow {
    pub completed: u64,
    pub failed: u64,
    pub body_bytes: u64,
    pub cpu: CpuTime,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub intended_ns: i64,
    pub now_ns: i64,
    /// The generator was still asking.
    pub in_window: bool,
    /// It has its place in the request log.
    pub logged: bool,
}

/// One thread's counts.
#[derive(Debug)]
pub struct Tally {
    pub offered: u64,
    pub completed: u64,
    pub failures: [u64; Failure::ALL.len()],
    pub connects: u64,
    pub window: InWindow,
    /// Latencies of completed requests, from the intended start.
    pub latencies: Histogram,
    /// Open loop: how long each request waited for the generator itself.
    pub lateness: Histogram,
    /// Requests that were due while all connections were busy, and the longest such wait.
    pub queued: u64,
    pub queue_max_ns: i64,
    /// First start and last end of a request, where there was any.
    pub first_ns: Option<i64>,
    pub last_ns: Option<i64>,
    pub log: Log,
}

impl Tally {
    pub fn new(log_limit: usize) -> Self {
        Tally {
            offered: 0,
            completed: 0,
            failures: [0; Failure::ALL.len()],
            connects: 0,
            window: InWindow::default(),
            latencies: Histogram::default(),
            lateness: Histogram::default(),
            queued: 0,
            queue_max_ns: 0,
            first_ns: None,
            last_ns: None,
            log: Log::new(log_limit),
        }
    }

    pub fn complete(&mut self, end: End, status: u16, body_bytes: u64) {
        self.completed += 1;
        if end.in_window {
            self.window.completed += 1;
            self.window.body_bytes += body_bytes;
        }
        self.latencies.record((end.now_ns - end.intended_ns) as u64);
        self.ended(end, status as i16);
    }

    /// `status`: of the answer, where there was one and its status is what failed.
    pub fn fail(&mut self, failure: Failure, end: End, status: Option<u16>) {
        self.failures[failure as usize] += 1;
        self.window.failed += u64::from(end.in_window);
        self.ended(end, status.map_or(failure.code(), |status| status as i16));
    }

    fn ended(&mut self, end: End, status: i16) {
        self.last_ns = Some(end.now_ns);
        if end.logged {
            self.log
                .add(end.intended_ns, end.now_ns - end.intended_ns, status);
        }
    }

    /// All requests that failed, or were never sent.
    pub fn censored(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// All threads' counts as one.
    pub fn sum(tallies: Vec<Tally>) -> Tally {
        let mut tallies = tallies.into_iter();
        let mut all = tallies.next().unwrap_or_else(|| Tally::new(0));
        tallies.for_each(|other| all.merge(other));
        all
    }

    fn merge(&mut self, other: Tally) {
        self.offered += other.offered;
        self.completed += other.completed;
        for (mine, theirs) in self.failures.iter_mut().zip(other.failures) {
            *mine += theirs;
        }
        self.connects += other.connects;
        self.window.completed += other.window.completed;
        self.window.failed += other.window.failed;
        self.window.body_bytes += other.window.body_bytes;
        self.window.cpu += other.window.cpu;
        self.latencies.merge(&other.latencies);
        self.lateness.merge(&other.lateness);
        self.queued += other.queued;
        self.queue_max_ns = self.queue_max_ns.max(other.queue_max_ns);
        self.first_ns = [self.first_ns, other.first_ns].into_iter().flatten().min();
        self.last_ns = self.last_ns.max(other.last_ns);
        self.log.merge(other.log);
    }
}
