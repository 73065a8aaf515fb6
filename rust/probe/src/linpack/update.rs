//! What a panel does to the columns on its right: rows changed, the triangle solved with, the product subtracted.
//!
//! The factors of the product are packed into the order in which the innermost kernel reads them: Goto and van de Geijn,
//! "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34, 2008).

use std::ops::Range;

use super::factor::{Left, Scratch, Solver};
use super::matrix::Matrix;

impl Solver {
    /// Change rows of some columns as a panel was changed.
    pub(super) unsafe fn interchange(&self, panel: Range<usize>, columns: Range<usize>) {
        // SAFETY: the panel was factored, and the caller alone uses these columns.
        unsafe {
            let pivots = std::slice::from_raw_parts(self.pivots.add(panel.start), panel.len());
            let top = self.matrix.at(0, columns.start);
            let stride = self.matrix.stride;
            (self.kernel.interchange)(panel.start, pivots, top, stride, columns.len());
        }
    }

    /// Pack what lies below a panel's triangle.
    pub(super) unsafe fn pack(&self, panel: Range<usize>, packed: *mut f64) {
        let Matrix { stride, order, .. } = self.matrix;
        // SAFETY: the caller alone uses `packed`, which is large enough for every panel; no one writes to this one.
        unsafe {
            let source = self.matrix.at(panel.end, panel.start);
            (self.kernel.pack)(source, stride, panel.len(), order - panel.end, packed);
        }
    }

    /// Apply a panel to columns on its right: change their rows, solve with its triangle, subtract the product.
    pub(super) unsafe fn update(
        &self,
        panel: Range<usize>,
        left: Left,
        columns: Range<usize>,
        scratch: Scratch,
    ) {
        let step = self.kernel.columns * panel.len();
        // SAFETY: the caller alone uses these columns and the scratch, which holds CHUNK columns of any panel's width;
        // the panel was factored, and is not written meanwhile.
        unsafe {
            for (number, group) in pieces(columns.clone(), self.kernel.columns).enumerate() {
                self.interchange(panel.clone(), group.clone());
                self.substitute(panel.clone(), group, scratch.right.add(number * step));
            }
            let rest = self.matrix.order - panel.end;
            let whole = rest - rest % self.kernel.rows;
            if matches!(left, Left::InPlace) && whole < rest {
                let source = self.matrix.at(panel.end + whole, panel.start);
                let stride = self.matrix.stride;
                (self.kernel.pack)(source, stride, panel.len(), rest - whole, scratch.edge);
            }
            for block in pieces(0..rest, self.kernel.block_rows) {
                for (number, group) in pieces(columns.clone(), self.kernel.columns).enumerate() {
                    let right = scratch.right.add(number * step).cast_const();
                    for tile in pieces(block.clone(), self.kernel.rows) {
                        let (source, stride) = self.tile(&panel, left, tile.start, whole, scratch);
                        let rows = panel.end + tile.start..panel.end + tile.end;
                        self.multiply(panel.len(), source, stride, right, rows, group.clone());
                    }
                }
            }
        }
    }

    /// Where a tile of the left factor is, and its stride.
    unsafe fn tile(
        &self,
        panel: &Range<usize>,
        left: Left,
        row: usize,
        whole: usize,
        scratch: Scratch,
    ) -> (*const f64, usize) {
        // SAFETY: the row is the first of a tile below the panel.
        unsafe {
            match left {
                Left::Packed(packed) => (packed.add(row * panel.len()), self.kernel.rows),
                Left::InPlace if row >= whole => (scratch.edge.cast_const(), self.kernel.rows),
                Left::InPlace => (
                    self.matrix.at(panel.end + row, panel.start).cast_const(),
                    self.matrix.stride,
                ),
            }
        }
    }

    /// Subtract one tile's product; a tile that is not full is computed beside the matrix.
    unsafe fn multiply(
        &self,
        depth: usize,
        left: *const f64,
        left_stride: usize,
        right: *const f64,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let kernel = self.kernel;
        // SAFETY: the caller alone uses these columns; the factors are `depth` deep.
        unsafe {
            let target = self.matrix.at(rows.start, columns.start);
            let stride = self.matrix.stride;
            if rows.len() == kernel.rows && columns.len() == kernel.columns {
                return (kernel.multiply)(depth, left, left_stride, right, target, stride);
            }
            let mut beside = Tile([0.0; LARGEST_TILE]);
            let cells = beside.0.as_mut_ptr();
            (kernel.multiply)(depth, left, left_stride, right, cells, kernel.rows);
            for column in 0..columns.len() {
                for row in 0..rows.len() {
                    *target.add(column * stride + row) += beside.0[column * kernel.rows + row];
                }
            }
        }
    }

    /// Pack the rows of a panel in one group of columns, solve with the panel's triangle, and put them back.
    unsafe fn substitute(&self, panel: Range<usize>, columns: Range<usize>, packed: *mut f64) {
        let count = self.kernel.columns;
        // SAFETY: the caller alone uses these columns and the packed rows; no one writes to the panel.
        unsafe {
            for column in 0..columns.len() {
                let source = self.matrix.at(panel.start, columns.start + column);
                for row in 0..panel.len() {
                    *packed.add(row * count + column) = *source.add(row);
                }
            }
            for column in columns.len()..count {
                (0..panel.len()).for_each(|row| *packed.add(row * count + column) = 0.0);
            }
            let triangle = self.matrix.at(panel.start, panel.start);
            let stride = self.matrix.stride;
            let whole = panel.len() - panel.len() % 8;
            (self.kernel.substitute)(whole, triangle, stride, packed);
            for row in whole..panel.len() {
                for before in 0..row {
                    let factor = *triangle.add(before * stride + row);
                    for column in 0..count {
                        *packed.add(row * count + column) -=
                            factor * *packed.add(before * count + column);
                    }
                }
            }
            for column in 0..columns.len() {
                let target = self.matrix.at(panel.start, columns.start + column);
                for row in 0..panel.len() {
                    *target.add(row) = *packed.add(row * count + column);
                }
            }
        }
    }
}

/// Numbers of the largest tile of any kernel.
const LARGEST_TILE: usize = 24 * 8;

#[repr(align(64))]
struct Tile([f64; LARGEST_TILE]);

/// A range in pieces of `length`; the last may be shorter.
pub fn pieces(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .step_by(length)
        .map(move |start| start..(start + length).min(end))
}
