//! Whetstone in double precision, after H. J. Curnow and B. A. Wichmann, "A synthetic benchmark", The Computer Journal
//! 19(1), 1976, in the form of R. Longbottom (1987, 1996), which UnixBench uses: eight loops, whose results he printed.
//!
//! A unit is one pass with his factor of 100: ten million Whetstone instructions. Every pass begins from the same
//! values, so every pass must end with the same results. Procedures are called (`inline(never)`), as was meant.

use std::f64;
use std::hint::black_box;

use super::copies::{Lap, Work};
use super::Quantity;
use crate::report::Failed;

pub const QUANTITY: Quantity = Quantity {
    key: "mwips",
    unit: "MWIPS",
    per_unit: 10.0,
    proof: "the results are the published ones",
};

/// Longbottom's factor: each loop runs this many times its number.
const FACTOR: u32 = 100;
/// The first loop of a published run is ten times longer, and its time divided by ten; here it has its right length,
/// but for the one untimed pass that is compared with what was published.
const PUBLISHED_FIRST: u32 = 10;
/// The results of loops 1 to 8 in double precision, of one pass (whets.c, 1996, "Results").
const PUBLISHED: [f64; 8] = [
    -1.123982556673919,
    -1.121870798892844,
    1.0,
    12.0,
    0.4990293728151514,
    0.9999998789080282,
    3.0,
    0.7510016301845787,
];
/// "Slight variations are normal with different compilers": of the mathematical functions' last digits, added up.
const TOLERANCE: f64 = 1e-9;

const T: f64 = 0.49999975;
const T1: f64 = 0.50000025;
const T2: f64 = 2.0;

/// A copy's work; a unit is one pass.
pub fn prepare() -> Result<Work, Failed> {
    let published = unlike(&pass(PUBLISHED_FIRST), &PUBLISHED, TOLERANCE);
    let expected = pass(1);
    Ok(Box::new(move |units| {
        let mut wrong = published.clone();
        let lap = Lap::of(|| {
            for _ in 0..units {
                let results = pass(1);
                wrong = wrong.take().or_else(|| unlike(&results, &expected, 0.0));
            }
        });
        Ok(lap.verified(wrong))
    }))
}

/// The first loop whose result is not what it should be.
fn unlike(results: &[f64; 8], right: &[f64; 8], tolerance: f64) -> Option<String> {
    let is_right = |index: usize| (results[index] - right[index]).abs() <= tolerance; // no NaN is
    (0..results.len())
        .find(|index| !is_right(*index))
        .map(|index| {
            format!(
                "loop {} gave {:?}, not {:?}",
                index + 1,
                results[index],
                right[index]
            )
        })
}

/// One pass; the results of the eight loops.
fn pass(first: u32) -> [f64; 8] {
    let mut e1 = [1.0, -1.0, -1.0, -1.0];
    let t = black_box(T);
    [
        array_elements(&mut e1, t, 12 * FACTOR * first),
        array_parameter(&mut e1, t, 14 * FACTOR),
        conditional_jumps(345 * FACTOR),
        integer_arithmetic(&mut e1, 210 * FACTOR),
        trigonometric_functions(t, 32 * FACTOR),
        procedure_calls(t, 899 * FACTOR),
        array_references(&mut e1, 616 * FACTOR),
        standard_functions(93 * FACTOR),
    ]
}

fn array_elements(e: &mut [f64; 4], t: f64, times: u32) -> f64 {
    for _ in 0..times {
        e[0] = (e[0] + e[1] + e[2] - e[3]) * t;
        e[1] = (e[0] + e[1] - e[2] + e[3]) * t;
        e[2] = (e[0] - e[1] + e[2] + e[3]) * t;
        e[3] = (-e[0] + e[1] + e[2] + e[3]) * t;
    }
    e[3]
}

fn array_parameter(e: &mut [f64; 4], t: f64, times: u32) -> f64 {
    let t2 = black_box(T2);
    for _ in 0..times {
        pa(e, t, t2);
    }
    e[3]
}

