//! The kernels in plain loops, for any CPU. The AVX2 kernels are made of the same ones where that is as fast.

use super::kernel::Kernel;

const ROWS: usize = 4;
const COLUMNS: usize = 4;

pub const KERNEL: Kernel = Kernel {
    name: if cfg!(target_arch = "x86_64") {
        "sse2"
    } else {
        "portable"
    },
    rows: ROWS,
    columns: COLUMNS,
    block_rows: 64,
    block_width: 128,
    multiply,
    substitute,
    combine,
    interchange,
    pack,
};

unsafe fn multiply(
    depth: usize,
    left: *const f64,
    left_stride: usize,
    right: *const f64,
    target: *mut f64,
    target_stride: usize,
) {
    let mut sums = [[0.0_f64; ROWS]; COLUMNS];
    for step in 0..depth {
        // SAFETY: the caller has `depth` columns of ROWS numbers, and `depth` rows of COLUMNS.
        let (column, row) = unsafe {
            (
                &*left.add(step * left_stride).cast::<[f64; ROWS]>(),
                &*right.add(step * COLUMNS).cast::<[f64; COLUMNS]>(),
            )
        };
        for (sum, factor) in sums.iter_mut().zip(row) {
            for (cell, number) in sum.iter_mut().zip(column) {
                *cell += number * factor;
            }
        }
    }
    for (column, sum) in sums.iter().enumerate() {
        // SAFETY: the target is a full tile.
        let cells = unsafe { &mut *target.add(column * target_stride).cast::<[f64; ROWS]>() };
        for (cell, number) in cells.iter_mut().zip(sum) {
            *cell -= number;
        }
    }
}

unsafe fn substitute(order: usize, triangle: *const f64, stride: usize, rows: *mut f64) {
    // SAFETY: the caller keeps the contract of `Kernel::substitute`.
    unsafe { substitute_with::<COLUMNS, false>(order, triangle, stride, rows) }
}

unsafe fn combine(
    factors: &[f64],
    source: *const f64,
    stride: usize,
    target: *mut f64,
    length: usize,
) -> f64 {
    // SAFETY: the caller keeps the contract of `Kernel::combine`.
    unsafe { combine_with::<false>(factors, source, stride, target, length) }
}

unsafe fn interchange(first: usize, pivots: &[u32], top: *mut f64, stride: usize, count: usize) {
    // SAFETY: the caller keeps the contract of `Kernel::interchange`.
    unsafe { interchange_with(first, pivots, top, stride, count) }
}

unsafe fn pack(source: *const f64, stride: usize, depth: usize, height: usize, packed: *mut f64) {
    // SAFETY: the caller keeps the contract of `Kernel::pack`.
    unsafe { pack_with::<ROWS>(source, stride, depth, height, packed) }
}

/// `sum - factor * number`, in one step where the CPU has one.
#[inline(always)]
fn less<const FUSED: bool>(sum: f64, factor: f64, number: f64) -> f64 {
    if FUSED {
        (-factor).mul_add(number, sum)
    } else {
        sum - factor * number
    }
}

/// `Kernel::substitute` for packed rows of `N` numbers, 8 rows at a time.
#[inline(always)]
pub unsafe fn substitute_with<const N: usize, const FUSED: bool>(
    order: usize,
    triangle: *const f64,
    stride: usize,
    rows: *mut f64,
) {
    for first in (0..order).step_by(8) {
        // SAFETY: `order` is a multiple of 8, so these 8 rows and those before are there, and the triangle's too.
        unsafe {
            let these = &mut *rows.add(first * N).cast::<[[f64; N]; 8]>();
            let mut sums = *these;
            for before in 0..first {
                let row = &*rows.add(before * N).cast::<[f64; N]>();
                let factors = &*triangle.add(before * stride + first).cast::<[f64; 8]>();
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    for (cell, number) in sum.iter_mut().zip(row) {
                        *cell = less::<FUSED>(*cell, *factor, *number);
                    }
                }
            }
            for done in 0..7 {
                let row = sums[done];
                let factors = triangle.add((first + done) * stride + first);
                for (after, sum) in sums.iter_mut().enumerate().skip(done + 1) {
                    let factor = *factors.add(after);
                    for (cell, number) in sum.iter_mut().zip(&row) {
                        *cell = less::<FUSED>(*cell, factor, *number);
                    }
                }
            }
            *these = sums;
        }
    }
}

