//! What happened to the requests, counted by each thread for itself and added up at the end.

use std::collections::BTreeMap;
use std::io;

use virtoll_generator::books::Used;
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
    /// Sent and answered correctly within it.
    pub completed: u64,
    /// Of what was answered correctly and under way at its begin or end: the sum of the shares of their time that lay
    /// within it.
    pub partial: f64,
    pub failed: u64,
    /// Of all that was answered correctly within it, whenever it was sent.
    pub body_bytes: u64,
    /// Of each user's time within it what lay before its first answer, when the others had been answered again and again:
    /// so long there were fewer users than asked for.
    pub beginning_ns: i64,
    pub cpu: CpuTime,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub intended_ns: i64,
    pub now_ns: i64,
    /// How long it waited for the generator itself.
    pub late_ns: i64,
    /// The share of its time, from when it was sent, that lay within the window.
    pub share: f64,
    pub position: Position,
    /// It has its place in the request log.
    pub logged: bool,
}

impl End {
    /// It was sent in the lead-in.
    fn is_early(&self) -> bool {
        !matches!(self.position, Position::Within | Position::OutOf)
    }
}

/// Where a request lay to the window, by when it was sent (open loop: due) and when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// All of it in the lead-in.
    Before,
    /// From the lead-in into the window.
    Into,
    /// From the lead-in to after the window.
    Across,
    Within,
    /// From the window to after it.
    OutOf,
}

/// The window: from when to when.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    pub from_ns: i64,
    pub until_ns: i64,
}

impl Stretch {
    /// Where a request lay that was due at `intended_ns` and ended at `end_ns`.
    pub fn position(&self, intended_ns: i64, end_ns: i64) -> Position {
        match (intended_ns < self.from_ns, end_ns <= self.until_ns) {
            (true, _) if end_ns <= self.from_ns => Position::Before,
            (true, true) => Position::Into,
            (true, false) => Position::Across,
            (false, true) => Position::Within,
            (false, false) => Position::OutOf,
        }
    }

    /// How much of it had passed at `now_ns`.
    pub fn passed_ns(&self, now_ns: i64) -> i64 {
        (now_ns.min(self.until_ns) - self.from_ns).max(0)
    }

