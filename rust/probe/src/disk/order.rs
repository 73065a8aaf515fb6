//! In which order the records of a file are visited: each once in a pass, and every pass alike.

use super::pattern::SplitMix64;

const SEED: u64 = 0x7672_746f_6c6c_0003;

/// The records of a file in the order of their visits.
pub enum Order {
    /// One after the other; so many.
    Sequential(u64),
    /// In an order that has no order, the same on every machine.
    Shuffled(Vec<u32>),
}

impl Order {
    /// All records, shuffled by Durstenfeld's method with a fixed seed.
    pub fn shuffled(records: u32) -> Order {
        let mut order: Vec<u32> = (0..records).collect();
        let mut random = SplitMix64(SEED);
        for last in (1..order.len()).rev() {
            order.swap(last, (random.drawn() % (last as u64 + 1)) as usize);
        }
        Order::Shuffled(order)
    }

    /// The record of the visit with this number, counted on from pass to pass.
    pub fn record(&self, visit: u64) -> u64 {
        match self {
            Order::Sequential(records) => visit % records,
            Order::Shuffled(order) => u64::from(order[(visit % order.len() as u64) as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_pass_visits_each_record_once_and_always_alike() {
        let order = Order::shuffled(1000);
        let visited: Vec<u64> = (0..1000).map(|visit| order.record(visit)).collect();
        let again: Vec<u64> = (1000..2000).map(|visit| order.record(visit)).collect();
        assert_eq!(visited, again);
        let mut sorted = visited.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<u64>>());
        let steps = visited.windows(2).filter(|pair| pair[1] == pair[0] + 1);
        assert!(steps.count() < 10);
    }
}
