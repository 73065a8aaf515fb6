//! What became of participants and of streams: counted by each thread for itself and added up for each report.

use std::collections::BTreeMap;

use serde::Serialize;
use virtoll_generator::sys::CpuTime;
use virtoll_wire::hist::Histogram;

use super::room::Failure;
use super::spec::{Role, OTHER};

/// What is looked at later than this was late by the generator's fault (record/model.py).
pub const LATE_NS: i64 = 10_000_000;
/// Words of a server's that are told apart; one that makes up more is not followed.
const MOST_KINDS: usize = 32;

/// A stretch of time: the window. CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from_ns: i64,
    pub until_ns: i64,
}

impl Span {
    /// Before the first order.
    pub const NEVER: Span = Span {
        from_ns: i64::MAX,
        until_ns: i64::MAX,
    };

    pub fn holds(self, at_ns: i64) -> bool {
        (self.from_ns..self.until_ns).contains(&at_ns)
    }

    /// The part of a stretch that lies within it.
    pub fn part_ns(self, from_ns: i64, until_ns: i64) -> i64 {
        until_ns
            .min(self.until_ns)
            .saturating_sub(from_ns.max(self.from_ns))
            .max(0)
    }
}

type Buckets = Vec<(u64, u64, u64)>;

fn buckets(histogram: &Histogram) -> Buckets {
    histogram.buckets().collect()
}

