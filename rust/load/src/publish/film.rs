//! What is published: an FLV file (Adobe's FLV specification 10.1, appendix E), whole in memory, as messages of RTMP.

use std::fs;
use std::ops::Range;
use std::path::Path;

use virtoll_generator::Failed;

use crate::rtmp::amf::Said;
use crate::rtmp::chunk::{integer, Message};
use crate::rtmp::kind;
use crate::rtmp::media::{marked, Mark, Media};

const SIGNATURE: &[u8] = b"FLV\x01";
const HEADER_BYTES: usize = 9;
const TAG_BYTES: usize = 11;
const BEHIND_BYTES: usize = 4;
/// Where the first part of a frame of H.264 begins: after what kind it is, and when it is shown.
const PARTS_AT: usize = 5;
/// How far apart two frames may be: what is farther is no film.
const STEP_MAX_MS: i64 = 10_000;
const DELIMITER: u8 = 9;

/// One message. Its bytes are a part of the file's.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    /// Since the film's beginning.
    pub at_ms: i64,
    pub bytes: Range<usize>,
    /// Where in its bytes the mark belongs, if it is to be marked.
    pub mark_at: Option<usize>,
}

#[derive(Debug)]
pub struct Film {
    bytes: Vec<u8>,
    /// What says how the rest is to be read, and is sent once.
    pub setup: Vec<Frame>,
    /// Ascending.
    pub frames: Vec<Frame>,
    /// From a beginning to the next.
    pub length_ms: i64,
    /// As RTMP has it, where the file has any.
    pub metadata: Option<Vec<u8>>,
}

impl Film {
    pub fn read(path: &Path) -> Result<Film, Failed> {
        let told = |why: String| Failed(format!("the film {}: {why}", path.display()));
        let bytes = fs::read(path).map_err(|error| told(error.to_string()))?;
        Film::of(bytes).map_err(|why| told(format!("{why}; make an FLV file of H.264 and AAC")))
    }

    pub fn of(bytes: Vec<u8>) -> Result<Film, &'static str> {
        let mut film = Film {
            bytes,
            setup: Vec::new(),
            frames: Vec::new(),
            length_ms: 0,
            metadata: None,
        };
        if !film.bytes.starts_with(SIGNATURE) || film.bytes.len() < HEADER_BYTES {
            return Err("it is no FLV file");
        }
        let mut at = integer(&film.bytes[5..HEADER_BYTES]) as usize + BEHIND_BYTES;
        while let Some(header) = film.bytes.get(at..at + TAG_BYTES) {
            let tag = header[0];
            let length = integer(&header[1..4]) as usize;
            let at_ms = integer(&header[4..7]) | u32::from(header[7]) << 24;
            let payload = at + TAG_BYTES..at + TAG_BYTES + length;
            at = payload.end + BEHIND_BYTES;
            if payload.end > film.bytes.len() {
                return Err("it is cut off");
            }
            film.add(tag, i64::from(at_ms), payload)?;
        }
        if at < film.bytes.len() {
            return Err("it is cut off");
        }
        film.length_ms = film.length()?;
        Ok(film)
    }

    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        &self.bytes[frame.bytes.clone()]
    }

    /// A frame's bytes with the publisher's mark in them.
    pub fn marked(&self, frame: &Frame, mark: &Mark, sent_ns: i64) -> Option<Vec<u8>> {
        let at = frame.mark_at?;
        let bytes = self.bytes(frame);
        Some([&bytes[..at], &marked(mark, sent_ns), &bytes[at..]].concat())
    }

    fn add(&mut self, tag: u8, at_ms: i64, bytes: Range<usize>) -> Result<(), &'static str> {
        let head = &self.bytes[bytes.clone()];
        if tag == kind::DATA {
            let said = Said::default().text("@setDataFrame").0;
            self.metadata
                .get_or_insert_with(|| [&said[..], head].concat());
            return Ok(());
        }
        let message = Message {
            kind: tag,
            timestamp: 0,
            length: head.len(),
        };
        let Some(media) = Media::of(&message, head) else {
            return Err("a part of it is neither audio, video nor data");
        };
        let frame = Frame {
            kind: tag,
            at_ms,
            mark_at: mark_at(&media, head),
            bytes,
        };
        if !media.plays {
            // Its configuration, not its end.
            if self.frames.is_empty() {
                self.setup.push(frame);
            }
            return Ok(());
        }
        if self
            .frames
            .last()
            .is_some_and(|last| !(0..=STEP_MAX_MS).contains(&(at_ms - last.at_ms)))
        {
            return Err("its timestamps go back, or leave out more than ten seconds");
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Until the last frame of audio, or of video, is over: each as long as the one before it.
    fn length(&self) -> Result<i64, &'static str> {
        let end_ms = |kind| {
            let mut last = self.frames.iter().rev().filter(|frame| frame.kind == kind);
            let (last, before) = (last.next()?.at_ms, last.next()?.at_ms);
            Some(last + (last - before))
        };
        let end_ms = [end_ms(kind::AUDIO), end_ms(kind::VIDEO)];
        let begin_ms = self.frames.first().map_or(0, |frame| frame.at_ms);
        let end_ms = end_ms.into_iter().flatten().max().unwrap_or(0);
        match end_ms > begin_ms {
            true => Ok(end_ms - begin_ms),
            false => Err("it has fewer than two frames"),
        }
    }
}

/// Before the first part of a key frame of H.264, but after what delimits it from the frame before.
fn mark_at(media: &Media, head: &[u8]) -> Option<usize> {
    const AVC_KEY_FRAME: u8 = 0x17;
    if !media.is_key || head[0] != AVC_KEY_FRAME {
        return None;
    }
    let length = integer(head.get(PARTS_AT..PARTS_AT + 4)?) as usize;
    let begin = PARTS_AT + 4;
    match head.get(begin)? & 0x1f {
        DELIMITER => Some(begin + length).filter(|at| *at <= head.len()),
        _ => Some(PARTS_AT),
    }
}

#[cfg(test)]
#[path = "film_tests.rs"]
pub mod tests;
