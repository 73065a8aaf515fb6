//! The inner loops that depend on the instruction set, and the choice among them.

use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::report::Failed;

/// The inner loops of one instruction set. All matrices are stored by columns; a stride is in numbers, not bytes.
///
/// The left factor of a product is taken `rows` rows at a time, the right factor packed: `columns` numbers of one row
/// after another. Every function demands a CPU with the instruction set, and pointers valid for what it says it reads
/// and writes.
pub struct Kernel {
    pub name: &'static str,
    /// Rows and columns of the tile that `multiply` keeps in registers.
    pub rows: usize,
    pub columns: usize,
    /// Rows of the left factor that stay in the second-level cache while the right one passes; a multiple of `rows`.
    pub block_rows: usize,
    /// Columns that are factored at a time, where the matrix is large; a multiple of 8.
    pub block_width: usize,
    /// `(depth, left, left_stride, right, target, target_stride)`: subtract from a full tile of the target the product
    /// of `depth` columns of `rows` numbers, and `depth` packed rows. `depth` is at least 1.
    pub multiply: unsafe fn(usize, *const f64, usize, *const f64, *mut f64, usize),
    /// `(order, triangle, stride, packed)`: replace `order` packed rows by the solution with this unit lower triangle;
    /// `order` is a multiple of 8.
    pub substitute: unsafe fn(usize, *const f64, usize, *mut f64),
    /// `(factors, source, stride, target, length)`: subtract from the target as many columns, from `source` on, as
    /// there are factors, at most 8, each times its factor; returns the largest magnitude left.
    pub combine: unsafe fn(&[f64], *const f64, usize, *mut f64, usize) -> f64,
    /// `(first, pivots, top, stride, count)`: in each of `count` columns, the first of which begins at `top`, change row
    /// `first + i` for row `pivots[i]`, one after another.
    pub interchange: unsafe fn(usize, &[u32], *mut f64, usize, usize),
    /// `(source, stride, depth, height, packed)`: copy `depth` columns of `height` numbers tile by tile: `rows` numbers
    /// of one column after another, the last tile filled up with zeros.
    pub pack: unsafe fn(*const f64, usize, usize, usize, *mut f64),
}

/// What `--isa` may say, the default first.
pub const WORDS: &[&str] = &["best", "avx512", "avx2", "sse2"];

/// The kernel of this name; with "best" the widest that this CPU, and the system below, has.
pub fn choose(word: &str) -> Result<&'static Kernel, Failed> {
    let available = available();
    available
        .iter()
        .find(|kernel| word == "best" || word == kernel.name)
        .copied()
        .ok_or_else(|| {
            let names: Vec<&str> = available.iter().map(|kernel| kernel.name).collect();
            Failed::new(
                "refused",
                format!(
                    "there is no {word} here: this CPU, as this system shows it, has {}",
                    names.join(", ")
                ),
                "--isa",
                "ask for one of these, or for best",
            )
        })
}

/// The kernels that this CPU can run, the widest first.
#[cfg(target_arch = "x86_64")]
pub fn available() -> Vec<&'static Kernel> {
    let mut kernels: Vec<&'static Kernel> = Vec::new();
    let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    if fused && is_x86_feature_detected!("avx512f") {
        kernels.push(&avx512::KERNEL);
    }
    if fused {
        kernels.push(&avx2::KERNEL);
    }
    kernels.push(&portable::KERNEL);
    kernels
}

/// The kernels that this CPU can run: what the compiler makes of plain loops.
#[cfg(not(target_arch = "x86_64"))]
pub fn available() -> Vec<&'static Kernel> {
    vec![&portable::KERNEL]
}
