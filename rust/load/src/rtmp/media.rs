//! What an audio or video message is: the first bytes of an FLV tag's data (Adobe's FLV specification 10.1, E.4.2 and
//! E.4.3; for video also Enhanced RTMP of the Veovera Software Organization).

use memchr::memmem;
use virtoll_generator::Failed;

use super::chunk::Message;
use super::kind;

const AAC: u8 = 10;
const AVC: u8 = 7;
const KEY_FRAME: u8 = 1;
/// No picture: a server says that it seeks.
const COMMAND_FRAME: u8 = 5;
const FRAMES: u8 = 1;

/// A publisher's mark stands before the time at which it sent a frame: as many letters as this, in an SEI message of
/// H.264 (unregistered user data, ISO/IEC 14496-10 D.2.7); the time follows as hexadecimal digits, for no byte of it may
/// look like the beginning of another part.
pub const MARK_BYTES: usize = 16;
const TIME_DIGITS: usize = 16;

/// The letters by which viewers know what their own publisher sent.
pub type Mark = [u8; MARK_BYTES];

/// The mark that is specified.
pub fn mark_of(text: &str) -> Result<Mark, Failed> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let bytes = text.as_bytes().try_into();
    bytes.ok().filter(|_| is_plain).ok_or_else(|| {
        Failed(format!(
            "the specification cannot be run: mark {text:?} must be {MARK_BYTES} letters and digits"
        ))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    pub is_video: bool,
    /// Video that is shown without any before it.
    pub is_key: bool,
    /// It plays: no codec's configuration, no end, nothing empty.
    pub plays: bool,
    pub timestamp: u32,
}

impl Media {
    /// `head`: its first bytes; None: it is neither audio nor video.
    pub fn of(message: &Message, head: &[u8]) -> Option<Media> {
        let is_video = match message.kind {
            kind::AUDIO => false,
            kind::VIDEO => true,
            _ => return None,
        };
        let (first, second) = (head.first().copied(), head.get(1).copied());
        let frame = first.unwrap_or(0) >> 4 & 7;
        let plays = match (first, second) {
            (None, _) => false,
            _ if is_video && frame == COMMAND_FRAME => false,
            (Some(first), _) if is_video && first & 0x80 != 0 => {
                matches!(first & 0x0f, 1 | 3) // coded frames
            }
            (Some(first), second) if is_video && first & 0x0f == AVC => second == Some(FRAMES),
            (Some(first), second) if !is_video && first >> 4 == AAC => second == Some(FRAMES),
            _ => true,
        };
        Some(Media {
            is_video,
            is_key: is_video && plays && frame == KEY_FRAME,
            plays,
            timestamp: message.timestamp,
        })
    }
}

/// When the publisher of this mark sent this frame, by its CLOCK_MONOTONIC; None: it is not of it.
pub fn sent_ns(head: &[u8], mark: &Mark) -> Option<i64> {
    let at = memmem::find(head, mark)? + MARK_BYTES;
    let digits = head.get(at..at + TIME_DIGITS)?;
    i64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The SEI message, with the length before it that AVC has in FLV: four bytes.
pub fn marked(mark: &Mark, sent_ns: i64) -> Vec<u8> {
    const SEI: u8 = 6;
    const UNREGISTERED: u8 = 5;
    const STOP: u8 = 0x80;
    let payload = (MARK_BYTES + TIME_DIGITS) as u8;
    let mut unit = vec![0, 0, 0, payload + 4, SEI, UNREGISTERED, payload];
    unit.extend_from_slice(mark);
    unit.extend_from_slice(format!("{sent_ns:016x}").as_bytes());
    unit.push(STOP);
    unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(kind: u8, head: &[u8]) -> Option<Media> {
        let (timestamp, length) = (7, head.len());
        let message = Message {
            kind,
            timestamp,
            length,
        };
        Media::of(&message, head)
    }

    #[test]
    fn what_plays_is_told_from_what_does_not() {
        for (kind, head, is_key, plays) in [
            (kind::VIDEO, &[0x17, 0, 0, 0, 0][..], false, false),
            (kind::VIDEO, &[0x17, 1, 0, 0, 0], true, true),
            (kind::VIDEO, &[0x27, 1, 0, 0, 0], false, true),
            (kind::VIDEO, &[0x17, 2, 0, 0, 0], false, false),
            (kind::VIDEO, &[0x12], true, true),      // H.263
            (kind::VIDEO, &[0x57, 1], false, false), // a command about a seek
            (kind::VIDEO, &[0xd1, b'h'], false, false),
            (kind::VIDEO, &[0x90, b'h'], false, false),
            (kind::VIDEO, &[0x91, b'h'], true, true),
            (kind::VIDEO, &[], false, false),
            (kind::AUDIO, &[0xaf, 0], false, false),
            (kind::AUDIO, &[0xaf, 1], false, true),
            (kind::AUDIO, &[0x2f], false, true), // MP3
            (kind::AUDIO, &[], false, false),
        ] {
            let told = media(kind, head).unwrap();
            assert_eq!((told.is_key, told.plays), (is_key, plays), "{head:?}");
            assert_eq!((told.is_video, told.timestamp), (kind == kind::VIDEO, 7));
        }
        assert_eq!(media(kind::DATA, b"x"), None);
    }

    #[test]
    fn a_mark_tells_when_a_frame_was_sent() {
        let mark = *b"0123456789abcdef";
        let frame = [
            &[0x17, 1, 0, 0, 0][..],
            &marked(&mark, 1_234_567_890_123),
            b"slice",
        ]
        .concat();
        assert_eq!(sent_ns(&frame, &mark), Some(1_234_567_890_123));
        assert_eq!(sent_ns(&frame, b"another mark, no"), None);
        assert_eq!(sent_ns(&frame[..40], &mark), None);
        let unit = marked(&mark, 1);
        assert_eq!(
            u32::from_be_bytes(unit[..4].try_into().unwrap()) as usize,
            unit.len() - 4
        );
    }
}
