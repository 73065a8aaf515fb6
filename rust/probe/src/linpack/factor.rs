//! Factorisation with partial pivoting, and solution, as HPL does it: right-looking, the right-hand side as one more
//! column, rows changed only to the right of a panel, the next panel factored while the others are updated.
//!
//! The recursion within a panel follows Toledo, "Locality of Reference in LU Decomposition with Partial Pivoting" (SIAM
//! J. Matrix Anal. Appl. 18, 1997).

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::arena::{Arena, LINE_BYTES};
use super::kernel::Kernel;
use super::matrix::{stride_of, Matrix};
use super::team::Barrier;
use super::update::pieces;
use crate::report::Failed;

/// Most columns that a worker takes at once.
const CHUNK: usize = 192;
/// Columns at which the recursion in a panel ends.
const LEAF: usize = 8;
/// A panel of this depth is worth packing before it is multiplied within the recursion.
const WORTH_PACKING: usize = 64;
/// The panels are no wider than this part of the order, and no narrower than `NARROWEST`.
const PANELS: usize = 12;
const NARROWEST: usize = 32;

/// The system, the buffers and the way to solve it. Made once; every solution uses the same memory.
pub struct Solver {
    pub matrix: Matrix,
    pub kernel: &'static Kernel,
    shape: Shape,
    /// The row with which each row was changed.
    pub pivots: *mut u32,
    /// What lies below two successive panels' triangles, packed.
    packed: [*mut f64; 2],
    scratch: Vec<Scratch>,
    /// For each panel: the first column that no worker has taken yet.
    untaken: Vec<AtomicUsize>,
    arena: Arena,
}

/// A worker's own buffers.
#[derive(Clone, Copy)]
pub struct Scratch {
    /// Packed rows of the right factor.
    pub right: *mut f64,
    /// The last, partly filled tile of a left factor that is not packed.
    pub edge: *mut f64,
}

/// A left factor: what lies below the triangle of the panel at hand.
#[derive(Clone, Copy)]
pub enum Left {
    Packed(*const f64),
    InPlace,
}

// SAFETY: the pointers lead into the arena that the solver owns; `factor` says who writes what when.
unsafe impl Send for Solver {}
// SAFETY: as above.
unsafe impl Sync for Solver {}

/// What a solver is made for.
#[derive(Clone, Copy)]
pub struct Shape {
    pub order: usize,
    pub workers: usize,
    pub kernel: &'static Kernel,
    /// Columns that are factored at a time.
    pub width: usize,
}

impl Shape {
    /// With panels of the width that suits the order.
    pub fn of(order: usize, workers: usize, kernel: &'static Kernel) -> Shape {
        let width = (order / PANELS)
            .next_multiple_of(8)
            .clamp(NARROWEST, kernel.block_width);
        Shape {
            order,
            workers,
            kernel,
            width,
        }
    }

    /// Bytes that a solver of this shape takes.
    pub fn bytes(self) -> usize {
        let numbers = stride_of(self.order) * (self.order + 1)
            + 2 * self.packed()
            + self.workers * self.width * (CHUNK + self.kernel.rows);
        8 * numbers + 4 * self.order + LINE_BYTES * (4 + 2 * self.workers)
    }

    /// Numbers of a packed panel.
    fn packed(self) -> usize {
        self.order.next_multiple_of(self.kernel.rows) * self.width
    }
}

impl Solver {
    /// Take and touch the memory for systems of this shape.
    pub fn of(shape: Shape) -> Result<Solver, Failed> {
        let mut arena = Arena::of(shape.bytes())?;
        let stride = stride_of(shape.order);
        Ok(Solver {
            shape,
            matrix: Matrix {
                numbers: arena.take(stride * (shape.order + 1)),
                stride,
                order: shape.order,
            },
            kernel: shape.kernel,
            pivots: arena.take(shape.order),
            packed: [arena.take(shape.packed()), arena.take(shape.packed())],
            scratch: (0..shape.workers)
                .map(|_| Scratch {
                    right: arena.take(shape.width * CHUNK),
                    edge: arena.take(shape.width * shape.kernel.rows),
                })
                .collect(),
            untaken: (0..shape.order.div_ceil(shape.width))
                .map(|_| AtomicUsize::new(0))
                .collect(),
            arena,
        })
    }

    /// What it was made for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Where the memory came from.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// This worker's part of factoring the matrix, its right-hand side included. All workers call it at once; when the
    /// last is back, the upper triangle and the changed right-hand side are there.
    ///
    /// # Safety
    /// No one else uses the matrix meanwhile.
    pub unsafe fn factor(&self, worker: usize, barrier: &Barrier) {
        let end = self.matrix.order + 1;
        if worker == 0 {
            for (number, untaken) in self.untaken.iter().enumerate() {
                untaken.store(self.panel(number + 1).end, Ordering::Relaxed);
            }
            // SAFETY: the others wait.
            unsafe { self.prepare(0, self.scratch[0]) };
        }
        barrier.wait();
        for number in 0..self.untaken.len() {
            let panel = self.panel(number);
            // SAFETY: this panel was prepared before the barrier, and is not written again. Worker 0 alone touches the
            // next panel; every other column has one taker; and the next panel is packed elsewhere than this one.
            unsafe {
                let left = Left::Packed(self.packed[number % 2]);
                let scratch = self.scratch[worker];
                let next = self.panel(number + 1);
                if worker == 0 && !next.is_empty() {
                    for columns in pieces(next, CHUNK) {
                        self.update(panel.clone(), left, columns, scratch);
                    }
                    self.prepare(number + 1, scratch);
                }
                while let Some(columns) = self.take(&self.untaken[number], end) {
                    self.update(panel.clone(), left, columns, scratch);
                }
            }
            barrier.wait();
        }
    }

