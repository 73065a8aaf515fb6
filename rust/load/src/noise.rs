//! What tests feed a parser: bytes by chance, four of five of them such as it looks for.

use proptest::prelude::*;

/// Up to ``most`` bytes. One number is drawn for each and looked up: a choice between strategies for each of thousands
/// of bytes takes seconds of a test.
pub fn noise(often: [u8; 4], most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u16>(), 0..most).prop_map(move |drawn| {
        let byte = |n: u16| often.get(usize::from(n >> 8) % 5).copied();
        drawn
            .into_iter()
            .map(|n| byte(n).unwrap_or((n & 0xff) as u8))
            .collect()
    })
}
