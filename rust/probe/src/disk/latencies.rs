//! Times of single operations: mean and quantiles of a window, and all of them in one histogram.

use virtoll_wire::hist::Histogram;

/// What was timed in this window, and in all windows before it.
#[derive(Default)]
pub struct Latencies {
    window: Histogram,
    window_sum_ns: u64,
    all: Histogram,
}

impl Latencies {
    /// Note one operation.
    pub fn record(&mut self, latency_ns: u64) {
        self.window.record(latency_ns);
        self.window_sum_ns += latency_ns;
    }

    /// Forget what was timed since the last window was kept: it was warm-up.
    pub fn begin(&mut self) {
        self.window.clear();
        self.window_sum_ns = 0;
    }

    /// Mean of this window, in nanoseconds; 0 where nothing was timed.
    fn mean_ns(&self) -> f64 {
        self.window_sum_ns as f64 / self.window.total().max(1) as f64
    }

    /// Median of this window, in nanoseconds; 0 where nothing was timed.
    pub fn median_ns(&self) -> f64 {
        quantile_ns(&self.window, 0.50)
    }

    /// Keep the window that ends here; its mean, median and 99th percentile in microseconds. None where nothing in it
    /// was timed.
    pub fn keep(&mut self) -> Option<[f64; 3]> {
        self.all.merge(&self.window);
        (self.window.total() > 0).then(|| {
            [
                self.mean_ns() / 1e3,
                quantile_ns(&self.window, 0.50) / 1e3,
                quantile_ns(&self.window, 0.99) / 1e3,
            ]
        })
    }

    /// How many were timed in this window.
    #[cfg(test)]
    pub fn in_window(&self) -> u64 {
        self.window.total()
    }

    /// The buckets of all windows.
    pub fn buckets(&self) -> Vec<(u64, u64, u64)> {
        self.all.buckets().collect()
    }
}

/// The least value that a share of the values does not exceed, as the middle of its bucket.
fn quantile_ns(histogram: &Histogram, share: f64) -> f64 {
    let rank = (share * histogram.total() as f64).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (lower, upper, count) in histogram.buckets() {
        seen += count;
        if seen >= rank {
            return (lower + upper - 1) as f64 / 2.0;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_summed_up_and_warm_up_forgotten() {
        let mut latencies = Latencies::default();
        latencies.record(9_000_000);
        latencies.begin();
        (1..=100).for_each(|us| latencies.record(us * 1000));
        assert_eq!(Latencies::default().keep(), None);
        let [mean, median, p99] = latencies.keep().unwrap();
        assert!((mean - 50.5).abs() < 1e-9);
        assert!((median / 50.0 - 1.0).abs() < 0.004);
        assert!((p99 / 99.0 - 1.0).abs() < 0.004);
        assert_eq!(latencies.buckets().iter().map(|b| b.2).sum::<u64>(), 100);
    }
}