    /// The columns of a panel; none behind the last.
    fn panel(&self, number: usize) -> Range<usize> {
        let order = self.matrix.order;
        (number * self.shape.width).min(order)..((number + 1) * self.shape.width).min(order)
    }

    /// The next columns to be updated by whoever asks: fewer towards the end, so that all finish together.
    fn take(&self, untaken: &AtomicUsize, end: usize) -> Option<Range<usize>> {
        let taken = |first: usize| {
            let share = (end - first).div_ceil(2 * self.shape.workers);
            let most = if self.shape.workers == 1 {
                CHUNK
            } else {
                share
            };
            let count = most
                .clamp(CHUNK / 6, CHUNK)
                .next_multiple_of(self.kernel.columns);
            first..(first + count).min(end)
        };
        untaken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |first| {
                (first < end).then(|| taken(first).end)
            })
            .ok()
            .map(taken)
    }

    /// Factor a panel whose columns are up to date, and pack what lies below its triangle.
    unsafe fn prepare(&self, number: usize, scratch: Scratch) {
        let panel = self.panel(number);
        let packed = self.packed[number % 2];
        // SAFETY: the caller alone uses this panel, and the place where it is packed.
        unsafe {
            self.recurse(panel.clone(), packed, scratch);
            self.pack(panel, packed);
        }
    }

    unsafe fn recurse(&self, panel: Range<usize>, packed: *mut f64, scratch: Scratch) {
        // SAFETY: the caller alone uses this panel.
        unsafe {
            if panel.len() <= LEAF {
                return self.leaf(panel);
            }
            let middle = panel.start + (panel.len() / 2).next_multiple_of(LEAF);
            let (first, second) = (panel.start..middle, middle..panel.end);
            self.recurse(first.clone(), packed, scratch);
            let left = if first.len() < WORTH_PACKING {
                Left::InPlace
            } else {
                self.pack(first.clone(), packed);
                Left::Packed(packed)
            };
            self.update(first.clone(), left, second.clone(), scratch);
            self.recurse(second.clone(), packed, scratch);
            self.interchange(second, first);
        }
    }

    /// Factor a few columns, each brought up to date when its turn comes.
    unsafe fn leaf(&self, panel: Range<usize>) {
        let Matrix { stride, order, .. } = self.matrix;
        for column in panel.clone() {
            let mut factors = [0.0; LEAF];
            let factors = &mut factors[..column - panel.start];
            // SAFETY: the caller alone uses this panel.
            unsafe {
                for done in 0..factors.len() {
                    let row = panel.start + done;
                    let number = self.matrix.at(row, column);
                    for (before, factor) in factors[..done].iter().enumerate() {
                        *number -= *self.matrix.at(row, panel.start + before) * factor;
                    }
                    factors[done] = *number;
                }
                let target = self.matrix.at(column, column);
                let source = self.matrix.at(column, panel.start);
                let length = order - column;
                let largest = (self.kernel.combine)(factors, source, stride, target, length);
                let found = std::slice::from_raw_parts(target, length)
                    .iter()
                    .position(|number| number.abs() == largest);
                *self.pivots.add(column) = (column + found.unwrap_or(0)) as u32;
                // Writes to this column too: no reference into it may live across the call.
                self.interchange(column..column + 1, panel.clone());
                if largest > 0.0 {
                    divide_by_first(std::slice::from_raw_parts_mut(target, length));
                }
            }
        }
    }

    /// Solve with the upper triangle: the right-hand side becomes the solution.
    ///
    /// # Safety
    /// The matrix was factored, and no one else uses it.
    pub unsafe fn solve(&self) {
        let Matrix { stride, order, .. } = self.matrix;
        let mut last = order;
        while last > 0 {
            let first = (last - 1) / LEAF * LEAF;
            // SAFETY: the caller alone uses the matrix; at most LEAF columns are combined.
            unsafe {
                let solution = self.matrix.at(0, order);
                for row in (first..last).rev() {
                    let number = &mut *solution.add(row);
                    for after in row + 1..last {
                        *number -= *self.matrix.at(row, after) * *solution.add(after);
                    }
                    *number /= *self.matrix.at(row, row);
                }
                let mut factors = [0.0; LEAF];
                let factors = &mut factors[..last - first];
                for (number, factor) in factors.iter_mut().enumerate() {
                    *factor = *solution.add(first + number);
                }
                let source = self.matrix.at(0, first);
                (self.kernel.combine)(factors, source, stride, solution, first);
            }
            last = first;
        }
    }
}

/// Divide all but the first of these by it.
fn divide_by_first(numbers: &mut [f64]) {
    if let Some((first, rest)) = numbers.split_first_mut() {
        let factor = 1.0 / *first;
        rest.iter_mut().for_each(|number| *number *= factor);
    }
}
