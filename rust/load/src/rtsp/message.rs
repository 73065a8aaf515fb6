//! What comes over an RTSP connection (RFC 2326): messages, and between them packets of media, each in a frame of four
//! bytes (10.12). Cut out of a stream that may be torn anywhere; only what is torn is copied.

use memchr::memchr;

use crate::tally::Failure;

const MOST_HEAD_BYTES: usize = 16 * 1024;
const MOST_BODY_BYTES: usize = 64 * 1024;
const FRAME_HEAD_BYTES: usize = 4;

/// One thing that came.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Frame { channel: u8, payload: &'a [u8] },
    Message(Message<'a>),
}

/// An answer, or a request of the server's.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'a> {
    first: &'a str,
    fields: &'a str,
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Of an answer; None: it is a request.
    pub fn status(&self) -> Option<u16> {
        let rest = self.first.strip_prefix("RTSP/1.0 ")?;
        rest.get(..3)?.parse().ok()
    }

    /// Of a request.
    pub fn method(&self) -> &'a str {
        self.first.split(' ').next().unwrap_or("")
    }

    /// The value of the first header field of this name, in whatever case.
    pub fn field(&self, name: &str) -> Option<&'a str> {
        field(self.fields, name)
    }
}

/// What stands at the beginning of some input.
enum Found<'a> {
    /// So many bytes of it.
    Whole(Item<'a>, usize),
    Torn(Lack),
}

/// What is torn, until there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// There must be so many bytes in all.
    Bytes(usize),
    /// A line has to end, which begins here.
    Line(usize),
}

/// Puts together what is torn, and looks at none of it again and again.
#[derive(Debug)]
pub struct Framer {
    torn: Vec<u8>,
    lack: Lack,
}

impl Default for Framer {
    fn default() -> Self {
        Framer {
            torn: Vec::new(),
            lack: Lack::Line(0),
        }
    }
}

impl Framer {
    /// Show all that is whole by now to `sink`.
    pub fn feed(
        &mut self,
        mut input: &[u8],
        mut sink: impl FnMut(Item) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        while !input.is_empty() {
            if self.torn.is_empty() {
                if b"\r\n".contains(&input[0]) {
                    input = &input[1..]; // an empty line before a message is nothing (RFC 2068, 4.1)
                    continue;
                }
                match find(input, 0)? {
                    Found::Whole(item, bytes) => {
                        sink(item)?;
                        input = &input[bytes..];
                    }
                    Found::Torn(lack) => {
                        self.torn.extend_from_slice(input);
                        self.lack = lack;
                        return Ok(());
                    }
                }
                continue;
            }
            input = self.mend(input);
            if self.lacks() {
                continue;
            }
            let (torn, line_at) = (std::mem::take(&mut self.torn), self.line_at());
            match find(&torn, line_at)? {
                Found::Whole(item, _) => sink(item)?,
                Found::Torn(lack) => (self.torn, self.lack) = (torn, lack),
            }
        }
        Ok(())
    }

    /// Add to what is torn what it lacks; the rest of the input.
    fn mend<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let more_bytes = match self.lack {
            Lack::Bytes(bytes) => bytes - self.torn.len(),
            Lack::Line(_) => memchr(b'\n', input).map_or(input.len(), |at| at + 1),
        };
        let (more, rest) = input.split_at(more_bytes.min(input.len()));
        self.torn.extend_from_slice(more);
        rest
    }

    /// Whether what is torn still lacks what it did.
    fn lacks(&self) -> bool {
        match self.lack {
            Lack::Bytes(bytes) => self.torn.len() < bytes,
            Lack::Line(_) => !self.torn.ends_with(b"\n") && self.torn.len() <= MOST_HEAD_BYTES,
        }
    }

    /// Where the first line begins that nobody has looked at.
    fn line_at(&self) -> usize {
        match self.lack {
            Lack::Bytes(_) => 0,
            Lack::Line(at) => at,
        }
    }

    /// Whether the stream ends within something.
    #[cfg(test)]
    pub fn is_torn(&self) -> bool {
        !self.torn.is_empty()
    }

    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        self.torn.capacity()
    }
}

/// `line_at`: none of a message's lines before is its head's end.
fn find(input: &[u8], line_at: usize) -> Result<Found<'_>, Failure> {
    match input {
        [b'$', channel, high, low, rest @ ..] => {
            let bytes = usize::from(u16::from_be_bytes([*high, *low]));
            Ok(match rest.get(..bytes) {
                Some(payload) => {
                    let channel = *channel;
                    Found::Whole(Item::Frame { channel, payload }, FRAME_HEAD_BYTES + bytes)
                }
                None => Found::Torn(Lack::Bytes(FRAME_HEAD_BYTES + bytes)),
            })
        }
        [b'$', ..] => Ok(Found::Torn(Lack::Bytes(FRAME_HEAD_BYTES))),
        _ => message(input, line_at),
    }
}

/// The head ends with an empty line; its lines may end without a carriage return.
fn message(input: &[u8], line_at: usize) -> Result<Found<'_>, Failure> {
    let mut at = line_at;
    let head_bytes = loop {
        if at > MOST_HEAD_BYTES {
            return Err(Failure::Parse);
        }
        let Some(line_bytes) = memchr(b'\n', &input[at..]) else {
            return match input.len() > MOST_HEAD_BYTES {
                true => Err(Failure::Parse),
                false => Ok(Found::Torn(Lack::Line(at))),
            };
        };
        let line = &input[at..at + line_bytes];
        at += line_bytes + 1;
        if matches!(line, b"" | b"\r") {
            break at;
        }
    };
    let head = std::str::from_utf8(&input[..head_bytes]).map_err(|_| Failure::Parse)?;
    let (first, fields) = head.split_once('\n').ok_or(Failure::Parse)?;
    let first = first.trim_end();
    if !first.starts_with("RTSP/1.0 ") && !first.ends_with(" RTSP/1.0") {
        return Err(Failure::Parse);
    }
    let body_bytes: usize = match field(fields, "Content-Length") {
        Some(length) => length.parse().map_err(|_| Failure::Parse)?,
        None => 0,
    };
    if body_bytes > MOST_BODY_BYTES {
        return Err(Failure::Parse);
    }
    Ok(match input[head_bytes..].get(..body_bytes) {
        Some(body) => {
            let message = Message {
                first,
                fields,
                body,
            };
            Found::Whole(Item::Message(message), head_bytes + body_bytes)
        }
        None => Found::Torn(Lack::Bytes(head_bytes + body_bytes)),
    })
}

fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    let pairs = fields.lines().filter_map(|line| line.split_once(':'));
    let mut same = pairs.filter(|(key, _)| key.trim_end().eq_ignore_ascii_case(name));
    same.next().map(|(_, value)| value.trim())
}

/// The value of a parameter in a list of them: `timeout` of `1234;timeout=60`.
pub fn parameter<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = list.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
    Some(value.trim().trim_matches('"'))
}

/// Two numbers that belong together: `6000-6001`; one alone is followed by the next.
pub fn pair(text: &str) -> Option<(u16, u16)> {
    let (first, second) = text.split_once('-').unwrap_or((text, ""));
    let first: u16 = first.trim().parse().ok()?;
    let second = match second {
        "" => first.checked_add(1)?,
        second => second.trim().parse().ok()?,
    };
    Some((first, second))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
