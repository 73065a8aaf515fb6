//! Latency of memory: a chain of loads, each of which gives the address of the next, in random order.

use std::ptr;

use crate::arguments::Arguments;
use crate::memory::mapping::{report_pages, Mapping, Pages};
use crate::memory::room;
use crate::report::{Failed, Report};
use crate::windows::{Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "memory-latency",
    summary: "latency of a load: pointers chased through a block in random order",
    usage: "[--block-bytes 67108864] [--pages small|huge] [--seed 1]; a unit of work: one load",
    run,
};

const LINE_BYTES: usize = 64;

/// A cache line of the block.
#[repr(C, align(64))]
struct Line {
    next: *const Line,
    /// Its place in the cycle, from 0.
    place: usize,
}

/// A cycle through every line of a block.
pub(super) struct Chain {
    block: Mapping,
    lines: usize,
    at: *const Line,
}

impl Chain {
    /// Sattolo's algorithm: of all cyclic permutations of the lines each is as likely as any other.
    ///
    /// S. Sattolo, "An algorithm to generate a random cyclic permutation", Information Processing Letters 22 (1986).
    pub(super) fn new(bytes: usize, pages: Pages, seed: u64) -> Result<Chain, Failed> {
        let block = Mapping::new(bytes, pages)?;
        let lines = bytes / LINE_BYTES;
        let first: *mut Line = block.start().cast();
        let line = |index: usize| first.wrapping_add(index);
        for index in 0..lines {
            // SAFETY: `lines` lines fit the block, which is aligned to a page.
            unsafe {
                line(index).write(Line {
                    next: line(index),
                    place: 0,
                })
            };
        }
        let mut random = Random(seed);
        let mut chain = Chain {
            block,
            lines,
            at: first,
        };
        for last in (1..lines).rev() {
            chain.cross(last, random.below(last as u64) as usize);
        }
        chain.number();
        Ok(chain)
    }

    /// Exchange where two lines lead.
    pub(super) fn cross(&mut self, one: usize, other: usize) {
        let first: *mut Line = self.block.start().cast();
        assert!(one != other && one.max(other) < self.lines);
        // SAFETY: two different lines of the block.
        unsafe { ptr::swap(&mut (*first.add(one)).next, &mut (*first.add(other)).next) };
    }

    /// Write each line's place, from the first on, until the first comes again or all lines were counted.
    fn number(&mut self) {
        let mut line = self.at.cast_mut();
        for place in 0..self.lines {
            // SAFETY: every `next` is the address of a line of the block.
            unsafe {
                (*line).place = place;
                line = (*line).next.cast_mut();
            }
        }
    }

    /// Whether each line was visited once and the last leads back to the first.
    pub(super) fn is_whole(&self) -> bool {
        let first: *const Line = self.block.start().cast();
        (0..self.lines).all(|index| {
            // SAFETY: `index` is below `lines`, and `next` is a line of the block.
            let (place, next) = unsafe {
                let line = &*first.wrapping_add(index);
                (line.place, (*line.next).place)
            };
            next == (place + 1) % self.lines
        })
    }

    /// Follow so many pointers.
    pub(super) fn chase(&mut self, loads: u64) {
        let mut at = self.at;
        for _ in 0..loads {
            // SAFETY: every `next` is the address of a line of the block.
            at = unsafe { ptr::read_volatile(&raw const (*at).next) };
        }
        self.at = at;
    }

    /// The place in the cycle where the chase stands.
    pub(super) fn place(&self) -> usize {
        // SAFETY: it is a line of the block.
        unsafe { (*self.at).place }
    }
}

/// SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    /// Below `bound`, by multiplication: uneven by less than bound / 2^64.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }
}

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let bytes = arguments.at_least("block-bytes", 2 * LINE_BYTES as u64, 64 << 20) as usize;
    let pages = Pages::from(arguments);
    let seed = arguments.get("seed", 1_u64);
    let mut report = Report::of(&[("load_ns", "ns")]);
    if bytes % LINE_BYTES != 0 {
        arguments.complain(format!(
            "--block-bytes {bytes} is no multiple of {LINE_BYTES}"
        ));
    }
    if !arguments.are_right() {
        return Ok(report);
    }
    room::demand("--block-bytes", bytes as u64, 1, LINE_BYTES as u64)?;
    let mut chain = Chain::new(bytes, pages, seed)?;
    let mut astray = 0;
    report.windows = windows.measure(
        &mut report.notes,
        |loads| {
            let expected = (chain.place() + loads as usize) % chain.lines;
            let span = Span::of(|| chain.chase(loads));
            astray += usize::from(chain.place() != expected);
            Ok(span)
        },
        |loads, span| vec![("load_ns", span.duration_ns() as f64 / loads as f64)],
    )?;
    report.check(
        "the cycle visits every line",
        chain.is_whole(),
        format!("{} lines of {LINE_BYTES} bytes", chain.lines),
    );
    report.check(
        "every chase ended where it should",
        astray == 0,
        format!("{astray} ended elsewhere"),
    );
    report_pages(&mut report, &[&chain.block]);
    Ok(report)
}
