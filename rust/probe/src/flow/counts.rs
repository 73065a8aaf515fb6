//! What a receiver counts: bytes by the time they came, and of each segment's datagrams their number and the times
//! between them.

use serde::{Deserialize, Serialize};
use virtoll_wire::hist::Histogram;

use super::spread::{Bins, Spread};
use super::wire::{Answer, Header, Order};
use crate::network::seen::{Came, Seen};
use crate::network::wire::Greeting;

/// The gain of the estimate of jitter (RFC 3550, section 6.4.1).
const GAIN: f64 = 1.0 / 16.0;

/// One segment.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Counted {
    /// Datagrams of this segment, whenever they came.
    pub received: u64,
    /// What came during this segment, whichever it was of.
    pub arrived: u64,
    pub arrived_bytes: u64,
    /// Times between arrivals that follow each other and are both of this segment.
    pub gaps: Spread,
    /// The running estimate of jitter: its sum over the arrivals, and its last value.
    jitter_sum_ns: f64,
    jitter_ns: f64,
}

impl Counted {
    /// Mean of the running estimate over this segment's arrivals but the first.
    pub fn jitter_us(&self) -> Option<f64> {
        (self.gaps.count > 0).then(|| self.jitter_sum_ns / self.gaps.count as f64 / 1000.0)
    }

    /// The estimate as it stood at the end.
    pub fn jitter_last_us(&self) -> Option<f64> {
        (self.gaps.count > 0).then_some(self.jitter_ns / 1000.0)
    }
}

/// The one before.
#[derive(Clone, Copy)]
struct Last {
    segment: usize,
    arrival_ns: u64,
    at_ns: u64,
}

/// A whole flow.
pub struct Counts {
    order: Order,
    start_ns: Option<u64>,
    segments: Vec<Counted>,
    current: usize,
    bins: Bins,
    trace: Vec<(u64, u64)>,
    histogram: Histogram,
    last: Option<Last>,
    jitter_ns: f64,
    seen: Seen,
    pub received: u64,
    wrong: u64,
    reordered: u64,
    doubled: u64,
}

impl Counts {
    /// With room for all that is to come, touched.
    pub fn new(order: Order) -> Counts {
        let end_ns = order.segments.last().map_or(0, |segment| segment.1);
        let mut trace = vec![(1, 1); order.trace];
        trace.clear();
        Counts {
            start_ns: None,
            segments: vec![Counted::default(); order.segments.len()],
            current: 0,
            bins: Bins::new(order.series_ns, end_ns),
            trace,
            histogram: Histogram::default(),
            last: None,
            jitter_ns: 0.0,
            seen: Seen::default(),
            received: 0,
            wrong: 0,
            reordered: 0,
            doubled: 0,
            order,
        }
    }

    /// When the schedule ends, by the receiver's clock; None before the first arrival.
    pub fn end_ns(&self) -> Option<u64> {
        let end_ns = self.order.segments.last()?.1;
        self.start_ns
            .map(|start_ns| start_ns.saturating_add(end_ns))
    }

    /// Count one datagram; None for `bytes` is one that was longer than it should be. One that comes once more counts
    /// as a double and as nothing else.
    pub fn datagram(&mut self, bytes: Option<&[u8]>, arrival_ns: u64) {
        let length = bytes.map_or(0, <[u8]>::len);
        match bytes.and_then(Header::read) {
            Some(header) if header.run != self.order.run => {}
            Some(header) if length == self.order.size_bytes && self.knows(header) => {
                if self.is_new(header.number) {
                    self.bytes(Some(header.at_ns), length as u64, arrival_ns);
                    self.one(header, arrival_ns);
                }
            }
            None if bytes.is_some_and(Greeting::is_one) => {} // sent again while its answer was on the way
            _ => self.wrong += 1,
        }
    }

    /// Count one whole message of a stream by what it says of itself; its bytes were counted as they came.
    pub fn message(&mut self, header: Header, arrival_ns: u64) {
        if header.run != self.order.run || !self.knows(header) {
            self.wrong += 1;
        } else if self.is_new(header.number) {
            self.one(header, arrival_ns);
        }
    }

    fn is_new(&mut self, number: u64) -> bool {
        let came = self.seen.note(number);
        self.reordered += u64::from(came == Came::Overtaken);
        self.doubled += u64::from(came == Came::Again);
        came != Came::Again
    }

