//! UnixBench's double arithmetic: the sum of i*i / (i*i - 1) for i from 2 to 101, over and over.

use std::hint::black_box;

use super::copies::{Lap, Work};
use super::Quantity;
use crate::report::Failed;

pub const QUANTITY: Quantity = Quantity {
    key: "loops_per_s",
    unit: "/s",
    per_unit: 1.0,
    proof: "the sum is right",
};

const LAST: u32 = 101;
/// Far more than a hundred roundings of a sum near 100 can be, far less than one term.
const TOLERANCE: f64 = 1e-9;

/// A copy's work; a unit is one sum.
pub fn prepare() -> Result<Work, Failed> {
    Ok(Box::new(|units| {
        let mut sum = 0.0;
        let lap = Lap::of(|| {
            for _ in 0..units {
                sum = black_box(summed(black_box(2)));
            }
        });
        Ok(lap.verified(wrong(sum)))
    }))
}

fn summed(first: u32) -> f64 {
    let mut sum = 0.0;
    for i in first..=LAST {
        let x = f64::from(i);
        let y = x * x;
        sum += y / (y - 1.0);
    }
    sum
}

/// Each term is 1 + 1/(i*i - 1), and the latter sum to 3/4 - (2n + 1) / (2n (n + 1)).
fn wrong(sum: f64) -> Option<String> {
    let n = f64::from(LAST);
    let right = (n - 1.0) + 0.75 - (2.0 * n + 1.0) / (2.0 * n * (n + 1.0));
    ((sum - right).abs() > TOLERANCE).then(|| format!("the sum is {sum}, not {right}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_formula_and_a_wrong_one_is_caught() {
        assert_eq!(wrong(summed(2)), None);
        assert!(wrong(summed(3)).is_some());
    }
}
