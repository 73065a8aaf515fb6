//! Sums that a mean and a standard deviation come of, and bytes by interval.

use serde::{Deserialize, Serialize};

const NS_PER_US: f64 = 1000.0;
/// Bytes are counted for no more intervals than this.
pub const MOST_BINS: usize = 1_000_000;

/// Nanoseconds seen so far: their number, sum and sum of squares, exactly.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Spread {
    pub count: u64,
    sum: u64,
    squares: f64,
}

impl Spread {
    pub fn record(&mut self, ns: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(ns); // beyond 584 years: only a clock that lies comes there
        self.squares += (ns as f64) * (ns as f64);
    }

    /// None where there is nothing.
    pub fn mean_us(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64 / NS_PER_US)
    }

    /// With n - 1; None where there are not two.
    pub fn sd_us(&self) -> Option<f64> {
        let mean = self.mean_us()? * NS_PER_US;
        let about_mean = (self.squares - mean * self.sum as f64).max(0.0);
        (self.count > 1).then(|| (about_mean / (self.count - 1) as f64).sqrt() / NS_PER_US)
    }
}

/// Bytes by interval, from the start of the flow on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Bins {
    pub step_ns: u64,
    pub bytes: Vec<u64>,
}

impl Bins {
    /// For a flow of `duration_ns`: room is made, and touched, beforehand.
    pub fn new(step_ns: u64, duration_ns: u64) -> Bins {
        let count = duration_ns.div_ceil(step_ns) as usize;
        Bins {
            step_ns,
            bytes: vec![0; count.min(MOST_BINS)],
        }
    }

    /// Whether a flow of this length has too many intervals.
    pub fn too_many(step_ns: u64, duration_ns: u64) -> bool {
        duration_ns / step_ns >= MOST_BINS as u64
    }

    /// What comes long after the end counts in the last interval.
    pub fn add(&mut self, at_ns: u64, bytes: u64) {
        let bin = ((at_ns / self.step_ns) as usize).min(MOST_BINS - 1);
        if bin >= self.bytes.len() {
            self.bytes.resize(bin + 1, 0);
        }
        self.bytes[bin] += bytes;
    }

    /// All bytes so far at each interval's end, from 0 at `start_ns` on: (t_ns, bytes).
    pub fn cumulative(&self, start_ns: u64) -> Vec<(u64, u64)> {
        let mut sum = 0;
        let ends = self.bytes.iter().zip(1_u64..).map(|(bytes, number)| {
            sum += bytes;
            let end_ns = start_ns.saturating_add(self.step_ns.saturating_mul(number));
            (end_ns, sum)
        });
        std::iter::once((start_ns, 0)).chain(ends).collect()
    }

    /// The standard deviation (n - 1), in Mbit/s, of the intervals that lie wholly between two times; None under two.
    pub fn sd_mbit_per_s(&self, from_ns: u64, to_ns: u64) -> Option<f64> {
        let first = from_ns.div_ceil(self.step_ns) as usize;
        let last = ((to_ns / self.step_ns) as usize).min(self.bytes.len());
        let inside = self.bytes.get(first..last).filter(|bins| bins.len() > 1)?;
        let rates: Vec<f64> = inside
            .iter()
            .map(|bytes| *bytes as f64 * 8e3 / self.step_ns as f64)
            .collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
        Some((squares / (rates.len() - 1) as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_the_values() {
        let mut spread = Spread::default();
        assert_eq!((spread.mean_us(), spread.sd_us()), (None, None));
        for us in [2, 4, 4, 4, 5, 5, 7, 9] {
            spread.record(us * 1000);
        }
        assert_eq!(spread.mean_us(), Some(5.0));
        assert!((spread.sd_us().unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn bytes_add_up_and_whole_intervals_vary() {
        let mut bins = Bins::new(1_000_000, 3_500_000);
        for (at_ns, bytes) in [(0, 9), (1_000_000, 125), (2_500_000, 375), (4_100_000, 1)] {
            bins.add(at_ns, bytes);
        }
        assert_eq!(bins.bytes, [9, 125, 375, 0, 1]);
        assert_eq!(
            bins.cumulative(5)[..3],
            [(5, 0), (1_000_005, 9), (2_000_005, 134)]
        );
        // 1 and 3 Mbit/s between 1 and 3 ms; what is cut does not count
        let sd = bins.sd_mbit_per_s(900_000, 3_900_000).unwrap();
        assert!((sd - 2.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(bins.sd_mbit_per_s(900_000, 2_900_000), None);
    }
}
