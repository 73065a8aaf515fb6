//! A memory bomb: takes memory without end, and writes to all of it.

use std::ptr::NonNull;

use virtoll_probe::arguments::Arguments;

use crate::group::end_own;
use crate::shared::Shared;
use crate::{team, Aggressor, Work};

pub const AGGRESSOR: Aggressor = Aggressor {
    name: "memory",
    summary: "takes memory without end, every page written; killed for it, it begins again",
    usage: "[--most-bytes 268435456]",
    counts: &["touched_bytes", "held_bytes", "refused"],
    prepare,
};

const TOUCHED: usize = 0;
const HELD: usize = 1;
const REFUSED: usize = 2;

const STEP_BYTES: usize = 1024 * 1024;
const PAGE_BYTES: usize = 4096;
const WORDS_PER_PAGE: usize = PAGE_BYTES / 8;

fn prepare(arguments: &mut Arguments) -> Work {
    let most_bytes = arguments.at_least("most-bytes", STEP_BYTES as u64, 256 * 1024 * 1024);
    Box::new(move |shared: &Shared| grow(*shared, most_bytes / STEP_BYTES as u64))
}

/// Take step after step. When there is no more to be had, go over what is held again and again, so that none of it is
/// idle. What is held is given back when the time is over: see [`crate::group::Group::end`].
fn grow(shared: Shared, most_steps: u64) -> String {
    shared.set(HELD, 0);
    let mut held: Vec<NonNull<u64>> = Vec::new();
    let mut stamp = 0;
    let mut next = 0;
    shared.set_gives_back(true);
    while !shared.is_over() {
        let room = (held.len() as u64) < most_steps;
        let more = room.then(|| team::mapped(STEP_BYTES));
        let block = match more {
            Some(Ok(block)) => {
                held.push(block);
                block
            }
            Some(Err(error)) if held.is_empty() => return format!("mmap: {error}"),
            refused_or_full => {
                shared.add(REFUSED, u64::from(refused_or_full.is_some()));
                next = (next + 1) % held.len();
                held[next]
            }
        };
        stamp = touch(block, stamp);
        shared.add(TOUCHED, STEP_BYTES as u64);
        shared.set(HELD, (held.len() * STEP_BYTES) as u64);
    }
    for block in held {
        // SAFETY: the step was mapped whole, and nothing refers to it any more.
        unsafe { libc::munmap(block.as_ptr().cast(), STEP_BYTES) };
    }
    shared.set_gives_back(false);
    end_own()
}

/// Write to each page of a step something that no other page holds, so that nothing can merge or compress them away.
fn touch(block: NonNull<u64>, mut stamp: u64) -> u64 {
    for page in 0..STEP_BYTES / PAGE_BYTES {
        for word in (0..WORDS_PER_PAGE).step_by(8) {
            stamp += 1;
            let scattered = stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            // SAFETY: the word lies in the step, which was mapped whole and is unmapped at the end alone.
            unsafe {
                block
                    .add(page * WORDS_PER_PAGE + word)
                    .write_volatile(scattered);
            }
        }
    }
    stamp
}
