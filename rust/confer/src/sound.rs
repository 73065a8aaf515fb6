//! What is said: Opus, out of an Ogg file (RFC 3533, RFC 7845) as ffmpeg writes it: one stream, frames of 20 ms. They are
//! kept once for all who speak.

use std::path::Path;
use std::sync::Arc;

use virtoll_generator::Failed;

/// Of each frame; what is no such frame is refused.
pub const FRAME_NS: i64 = 20_000_000;
/// Ticks of RTP's clock in it (RFC 7587, 4.1: always 48 kHz).
pub const FRAME_TICKS: u32 = 960;
const MOST_BYTES: u64 = 16 << 20;
/// The identification and the comment header (RFC 7845, 5).
const HEADERS: usize = 2;
const PAGE_HEAD_BYTES: usize = 27;
/// A shorter segment than this ends its packet (RFC 3533, 5).
const FULL_SEGMENT: u8 = 255;

/// Frames in the order in which they are said, round and round.
#[derive(Debug)]
pub struct Sound {
    pub frames: Vec<Arc<[u8]>>,
}

impl Sound {
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let failed = |why: &str| Failed(format!("the sound {}: {why}", path.display()));
        let length = std::fs::metadata(path).map(|known| known.len());
        if length.is_ok_and(|length| length > MOST_BYTES) {
            return Err(failed("it is over 16 MiB: take a shorter one"));
        }
        let bytes = std::fs::read(path).map_err(|error| failed(&error.to_string()))?;
        Sound::parsed(&bytes).map_err(failed)
    }

    pub fn parsed(bytes: &[u8]) -> Result<Self, &'static str> {
        let packets = packets(bytes)?;
        if !packets
            .first()
            .is_some_and(|first| first.starts_with(b"OpusHead"))
        {
            return Err("it is no Ogg file of Opus");
        }
        let frames: Vec<Arc<[u8]>> = packets.into_iter().skip(HEADERS).map(Arc::from).collect();
        if frames.is_empty() {
            return Err("nothing is said in it");
        }
        if !frames.iter().all(|frame| is_of_20_ms(frame)) {
            return Err("a packet is not one frame of 20 ms");
        }
        Ok(Sound { frames })
    }
}

/// The packets of an Ogg file, whichever pages they lie on.
fn packets(mut rest: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let (mut packets, mut packet) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (head, body) = rest
            .split_first_chunk::<PAGE_HEAD_BYTES>()
            .filter(|(head, _)| head.starts_with(b"OggS\0"))
            .ok_or("it is no Ogg file, or ends within a page's head")?;
        let (segments, mut body) = body
            .split_at_checked(usize::from(head[PAGE_HEAD_BYTES - 1]))
            .ok_or("it ends within a page's head")?;
        for length in segments {
            let (segment, left) = body
                .split_at_checked(usize::from(*length))
                .ok_or("it ends within a page")?;
            packet.extend_from_slice(segment);
            body = left;
            if *length < FULL_SEGMENT {
                packets.push(std::mem::take(&mut packet));
            }
        }
        rest = body;
    }
    match packet.is_empty() {
        true => Ok(packets),
        false => Err("it ends within a packet"),
    }
}

/// RFC 6716, 3.1 and 3.2: a packet's first byte holds its configuration, which tells the length of a frame, and how many
/// there are: one alone (0), or as many as the next byte says (3), as of a packet that was filled up to its length.
fn is_of_20_ms(packet: &[u8]) -> bool {
    let Some(toc) = packet.first() else {
        return false;
    };
    let configuration = toc >> 3;
    let is_20_ms = match configuration {
        0..=11 => configuration % 4 == 1,  // SILK: 10, 20, 40, 60 ms
        12..=15 => configuration % 2 == 1, // hybrid: 10, 20 ms
        _ => configuration % 4 == 3,       // CELT: 2.5, 5, 10, 20 ms
    };
    let is_one = match toc & 3 {
        0 => true,
        3 => packet.get(1).is_some_and(|count| count & 0x3f == 1),
        _ => false,
    };
    is_20_ms && is_one
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Packets on pages, of so many segments at most, as an encoder writes them; checksums are nobody's concern here.
    pub fn ogg(packets: &[Vec<u8>], most_segments: usize) -> Vec<u8> {
        let mut lengths = Vec::new();
        for packet in packets {
            lengths.extend(vec![FULL_SEGMENT; packet.len() / 255]);
            lengths.push((packet.len() % 255) as u8);
        }
        let body: Vec<u8> = packets.concat();
        let (mut bytes, mut at) = (Vec::new(), 0);
        for segments in lengths.chunks(most_segments) {
            bytes.extend(b"OggS\0");
            bytes.extend([0; 21]);
            bytes.push(segments.len() as u8);
            bytes.extend(segments);
            let length: usize = segments.iter().map(|length| usize::from(*length)).sum();
            bytes.extend(&body[at..at + length]);
            at += length;
        }
        bytes
    }

    /// So many frames of CELT, of 80 bytes, that differ.
    pub fn opus(frames: usize) -> Vec<u8> {
        let mut packets = vec![b"OpusHead\x01".to_vec(), b"OpusTags".to_vec()];
        packets.extend((0..frames).map(|number| [vec![0xf8], vec![number as u8; 79]].concat()));
        ogg(&packets, 50)
    }

    #[test]
    fn frames_come_back_whichever_pages_they_lie_on() {
        let sound = Sound::parsed(&opus(120)).unwrap();
        assert_eq!(sound.frames.len(), 120);
        assert_eq!((sound.frames[3].len(), sound.frames[3][5]), (80, 3));
    }

    #[test]
    fn what_is_no_sound_is_refused() {
        let good = opus(3);
        let refused = |bytes: &[u8]| Sound::parsed(bytes).unwrap_err();
        assert_eq!(refused(b""), "it is no Ogg file of Opus");
        assert_eq!(refused(&opus(0)), "nothing is said in it");
        assert_eq!(refused(&good[..good.len() - 1]), "it ends within a page");
        assert_eq!(
            refused(&good[..20]),
            "it is no Ogg file, or ends within a page's head"
        );
        let whole = [b"OpusHead".to_vec(), b"OpusTags".to_vec()];
        for toc in [0xf0, 0xf9, 0xfb, 0x60, 0x00, 0x10] {
            let packets = [&whole[..], &[vec![toc, 2, 2]]].concat();
            let told = "a packet is not one frame of 20 ms";
            assert_eq!(refused(&ogg(&packets, 9)), told, "{toc:x}");
        }
        let speech = [vec![0x48, 1, 2], vec![0x4b, 0x41, 0]]; // SILK, and that filled up
        let speech = ogg(&[&whole[..], &speech].concat(), 9);
        assert_eq!(Sound::parsed(&speech).unwrap().frames.len(), 2);
    }

    proptest! {
        #[test]
        fn packets_of_any_length_come_back(
            lengths in prop::collection::vec(0usize..1500, 0..20), most in 1usize..255
        ) {
            let written: Vec<Vec<u8>> = lengths.iter().map(|length| vec![7; *length]).collect();
            prop_assert_eq!(packets(&ogg(&written, most)).unwrap(), written);
        }

        #[test]
        fn any_bytes_are_a_sound_or_refused(
            changes in prop::collection::vec((0usize..500, any::<u8>()), 0..20), length in 0usize..500
        ) {
            let mut bytes = opus(10);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.truncate(length);
            if let Ok(sound) = Sound::parsed(&bytes) {
                prop_assert!(!sound.frames.is_empty());
                prop_assert!(sound.frames.iter().all(|frame| !frame.is_empty()));
            }
        }
    }
}
