//! A log-linear histogram of non-negative integers, after Gil Tene's HdrHistogram.
//!
//! Each power of two is cut into 256 equal steps, so a bucket is never wider than 1/256 (0.4 %) of its lower
//! bound, and values below 512 are kept exactly. Recording is one shift and one increment; merging is addition,
//! so every thread can keep a histogram of its own.

const STEP_BITS: u32 = 8;
const STEPS: u64 = 1 << STEP_BITS;
const BUCKETS: usize = index(i64::MAX as u64) + 1;

/// Counts of values in `0..=i64::MAX`; greater ones are counted in the last bucket.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: vec![0; BUCKETS],
            total: 0,
        }
    }
}

/// What was counted, and not the thousands of buckets that hold nothing.
impl std::fmt::Debug for Histogram {
    fn fmt(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        to.debug_list().entries(self.buckets()).finish()
    }
}

impl Histogram {
    /// Count one value.
    pub fn record(&mut self, value: u64) {
        self.counts[index(value.min(i64::MAX as u64))] += 1;
        self.total += 1;
    }

    /// Forget everything; the memory stays.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// Add all counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The non-empty buckets in ascending order as (lower, upper, count): lower <= value < upper.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| {
                let (lower, upper) = bounds(index);
                (lower, upper, *count)
            })
    }
}

const fn index(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    ((shift as usize) << STEP_BITS) + (value >> shift) as usize
}

const fn bounds(index: usize) -> (u64, u64) {
    let octave = (index as u64) >> STEP_BITS;
    if octave == 0 {
        return (index as u64, index as u64 + 1);
    }
    let shift = octave - 1;
    let lower = ((index as u64 & (STEPS - 1)) + STEPS) << shift;
    (lower, lower + (1 << shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(*value));
        histogram
    }

    #[test]
    fn small_values_are_exact() {
        let buckets: Vec<_> = filled(&[0, 1, 1, 511]).buckets().collect();
        assert_eq!(buckets, [(0, 1, 1), (1, 2, 2), (511, 512, 1)]);
    }

    #[test]
    fn buckets_touch_without_gap() {
        for index in 1..BUCKETS {
            assert_eq!(bounds(index - 1).1, bounds(index).0);
        }
        assert_eq!(bounds(BUCKETS - 1).1, 1 << 63);
    }

    #[test]
    fn too_great_values_are_kept_in_the_last_bucket() {
        assert_eq!(filled(&[u64::MAX]), filled(&[i64::MAX as u64]));
    }

    proptest! {
        #[test]
        fn a_value_lies_in_its_narrow_bucket(value in 0..=i64::MAX as u64) {
            let (lower, upper) = bounds(index(value));
            prop_assert!(lower <= value && value < upper);
            prop_assert!(upper - lower == 1 || (upper - lower) * STEPS <= lower);
        }

        #[test]
        fn merging_equals_recording_everything(a in prop::collection::vec(any::<u64>(), 0..50),
                                               b in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut merged = filled(&a);
            merged.merge(&filled(&b));
            prop_assert_eq!(&merged, &filled(&[a, b].concat()));
            prop_assert_eq!(merged.total(), merged.buckets().map(|bucket| bucket.2).sum::<u64>());
        }
    }
}
