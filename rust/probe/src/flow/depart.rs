//! The sender's loop: what is due goes, as one batch where several are; nothing waits for what could not go.

use std::io;

use virtoll_wire::hist::Histogram;

use super::pace::Clock;
use super::schedule::Segment;
use super::spread::{Bins, Spread};

/// A segment may end so much late to send what was due in it. A sender that is slower than its rate cannot use that up
/// again and again: the next segment begins as late.
const GRACE_NS: u64 = 50_000_000;

/// Where departures go.
pub trait Way {
    /// How many it takes at once.
    fn most(&self) -> u64;

    /// Send `count` of a segment, numbered from `number` on and stamped `at_ns`; how many the kernel took. What it did
    /// not take is gone.
    fn depart(&mut self, segment: u32, number: u64, at_ns: u64, count: u64) -> io::Result<u64>;

    fn size_bytes(&self) -> u64;
}

/// How one segment went, in ns from the start of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sent {
    pub offered: u64,
    pub taken: u64,
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Times between departures.
    pub gaps: Spread,
}

/// How the whole went.
pub struct Departures {
    pub segments: Vec<Sent>,
    pub taken: u64,
    /// How late each measured one departed.
    pub lateness: Histogram,
    pub bins: Bins,
}

/// Send a schedule that begins at `start_ns` of the clock.
pub fn depart(
    schedule: &[Segment],
    start_ns: u64,
    clock: &impl Clock,
    series_ns: u64,
    way: &mut impl Way,
) -> io::Result<Departures> {
    let end_ns = schedule.last().map_or(0, |segment| segment.end_ns);
    let mut done = Departures {
        segments: Vec::with_capacity(schedule.len()),
        taken: 0,
        lateness: Histogram::default(),
        bins: Bins::new(series_ns, end_ns),
    };
    let mut number = 0;
    for (index, segment) in schedule.iter().enumerate() {
        clock.wait_until(start_ns + segment.start_ns);
        let sent = one(
            segment,
            index as u32,
            start_ns,
            clock,
            &mut number,
            &mut done,
            way,
        )?;
        done.segments.push(sent);
    }
    clock.wait_until(start_ns + end_ns);
    Ok(done)
}

fn one(
    segment: &Segment,
    index: u32,
    start_ns: u64,
    clock: &impl Clock,
    number: &mut u64,
    done: &mut Departures,
    way: &mut impl Way,
) -> io::Result<Sent> {
    let since_start = || clock.now_ns().saturating_sub(start_ns);
    let begin_ns = since_start();
    let mut sent = Sent {
        begin_ns,
        end_ns: begin_ns,
        ..Sent::default()
    };
    let mut last_ns = None;
    let last_moment_ns = match segment.intended() {
        Some(_) => segment.end_ns + GRACE_NS,
        None => segment.end_ns,
    };
    loop {
        let at_ns = since_start();
        if Some(sent.offered) == segment.intended() || at_ns >= last_moment_ns {
            break;
        }
        let due = segment.due(at_ns, sent.offered, way.most());
        if due == 0 {
            clock.wait_until(start_ns + segment.deadline_ns(sent.offered));
            continue;
        }
        let taken = way.depart(index, *number, at_ns, due)?;
        done.bins.add(at_ns, taken * way.size_bytes());
        for each in 0..due {
            if let Some(before_ns) = last_ns.replace(at_ns) {
                sent.gaps.record(at_ns - before_ns);
            }
            if index > 0 && segment.intended().is_some() {
                let deadline_ns = segment.deadline_ns(sent.offered + each);
                done.lateness.record(at_ns.saturating_sub(deadline_ns));
            }
        }
        *number += due;
        sent.offered += due;
        sent.taken += taken;
        done.taken += taken;
    }
    sent.end_ns = since_start();
    Ok(sent)
}

impl Sent {
    /// How long it took to offer this: the segment's length, or longer where it ended late.
    pub fn duration_ns(&self, segment: &Segment) -> u64 {
        (self.end_ns - self.begin_ns).max(segment.duration_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pace::Simulated;
    use super::super::schedule::{constant, steps};
    use super::*;
    use crate::windows::{Length, Windows};

    const START_NS: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// Takes what it is given, as far as it does, and stalls once.
    struct Fake<'a> {
        clock: &'a Simulated,
        takes: u64,
        /// After so many departures time passes: (number, ns).
        stalls: Option<(u64, u64)>,
        seen: Vec<(u32, u64, u64)>,
    }

    impl Way for Fake<'_> {
        fn most(&self) -> u64 {
            64
        }

        fn depart(&mut self, segment: u32, number: u64, _: u64, count: u64) -> io::Result<u64> {
            self.seen.push((segment, number, count));
            if let Some((_, ns)) = self.stalls.take_if(|(at, _)| number >= *at) {
                self.clock.pass(ns);
            }
            Ok(count.min(self.takes))
        }

        fn size_bytes(&self) -> u64 {
            100
        }
    }

