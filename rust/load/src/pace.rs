//! How long to doze before asking for events again, in closed loop.
//!
//! A generator that waits in epoll is woken by the first answer, and the server's CPU pays for that: it wakes a
//! thread on another CPU, for each answer or two where the generator is quicker than the server. Seen over loopback
//! with 20 to 400 connections: 7 to 17 % more server CPU a request than under a generator so slow that it never
//! slept, and as much less throughput. A timer's wake is paid for by the generator's own CPU. So where many answers are
//! under way and nothing has come, it dozes for a little before it waits in epoll, and finds several at once.
//!
//! Meanwhile an answer may lie unseen: for at most a sixteenth of the mean latency, and never more than
//! `DOZE_MAX_NS`. In open loop, and with fewer than sixteen requests under way on a thread, it never dozes.

/// An answer is noted at most this much late, and at most this part of the mean latency.
pub const DOZE_MAX_NS: i64 = 20_000;
const DOZE_PART: i64 = 16;
/// With fewer under way hardly another answer comes meanwhile. (That the mean gap between answers is longer than a doze
/// tells nothing: they come in bursts, and on a shared CPU with long pauses between.)
const IN_FLIGHT_MIN: usize = 16;
/// What is shorter takes longer than it says: a timer is set and fires.
const DOZE_MIN_NS: i64 = 4_000;

/// How fast requests end, by the last stretch between two ticks.
#[derive(Debug)]
pub struct Pace {
    since_ns: i64,
    ended: u64,
    /// Mean time between two ends; none: too few to tell.
    gap_ns: Option<i64>,
}

impl Pace {
    pub fn new(now_ns: i64) -> Self {
        Pace {
            since_ns: now_ns,
            ended: 0,
            gap_ns: None,
        }
    }

    /// A tick: so many requests have ended so far.
    pub fn tick(&mut self, now_ns: i64, ended: u64) {
        let (time_ns, count) = (now_ns - self.since_ns, ended - self.ended);
        self.gap_ns = i64::try_from(count)
            .ok()
            .and_then(|count| time_ns.checked_div(count));
        (self.since_ns, self.ended) = (now_ns, ended);
    }

    /// How long to doze with so many requests under way, before `wake_ns`; 0: not at all.
    pub fn doze_ns(&self, in_flight: usize, now_ns: i64, wake_ns: i64) -> i64 {
        let Some(gap_ns) = self.gap_ns.filter(|_| in_flight >= IN_FLIGHT_MIN) else {
            return 0;
        };
        // Little's law: the mean latency.
        let latency_ns = gap_ns.saturating_mul(in_flight as i64);
        let doze_ns = (latency_ns / DOZE_PART).min(DOZE_MAX_NS);
        match doze_ns >= DOZE_MIN_NS && doze_ns < wake_ns - now_ns {
            true => doze_ns,
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER_NS: i64 = 1_000_000_000;

    /// So many ends in a millisecond.
    fn pace(per_ms: u64) -> Pace {
        let mut pace = Pace::new(7);
        pace.tick(1_000_007, per_ms);
        pace
    }

    #[test]
    fn it_dozes_for_a_small_part_of_the_latency_where_many_are_under_way() {
        // Ten microseconds between two answers.
        for (in_flight, doze_ns) in [(1, 0), (15, 0), (16, 10_000), (20, 12_500), (400, 20_000)] {
            assert_eq!(
                pace(100).doze_ns(in_flight, 0, LATER_NS),
                doze_ns,
                "{in_flight}"
            );
        }
        assert_eq!(pace(1).doze_ns(15, 0, LATER_NS), 0, "too few");
        assert_eq!(
            pace(1000).doze_ns(20, 0, LATER_NS),
            0,
            "too short for a timer"
        );
    }

    #[test]
    fn it_dozes_only_where_the_pace_is_known_and_nothing_is_due() {
        assert_eq!(Pace::new(0).doze_ns(400, 0, LATER_NS), 0);
        assert_eq!(pace(100).doze_ns(400, 0, 20_000), 0);
        assert_eq!(pace(100).doze_ns(400, 0, 20_001), 20_000);
        let mut stalled = pace(100);
        stalled.tick(2_000_007, 100);
        assert_eq!(stalled.doze_ns(400, 0, LATER_NS), 0, "nothing ended since");
    }
}
