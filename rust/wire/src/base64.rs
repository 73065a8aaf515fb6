//! Bytes inside JSON: base64 with the standard alphabet and padding (RFC 4648, section 4).

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes that travel as a base64 string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// The base64 text of `data`.
pub fn encode(data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for group in data.chunks(3) {
        let bits = group
            .iter()
            .fold(0u32, |bits, &byte| bits << 8 | u32::from(byte))
            << (8 * (3 - group.len()));
        for position in 0..4 {
            let sextet = (bits >> (18 - 6 * position)) as usize & 63;
            text.push(if position <= group.len() {
                ALPHABET[sextet] as char
            } else {
                '='
            });
        }
    }
    text
}

/// The bytes of a base64 text; None when it is not one.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if text.len() % 4 != 0 {
        return None;
    }
    let padding = text
        .iter()
        .rev()
        .take(2)
        .take_while(|&&symbol| symbol == b'=')
        .count();
    let mut data = Vec::with_capacity(text.len() / 4 * 3);
    for group in text[..text.len() - padding].chunks(4) {
        let mut bits = 0u32;
        for &symbol in group {
            bits = bits << 6 | sextet(symbol)?;
        }
        bits <<= 6 * (4 - group.len());
        data.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(data)
}

fn sextet(symbol: u8) -> Option<u32> {
    Some(u32::from(match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        decode(&text)
            .map(Bytes)
            .ok_or_else(|| D::Error::custom("not base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The test vectors of RFC 4648, section 10.
    #[test]
    fn agrees_with_the_rfc() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in vectors {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
    }

    #[test]
    fn every_byte_survives_at_every_alignment() {
        let all: Vec<u8> = (0..=255).collect();
        for length in 250..=256 {
            assert_eq!(
                decode(&encode(&all[..length])).as_deref(),
                Some(&all[..length])
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_survive(data in prop::collection::vec(any::<u8>(), 0..100)) {
            let text = encode(&data);
            prop_assert!(text.len() == data.len().div_ceil(3) * 4 && text.is_ascii());
            prop_assert_eq!(decode(&text), Some(data));
        }

        /// What a stranger sends gives bytes or None, and never more than its length.
        #[test]
        fn any_text_is_read_without_a_panic(text in prop_oneof!["\\PC{0,40}", "[A-Za-z0-9+/=]{0,40}"]) {
            if let Some(data) = decode(&text) {
                prop_assert!(data.len() <= text.len() / 4 * 3);
            }
        }
    }

    #[test]
    fn refuses_what_is_not_base64() {
        for text in ["Zg=", "Z", "Zg==Zg==", "Z*==", "====", "=AAA"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
