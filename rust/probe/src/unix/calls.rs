//! UnixBench's system calls, and its pipe within one process.

use std::os::fd::AsRawFd;

use super::copies::{Lap, Work};
use super::process::{call, pipe, read_into, write_from};
use super::Quantity;
use crate::report::Failed;

pub const SYSCALL: Quantity = Quantity {
    key: "loops_per_s",
    unit: "/s",
    per_unit: 1.0,
    proof: "every call succeeded",
};

pub const PIPE: Quantity = Quantity {
    key: "loops_per_s",
    unit: "/s",
    per_unit: 1.0,
    proof: "every byte came back in order",
};

const UMASK: usize = 0o022;
const BLOCK_BYTES: usize = 512;
const NUMBER_BYTES: usize = 8;

/// A copy's work; a unit is one dup and its close, getppid, getuid, umask.
pub fn syscall() -> Result<Work, Failed> {
    // SAFETY: cannot fail; from here on each call's result is known.
    unsafe { libc::umask(UMASK as libc::mode_t) };
    Ok(Box::new(|units| {
        let mut succeeded = 0;
        let lap = Lap::of(|| {
            for _ in 0..units {
                succeeded += u64::from(five_calls());
            }
        });
        let missing = units - succeeded;
        let wrong =
            (missing > 0).then(|| format!("{missing} of {units} loops had a call that failed"));
        Ok(lap.verified(wrong))
    }))
}

#[inline]
fn five_calls() -> bool {
    // SAFETY: none of these calls touches memory; the descriptor that is closed has just been made here.
    unsafe {
        let copy = call(libc::SYS_dup, [0; 3]);
        let closed = call(libc::SYS_close, [copy as usize, 0, 0]);
        let parent = call(libc::SYS_getppid, [0; 3]);
        let user = call(libc::SYS_getuid, [0; 3]);
        let mask = call(libc::SYS_umask, [UMASK, 0, 0]);
        copy > 0 && closed == 0 && parent >= 0 && user >= 0 && mask == UMASK as isize
    }
}

/// A copy's work; a unit is 512 bytes written into a pipe and read back.
pub fn pipe_loops() -> Result<Work, Failed> {
    let (reading, writing) = pipe()?;
    let mut block = [0; BLOCK_BYTES];
    let mut number = 0_u64;
    Ok(Box::new(move |units| {
        Lap::repeating(units, || {
            number += 1;
            Ok(passed_through(
                writing.as_raw_fd(),
                reading.as_raw_fd(),
                number,
                &mut block,
            ))
        })
    }))
}

/// Write and read a block that begins with `number`; what is wrong with what came back.
#[inline]
fn passed_through(
    to: libc::c_int,
    from: libc::c_int,
    number: u64,
    block: &mut [u8; BLOCK_BYTES],
) -> Option<String> {
    block[..NUMBER_BYTES].copy_from_slice(&number.to_ne_bytes());
    let written = write_from(to, block);
    let read = read_into(from, block);
    if is_the_same(number, written, read, block) {
        return None;
    }
    let begins = &block[..NUMBER_BYTES];
    Some(format!(
        "block {number}: write gave {written}, read {read}, and it begins with {begins:?}"
    ))
}

#[inline]
fn is_the_same(number: u64, written: isize, read: isize, block: &[u8]) -> bool {
    let whole = BLOCK_BYTES as isize;
    written == whole && read == whole && block[..NUMBER_BYTES] == number.to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_pipe_pass_their_own_checks() {
        for mut work in [syscall().unwrap(), pipe_loops().unwrap()] {
            assert_eq!(work(100).unwrap().wrong, None);
            assert_eq!(work(1).unwrap().wrong, None);
        }
    }

    #[test]
    fn a_short_or_wrong_block_is_caught() {
        let mut block = [0; BLOCK_BYTES];
        block[..NUMBER_BYTES].copy_from_slice(&7_u64.to_ne_bytes());
        assert!(is_the_same(7, 512, 512, &block));
        assert!(!is_the_same(8, 512, 512, &block));
        assert!(!is_the_same(7, 512, 511, &block));
        assert!(!is_the_same(7, -1, 512, &block));
    }

    #[test]
    fn a_pipe_that_does_not_answer_is_told() {
        let (reading, writing) = pipe().unwrap();
        let (ours, theirs) = (reading.as_raw_fd(), writing.as_raw_fd());
        assert!(passed_through(ours, theirs, 1, &mut [0; BLOCK_BYTES]).is_some());
        // written where one reads
    }
}
