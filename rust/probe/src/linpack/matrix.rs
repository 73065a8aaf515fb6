//! The system to be solved: a random matrix and right-hand side, made again from the seed wherever they are needed.

/// A matrix with its right-hand side as one more column, stored by columns.
#[derive(Clone, Copy)]
pub struct Matrix {
    /// Row 0 of column 0.
    pub numbers: *mut f64,
    /// Numbers from one column to the next.
    pub stride: usize,
    /// Rows; there is one column more.
    pub order: usize,
}

// SAFETY: the workers that share it agree who writes which columns when.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

/// Numbers from one column to the next: whole cache lines, an odd number of them, so that the rows of a tile never fall
/// into the same few sets of a cache.
pub fn stride_of(order: usize) -> usize {
    8 * (order.div_ceil(8) | 1)
}

impl Matrix {
    /// Where this number is.
    ///
    /// # Safety
    /// The row may be anything up to the stride, the column anything up to `order`.
    pub unsafe fn at(self, row: usize, column: usize) -> *mut f64 {
        debug_assert!(row <= self.stride && column <= self.order + 1);
        // SAFETY: the caller's numbers lie in the matrix, or just behind it.
        unsafe { self.numbers.add(column * self.stride + row) }
    }

    /// One column.
    ///
    /// # Safety
    /// No one writes to it meanwhile.
    pub unsafe fn column<'a>(self, column: usize) -> &'a [f64] {
        // SAFETY: the column is there.
        unsafe { std::slice::from_raw_parts(self.at(0, column), self.order) }
    }

    /// One column, to be written.
    ///
    /// # Safety
    /// No one else uses it meanwhile.
    pub unsafe fn column_mut<'a>(self, column: usize) -> &'a mut [f64] {
        // SAFETY: the column is there.
        unsafe { std::slice::from_raw_parts_mut(self.at(0, column), self.order) }
    }
}

/// Fill one column of the system: uniform in [-0.5, 0.5), as HPL's. Column `order` is the right-hand side.
///
/// The generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), begun anew for each column.
pub fn fill(seed: u64, column: usize, numbers: &mut [f64]) {
    let mut state = mixed(seed ^ mixed(column as u64 + 1));
    for number in numbers {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        *number = (mixed(state) >> 11) as f64 / (1_u64 << 53) as f64 - 0.5;
    }
}

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// HPL's scaled residual of a solution: |Ax-b| / (eps (|A| |x| + |b|) n), infinity norms, eps = 2^-53.
///
/// It is of the order of 1 for a solution that is right, and HPL's limit is 16. NaN when the solution is not finite.
pub fn residual(seed: u64, solution: &[f64]) -> f64 {
    let order = solution.len();
    let mut column = vec![0.0; order];
    let mut difference = vec![0.0; order];
    let mut row_sums = vec![0.0; order];
    fill(seed, order, &mut difference);
    let right_norm = norm(&difference);
    for (number, factor) in solution.iter().enumerate() {
        fill(seed, number, &mut column);
        for (row, value) in column.iter().enumerate() {
            difference[row] -= value * factor;
            row_sums[row] += value.abs();
        }
    }
    let epsilon = f64::EPSILON / 2.0;
    let scale = epsilon * (norm(&row_sums) * norm(solution) + right_norm) * order as f64;
    norm(&difference) / scale
}

/// The largest magnitude; NaN when there is one that is not a number.
fn norm(numbers: &[f64]) -> f64 {
    numbers.iter().fold(0.0, |most: f64, number| {
        if number.is_nan() {
            f64::NAN
        } else if most.is_nan() || most > number.abs() {
            most
        } else {
            number.abs()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_differ_and_come_again() {
        let mut columns = [[0.0; 1000]; 3];
        for (column, seed, numbers) in [(0, 7, 0), (1, 7, 1), (0, 7, 2)] {
            fill(seed, column, &mut columns[numbers]);
        }
        assert_eq!(columns[0], columns[2]);
        assert_ne!(columns[0], columns[1]);
        assert!(columns[0].iter().all(|number| (-0.5..0.5).contains(number)));
        let mean = columns[0].iter().sum::<f64>() / 1000.0;
        assert!(mean.abs() < 0.05, "{mean}");
    }

    #[test]
    fn the_residual_catches_a_wrong_solution() {
        // Order 1: a x = b.
        let (mut left, mut right) = ([0.0], [0.0]);
        fill(3, 0, &mut left);
        fill(3, 1, &mut right);
        let solution = right[0] / left[0];
        assert!(residual(3, &[solution]) < 16.0);
        assert!(residual(3, &[solution * (1.0 + 1e-12)]) > 16.0);
        assert!(residual(3, &[f64::NAN]).is_nan());
        assert!(residual(3, &[f64::INFINITY]).is_nan());
    }
}
