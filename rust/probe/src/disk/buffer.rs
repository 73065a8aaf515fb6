//! Memory that records are moved from and to: at the start of a page, as O_DIRECT wants it, and touched before anything
//! is timed.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use crate::report::Failed;

/// Bytes at the start of a page.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

impl Buffer {
    /// `length` bytes of zeros (at least one); Failed of kind memory where there is not so much.
    pub fn zeroed(length: usize) -> Result<Buffer, Failed> {
        let length = length.max(1);
        // SAFETY: a new anonymous mapping touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
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
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is nowhere near 0");
        let mut buffer = Buffer { start, length };
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
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
