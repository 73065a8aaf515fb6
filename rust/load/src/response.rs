//! An incremental HTTP/1.1 response parser (RFC 9112) that measures a body without keeping it.
//!
//! Feed it what arrived, in any pieces. It never copies: only a head that is torn between two reads is put
//! together in a buffer. Body bytes need not be read at all; `skippable` says how many may be thrown away unseen.

use memchr::memchr;

use crate::dialogue::Progress;

/// A head longer than this is no head; interim responses before it count too.
const HEAD_MAX_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Sized {
        left: u64,
    },
    UntilClose,
    ChunkSize {
        size: u64,
        digits: u32,
        in_extension: bool,
    },
    Chunk {
        left: u64,
    },
    ChunkEnd,
    Trailer {
        line_bytes: u32,
    },
    Done,
}

/// One response on its way in.
#[derive(Debug)]
pub struct Response {
    state: State,
    torn_head: Vec<u8>,
    interim_bytes: usize,
    /// Status code, once the head has been read; before that 0.
    pub status: u16,
    /// Body bytes so far, without chunk framing.
    pub body_bytes: u64,
    /// Whether the connection can carry another request afterwards.
    pub keep_alive: bool,
}

impl Default for Response {
    fn default() -> Self {
        Response {
            state: State::Head,
            torn_head: Vec::new(),
            interim_bytes: 0,
            status: 0,
            body_bytes: 0,
            keep_alive: false,
        }
    }
}

impl Response {
    /// Make ready for the next response on the same or another connection.
    pub fn reset(&mut self) {
        self.state = State::Head;
        self.torn_head.clear();
        self.interim_bytes = 0;
        self.status = 0;
        self.body_bytes = 0;
    }

    /// Whether the head is complete, that is, whether an end of stream now cuts a *body* short.
    pub fn has_head(&self) -> bool {
        self.state != State::Head
    }

    /// How many of the next bytes are certainly body.
    pub fn skippable(&self) -> u64 {
        match self.state {
            State::Sized { left } | State::Chunk { left } => left,
            State::UntilClose => u64::MAX,
            _ => 0,
        }
    }

    /// Take note of `bytes` (at most `skippable()`) of body that arrived and were thrown away.
    pub fn skipped(&mut self, bytes: u64) -> Progress {
        self.body_bytes += bytes;
        match &mut self.state {
            State::Sized { left } | State::Chunk { left } => *left -= bytes,
            _ => {}
        }
        self.settle();
        self.progress()
    }

    /// The stream has ended: is that the end of the response?
    pub fn end_of_stream(&mut self) -> Progress {
        if self.state == State::UntilClose {
            self.state = State::Done;
        }
        self.progress()
    }

    /// Read what arrived; body bytes are also shown to `sink`.
    #[inline]
    pub fn feed(&mut self, mut input: &[u8], mut sink: impl FnMut(&[u8])) -> Progress {
        while !input.is_empty() {
            let step = match self.state {
                State::Head => self.head(input),
                State::Done => Err("bytes after the end of the response"),
                State::Sized { left } | State::Chunk { left } => {
                    let taken = left.min(input.len() as u64) as usize;
                    sink(&input[..taken]);
                    self.skipped(taken as u64);
                    Ok(taken)
                }
                State::UntilClose => {
                    sink(input);
                    self.body_bytes += input.len() as u64;
                    Ok(input.len())
                }
                _ => self.framing(input[0]).map(|()| 1),
            };
            match step {
                Ok(taken) => input = &input[taken..],
                Err(why) => return Progress::Broken(why),
            }
        }
        self.progress()
    }

    fn progress(&self) -> Progress {
        if self.state == State::Done {
            Progress::Done
        } else {
            Progress::More
        }
    }

    /// Leave a body state whose last byte has been taken.
    fn settle(&mut self) {
        match self.state {
            State::Sized { left: 0 } => self.state = State::Done,
            State::Chunk { left: 0 } => self.state = State::ChunkEnd,
            _ => {}
        }
    }

