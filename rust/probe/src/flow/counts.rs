//! What a receiver counts: bytes by the time they came, and of each segment's datagrams their number and the times
//! between them.

use serde::{Deserialize, Serialize};
use virtoll_wire::hist::Histogram;

use super::spread::{Bins, Spread};
use super::wire::{Answer, Header, Order};

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
    next: u64,
    pub received: u64,
    wrong: u64,
    reordered: u64,
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
            next: 0,
            received: 0,
            wrong: 0,
            reordered: 0,
            order,
        }
    }

    /// When the schedule ends, by the receiver's clock; None before the first arrival.
    pub fn end_ns(&self) -> Option<u64> {
        let end_ns = self.order.segments.last()?.1;
        self.start_ns.map(|start_ns| start_ns + end_ns)
    }

    /// Count one datagram; None for `bytes` is one that was longer than it should be.
    pub fn datagram(&mut self, bytes: Option<&[u8]>, arrival_ns: u64) {
        let length = bytes.map_or(0, <[u8]>::len);
        match bytes.and_then(Header::read) {
            Some(header) if header.run != self.order.run => {}
            Some(header) if length == self.order.size_bytes && self.knows(header) => {
                self.bytes(Some(header.at_ns), length as u64, arrival_ns);
                self.one(header, arrival_ns);
            }
            _ => self.wrong += 1,
        }
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

    /// Count one whole datagram or message by what it says of itself.
    pub fn one(&mut self, header: Header, arrival_ns: u64) {
        let at = header.segment as usize;
        self.received += 1;
        self.reordered += u64::from(header.number < self.next);
        self.next = self.next.max(header.number + 1);
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
        let transit_ns = (arrival_ns as i64 - before.arrival_ns as i64)
            - (header.at_ns as i64 - before.at_ns as i64);
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
            ..Answer::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
