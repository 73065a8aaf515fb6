//! Bandwidth by block size (the figure of RAMspeed): every thread reads or writes a block of its own, over and over.

use crate::arguments::Arguments;
use crate::memory::isa::Isa;
use crate::memory::mapping::{report_pages, Mapping, Pages};
use crate::memory::sweeps::{Sweep, Unit, STEP_BYTES};
use crate::memory::{room, team};
use crate::report::{Failed, Report};
use crate::windows::{Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "memory",
    summary: "memory bandwidth by block size, reading or writing",
    usage: "[--block-bytes 67108864] [--operation read|write] [--unit float|integer|vector] [--isa auto|sse2|avx2|avx512]
       [--threads CPUS] [--pages small|huge]; a unit of work: every thread once over its block",
    run,
};

/// One thread's block, and what it found in it.
pub(super) struct Share {
    block: Mapping,
    /// The float unit's words are doubles.
    floats: bool,
    /// Sum of one pass's words: modulo 2^64, or a double's bits.
    pass_sum: u64,
    /// Sum of the last sweep.
    pub(super) sum: u64,
    /// The value that the next writing sweep begins with, a double's bits where words are doubles.
    next: u64,
}

impl Share {
    /// Map and touch a block, and fill it with words whose sums are exact.
    pub(super) fn new(bytes: usize, pages: Pages, unit: Unit) -> Result<Share, Failed> {
        let mut share = Share {
            block: Mapping::new(bytes, pages)?,
            floats: unit == Unit::Float,
            pass_sum: 0,
            sum: 0,
            next: 0,
        };
        if share.floats {
            let words = (0..bytes as u64 / 8).map(|index| (index % 16 + 1) as f64);
            share.pass_sum = words.clone().sum::<f64>().to_bits();
            share.fill(words.map(f64::to_bits));
        } else {
            let words =
                (0..bytes as u64 / 8).map(|index| (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            share.pass_sum = words.clone().fold(0, u64::wrapping_add);
            share.fill(words);
        }
        Ok(share)
    }

    fn fill(&mut self, words: impl Iterator<Item = u64>) {
        let start: *mut u64 = self.block.start().cast();
        for (index, word) in words.enumerate() {
            // SAFETY: as many words as fit the block, which is writable and aligned to a page.
            unsafe { start.add(index).write(word) };
        }
    }

    /// So many passes over the first `bytes` of the block.
    pub(super) fn sweep(&mut self, sweep: Sweep, bytes: usize, passes: u64) {
        // SAFETY: the block is at least `bytes` long, a multiple of STEP_BYTES, aligned to a page; passes are positive.
        self.sum = unsafe { sweep(self.block.start(), bytes, passes, self.next) };
    }

    /// Whether the last sweep read what is in the block, `passes` times.
    pub(super) fn was_read(&self, passes: u64) -> bool {
        if self.floats {
            f64::from_bits(self.sum) == f64::from_bits(self.pass_sum) * passes as f64
        } else {
            self.sum == self.pass_sum.wrapping_mul(passes)
        }
    }

    /// Whether every word holds what the last of `passes` wrote; the next sweep writes other values.
    pub(super) fn was_written(&mut self, bytes: usize, passes: u64) -> bool {
        let (last, next) = if self.floats {
            let first = f64::from_bits(self.next);
            let last = first + (passes - 1) as f64;
            (last.to_bits(), (last + 1.0).to_bits())
        } else {
            let last = self.next.wrapping_add(passes - 1);
            (last, last.wrapping_add(1))
        };
        self.next = next;
        self.words(bytes).iter().all(|word| *word == last)
    }

    /// The first `bytes` of the block.
    pub(super) fn words(&mut self, bytes: usize) -> &mut [u64] {
        // SAFETY: within the mapping, aligned, every byte initialised; the borrow of self keeps it alive and single.
        unsafe { std::slice::from_raw_parts_mut(self.block.start().cast(), bytes / 8) }
    }
}

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let bytes = arguments.at_least("block-bytes", STEP_BYTES as u64, 64 << 20) as usize;
    let writes = arguments.one_of("operation", &["read", "write"]) == "write";
    let unit = arguments.one_of("unit", &["float", "integer", "vector"]);
    let isa = Isa::from(arguments);
    let threads = team::threads(arguments);
    let pages = Pages::from(arguments);
    let mut report = Report::of(&[("bandwidth_mb_per_s", "MB/s")]);
    if bytes % STEP_BYTES != 0 {
        arguments.complain(format!(
            "--block-bytes {bytes} is no multiple of {STEP_BYTES}"
        ));
    }
    if !arguments.are_right() {
        return Ok(report);
    }
    let unit = match unit {
        "integer" => Unit::Integer,
        "float" => Unit::Float,
        _ => Unit::Vector(isa?),
    };
    room::demand(
        "--block-bytes",
        bytes as u64,
        threads as u64,
        STEP_BYTES as u64,
    )?;
    let mut shares: Vec<Share> = (0..threads)
        .map(|_| Share::new(bytes, pages, unit))
        .collect::<Result<_, _>>()?;
    let sweep = if writes {
        unit.writing()
    } else {
        unit.reading()
    };
    let mut wrong = 0;
    report.windows = windows.measure(
        &mut report.notes,
        |passes| {
            let span = team::together(&mut shares, |share| share.sweep(sweep, bytes, passes))?;
            wrong += shares
                .iter_mut()
                .filter_map(|share| {
                    let right = if writes {
                        share.was_written(bytes, passes)
                    } else {
                        share.was_read(passes)
                    };
                    (!right).then_some(())
                })
                .count();
            Ok(span)
        },
        |passes, span| {
            vec![(
                "bandwidth_mb_per_s",
                mb_per_s(bytes * threads, passes, span),
            )]
        },
    )?;
    let what = if writes {
        "every word holds the last value written"
    } else {
        "the sums of what was read"
    };
    report.check(
        what,
        wrong == 0,
        format!("wrong in {wrong} sweeps of {threads} threads"),
    );
    report.fact("instructions", unit.instructions());
    let blocks: Vec<&Mapping> = shares.iter().map(|share| &share.block).collect();
    report_pages(&mut report, &blocks);
    Ok(report)
}

/// 10^6 bytes a second: `bytes` a pass.
pub(super) fn mb_per_s(bytes: usize, passes: u64, span: Span) -> f64 {
    bytes as f64 * passes as f64 / span.duration_ns() as f64 * 1e3
}
