//! Messages out of the stream of chunks (5.3). Of a message that carries media only the beginning is kept, whatever
//! length the server says it has: payload is not copied, and memory is bounded.

use super::{kind, CHUNK_BYTES};
use crate::tally::Failure;

/// Basic header, message header, extended timestamp.
const HEADER_MAX: usize = 3 + 11 + 4;
/// Of each format: the message header without what is extended.
const HEADER_BYTES: [usize; 4] = [11, 7, 3, 0];
const EXTENDED: u32 = 0xff_ffff;
/// Chunk streams of one connection; servers use about six.
const STREAMS_MAX: usize = 32;
/// A command that is longer is none that anybody needs.
const COMMAND_MAX: usize = 4096;
/// What is kept of other messages.
const CONTROL_MAX: usize = 16;
const DATA_MAX: usize = 256;
pub const MEDIA_MAX: usize = 128;

/// A message that has come whole. What was kept of it is in `Chunks::held`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: u8,
    /// Milliseconds; it wraps around after 49 days.
    pub timestamp: u32,
    pub length: usize,
}

#[derive(Debug)]
pub struct Chunks {
    /// Payload in a chunk, at most.
    chunk_bytes: usize,
    streams: Vec<Stream>,
    header: [u8; HEADER_MAX],
    header_bytes: usize,
    /// The stream whose chunk is coming, and what is to come of it.
    current: Option<(usize, usize)>,
    held: Vec<u8>,
}

impl Default for Chunks {
    fn default() -> Self {
        Chunks {
            chunk_bytes: CHUNK_BYTES,
            streams: Vec::new(),
            header: [0; HEADER_MAX],
            header_bytes: 0,
            current: None,
            held: Vec::new(),
        }
    }
}

/// A chunk stream: what the headers of its chunks leave out is as before.
#[derive(Debug, Default)]
struct Stream {
    id: u32,
    timestamp: u32,
    /// What a chunk that begins a message without a header adds.
    delta: u32,
    is_extended: bool,
    length: usize,
    kind: u8,
    /// Of the message that is coming.
    got: usize,
    held: Vec<u8>,
    tags: Tags,
}

