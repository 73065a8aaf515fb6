//! The kernels for AVX2 with fused multiply-add.
//!
//! 12 rows by 4 columns keep 12 of the 16 registers as sums; a step loads 3 registers of the left factor, broadcasts 4
//! numbers of the right one, and does 12 fused multiply-adds.

use std::arch::x86_64::{
    __m256d, _mm256_broadcast_sd, _mm256_fmadd_pd, _mm256_loadu_pd, _mm256_setzero_pd,
    _mm256_storeu_pd, _mm256_sub_pd, _mm_prefetch, _MM_HINT_T0,
};

use super::kernel::Kernel;
use super::portable;

const ROWS: usize = 12;
const COLUMNS: usize = 4;
const LANES: usize = 4;

pub const KERNEL: Kernel = Kernel {
    name: "avx2",
    rows: ROWS,
    columns: COLUMNS,
    block_rows: 120,
    block_width: 256,
    multiply,
    substitute,
    combine,
    interchange,
    pack: pack::<ROWS>,
};

#[target_feature(enable = "avx2,fma")]
unsafe fn multiply(
    depth: usize,
    left: *const f64,
    left_stride: usize,
    right: *const f64,
    target: *mut f64,
    target_stride: usize,
) {
    // SAFETY: the caller has the CPU, a full tile as the target, `depth` columns of ROWS numbers and `depth` rows of
    // COLUMNS; a prefetch may point anywhere.
    unsafe {
        for column in 0..COLUMNS {
            let cells = target.add(column * target_stride);
            _mm_prefetch::<_MM_HINT_T0>(cells.cast());
            _mm_prefetch::<_MM_HINT_T0>(cells.add(ROWS - 1).cast());
        }
        let mut sums = [[_mm256_setzero_pd(); ROWS / LANES]; COLUMNS];
        let (mut left, mut right) = (left, right);
        for _ in 0..depth {
            let column: [__m256d; ROWS / LANES] =
                std::array::from_fn(|part| _mm256_loadu_pd(left.add(part * LANES)));
            _mm_prefetch::<_MM_HINT_T0>(left.wrapping_add(8 * left_stride).cast());
            for (number, sum) in sums.iter_mut().enumerate() {
                let factor = _mm256_broadcast_sd(&*right.add(number));
                for (part, cell) in sum.iter_mut().enumerate() {
                    *cell = _mm256_fmadd_pd(column[part], factor, *cell);
                }
            }
            left = left.wrapping_add(left_stride);
            right = right.wrapping_add(COLUMNS);
        }
        for (column, sum) in sums.iter().enumerate() {
            for (part, cell) in sum.iter().enumerate() {
                let cells = target.add(column * target_stride + part * LANES);
                _mm256_storeu_pd(cells, _mm256_sub_pd(_mm256_loadu_pd(cells), *cell));
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn substitute(order: usize, triangle: *const f64, stride: usize, rows: *mut f64) {
    // SAFETY: the caller keeps the contract of `Kernel::substitute`.
    unsafe { portable::substitute_with::<COLUMNS, true>(order, triangle, stride, rows) }
}

/// `Kernel::combine`.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn combine(
    factors: &[f64],
    source: *const f64,
    stride: usize,
    target: *mut f64,
    length: usize,
) -> f64 {
    // SAFETY: the caller keeps the contract.
    unsafe { portable::combine_with::<true>(factors, source, stride, target, length) }
}

/// `Kernel::interchange`.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn interchange(
    first: usize,
    pivots: &[u32],
    top: *mut f64,
    stride: usize,
    count: usize,
) {
    // SAFETY: the caller keeps the contract.
    unsafe { portable::interchange_with(first, pivots, top, stride, count) }
}

/// `Kernel::pack` for tiles of `M` rows.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn pack<const M: usize>(
    source: *const f64,
    stride: usize,
    depth: usize,
    height: usize,
    packed: *mut f64,
) {
    // SAFETY: the caller keeps the contract.
    unsafe { portable::pack_with::<M>(source, stride, depth, height, packed) }
}
