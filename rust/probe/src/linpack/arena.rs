//! One mapping that holds all of a run: asked for in huge pages, and touched before anything is timed.

use crate::memory::mapping::{Mapping, Pages};
use crate::report::Failed;

/// Buffers begin at this boundary: a cache line, and a vector register of any instruction set.
pub const LINE_BYTES: usize = 64;

/// Memory that is handed out piece by piece, and given back as a whole.
pub struct Arena {
    mapping: Mapping,
    /// First byte not yet handed out, from the start of the mapping.
    next: usize,
}

impl Arena {
    /// Map and touch this many bytes, in huge pages where the kernel has them. Fails where it does not give them.
    pub fn of(bytes: usize) -> Result<Arena, Failed> {
        let mapping = map(bytes)?;
        // SAFETY: the mapping is new, and so long.
        unsafe { mapping.start().write_bytes(0, mapping.bytes()) };
        Ok(Arena { mapping, next: 0 })
    }

    /// Whether the system would map this many bytes now.
    pub fn is_possible(bytes: usize) -> bool {
        map(bytes).is_ok()
    }

    /// The next `count` numbers, zeroed, at a cache line's start; valid as long as the arena.
    pub fn take<T>(&mut self, count: usize) -> *mut T {
        let bytes = (count * size_of::<T>()).next_multiple_of(LINE_BYTES);
        assert!(
            bytes <= self.mapping.bytes() - self.next,
            "the arena was made too small"
        );
        // SAFETY: the piece lies within the mapping.
        let piece = unsafe { self.mapping.start().add(self.next) };
        self.next += bytes;
        piece.cast()
    }

    /// Bytes of it that stand in huge pages now; None where the system does not tell.
    pub fn in_huge_pages(&self) -> Option<u64> {
        self.mapping.in_huge_pages()
    }
}

fn map(bytes: usize) -> Result<Mapping, Failed> {
    Mapping::new(bytes, Pages::Huge).or_else(|failed| match failed.kind {
        "huge-pages" => Mapping::new(bytes, Pages::Small), // the report says what was achieved
        _ => Err(failed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_and_zero() {
        let mut arena = Arena::of(1000).unwrap();
        let first = arena.take::<f64>(3);
        let second = arena.take::<u32>(1);
        assert_eq!(second as usize - first as usize, LINE_BYTES);
        // SAFETY: the pieces are there.
        assert_eq!(unsafe { (*first.add(2), *second) }, (0.0, 0));
    }

    #[test]
    fn a_mapping_that_cannot_be_is_told() {
        assert!(!Arena::is_possible(usize::MAX >> 12));
        assert!(Arena::of(usize::MAX >> 12).is_err());
    }
}
