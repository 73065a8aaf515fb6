//! A cache thrash: every CPU writes to more memory than the caches hold, line by line.

use virtoll_probe::arguments::Arguments;

use crate::shared::Shared;
use crate::{team, Aggressor, Work};

pub const AGGRESSOR: Aggressor = Aggressor {
    name: "cache",
    summary: "writes over more memory than the caches hold, line by line, on every CPU",
    usage: "[--threads 0] [--block-bytes 67108864]",
    counts: &["lines", "sweeps", "refused"],
    prepare,
};

const LINES: usize = 0;
const SWEEPS: usize = 1;
const REFUSED: usize = 2;

const LINE_WORDS: usize = 8;
/// So many lines are counted at a time.
const TALLY_LINES: usize = 16 * 1024;

fn prepare(arguments: &mut Arguments) -> Work {
    let threads = team::threads(arguments, 0);
    let block_bytes = arguments.at_least("block-bytes", 65_536, 64 * 1024 * 1024) as usize;
    Box::new(move |shared: &Shared| {
        let shared = *shared;
        team::work(
            threads,
            move || shared.add(REFUSED, 1),
            move |_| thrash(shared, block_bytes),
        )
    })
}

/// Sweep over a block of its own for ever. Returns when it cannot be had.
fn thrash(shared: Shared, block_bytes: usize) -> String {
    let block = match team::mapped(block_bytes) {
        Ok(block) => block,
        Err(error) => return format!("no {block_bytes} bytes to write to: {error}"),
    };
    let lines = block_bytes / (8 * LINE_WORDS);
    let mut stamp = 0_u64;
    loop {
        stamp += 1;
        for start in (0..lines).step_by(TALLY_LINES) {
            let end = lines.min(start + TALLY_LINES);
            for line in start..end {
                // SAFETY: the line lies in the block, which was mapped whole and is never unmapped.
                unsafe { block.add(line * LINE_WORDS).write_volatile(stamp) };
            }
            shared.add(LINES, (end - start) as u64);
        }
        shared.add(SWEEPS, 1);
    }
}
