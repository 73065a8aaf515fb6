//! Memory that records are moved from and to, touched before anything is timed.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use crate::report::Failed;

/// Where in a page a buffer begins, in bytes.
///
/// O_DIRECT wants its start. A program that reads through the page cache has its buffer where malloc puts it, 16 bytes
/// on; that is not the same: some processors copy from one start of a page to another (`rep movsb`, which is what the
/// kernel does) more slowly (Zen 4: a tenth at 4 KiB).
#[derive(Clone, Copy)]
pub enum Begin {
    AtPage = 0,
    AsMalloc = 16,
}

impl Begin {
    /// What suits files that are read past the page cache, or through it.
    pub fn suiting(direct: bool) -> Begin {
        if direct {
            Begin::AtPage
        } else {
            Begin::AsMalloc
        }
    }
}

/// Bytes of our own.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    begin: Begin,
}

impl Buffer {
    /// `length` bytes of zeros (at least one); Failed of kind memory where there is not so much.
    pub fn zeroed(length: usize, begin: Begin) -> Result<Buffer, Failed> {
        let length = length.max(1);
        // SAFETY: a new anonymous mapping touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length + begin as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Failed::new(
                "memory",
                format!("there is no memory for a buffer of {length} B"),
                "the probe's buffers",
                "choose smaller records or a smaller depth",
            ));
        }
        // SAFETY: the mapping is that much longer.
        let start = unsafe { start.cast::<u8>().add(begin as usize) };
        let mut buffer = Buffer {
            start: NonNull::new(start).expect("a mapping is nowhere near 0"),
            length,
            begin,
        };
        buffer.fill(0);
        Ok(buffer)
    }

    /// A part of it alone, as the rest may be the kernel's to write to.
    pub fn part(&self, first: usize, length: usize) -> &[u8] {
        assert!(first + length <= self.length);
        // SAFETY: mapped and ours; no reference reaches beyond this part.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(first), length) }
    }

    /// Where a part of it begins, for the kernel.
    pub fn address(&self, first: usize) -> *mut u8 {
        assert!(first < self.length);
        // SAFETY: in bounds of the mapping.
        unsafe { self.start.as_ptr().add(first) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes from `start` on are mapped and ours for as long as `self` is.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `zeroed` made, and nobody borrows it any more.
        unsafe {
            let mapping = self.start.as_ptr().sub(self.begin as usize);
            libc::munmap(mapping.cast(), self.length + self.begin as usize)
        };
    }
}
