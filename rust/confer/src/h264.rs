//! H.264, as far as participants look into it: its NAL units' kinds (ITU-T H.264, 7.3.1), in a stream of bytes (annex B)
//! and in packets (RFC 6184, 5; packetization-mode=1: NAL units by themselves, several in one, STAP-A, and parts of one,
//! FU-A).
//!
//! A decoder begins with an IDR picture, once it has its parameter sets (SPS, PPS); they come before it in its frame.

use str0m::format::CodecConfig;

use super::frames::{Part, INTRA, PICTURE, SEQUENCE};

/// Constrained Baseline of level 5.1 (RFC 6184, 8.1), which the largest footage fits: 1920x1920 at 60 frames a second.
const PROFILE_LEVEL: u32 = 0x42e033;
/// Of media, and of what is sent again, as browsers number them.
const PAYLOAD_TYPES: (u8, u8) = (108, 109);
/// Kinds of NAL units (ITU-T H.264, table 7-1), and of payloads that are none by themselves (RFC 6184, table 1).
const IDR: u8 = 5;
const SPS: u8 = 7;
const PPS: u8 = 8;
const STAP_A: u8 = 24;
const FU_A: u8 = 28;
/// Of a FU's second byte (RFC 6184, 5.8).
const START: u8 = 0x80;
const END: u8 = 0x40;

pub fn enable(codecs: &mut CodecConfig) {
    let (media, again) = PAYLOAD_TYPES;
    codecs.add_h264(media.into(), Some(again.into()), true, PROFILE_LEVEL);
}

/// What a NAL unit that begins with this byte has of a key frame. None: there is no such NAL unit.
fn key_of(head: u8) -> Option<u8> {
    match head & 0x1f {
        IDR => Some(INTRA),
        SPS => Some(SEQUENCE),
        PPS => Some(PICTURE),
        1..=23 => Some(0),
        _ => None,
    }
}

/// Of a frame as a stream of bytes: NAL units, each behind 0 0 1, which none of them holds.
pub fn is_key(frame: &[u8]) -> Option<bool> {
    let starts = frame.windows(4).filter(|four| four[..3] == [0, 0, 1]);
    let keys = starts.map(|four| key_of(four[3]));
    let key = keys.reduce(|key, more| Some(key? | more?))??;
    Some(key == INTRA | SEQUENCE | PICTURE)
}

/// RFC 6184, 5.6 to 5.8. None: it is no H.264 of this mode.
pub fn part(payload: &[u8], marker: bool) -> Option<Part> {
    let (&head, rest) = payload.split_first()?;
    let key = match head & 0x1f {
        STAP_A => of_several(rest)?,
        FU_A => of_part(rest)?,
        _ => key_of(head)?,
    };
    Some(Part { ends: marker, key })
}

/// NAL units, each behind its length in two bytes.
fn of_several(mut units: &[u8]) -> Option<u8> {
    let mut key = 0;
    while let Some((length, after)) = units.split_first_chunk::<2>() {
        let (unit, rest) = after.split_at_checked(u16::from_be_bytes(*length).into())?;
        key |= key_of(*unit.first()?)?;
        units = rest;
    }
    units.is_empty().then_some(key)
}

/// The first part tells of what.
fn of_part(part: &[u8]) -> Option<u8> {
    let head = part.first()?;
    match head & (START | END) {
        START => key_of(*head),
        both if both == START | END => None,
        _ => Some(0),
    }
}

#[cfg(test)]
#[path = "h264_tests.rs"]
pub mod tests;