/// `Kernel::combine`.
#[inline(always)]
pub unsafe fn combine_with<const FUSED: bool>(
    factors: &[f64],
    source: *const f64,
    stride: usize,
    target: *mut f64,
    length: usize,
) -> f64 {
    // SAFETY: the caller keeps the contract; each arm reads as many columns as there are factors.
    unsafe {
        match *factors {
            [] => combine_some::<0, FUSED>([], source, stride, target, length),
            [a] => combine_some::<1, FUSED>([a], source, stride, target, length),
            [a, b] => combine_some::<2, FUSED>([a, b], source, stride, target, length),
            [a, b, c] => combine_some::<3, FUSED>([a, b, c], source, stride, target, length),
            [a, b, c, d] => combine_some::<4, FUSED>([a, b, c, d], source, stride, target, length),
            [a, b, c, d, e] => {
                combine_some::<5, FUSED>([a, b, c, d, e], source, stride, target, length)
            }
            [a, b, c, d, e, f] => {
                combine_some::<6, FUSED>([a, b, c, d, e, f], source, stride, target, length)
            }
            [a, b, c, d, e, f, g] => {
                combine_some::<7, FUSED>([a, b, c, d, e, f, g], source, stride, target, length)
            }
            [a, b, c, d, e, f, g, h] => {
                combine_some::<8, FUSED>([a, b, c, d, e, f, g, h], source, stride, target, length)
            }
            _ => unreachable!("at most 8 columns are combined at a time"),
        }
    }
}

#[inline(always)]
unsafe fn combine_some<const COUNT: usize, const FUSED: bool>(
    factors: [f64; COUNT],
    source: *const f64,
    stride: usize,
    target: *mut f64,
    length: usize,
) -> f64 {
    const LANES: usize = 8;
    let mut largest = [0.0_f64; LANES];
    let whole = length - length % LANES;
    for first in (0..whole).step_by(LANES) {
        // SAFETY: rows `first..first + LANES` are there in the target and in each of the columns.
        unsafe {
            let cells = &mut *target.add(first).cast::<[f64; LANES]>();
            let mut sums = *cells;
            for (column, factor) in factors.iter().enumerate() {
                let numbers = &*source.add(column * stride + first).cast::<[f64; LANES]>();
                for (sum, number) in sums.iter_mut().zip(numbers) {
                    *sum = less::<FUSED>(*sum, *factor, *number);
                }
            }
            *cells = sums;
            for (most, sum) in largest.iter_mut().zip(&sums) {
                let magnitude = sum.abs();
                *most = if magnitude > *most { magnitude } else { *most };
            }
        }
    }
    for row in whole..length {
        // SAFETY: this row is there in the target and in each of the columns.
        unsafe {
            let cell = &mut *target.add(row);
            for (column, factor) in factors.iter().enumerate() {
                *cell = less::<FUSED>(*cell, *factor, *source.add(column * stride + row));
            }
            largest[0] = largest[0].max(cell.abs());
        }
    }
    largest.into_iter().fold(0.0, f64::max)
}

/// `Kernel::interchange`.
#[inline(always)]
pub unsafe fn interchange_with(
    first: usize,
    pivots: &[u32],
    top: *mut f64,
    stride: usize,
    count: usize,
) {
    for (row, pivot) in (first..).zip(pivots) {
        for column in 0..count {
            // SAFETY: both rows are there in each of the columns; they may be the same.
            unsafe {
                let column = top.add(column * stride);
                std::ptr::swap(column.add(row), column.add(*pivot as usize));
            }
        }
    }
}

/// `Kernel::pack` for tiles of `M` rows.
#[inline(always)]
pub unsafe fn pack_with<const M: usize>(
    source: *const f64,
    stride: usize,
    depth: usize,
    height: usize,
    packed: *mut f64,
) {
    for (tile, first) in (0..height).step_by(M).enumerate() {
        // SAFETY: there is room for `depth` columns of each tile, and a tile has at most M rows left.
        unsafe {
            let target = packed.add(tile * M * depth).cast::<[f64; M]>();
            for column in 0..depth {
                let numbers = source.add(column * stride + first);
                if first + M <= height {
                    *target.add(column) = *numbers.cast::<[f64; M]>();
                } else {
                    *target.add(column) = std::array::from_fn(|row| {
                        if first + row < height {
                            *numbers.add(row)
                        } else {
                            0.0
                        }
                    });
                }
            }
        }
    }
}