    fn departed(
        schedule: &[Segment],
        look_ns: u64,
        takes: u64,
        stalls: Option<(u64, u64)>,
    ) -> (Departures, Vec<(u32, u64, u64)>) {
        let clock = Simulated::new(START_NS, look_ns);
        let mut way = Fake {
            clock: &clock,
            takes,
            stalls,
            seen: Vec::new(),
        };
        let done = depart(schedule, START_NS, &clock, MS, &mut way).unwrap();
        (done, way.seen)
    }

    fn thousand_a_second() -> Vec<Segment> {
        let windows = Windows {
            count: 2,
            length: Length::Time(100 * MS),
        };
        constant(Some(1e6), 0, &windows).unwrap()
    }

    #[test]
    fn every_datagram_goes_once_and_in_its_own_segment() {
        let text = "8000000:5000000,0:2000000,16000000:5000000";
        let (done, seen) = departed(&steps(text, 8000, 2 * MS).unwrap(), 1, 64, None);
        let mut expected = 0;
        for (_, number, count) in &seen {
            assert_eq!(*number, expected);
            expected += count;
        }
        let offered: Vec<u64> = done.segments.iter().map(|sent| sent.offered).collect();
        assert_eq!(offered, [2, 5, 0, 10]);
        assert_eq!((done.taken, done.lateness.total()), (17, 15));
        assert_eq!(done.bins.bytes.iter().sum::<u64>(), 1700);
    }

    #[test]
    fn a_rate_that_can_be_held_is_held_exactly() {
        let schedule = thousand_a_second();
        let (done, seen) = departed(&schedule, 10, 64, None);
        assert_eq!(seen.len(), 200, "each goes by itself, at its own time");
        for (sent, segment) in done.segments.iter().zip(&schedule).skip(1) {
            assert_eq!((sent.offered, sent.taken), (100, 100));
            assert_eq!(sent.duration_ns(segment), 100 * MS);
            assert_eq!(sent.gaps.count, 99);
            assert!((sent.gaps.mean_us().unwrap() - 1000.0).abs() < 1.0);
        }
        assert!(done.lateness.buckets().all(|(lower, ..)| lower < 100));
    }

    #[test]
    fn what_a_stall_held_back_goes_as_one_batch_and_is_late() {
        let (done, seen) = departed(&thousand_a_second(), 10, 64, Some((20, 30 * MS)));
        let largest = seen.iter().map(|(_, _, count)| *count).max().unwrap();
        assert_eq!(largest, 30);
        let offered: Vec<u64> = done.segments.iter().map(|sent| sent.offered).collect();
        assert_eq!(offered, [0, 100, 100]);
        let latest = done.lateness.buckets().last().unwrap();
        assert!(latest.1 > 29 * MS && latest.0 < 30 * MS);
    }

    #[test]
    fn a_stall_beyond_the_grace_is_not_caught_up() {
        let schedule = thousand_a_second();
        let (done, _) = departed(&schedule, 10, 64, Some((50, 110 * MS)));
        let [_, stalled, next] = done.segments[..] else {
            panic!("a warm-up and two windows");
        };
        assert_eq!(
            stalled.offered, 51,
            "the rest of its time and grace is over"
        );
        assert!(stalled.duration_ns(&schedule[1]) > 159 * MS);
        assert_eq!(next.offered, 100);
    }

    #[test]
    fn what_is_refused_is_offered_all_the_same() {
        let windows = Windows {
            count: 1,
            length: Length::Work(100),
        };
        let schedule = constant(Some(20_000.0), 0, &windows).unwrap();
        let (done, _) = departed(&schedule, 10, 0, None);
        assert_eq!((done.segments[1].offered, done.segments[1].taken), (100, 0));
        assert_eq!(done.bins.bytes.iter().sum::<u64>(), 0);
    }

    #[test]
    fn one_that_is_too_slow_ends_in_time() {
        let windows = Windows {
            count: 2,
            length: Length::Time(2 * MS),
        };
        let schedule = constant(Some(1.0), 0, &windows).unwrap(); // two million in 2 ms, and 64 each 10 us
        let (done, _) = departed(&schedule, 10_000, 64, None);
        for (sent, segment) in done.segments.iter().zip(&schedule).skip(1) {
            assert!(sent.offered > 0 && sent.offered < segment.intended().unwrap());
            let took_ns = sent.duration_ns(segment);
            assert!((2 * MS..=2 * MS + GRACE_NS + 20_000).contains(&took_ns));
        }
    }
}
