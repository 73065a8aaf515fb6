//! What happened to the requests, counted by each thread for itself and added up at the end.

use std::collections::BTreeMap;
use std::io;

use virtoll_generator::sys::CpuTime;
use virtoll_wire::hist::Histogram;

use crate::log::{Log, Record};

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection could be made.
    Connect,
    /// No complete answer within the time-out.
    Timeout,
    /// The connection ended before the head of an answer was complete, or was reset at any time.
    Reset,
    /// Another status than expected; of Redis: an error, or no value.
    Status,
    /// Another length of body or value than expected, or the stream ended within it.
    Length,
    /// What came was not the protocol.
    Parse,
    /// Not answered when the measurement ended, or (open loop) never sent.
    Unfinished,
    /// The TLS handshake failed, a certificate could not be verified, or what came later was no TLS.
    Tls,
    /// Of the expected length, and another value or other bytes than were asked for.
    Content,
    /// Timestamps of media that went back, or left out more than they may.
    Timestamps,
}

impl Failure {
    pub const ALL: [(Failure, &'static str); 10] = [
        (Failure::Connect, "connect"),
        (Failure::Timeout, "timeout"),
        (Failure::Reset, "reset"),
        (Failure::Status, "status"),
        (Failure::Length, "length"),
        (Failure::Parse, "parse"),
        (Failure::Unfinished, "unfinished"),
        (Failure::Tls, "tls"),
        (Failure::Content, "content"),
        (Failure::Timestamps, "timestamps"),
    ];

    /// How the request log shows it, where there is no status to show.
    pub fn code(self) -> i16 {
        -1 - self as i16
    }
}

/// Whether nobody was reached, or a connection broke.
pub fn kind_of(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT) => {
            Failure::Connect
        }
        _ => Failure::Reset,
    }
}

/// What ended while the generator was still asking, and what the generator itself used until then.
#[derive(Clone, Copy, Debug, Default)]
pub struct InWindow {
    pub completed: u64,
    /// Of what was answered correctly after it: the sum of the shares of their time that lay within it.
    pub partial: f64,
    pub failed: u64,
    pub body_bytes: u64,
    pub cpu: CpuTime,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub intended_ns: i64,
    pub now_ns: i64,
    /// How long it waited for the generator itself.
    pub late_ns: i64,
    /// The share of its time, from when it was sent, in which the generator was still asking; 1: it ended in the window.
    pub share: f64,
    /// It has its place in the request log.
    pub logged: bool,
}

impl End {
    /// The generator was still asking.
    fn is_in_window(&self) -> bool {
        self.share >= 1.0
    }
}

/// The share of a request's time, sent at `sent_ns` and ended at `end_ns`, that lay before `until_ns`.
pub fn share_until(until_ns: i64, sent_ns: i64, end_ns: i64) -> f64 {
    if end_ns <= until_ns {
        1.0
    } else {
        (until_ns - sent_ns).max(0) as f64 / (end_ns - sent_ns) as f64
    }
}

/// What became of TLS.
#[derive(Debug, Default)]
pub struct TlsTally {
    /// Handshakes that were done, each a full one.
    pub handshakes: u64,
    /// Cipher suite and key exchange of the first.
    pub agreed: Option<(String, String)>,
    /// Why others failed, and how often.
    pub reasons: BTreeMap<String, u64>,
}

/// A server that fails each time in another way must not fill the report.
const REASONS_MAX: usize = 16;

impl TlsTally {
    pub fn failed(&mut self, reason: String, count: u64) {
        let has_room = self.reasons.len() < REASONS_MAX || self.reasons.contains_key(&reason);
        let reason = if has_room { reason } else { "other".into() };
        *self.reasons.entry(reason).or_default() += count;
    }

    fn merge(&mut self, other: TlsTally) {
        self.handshakes += other.handshakes;
        self.agreed = self.agreed.take().or(other.agreed);
        for (reason, count) in other.reasons {
            self.failed(reason, count);
        }
    }
}

/// One thread's counts.
#[derive(Debug)]
pub struct Tally {
    pub offered: u64,
    pub completed: u64,
    pub failures: [u64; Failure::ALL.len()],
    pub connects: u64,
    pub tls: TlsTally,
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
            tls: TlsTally::default(),
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
        if end.is_in_window() {
            self.window.completed += 1;
            self.window.body_bytes += body_bytes;
        } else {
            self.window.partial += end.share;
        }
        self.latencies.record((end.now_ns - end.intended_ns) as u64);
        self.ended(end, status as i16);
    }

    /// `status`: of the answer, where there was one and its status is what failed.
    pub fn fail(&mut self, failure: Failure, end: End, status: Option<u16>) {
        self.failures[failure as usize] += 1;
        self.window.failed += u64::from(end.is_in_window());
        self.ended(end, status.map_or(failure.code(), |status| status as i16));
    }

    fn ended(&mut self, end: End, status: i16) {
        self.last_ns = Some(end.now_ns);
        if end.logged {
            self.log.add(Record {
                intended_ns: end.intended_ns,
                latency_ns: end.now_ns - end.intended_ns,
                status,
                late_ns: end.late_ns,
            });
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
        self.tls.merge(other.tls);
        self.window.completed += other.window.completed;
        self.window.partial += other.window.partial;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(tally: &mut Tally, share: f64) {
        let end = End {
            intended_ns: 0,
            now_ns: 10,
            late_ns: 0,
            share,
            logged: false,
        };
        tally.complete(end, 200, 100);
    }

    #[test]
    fn what_ends_after_the_window_counts_for_the_part_of_its_time_within() {
        assert_eq!(share_until(100, 50, 100), 1.0);
        assert_eq!(share_until(100, 50, 150), 0.5);
        assert_eq!(share_until(100, 100, 150), 0.0);
        assert_eq!(
            share_until(100, 120, 150),
            0.0,
            "open loop: sent after the end"
        );
        assert!(share_until(2_000, 0, 120_000) < 0.02, "one that hung");
    }

    #[test]
    fn parts_are_kept_apart_from_the_whole_and_a_failure_is_no_part() {
        let (mut tally, mut other) = (Tally::new(0), Tally::new(0));
        complete(&mut tally, 1.0);
        complete(&mut tally, 0.5);
        complete(&mut other, 0.25);
        let end = End {
            intended_ns: 0,
            now_ns: 10,
            late_ns: 0,
            share: 0.75,
            logged: false,
        };
        other.fail(Failure::Status, end, Some(500));
        let window = Tally::sum(vec![tally, other]).window;
        assert_eq!((window.completed, window.body_bytes), (1, 100));
        assert_eq!((window.partial, window.failed), (0.75, 0));
    }
}