impl Chunks {
    /// Take what there is of the next message off `input`; None: there is no more, and it is not whole.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Message>, Failure> {
        loop {
            let message = match self.current {
                None => match self.header(input)? {
                    None => return Ok(None),
                    Some(empty) => empty,
                },
                Some(_) if input.is_empty() => return Ok(None),
                Some((index, left)) => self.payload(index, left, input)?,
            };
            if let Some(message) = message {
                match message.kind {
                    kind::SET_CHUNK_SIZE => self.resize()?,
                    kind::ABORT => self.abort()?,
                    _ => return Ok(Some(message)),
                }
            }
        }
    }

    /// The beginning of the message that came last; of a command or a control message, all of it.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Read a chunk's header; None: it is not whole yet. Some: perhaps that of a message without a payload.
    fn header(&mut self, input: &mut &[u8]) -> Result<Option<Option<Message>>, Failure> {
        loop {
            let needed = self.header_needs();
            if self.header_bytes == needed {
                self.header_bytes = 0;
                return self.begin(needed).map(Some);
            }
            let count = (needed - self.header_bytes).min(input.len());
            if count == 0 {
                return Ok(None);
            }
            let (more, rest) = input.split_at(count);
            self.header[self.header_bytes..][..count].copy_from_slice(more);
            self.header_bytes += count;
            *input = rest;
        }
    }

    /// How long the header is, by what has come of it.
    fn header_needs(&self) -> usize {
        if self.header_bytes == 0 {
            return 1;
        }
        let basic = basic_bytes(self.header[0]);
        let format = usize::from(self.header[0] >> 6);
        let plain = basic + HEADER_BYTES[format];
        if self.header_bytes < plain {
            return plain;
        }
        let is_extended = match format {
            3 => {
                let id = self.stream_id();
                let known = self.streams.iter().find(|stream| stream.id == id);
                known.is_some_and(|stream| stream.is_extended)
            }
            _ => integer(&self.header[basic..basic + 3]) == EXTENDED,
        };
        plain + if is_extended { 4 } else { 0 }
    }

    fn stream_id(&self) -> u32 {
        let header = &self.header;
        match header[0] & 0x3f {
            0 => 64 + u32::from(header[1]),
            1 => 64 + u32::from(header[1]) + 256 * u32::from(header[2]),
            id => u32::from(id),
        }
    }

    /// A header is whole: its chunk begins.
    fn begin(&mut self, header_bytes: usize) -> Result<Option<Message>, Failure> {
        let (id, format) = (self.stream_id(), self.header[0] >> 6);
        let index = self.streams.iter().position(|stream| stream.id == id);
        let index = match index {
            Some(index) => index,
            None if format == 0 && self.streams.len() < STREAMS_MAX => {
                self.streams.push(Stream {
                    id,
                    ..Stream::default()
                });
                self.streams.len() - 1
            }
            None => return Err(Failure::Parse), // nothing was said that it could be like
        };
        let stream = &mut self.streams[index];
        stream.begin(
            format,
            &self.header[basic_bytes(self.header[0])..header_bytes],
        )?;
        let chunk = (stream.length - stream.got).min(self.chunk_bytes);
        if chunk > 0 {
            self.current = Some((index, chunk));
            return Ok(None);
        }
        let message = stream.whole();
        self.held.clear();
        Ok(Some(message).filter(|message| message.kind != kind::AGGREGATE))
    }

    /// Read a chunk's payload, as far as it has come or a message ends in it.
    fn payload(
        &mut self,
        index: usize,
        left: usize,
        input: &mut &[u8],
    ) -> Result<Option<Message>, Failure> {
        let stream = &mut self.streams[index];
        let (more, _) = input.split_at(left.min(input.len()));
        let (count, part) = match stream.kind {
            kind::AGGREGATE => stream.tags.take(more, stream.timestamp)?,
            _ => {
                let room = held_most(stream.kind, stream.length)?.saturating_sub(stream.held.len());
                stream.held.extend_from_slice(&more[..room.min(more.len())]);
                (more.len(), None)
            }
        };
        *input = &input[count..];
        stream.got += count;
        self.current = Some((index, left - count)).filter(|(_, left)| *left > 0);
        if part.is_some() {
            std::mem::swap(&mut self.held, &mut stream.tags.held);
        }
        if stream.got < stream.length {
            return Ok(part);
        }
        let message = stream.whole();
        if stream.kind == kind::AGGREGATE {
            return match stream.tags.is_between() {
                true => Ok(part),
                false => Err(Failure::Parse), // the last of its messages is cut
            };
        }
        std::mem::swap(&mut self.held, &mut stream.held);
        Ok(Some(message))
    }

    /// 5.4.1.
    fn resize(&mut self) -> Result<(), Failure> {
        match self.number() {
            Some(bytes @ 1..=0x7fff_ffff) => {
                self.chunk_bytes = bytes as usize;
                Ok(())
            }
            _ => Err(Failure::Parse),
        }
    }

    /// 5.4.2: what has come of a stream's message is of no use.
    fn abort(&mut self) -> Result<(), Failure> {
        let id = self.number().ok_or(Failure::Parse)?;
        for stream in self.streams.iter_mut().filter(|stream| stream.id == id) {
            stream.got = 0;
        }
        Ok(())
    }

    /// What a control message begins with.
    pub fn number(&self) -> Option<u32> {
        Some(integer(self.held.get(..4)?))
    }
}

