//! Numbers that look like chance, and are the same each time.

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same on every machine.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any of the 2^64 numbers.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, `count`), to within `count` parts of 2^64 (D. Lemire, 2019).
    pub fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    /// One of many of the same seed: each begins elsewhere.
    pub fn derived(seed: u64, number: u64) -> Self {
        Random(Random(seed ^ Random(number).next()).next())
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Of an exponential distribution.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}
