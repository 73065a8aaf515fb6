//! What the file's bytes are: a function of their offset, of a fixed seed, and of the pass that wrote them.
//!
//! A long text of pseudo-random bytes is repeated all along the file, so that a record is written straight from it and
//! nothing has to be filled in while the clock runs. Its length is a prime number of pages: two records at different
//! places are equal only if they lie a multiple of it apart, and no power of two is one. There are two such texts, and
//! passes over the file take them in turns: a write that was lost leaves the other one's bytes.

use super::buffer::Buffer;
use crate::report::Failed;

const PERIOD_BYTES: usize = 61 * 4096;
const SEEDS: [u64; 2] = [0x7672_746f_6c6c_0001, 0x7672_746f_6c6c_0002];
const WORD: usize = 8;

/// The two texts, each a period and one more record long.
pub struct Pattern {
    texts: [Buffer; 2],
    record_bytes: usize,
}

impl Pattern {
    /// For records of this size.
    pub fn new(record_bytes: usize) -> Result<Pattern, Failed> {
        let text = |seed| text(seed, record_bytes);
        Ok(Pattern {
            texts: [text(SEEDS[0])?, text(SEEDS[1])?],
            record_bytes,
        })
    }

    /// The record at `offset` as a pass of this generation (0 or 1) writes it.
    pub fn record(&self, generation: u8, offset: u64) -> &[u8] {
        let phase = (offset % PERIOD_BYTES as u64) as usize;
        &self.texts[usize::from(generation)][phase..phase + self.record_bytes]
    }

    /// As many bytes from `offset` on as lie in one piece, and no more than `most`: at least a record.
    pub fn stretch(&self, generation: u8, offset: u64, most: u64) -> &[u8] {
        let text = &self.texts[usize::from(generation)];
        let phase = (offset % PERIOD_BYTES as u64) as usize;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        &text[phase..text.len().min(phase.saturating_add(most))]
    }

    /// Whether `bytes` is that record, by its first and last eight bytes: cheap enough while the clock runs, as what
    /// is expected is computed and not looked up.
    pub fn has_the_ends_of(&self, generation: u8, offset: u64, bytes: &[u8]) -> bool {
        let last = self.record_bytes - WORD;
        let seed = SEEDS[usize::from(generation)];
        bytes[..WORD] == word(seed, offset) && bytes[last..] == word(seed, offset + last as u64)
    }
}

/// The eight bytes at `offset`, a multiple of eight, of the text with this seed.
fn word(seed: u64, offset: u64) -> [u8; WORD] {
    let number = offset % PERIOD_BYTES as u64 / WORD as u64;
    SplitMix64::at(seed, number).drawn().to_le_bytes()
}

/// Pseudo-random bytes, and the beginning of them repeated at the end.
fn text(seed: u64, record_bytes: usize) -> Result<Buffer, Failed> {
    let mut bytes = Buffer::zeroed(PERIOD_BYTES + record_bytes)?;
    for (number, part) in bytes.chunks_exact_mut(WORD).enumerate() {
        part.copy_from_slice(&word(seed, (number * WORD) as u64));
    }
    Ok(bytes)
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): 64-bit numbers, the same on every machine.
pub struct SplitMix64(pub u64);

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix64 {
    /// The generator after so many numbers.
    pub fn at(seed: u64, number: u64) -> SplitMix64 {
        SplitMix64(seed.wrapping_add(number.wrapping_mul(GAMMA)))
    }

    /// The next number.
    pub fn drawn(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_the_published_numbers() {
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.drawn(), 6_457_827_717_110_365_317);
        assert_eq!(random.drawn(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_record_of_another_place_or_pass_is_seen() {
        let pattern = Pattern::new(4096).unwrap();
        let record = pattern.record(0, 8192).to_vec();
        assert!(pattern.has_the_ends_of(0, 8192, &record));
        let far = PERIOD_BYTES as u64 * 5 - 4096;
        assert!(pattern.has_the_ends_of(1, far, pattern.record(1, far)));
        assert!(!pattern.has_the_ends_of(1, 8192, &record));
        for power in 12..40 {
            assert!(!pattern.has_the_ends_of(0, 8192 + (1 << power), &record));
        }
    }

    #[test]
    fn records_follow_one_another_without_a_seam() {
        let (small, large) = (Pattern::new(512).unwrap(), Pattern::new(1 << 20).unwrap());
        let whole = large.record(1, 5 << 20);
        for (index, part) in whole.chunks(512).enumerate() {
            assert_eq!(part, small.record(1, (5 << 20) + index as u64 * 512));
        }
    }
}