    fn knows(&self, header: Header) -> bool {
        (header.segment as usize) < self.segments.len()
    }

    /// Count bytes by the time they came; `at_ns` is when they departed, where that is known.
    pub fn bytes(&mut self, at_ns: Option<u64>, bytes: u64, arrival_ns: u64) {
        let since_ns = arrival_ns.saturating_sub(self.start_ns(at_ns, arrival_ns));
        self.bins.add(since_ns, bytes);
        while self.current < self.segments.len() && since_ns >= self.order.segments[self.current].1
        {
            self.current += 1;
        }
        // Stamps of two CPUs may be out of order by less than matters: what is late by it counts where it is.
        if let Some(segment) = self.segments.get_mut(self.current) {
            segment.arrived += 1;
            segment.arrived_bytes += bytes;
        }
    }

    /// The start of the flow as it is seen here: by the fastest of the warm-up, for the first one's way is often longer.
    fn start_ns(&mut self, at_ns: Option<u64>, arrival_ns: u64) -> u64 {
        let told_ns = at_ns.map(|at_ns| arrival_ns.saturating_sub(at_ns));
        let start_ns = match (self.start_ns, told_ns) {
            (None, told_ns) => told_ns.unwrap_or(arrival_ns),
            (Some(start_ns), Some(told_ns)) if self.current == 0 => start_ns.min(told_ns),
            (Some(start_ns), _) => start_ns,
        };
        self.start_ns = Some(start_ns);
        start_ns
    }

    fn one(&mut self, header: Header, arrival_ns: u64) {
        let at = header.segment as usize;
        self.received += 1;
        if at > 0 && self.trace.len() < self.order.trace {
            self.trace.push((header.number, arrival_ns));
        }
        let now = Last {
            segment: at,
            arrival_ns,
            at_ns: header.at_ns,
        };
        let before = self.last.replace(now);
        let segment = &mut self.segments[at];
        segment.received += 1;
        let Some(before) = before else { return };
        let gap_ns = arrival_ns.saturating_sub(before.arrival_ns);
        let apart = |later: u64, earlier: u64| i128::from(later) - i128::from(earlier);
        let transit_ns = apart(arrival_ns, before.arrival_ns) - apart(header.at_ns, before.at_ns);
        self.jitter_ns += (transit_ns.unsigned_abs() as f64 - self.jitter_ns) * GAIN;
        if before.segment == at {
            segment.gaps.record(gap_ns);
            segment.jitter_sum_ns += self.jitter_ns;
            segment.jitter_ns = self.jitter_ns;
            if at > 0 {
                self.histogram.record(gap_ns);
            }
        }
    }

    /// Note what cannot have been sent.
    pub fn wrong(&mut self) {
        self.wrong += 1;
    }