    /// The share of a request's time, sent at `sent_ns` and ended at `end_ns`, that lay within.
    pub fn share(&self, sent_ns: i64, end_ns: i64) -> f64 {
        let inside_ns = end_ns.min(self.until_ns) - sent_ns.max(self.from_ns);
        if end_ns <= sent_ns {
            f64::from(u8::from(inside_ns >= 0))
        } else {
            inside_ns.max(0) as f64 / (end_ns - sent_ns) as f64
        }
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
    /// Sent in the lead-in and answered correctly, or failed, at any time; and when the last of all these ended.
    pub early_completed: u64,
    pub early_failures: [u64; Failure::ALL.len()],
    pub early_end_ns: Option<i64>,
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
    /// What others used within the window, as one of the threads found it.
    pub used: Option<Used>,
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
            early_completed: 0,
            early_failures: [0; Failure::ALL.len()],
            early_end_ns: None,
            latencies: Histogram::default(),
            lateness: Histogram::default(),
            queued: 0,
            queue_max_ns: 0,
            first_ns: None,
            last_ns: None,
            log: Log::new(log_limit),
            used: None,
        }
    }

    pub fn complete(&mut self, end: End, status: u16, body_bytes: u64) {
        match end.position {
            Position::Within => self.window.completed += 1,
            _ => self.window.partial += end.share,
        }
        if matches!(end.position, Position::Into | Position::Within) {
            self.window.body_bytes += body_bytes;
        }
        if end.is_early() {
            self.early_completed += 1;
            self.early_end_ns = Some(end.now_ns);
            return;
        }
        self.completed += 1;
        self.latencies.record((end.now_ns - end.intended_ns) as u64);
        self.ended(end, status as i16);
    }

    /// `status`: of the answer, where there was one and its status is what failed. What was sent in the lead-in is no
    /// event of the window, as when it is answered: were its failures, which are under way for longest, and not its
    /// answers, the share of what fails would be told too high.
    pub fn fail(&mut self, failure: Failure, end: End, status: Option<u16>) {
        if end.is_early() {
            self.early_failures[failure as usize] += 1;
            self.early_end_ns = Some(end.now_ns);
            return;
        }
        self.failures[failure as usize] += 1;
        self.window.failed += u64::from(end.position == Position::Within);
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

    /// What ended, the lead-in's too.
    pub fn ended_in_all(&self) -> u64 {
        let early_failed: u64 = self.early_failures.iter().sum();
        self.completed + self.censored() + self.early_completed + early_failed
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
        for (mine, theirs) in [
            (&mut self.failures, other.failures),
            (&mut self.early_failures, other.early_failures),
        ] {
            mine.iter_mut()
                .zip(theirs)
                .for_each(|(mine, theirs)| *mine += theirs);
        }
        self.connects += other.connects;
        self.tls.merge(other.tls);
        self.window.completed += other.window.completed;
        self.window.partial += other.window.partial;
        self.window.failed += other.window.failed;
        self.window.body_bytes += other.window.body_bytes;
        let beginning_ns = &mut self.window.beginning_ns;
        *beginning_ns = beginning_ns.saturating_add(other.window.beginning_ns);
        self.window.cpu += other.window.cpu;
        self.early_completed += other.early_completed;
        self.early_end_ns = self.early_end_ns.max(other.early_end_ns);
        self.latencies.merge(&other.latencies);
        self.lateness.merge(&other.lateness);
        self.queued += other.queued;
        self.queue_max_ns = self.queue_max_ns.max(other.queue_max_ns);
        self.first_ns = [self.first_ns, other.first_ns].into_iter().flatten().min();
        self.last_ns = self.last_ns.max(other.last_ns);
        self.log.merge(other.log);
        self.used = self.used.take().or(other.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Stretch = Stretch {
        from_ns: 0,
        until_ns: 100,
    };

    /// As a request of the closed loop ends that was sent and ended at these times.
    fn end(sent_ns: i64, now_ns: i64) -> End {
        End {
            intended_ns: sent_ns,
            now_ns,
            late_ns: 0,
            share: WINDOW.share(sent_ns, now_ns),
            position: WINDOW.position(sent_ns, now_ns),
            logged: false,
        }
    }

    #[test]
    fn what_is_under_way_at_an_end_of_the_window_counts_for_the_part_of_its_time_within() {
        assert_eq!(WINDOW.share(50, 100), 1.0);
        assert_eq!(WINDOW.share(50, 150), 0.5);
        assert_eq!(WINDOW.share(100, 150), 0.0);
        assert_eq!(WINDOW.share(120, 150), 0.0, "open loop: sent after the end");
        assert_eq!(WINDOW.share(-50, 50), 0.5);
        assert_eq!(WINDOW.share(-100, 300), 0.25);
        assert_eq!(WINDOW.share(-50, 0), 0.0);
        assert_eq!((WINDOW.share(50, 50), WINDOW.share(150, 150)), (1.0, 0.0));
        assert!(WINDOW.share(0, 6_000) < 0.02, "one that hung");
    }

    #[test]
    fn parts_are_kept_apart_from_the_whole_and_a_failure_is_no_part() {
        let (mut tally, mut other) = (Tally::new(0), Tally::new(0));
        tally.complete(end(0, 100), 200, 100);
        tally.complete(end(50, 150), 200, 100);
        other.complete(end(75, 175), 200, 100);
        other.fail(Failure::Status, end(25, 125), Some(500));
        let window = Tally::sum(vec![tally, other]).window;
        assert_eq!((window.completed, window.body_bytes), (1, 100));
        assert_eq!((window.partial, window.failed), (0.75, 0));
    }

    /// The work of a window of a closed loop, whose users all begin at 0, at a server that answers one after the other.
    fn work_in_a_queue(users: i64, service_ns: i64, window: Stretch) -> f64 {
        let sent = |number: i64| (number - users + 1).max(0) * service_ns;
        (0..2 * users + window.until_ns / service_ns)
            .filter(|number| sent(*number) < window.until_ns)
            .map(|number| window.share(sent(number), (number + 1) * service_ns))
            .sum()
    }

    #[test]
    fn a_window_that_begins_amid_its_load_tells_the_rate_and_one_that_begins_empty_half_its_users_more(
    ) {
        let users = 20;
        for served in [20, 60, 300] {
            let told = |from_ns| {
                let until_ns = from_ns + served * 1000;
                work_in_a_queue(users, 1000, Stretch { from_ns, until_ns }) / served as f64
            };
            assert!((told(20_000) - 1.0).abs() < 1e-9, "{}", told(20_000));
            assert!((told(31_400) - 1.0).abs() < 1e-9, "not by the phase");
            let too_many = (told(0) - 1.0) * served as f64;
            assert!((9.0..=10.0).contains(&too_many), "{too_many}");
        }
    }

    #[test]
    fn what_was_sent_in_the_lead_in_is_a_part_of_the_work_and_no_event() {
        let mut tally = Tally::new(0);
        tally.complete(end(-50, -10), 200, 100);
        tally.complete(end(-50, 50), 200, 100);
        tally.complete(end(-100, 300), 200, 100);
        assert_eq!((tally.window.partial, tally.window.body_bytes), (0.75, 100));
        assert_eq!((tally.early_completed, tally.early_end_ns), (3, Some(300)));
        assert_eq!((tally.completed, tally.window.completed), (0, 0));
        assert_eq!(tally.latencies.buckets().count(), 0);
        // What failed is none either, but is told.
        tally.fail(Failure::Timeout, end(-50, -10), None);
        tally.fail(Failure::Timeout, end(-50, 50), None);
        tally.fail(Failure::Timeout, end(-50, 350), None);
        let all = Tally::sum(vec![tally, Tally::new(0)]);
        assert_eq!((all.offered, all.censored()), (0, 0));
        assert_eq!((all.window.failed, all.last_ns), (0, None));
        assert_eq!(all.early_failures[Failure::Timeout as usize], 3);
        assert_eq!((all.early_end_ns, all.ended_in_all()), (Some(350), 6));
    }

    #[test]
    fn the_share_that_is_told_to_fail_is_that_of_the_server_whenever_the_window_begins() {
        // One user: of 200 requests each last hangs for as long as 300 others take.
        let requests: Vec<_> = (0..40)
            .flat_map(|round| {
                let from_ns = round * 499;
                let served = (0..199).map(move |k| (from_ns + k, from_ns + k + 1, true));
                served.chain([(from_ns + 199, from_ns + 499, false)])
            })
            .collect();
        let mut told = [0, 0];
        for from_ns in 5000..5499 {
            let window = Stretch {
                from_ns,
                until_ns: from_ns + 499,
            };
            let mut tally = Tally::new(0);
            let sent = requests
                .iter()
                .filter(|(sent_ns, ..)| *sent_ns < window.until_ns);
            for &(sent_ns, now_ns, is_served) in sent {
                let end = End {
                    share: window.share(sent_ns, now_ns),
                    position: window.position(sent_ns, now_ns),
                    ..end(sent_ns, now_ns)
                };
                match is_served {
                    true => tally.complete(end, 200, 1),
                    false => tally.fail(Failure::Timeout, end, None),
                }
            }
            told[0] += tally.censored();
            told[1] += tally.completed + tally.censored();
        }
        assert_eq!(told[1], 200 * told[0], "{told:?}");
    }
}
