//! The vector instructions a kernel uses: the widest that this instance's processor shows, or the one that is asked for.

use std::arch::x86_64::{__cpuid, __cpuid_count};

use crate::arguments::Arguments;
use crate::report::Failed;

/// The vector unit of x86-64, by width.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Isa {
    Sse2,
    Avx2,
    Avx512,
}

impl Isa {
    /// `--isa auto|sse2|avx2|avx512`.
    pub fn from(arguments: &mut Arguments) -> Result<Isa, Failed> {
        let asked = match arguments.one_of("isa", &["auto", "sse2", "avx2", "avx512"]) {
            "sse2" => Isa::Sse2,
            "avx2" => Isa::Avx2,
            "avx512" => Isa::Avx512,
            _ => return Ok(Isa::widest()),
        };
        if asked > Isa::widest() {
            return Err(Failed::new(
                "refused",
                format!(
                    "the processor shows this instance no {}, {} at most",
                    asked.word(),
                    Isa::widest().word()
                ),
                "--isa",
                "ask for a narrower one: the comparison holds where every platform runs the same",
            ));
        }
        Ok(asked)
    }

    /// The widest that the processor and the system (saved registers) offer.
    pub fn widest() -> Isa {
        if is_x86_feature_detected!("avx512f") {
            Isa::Avx512
        } else if is_x86_feature_detected!("avx2") {
            Isa::Avx2
        } else {
            Isa::Sse2
        }
    }

    /// As the command line has it.
    pub fn word(self) -> &'static str {
        match self {
            Isa::Sse2 => "sse2",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// The largest cache that CPUID shows, in bytes; None where it shows none.
///
/// Intel describes its caches in leaf 4, AMD in leaf 8000_001D, in the same form (Intel SDM vol. 2A, CPUID; AMD APM
/// vol. 3, appendix E): ways, partitions, line size and sets, each less one.
#[allow(unused_unsafe)] // CPUID is safe to call for newer compilers, and unsafe for the oldest that is supported
pub fn last_level_cache_bytes() -> Option<u64> {
    [(0, 4), (0x8000_0000, 0x8000_001d)]
        .into_iter()
        // SAFETY: every x86-64 processor has CPUID, and leaves up to the one that the first of their kind tells.
        .filter(|(first, leaf)| unsafe { __cpuid(*first) }.eax >= *leaf)
        .flat_map(|(_, leaf)| (0..8).map(move |index| (leaf, index)))
        .filter_map(|(leaf, index)| {
            // SAFETY: as above; an index beyond the last cache gives an empty description.
            let cache = unsafe { __cpuid_count(leaf, index) };
            cache_bytes(cache.eax, cache.ebx, cache.ecx)
        })
        .max()
}

/// The size that one description tells; None for the empty one at the end.
fn cache_bytes(eax: u32, ebx: u32, ecx: u32) -> Option<u64> {
    let ways = (ebx >> 22) + 1;
    let partitions = (ebx >> 12 & 0x3ff) + 1;
    let line_bytes = (ebx & 0xfff) + 1;
    let sets = u64::from(ecx) + 1;
    (eax & 0x1f != 0)
        .then(|| u64::from(ways) * u64::from(partitions) * u64::from(line_bytes) * sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_read_from_its_description() {
        // 32 MiB of 16 ways and 64-byte lines: 32768 sets.
        assert_eq!(cache_bytes(0x163, 15 << 22 | 63, 32767), Some(32 << 20));
        assert_eq!(cache_bytes(0, 0, 0), None);
    }
}