    /// Read a head from the start of `input`, or keep it until the rest arrives.
    fn head(&mut self, input: &[u8]) -> Result<usize, &'static str> {
        if self.torn_head.is_empty() {
            if let Some(taken) = self.parse_head(input)? {
                return Ok(taken);
            }
            self.torn_head.extend_from_slice(input);
        } else {
            let before = self.torn_head.len();
            self.torn_head.extend_from_slice(input);
            let whole = std::mem::take(&mut self.torn_head);
            if let Some(taken) = self.parse_head(&whole)? {
                return Ok(taken - before);
            }
            self.torn_head = whole;
        }
        if self.torn_head.len() > HEAD_MAX_BYTES {
            return Err("the head does not end");
        }
        Ok(input.len())
    }

    /// Bytes of a complete head, or None while it is torn.
    fn parse_head(&mut self, text: &[u8]) -> Result<Option<usize>, &'static str> {
        let Some(first_end) = memchr(b'\n', text) else {
            return Ok(None);
        };
        let (status, http_1_1) = status_line(&text[..first_end])?;
        let mut fields = Fields {
            keep_alive: http_1_1,
            closes: false,
            length: None,
            chunked: false,
        };
        let mut at = first_end + 1;
        loop {
            let Some(line_bytes) = memchr(b'\n', &text[at..]) else {
                return Ok(None);
            };
            let line = trim_end(&text[at..at + line_bytes]);
            at += line_bytes + 1;
            if line.is_empty() {
                break;
            }
            fields.read(line)?;
        }
        if (100..200).contains(&status) {
            self.interim_bytes += at; // an interim response: the real one follows
            if self.interim_bytes > HEAD_MAX_BYTES {
                return Err("interim responses that do not end");
            }
            return Ok(Some(at));
        }
        self.status = status;
        self.keep_alive = fields.keep_alive && !fields.closes;
        self.state = match (status, fields.chunked, fields.length) {
            (204 | 304, _, _) => State::Done,
            (_, true, _) => State::ChunkSize {
                size: 0,
                digits: 0,
                in_extension: false,
            },
            (_, false, Some(left)) => State::Sized { left },
            (_, false, None) => State::UntilClose,
        };
        if self.state == State::UntilClose {
            self.keep_alive = false;
        }
        self.settle();
        Ok(Some(at))
    }

    /// One byte of what stands between chunks.
    fn framing(&mut self, byte: u8) -> Result<(), &'static str> {
        self.state = match (self.state, byte) {
            (State::ChunkSize { size, digits, .. }, b'\n') => match (digits, size) {
                (0, _) => return Err("a chunk without a size"),
                (_, 0) => State::Trailer { line_bytes: 0 },
                _ => State::Chunk { left: size },
            },
            (
                State::ChunkSize {
                    size,
                    digits,
                    in_extension: false,
                },
                digit,
            ) if digit.is_ascii_hexdigit() => {
                if digits == 15 {
                    return Err("a chunk of impossible size");
                }
                let value = (digit as char).to_digit(16).unwrap_or(0);
                State::ChunkSize {
                    size: size * 16 + u64::from(value),
                    digits: digits + 1,
                    in_extension: false,
                }
            }
            (
                State::ChunkSize {
                    size,
                    digits,
                    in_extension,
                },
                other,
            ) => {
                if !in_extension && !matches!(other, b';' | b'\r' | b' ' | b'\t') {
                    return Err("a chunk size that is no number");
                }
                State::ChunkSize {
                    size,
                    digits,
                    in_extension: true,
                }
            }
            (State::ChunkEnd, b'\r') => State::ChunkEnd,
            (State::ChunkEnd, b'\n') => State::ChunkSize {
                size: 0,
                digits: 0,
                in_extension: false,
            },
            (State::ChunkEnd, _) => return Err("a chunk longer than its size"),
            (State::Trailer { line_bytes: 0 }, b'\n') => State::Done,
            (State::Trailer { .. }, b'\n') => State::Trailer { line_bytes: 0 },
            (State::Trailer { line_bytes }, b'\r') => State::Trailer { line_bytes },
            (State::Trailer { line_bytes }, _) => State::Trailer {
                line_bytes: line_bytes.saturating_add(1),
            },
            (state, _) => state,
        };
        Ok(())
    }
}

/// The header fields that decide where a body ends.
struct Fields {
    keep_alive: bool,
    /// It says so, whatever else it says of the connection (RFC 9112, 9.3).
    closes: bool,
    length: Option<u64>,
    chunked: bool,
}

impl Fields {
    fn read(&mut self, line: &[u8]) -> Result<(), &'static str> {
        if let Some(value) = field(line, b"content-length") {
            let text =
                std::str::from_utf8(value).map_err(|_| "a Content-Length that is no number")?;
            let length = text
                .parse()
                .map_err(|_| "a Content-Length that is no number")?;
            if self.length.is_some_and(|earlier| earlier != length) {
                return Err("two different Content-Lengths");
            }
            self.length = Some(length);
        } else if let Some(value) = field(line, b"transfer-encoding") {
            self.chunked = value.eq_ignore_ascii_case(b"chunked");
            if !self.chunked {
                return Err("a Transfer-Encoding other than chunked");
            }
        } else if let Some(value) = field(line, b"connection") {
            for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                self.closes |= option.eq_ignore_ascii_case(b"close");
                self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Ok(())
    }
}

/// The value of a header line, when its name is `name` (given in lower case).
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if line.get(name.len()) != Some(&b':') || !line[..name.len()].eq_ignore_ascii_case(name) {
        return None;
    }
    Some(line[name.len() + 1..].trim_ascii())
}

/// Status and whether it is HTTP/1.1 (persistent unless said otherwise).
fn status_line(line: &[u8]) -> Result<(u16, bool), &'static str> {
    let line = trim_end(line);
    let (version, rest) = line.split_at_checked(9).ok_or("a status line too short")?;
    let http_1_1 = match version {
        b"HTTP/1.1 " => true,
        b"HTTP/1.0 " => false,
        _ => return Err("no HTTP/1 status line"),
    };
    match rest {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']
        | [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', ..] => Ok((
            u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'),
            http_1_1,
        )),
        _ => Err("a status that is no number"),
    }
}

fn trim_end(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