impl Stream {
    /// A chunk of it comes, whose header (without the basic one) is this.
    fn begin(&mut self, format: u8, header: &[u8]) -> Result<(), Failure> {
        let is_first = self.got == 0;
        if format < 3 {
            if !is_first {
                return Err(Failure::Parse); // a message within another
            }
            let plain = integer(&header[..3]);
            self.is_extended = plain == EXTENDED;
            self.delta = match self.is_extended {
                true => integer(&header[header.len() - 4..]),
                false => plain,
            };
        }
        if format < 2 {
            self.length = integer(&header[3..6]) as usize;
            self.kind = header[6];
        }
        if !is_first {
            return Ok(());
        }
        // After a timestamp that was told whole, the same is the difference (5.3.1.2.4).
        self.timestamp = match format {
            0 => self.delta,
            _ => self.timestamp.wrapping_add(self.delta),
        };
        self.held.clear();
        self.tags = Tags::default();
        Ok(())
    }

    fn whole(&mut self) -> Message {
        self.got = 0;
        Message {
            kind: self.kind,
            timestamp: self.timestamp,
            length: self.length,
        }
    }
}

/// The messages in an aggregate (7.1.6): each as FLV has it, with its length behind it.
#[derive(Debug, Default)]
struct Tags {
    header: [u8; TAG_BYTES],
    header_bytes: usize,
    /// Of the payload, and with what stands behind it: what is to come.
    payload: usize,
    left: usize,
    /// The first timestamp, which the aggregate's own stands for.
    first: Option<u32>,
    held: Vec<u8>,
}

const TAG_BYTES: usize = 11;
const BEHIND_BYTES: usize = 4;

impl Tags {
    /// Take what there is of the next one; how many bytes that were.
    fn take(&mut self, input: &[u8], timestamp: u32) -> Result<(usize, Option<Message>), Failure> {
        if self.left == 0 {
            let count = (TAG_BYTES - self.header_bytes).min(input.len());
            self.header[self.header_bytes..][..count].copy_from_slice(&input[..count]);
            self.header_bytes += count;
            if self.header_bytes == TAG_BYTES {
                self.payload = integer(&self.header[1..4]) as usize;
                self.left = self.payload + BEHIND_BYTES;
                self.held.clear();
            }
            return Ok((count, None));
        }
        let count = self.left.min(input.len());
        let media = count.min(self.left.saturating_sub(BEHIND_BYTES));
        let room = MEDIA_MAX.saturating_sub(self.held.len());
        self.held.extend_from_slice(&input[..media.min(room)]);
        self.left -= count;
        if self.left > 0 {
            return Ok((count, None));
        }
        self.header_bytes = 0;
        let own = integer(&self.header[4..7]) | u32::from(self.header[7]) << 24;
        let first = *self.first.get_or_insert(own);
        let message = Message {
            kind: self.header[0],
            timestamp: timestamp.wrapping_add(own.wrapping_sub(first)),
            length: self.payload,
        };
        match message.kind {
            kind::AUDIO | kind::VIDEO => Ok((count, Some(message))),
            kind::DATA | kind::DATA_AMF3 => Ok((count, None)),
            _ => Err(Failure::Parse),
        }
    }

    fn is_between(&self) -> bool {
        self.left == 0 && self.header_bytes == 0
    }
}

/// How much of a message is kept.
fn held_most(kind: u8, length: usize) -> Result<usize, Failure> {
    match kind {
        kind::COMMAND | kind::COMMAND_AMF3 if length > COMMAND_MAX => Err(Failure::Parse),
        kind::COMMAND | kind::COMMAND_AMF3 => Ok(COMMAND_MAX),
        kind::AUDIO | kind::VIDEO => Ok(MEDIA_MAX),
        kind::DATA | kind::DATA_AMF3 => Ok(DATA_MAX),
        kind::SET_CHUNK_SIZE..=kind::PEER_BANDWIDTH => Ok(CONTROL_MAX),
        _ => Ok(0),
    }
}

fn basic_bytes(first: u8) -> usize {
    match first & 0x3f {
        0 => 2,
        1 => 3,
        _ => 1,
    }
}

/// Big-endian, of at most four bytes.
pub fn integer(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
