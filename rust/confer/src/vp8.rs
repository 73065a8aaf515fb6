//! VP8, as far as participants look into it (RFC 6386; in packets RFC 7741).

use super::frames::{Part, KEY};

/// RFC 6386, 9.1: the lowest bit of a frame's first byte is 0 in a key frame.
pub fn is_key(frame: &[u8]) -> Option<bool> {
    frame.first().map(|first| first & 1 == 0)
}

/// RFC 7741, 4.2: the descriptor, which says where a frame begins; and of its first packet the first byte of the frame,
/// which says all that is to be known of a key frame. None: it is no VP8.
pub fn part(payload: &[u8], marker: bool) -> Option<Part> {
    let (&first, mut rest) = payload.split_first()?;
    if first & 0x80 != 0 {
        let (&extended, after) = rest.split_first()?;
        rest = after;
        if extended & 0x80 != 0 {
            let length = if rest.first()? & 0x80 != 0 { 2 } else { 1 };
            rest = rest.get(length..)?;
        }
        rest = rest.get(usize::from(extended & 0x40 != 0)..)?;
        rest = rest.get(usize::from(extended & 0x30 != 0)..)?;
    }
    let begins = first & 0x10 != 0 && first & 0x07 == 0;
    Some(Part {
        ends: marker,
        key: if begins && is_key(rest)? { KEY } else { 0 },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_descriptor_tells_where_a_key_frame_begins() {
        let key_of = |payload: &[u8]| part(payload, false).map(|part| part.key);
        assert_eq!(key_of(&[0x10, 0x00]), Some(KEY));
        assert_eq!(key_of(&[0x10, 0x01]), Some(0));
        assert_eq!(key_of(&[0x00, 0x00]), Some(0));
        assert_eq!(key_of(&[0x11, 0x00]), Some(0), "another partition");
        assert_eq!(key_of(&[0x90, 0x80, 0x81, 0x02, 0x00]), Some(KEY));
        assert_eq!(key_of(&[0x90, 0xf0, 0x01, 5, 6, 0x01]), Some(0));
        assert_eq!(part(&[0x00], true), Some(Part { ends: true, key: 0 }));
        for cut in [
            &[][..],
            &[0x90],
            &[0x90, 0x80],
            &[0x90, 0x80, 0x81],
            &[0x10],
        ] {
            assert_eq!(part(cut, true), None, "{cut:?}");
        }
    }

    proptest! {
        #[test]
        fn any_payload_is_told_or_refused(payload in prop::collection::vec(any::<u8>(), 0..12)) {
            let _ = part(&payload, true);
        }
    }
}
