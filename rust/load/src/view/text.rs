//! The endless text that objects are cut from (src/virtoll/services/objects.py): lines of 16 bytes that count up from
//! 10^14. Whoever knows where a piece begins knows each of its bytes.

const LINE_BYTES: usize = 16;
const FIRST_LINE: u64 = 100_000_000_000_000;
const LOW: u64 = 1000;
/// No piece ends beyond: the lines keep their fifteen digits up to there, and far beyond it.
pub const MOST_BYTES: u64 = 1 << 53;

/// What the last three digits and the end of each line look like, where the others are zero bytes.
static LOW_DIGITS: [u128; LOW as usize] = low_digits();

const fn low_digits() -> [u128; LOW as usize] {
    let mut lines = [0; LOW as usize];
    let mut number = 0;
    while number < LOW {
        let mut line = [0; LINE_BYTES];
        line[12] = b'0' + (number / 100) as u8;
        line[13] = b'0' + (number / 10 % 10) as u8;
        line[14] = b'0' + (number % 10) as u8;
        line[15] = b'\n';
        lines[number as usize] = u128::from_ne_bytes(line);
        number += 1;
    }
    lines
}

/// What the other twelve digits of a line look like, where those are zero bytes.
fn high_digits(line: u64) -> u128 {
    let mut left = (FIRST_LINE + line) / LOW;
    let mut digits = [0; LINE_BYTES];
    for digit in digits[..12].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    u128::from_ne_bytes(digits)
}

fn line(number: u64) -> u128 {
    high_digits(number) | LOW_DIGITS[((FIRST_LINE + number) % LOW) as usize]
}

/// A reader of the text that says whether what comes is it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    at: u64,
}

impl Text {
    /// From this byte on.
    pub fn from(at: u64) -> Self {
        Text { at }
    }

    /// Whether these are the next bytes.
    pub fn goes_on(&mut self, bytes: &[u8]) -> bool {
        let Some(end) = self.at.checked_add(bytes.len() as u64) else {
            return false;
        };
        if end > MOST_BYTES {
            return false;
        }
        let torn = (self.at % LINE_BYTES as u64) as usize;
        let head = bytes.len().min((LINE_BYTES - torn) % LINE_BYTES);
        let (head, rest) = bytes.split_at(head);
        let first = self.at / LINE_BYTES as u64;
        let mut right = line(first).to_ne_bytes()[torn..].starts_with(head);
        let mut number = (self.at + head.len() as u64) / LINE_BYTES as u64;
        let mut lines = rest.chunks_exact(LINE_BYTES);
        let mut high = high_digits(number);
        let mut low = (FIRST_LINE + number) % LOW;
        for chunk in lines.by_ref() {
            let mut seen = [0; LINE_BYTES];
            seen.copy_from_slice(chunk);
            right &= u128::from_ne_bytes(seen) == high | LOW_DIGITS[low as usize];
            (number, low) = (number + 1, low + 1);
            if low == LOW {
                (high, low) = (high_digits(number), 0);
            }
        }
        let tail = lines.remainder();
        right &= tail.is_empty() || line(number).to_ne_bytes().starts_with(tail);
        self.at = end;
        right
    }
}

/// Where the piece of the text begins and ends that this path names: `/o/LENGTH` or `/o/BEGIN-END`, whatever query follows.
pub fn piece(path: &str) -> Option<(u64, u64)> {
    let path = path.split('?').next()?;
    let name = path.strip_prefix("/o/")?;
    let (begin, end) = match name.split_once('-') {
        Some((begin, end)) => (begin.parse().ok()?, end.parse().ok()?),
        None => (0, name.parse().ok()?),
    };
    (begin <= end && end <= MOST_BYTES).then_some((begin, end))
}

#[cfg(test)]
pub fn text(begin: u64, end: u64) -> Vec<u8> {
    let (first, last) = (begin / LINE_BYTES as u64, end.div_ceil(LINE_BYTES as u64));
    let lines: String = (first..last)
        .map(|line| format!("{}\n", FIRST_LINE + line))
        .collect();
    let from = (begin % LINE_BYTES as u64) as usize;
    lines.as_bytes()[from..from + (end - begin) as usize].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_name_pieces() {
        assert_eq!(piece("/o/100"), Some((0, 100)));
        assert_eq!(piece("/o/100-250"), Some((100, 250)));
        assert_eq!(piece("/o/100-250?until=7-8"), Some((100, 250)));
        for other in [
            "/o/",
            "/o/250-100",
            "/o/-5",
            "/o/99999999999999999",
            "/p/1",
            "/o/1-2-3",
        ] {
            assert_eq!(piece(other), None, "{other}");
        }
    }

    #[test]
    fn no_text_is_beyond_its_end() {
        assert!(!Text::from(MOST_BYTES).goes_on(b"1"));
        assert!(!Text::from(u64::MAX).goes_on(b"1"));
    }

    proptest! {
        #[test]
        fn the_text_is_known_in_any_pieces(begin in 0u64..200_000, bytes in 0u64..40_000, cuts in prop::collection::vec(0usize..3000, 0..20)) {
            let whole = text(begin, begin + bytes);
            let mut reader = Text::from(begin);
            let mut rest = &whole[..];
            for cut in cuts {
                let (piece, left) = rest.split_at(cut.min(rest.len()));
                prop_assert!(reader.goes_on(piece));
                rest = left;
            }
            prop_assert!(reader.goes_on(rest));
            prop_assert_eq!(reader, Text::from(begin + bytes));
        }

        #[test]
        fn any_other_byte_is_seen(begin in 0u64..200_000, bytes in 1u64..5000, which in any::<prop::sample::Index>(), change in 1u8..) {
            let mut whole = text(begin, begin + bytes);
            let at = which.index(whole.len());
            whole[at] ^= change;
            prop_assert!(!Text::from(begin).goes_on(&whole));
        }

        #[test]
        fn a_shift_is_seen(begin in 0u64..200_000, shift in 1u64..100_000) {
            prop_assert!(!Text::from(begin).goes_on(&text(begin + shift, begin + shift + 16)));
        }
    }
}