/// Counts that are added up one by one.
macro_rules! counts {
    ($(#[$of:meta])* $name:ident / $told:ident { $($(#[$about:meta])* $count:ident: $type:ty,)* } { $($histogram:ident,)* }) => {
        $(#[$of])*
        #[derive(Clone, Debug, Default)]
        pub struct $name {
            $($(#[$about])* pub $count: $type,)*
            $(pub $histogram: Histogram,)*
        }

        impl $name {
            fn add(&mut self, other: &$name) {
                $(self.$count += other.$count;)*
                $(self.$histogram.merge(&other.$histogram);)*
            }

            fn told(&self) -> $told {
                $told {
                    $($count: self.$count,)*
                    $($histogram: buckets(&self.$histogram),)*
                }
            }
        }

        #[derive(Debug, Serialize)]
        pub struct $told {
            $($count: $type,)*
            $($histogram: Buckets,)*
        }
    };
}

counts! {
    /// Received of the streams of one role; of the window, but for `first_packet` and `first_key_frame`, which are of the
    /// time since the report before.
    Counts / CountsTold {
        /// Subscribed to at the window's end.
        streams: u64,
        /// Those to which the first of it never came (`First`).
        no_first_packet: u64,
        no_first_key_frame: u64,
        watched_ns: i64,
        waiting_ns: i64,
        packets: u64,
        /// Of datagrams.
        bytes: u64,
        /// Of RTP payload that was of use.
        media_bytes: u64,
        expected: u64,
        repaired: u64,
        /// After repair.
        lost: u64,
        /// Twice, too late, or not to be decrypted.
        duplicates: u64,
        frames: u64,
        key_frames: u64,
        freezes: u64,
        frozen_ns: i64,
        key_frames_asked: u64,
        nacks: u64,
        dropped: u64,
    } { jitter, first_packet, first_key_frame, }
}

counts! {
    /// Sent by participants of one role, in the window.
    Sent / SentTold {
        streams: u64,
        frames: u64,
        key_frames: u64,
        key_frames_asked: u64,
        /// RTP, retransmissions too; and of datagrams.
        packets: u64,
        bytes: u64,
        nacks: u64,
        late_frames: u64,
    } { rtt, }
}

counts! {
    /// Of the audio that participants hear, and say; of the window, but for `first_packet`, which is of the time since the
    /// report before.
    Heard / HeardTold {
        /// There at the window's end.
        listeners: u64,
        /// Those to whom nothing had come within the patience, by the window's end.
        unheard: u64,
        /// Those to whom its first never came (`First`).
        no_first_packet: u64,
        /// All their time since they came in, and the part of it without a first packet yet.
        there_ns: i64,
        waiting_ns: i64,
        packets: u64,
        /// Of Opus.
        bytes: u64,
        expected: u64,
        lost: u64,
        /// Twice, too late, or not to be decrypted.
        useless: u64,
        gaps: u64,
        silent_ns: i64,
        /// Frames of Opus that were due.
        said: u64,
        said_late: u64,
    } { jitter, first_packet, }
}

/// How many failed of what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures(BTreeMap<String, u64>);

impl Failures {
    pub fn count(&mut self, failure: &Failure) {
        let kind = failure.kind();
        let is_known = self.0.len() < MOST_KINDS || self.0.contains_key(&kind);
        let kind = if is_known { kind } else { "other".to_owned() };
        *self.0.entry(kind).or_default() += 1;
    }

    fn add(&mut self, other: &Failures) {
        for (kind, count) in &other.0 {
            *self.0.entry(kind.clone()).or_default() += count;
        }
    }
}

/// One thread's counts since the report before.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The window that is to be, from its order on, or is.
    pub span: Span,
    pub present_ns: i64,
    pub joined_at_start: u64,
    pub joined_at_end: u64,
    pub wakes: u64,
    pub wakes_late: u64,
    pub cpu: CpuTime,
    pub offered: u64,
    pub joined: u64,
    pub again: u64,
    pub under_way: u64,
    pub not_joined: Failures,
    pub times: Histogram,
    pub lateness: Histogram,
    pub ordered_away: u64,
    pub lost: Failures,
    /// By role.
    pub sent: Vec<Sent>,
    /// By role; the last: of nobody of ours.
    pub received: Vec<Counts>,
    pub heard: Heard,
    pub ice_rtt: Histogram,
}

impl Tally {
    pub fn new(roles: usize) -> Self {
        Tally {
            span: Span::NEVER,
            present_ns: 0,
            joined_at_start: 0,
            joined_at_end: 0,
            wakes: 0,
            wakes_late: 0,
            cpu: CpuTime::default(),
            offered: 0,
            joined: 0,
            again: 0,
            under_way: 0,
            not_joined: Failures::default(),
            times: Histogram::default(),
            lateness: Histogram::default(),
            ordered_away: 0,
            lost: Failures::default(),
            sent: vec![Sent::default(); roles],
            received: vec![Counts::default(); roles + 1],
            heard: Heard::default(),
            ice_rtt: Histogram::default(),
        }
    }

    /// A timer's turn has come. While nobody looks there is no other of the same participant's: one that is late counts
    /// as often as it could have been so, within the window.
    pub fn woke(&mut self, due_ns: i64, now_ns: i64) {
        let is_late = now_ns - due_ns > LATE_NS;
        let late_times = match is_late {
            true => (self.span.part_ns(due_ns, now_ns) / LATE_NS) as u64,
            false => 0,
        };
        if self.span.holds(due_ns) {
            self.wakes += late_times.max(1);
            self.wakes_late += late_times.max(u64::from(is_late));
        } else {
            self.wakes += late_times; // it was due before the window, and looked at amid it
            self.wakes_late += late_times;
        }
    }

    /// Add another thread's.
    pub fn add(&mut self, other: &Tally) {
        self.present_ns += other.present_ns;
        self.joined_at_start += other.joined_at_start;
        self.joined_at_end += other.joined_at_end;
        self.wakes += other.wakes;
        self.wakes_late += other.wakes_late;
        self.cpu += other.cpu;
        self.offered += other.offered;
        self.joined += other.joined;
        self.again += other.again;
        self.under_way += other.under_way;
        self.not_joined.add(&other.not_joined);
        self.times.merge(&other.times);
        self.lateness.merge(&other.lateness);
        self.ordered_away += other.ordered_away;
        self.lost.add(&other.lost);
        let sent = self.sent.iter_mut().zip(&other.sent);
        sent.for_each(|(mine, theirs)| mine.add(theirs));
        let received = self.received.iter_mut().zip(&other.received);
        received.for_each(|(mine, theirs)| mine.add(theirs));
        self.heard.add(&other.heard);
        self.ice_rtt.merge(&other.ice_rtt);
    }
}

/// What is said of a window; see /docs for the words. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Serialize)]
pub struct Report {
    window: WindowTold,
    joins: JoinsTold,
    leaves: LeavesTold,
    sent: BTreeMap<String, SentTold>,
    received: BTreeMap<String, ReceivedTold>,
    audio: HeardTold,
    ice_rtt: Buckets,
}

#[derive(Debug, Serialize)]
struct WindowTold {
    start_ns: i64,
    end_ns: i64,
    participants: usize,
    present_ns: i64,
    joined_at_start: u64,
    joined_at_end: u64,
    wakes: u64,
    wakes_late: u64,
    cpu_user_ns: i64,
    cpu_system_ns: i64,
}

#[derive(Debug, Serialize)]
struct JoinsTold {
    offered: u64,
    joined: u64,
    again: u64,
    under_way: u64,
    failures: BTreeMap<String, u64>,
    time: Buckets,
    lateness: Buckets,
}

#[derive(Debug, Serialize)]
struct LeavesTold {
    ordered: u64,
    failures: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct ReceivedTold {
    #[serde(flatten)]
    counts: CountsTold,
    lost_before: u64,
}

impl Report {
    pub fn new(tally: &Tally, roles: &[Role], participants: usize) -> Self {
        let senders = roles
            .iter()
            .zip(&tally.sent)
            .filter(|(role, _)| role.film.is_some());
        let names = roles.iter().map(|role| role.name.as_str()).chain([OTHER]);
        let sends = |role: usize| roles.get(role).is_none_or(|role| role.film.is_some());
        let received = names.zip(&tally.received).enumerate();
        Report {
            window: WindowTold {
                start_ns: tally.span.from_ns,
                end_ns: tally.span.until_ns,
                participants,
                present_ns: tally.present_ns,
                joined_at_start: tally.joined_at_start,
                joined_at_end: tally.joined_at_end,
                wakes: tally.wakes,
                wakes_late: tally.wakes_late,
                cpu_user_ns: tally.cpu.user_ns,
                cpu_system_ns: tally.cpu.system_ns,
            },
            joins: JoinsTold {
                offered: tally.offered,
                joined: tally.joined,
                again: tally.again,
                under_way: tally.under_way,
                failures: tally.not_joined.0.clone(),
                time: buckets(&tally.times),
                lateness: buckets(&tally.lateness),
            },
            leaves: LeavesTold {
                ordered: tally.ordered_away,
                failures: tally.lost.0.clone(),
            },
            sent: senders
                .map(|(role, sent)| (role.name.clone(), sent.told()))
                .collect(),
            received: received
                .filter(|(role, _)| sends(*role))
                .map(|(_, (name, counts))| {
                    let told = ReceivedTold {
                        counts: counts.told(),
                        lost_before: counts.lost + counts.repaired,
                    };
                    (name.to_owned(), told)
                })
                .collect(),
            audio: tally.heard.told(),
            ice_rtt: buckets(&tally.ice_rtt),
        }
    }
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;