    /// What is to be told of it.
    pub fn answer(self) -> Answer {
        Answer {
            start_ns: self.start_ns.unwrap_or(0),
            segments: self.segments,
            bins: self.bins,
            trace: self.trace,
            histogram: self.histogram.buckets().collect(),
            received: self.received,
            wrong: self.wrong,
            reordered: self.reordered,
            doubled: self.doubled,
            ..Answer::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spread::MOST_BINS;
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 64;

    fn counts(trace: usize) -> Counts {
        Counts::new(Order {
            run: 9,
            size_bytes: SIZE,
            series_ns: 1000,
            buffer_bytes: 0,
            trace,
            segments: vec![(0, 2000), (2000, 6000)],
        })
    }

    fn come(counts: &mut Counts, segment: u32, number: u64, at_ns: u64, arrival_ns: u64) {
        let mut bytes = [0; SIZE];
        let header = Header {
            run: 9,
            segment,
            number,
            at_ns,
        };
        header.write(&mut bytes);
        counts.datagram(Some(&bytes), arrival_ns);
    }

    #[test]
    fn times_and_memberships_are_counted_apart() {
        let mut counts = counts(2);
        come(&mut counts, 0, 0, 100, 50_400);
        come(&mut counts, 0, 5, 200, 50_200); // the flow began at 50,000
        come(&mut counts, 0, 1, 1900, 52_100); // of the warm-up, but came after it
        come(&mut counts, 1, 2, 2000, 52_200);
        come(&mut counts, 1, 4, 4000, 54_200);
        come(&mut counts, 1, 3, 3000, 57_000); // overtaken, and after the end
        let answer = counts.answer();
        assert_eq!(answer.start_ns, 50_000);
        let (warm, measured) = (answer.segments[0], answer.segments[1]);
        assert_eq!((warm.received, warm.arrived), (3, 2));
        assert_eq!(
            (measured.received, measured.arrived, measured.arrived_bytes),
            (3, 3, 192)
        );
        assert_eq!(measured.gaps.mean_us(), Some(2.4)); // 2000 and 2800 ns
        assert_eq!(answer.trace, [(2, 52_200), (4, 54_200)]);
        assert_eq!((answer.received, answer.reordered, answer.wrong), (6, 4, 0));
        assert_eq!(answer.bins.bytes, [128, 0, 128, 0, 64, 0, 0, 64]);
        assert_eq!(
            answer.histogram.iter().map(|bucket| bucket.2).sum::<u64>(),
            2
        );
    }

    #[test]
    fn a_double_hides_no_loss() {
        let mut counts = counts(9);
        for (number, arrival_ns) in [(0, 52_000), (1, 52_100), (1, 52_200), (0, 52_300)] {
            come(&mut counts, 1, number, 2000 + number, arrival_ns); // 2 and 3 are lost
        }
        let answer = counts.answer();
        assert_eq!((answer.received, answer.doubled), (2, 2));
        let measured = answer.segments[1];
        assert_eq!((measured.received, measured.arrived), (2, 2));
        assert_eq!((answer.trace.len(), measured.gaps.count), (2, 1));
        assert_eq!(answer.bins.bytes.iter().sum::<u64>(), 2 * SIZE as u64);
    }

    #[test]
    fn a_greeting_that_comes_again_is_no_part_of_the_flow() {
        let mut counts = counts(0);
        let greeting = Greeting::new(crate::network::wire::Role::Flow, SIZE as u64);
        counts.datagram(Some(&greeting.bytes()), 5);
        counts.datagram(Some(b"GET / HTTP/1.1\r\n"), 5);
        assert_eq!(counts.answer().wrong, 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))] // a case may have a million bins

        /// Whatever comes, by whatever clocks: nothing overflows, and what is kept has its bound.
        #[test]
        fn strangers_numbers_and_times_do_no_harm(
            came in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..20),
            garbage in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut counts = counts(3);
            counts.datagram(Some(&garbage), 7);
            for (segment, number, at_ns, arrival_ns) in came {
                come(&mut counts, segment % 3, number, at_ns, arrival_ns);
                counts.message(Header { run: 9, segment, number, at_ns }, arrival_ns);
                counts.end_ns();
            }
            let order = counts.order.clone();
            let answer = counts.answer();
            prop_assert!(answer.trace.len() <= 3 && answer.bins.bytes.len() <= MOST_BINS);
            prop_assert!(answer.fits(&order));
        }
    }

    #[test]
    fn jitter_is_the_estimate_of_rfc_3550() {
        let mut counts = counts(0);
        come(&mut counts, 1, 0, 2000, 52_000);
        come(&mut counts, 1, 1, 3000, 53_160); // 160 ns later than it departed: 160 / 16
        come(&mut counts, 1, 2, 4000, 54_160); // as late: 10 - 10 / 16
        let measured = counts.answer().segments[1];
        assert!((measured.jitter_last_us().unwrap() - 0.009_375).abs() < 1e-12);
        assert!((measured.jitter_us().unwrap() - (0.010 + 0.009_375) / 2.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_not_of_this_flow_or_not_right_is_told_apart() {
        let mut counts = counts(0);
        come(&mut counts, 2, 0, 0, 0); // there is no such segment
        counts.datagram(None, 0);
        counts.datagram(Some(&[3; SIZE]), 0);
        let mut other = [0; SIZE];
        let header = Header {
            run: 8,
            segment: 0,
            number: 0,
            at_ns: 0,
        };
        header.write(&mut other);
        counts.datagram(Some(&other), 0);
        let answer = counts.answer();
        assert_eq!((answer.received, answer.wrong), (0, 3));
    }
}
