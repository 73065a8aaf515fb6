//! What happened to the requests, counted by each thread for itself and added up at the end.

use virtoll_wire::hist::Histogram;

use crate::log::Record;

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

/// One thread's counts.
#[derive(Debug)]
pub struct Tally {
    pub offered: u64,
    pub completed: u64,
    pub failures: [u64; Failure::ALL.len()],
    pub connects: u64,
    pub body_bytes: u64,
    /// Latencies of completed requests, from the intended start.
    pub latencies: Histogram,
    /// The latest that a request left the generator although a connection was free for it.
    pub lag_max_ns: i64,
    /// Requests that were due while all connections were busy, and the longest such wait.
    pub queued: u64,
    pub queue_max_ns: i64,
    /// First start and last end of a request, where there was any.
    pub first_ns: Option<i64>,
    pub last_ns: Option<i64>,
    pub log: Vec<Record>,
    log_limit: usize,
}

impl Tally {
    pub fn new(log_limit: usize) -> Self {
        Tally {
            offered: 0,
            completed: 0,
            failures: [0; Failure::ALL.len()],
            connects: 0,
            body_bytes: 0,
            latencies: Histogram::default(),
            lag_max_ns: 0,
            queued: 0,
            queue_max_ns: 0,
            first_ns: None,
            last_ns: None,
            log: Vec::with_capacity(log_limit),
            log_limit,
        }
    }

    pub fn complete(&mut self, intended_ns: i64, now_ns: i64, status: u16) {
        self.completed += 1;
        self.latencies.record((now_ns - intended_ns) as u64);
        self.log(intended_ns, now_ns, status as i16);
    }

    /// `status`: of the answer, where there was one and its status is what failed.
    pub fn fail(&mut self, failure: Failure, intended_ns: i64, now_ns: i64, status: Option<u16>) {
        self.failures[failure as usize] += 1;
        self.log(
            intended_ns,
            now_ns,
            status.map_or(failure.code(), |status| status as i16),
        );
    }

    fn log(&mut self, intended_ns: i64, now_ns: i64, status: i16) {
        self.last_ns = Some(now_ns);
        if self.log.len() < self.log_limit {
            self.log.push(Record {
                intended_ns,
                latency_ns: now_ns - intended_ns,
                status,
            });
        }
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
        self.body_bytes += other.body_bytes;
        self.latencies.merge(&other.latencies);
        self.lag_max_ns = self.lag_max_ns.max(other.lag_max_ns);
        self.queued += other.queued;
        self.queue_max_ns = self.queue_max_ns.max(other.queue_max_ns);
        self.first_ns = [self.first_ns, other.first_ns].into_iter().flatten().min();
        self.last_ns = self.last_ns.max(other.last_ns);
        self.log.extend(other.log);
    }
}