#[inline(never)]
fn pa(e: &mut [f64; 4], t: f64, t2: f64) {
    for _ in 0..6 {
        e[0] = (e[0] + e[1] + e[2] - e[3]) * t;
        e[1] = (e[0] + e[1] - e[2] + e[3]) * t;
        e[2] = (e[0] - e[1] + e[2] + e[3]) * t;
        e[3] = (-e[0] + e[1] + e[2] + e[3]) / t2;
    }
}

/// After an even number of times J is 1 again: a compiler that saw through it would leave nothing of the loop.
fn conditional_jumps(times: u32) -> f64 {
    let mut j = 1;
    for _ in 0..times {
        j = if black_box(j) == 1 { 2 } else { 3 };
        j = if black_box(j) > 2 { 0 } else { 1 };
        j = if black_box(j) < 1 { 1 } else { 0 };
    }
    f64::from(j)
}

fn integer_arithmetic(e: &mut [f64; 4], times: u32) -> f64 {
    let (mut j, mut k, mut l) = black_box((1_i64, 2_i64, 3_i64));
    for _ in 0..times {
        j = j * (k - j) * (l - k);
        k = l * k - (l - j) * k;
        l = (l - k) * (k + j);
        e[(l - 2) as usize] = (j + k + l) as f64;
        e[(k - 2) as usize] = (j * k * l) as f64;
    }
    e[0] + e[1]
}

/// One time less than the others, as in the original (its loop counts from 1).
fn trigonometric_functions(t: f64, times: u32) -> f64 {
    let (mut x, mut y) = black_box((0.5_f64, 0.5_f64));
    for _ in 1..times {
        x = t * (T2 * x.sin() * x.cos() / ((x + y).cos() + (x - y).cos() - 1.0)).atan();
        y = t * (T2 * y.sin() * y.cos() / ((x + y).cos() + (x - y).cos() - 1.0)).atan();
    }
    y
}

fn procedure_calls(t: f64, times: u32) -> f64 {
    let (mut x, mut y, mut z) = (1.0, 1.0, 1.0);
    let (t1, t2) = black_box((T1, T2));
    for _ in 0..times {
        p3(&mut x, &mut y, &mut z, t, t1, t2);
    }
    z
}

#[inline(never)]
fn p3(x: &mut f64, y: &mut f64, z: &mut f64, t: f64, t1: f64, t2: f64) {
    *x = *y;
    *y = *z;
    *x = t * (*x + *y);
    *y = t1 * (*x + *y);
    *z = (*x + *y) / t2;
}

fn array_references(e: &mut [f64; 4], times: u32) -> f64 {
    e[..3].copy_from_slice(&[1.0, 2.0, 3.0]);
    let (j, k, l) = black_box((0, 1, 2));
    for _ in 0..times {
        po(e, j, k, l);
    }
    e[2]
}

#[inline(never)]
fn po(e: &mut [f64; 4], j: usize, k: usize, l: usize) {
    e[j] = e[k];
    e[k] = e[l];
    e[l] = e[j];
}

fn standard_functions(times: u32) -> f64 {
    let mut x = black_box(0.75_f64);
    for _ in 0..times {
        x = (x.ln() / T1).exp().sqrt();
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_ends_with_the_published_results() {
        assert_eq!(unlike(&pass(PUBLISHED_FIRST), &PUBLISHED, TOLERANCE), None);
    }

    #[test]
    fn every_pass_is_like_the_first_and_a_wrong_result_is_caught() {
        let mut results = pass(1);
        assert_eq!(unlike(&pass(1), &results, 0.0), None);
        results[4] += 1e-6;
        assert!(unlike(&pass(1), &results, 0.0).unwrap().contains("loop 5"));
        results[4] = f64::NAN;
        assert!(unlike(&results, &PUBLISHED, TOLERANCE).is_some());
    }
}
