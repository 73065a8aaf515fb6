//! An incremental parser of Redis' replies (RESP2, redis.io/docs/reference/protocol-spec): as many as there were commands,
//! each held against what its command brings.
//!
//! Feed it what arrived, in any pieces. Values are compared where they begin and are not kept; of the rest the length
//! alone counts, so that it need not be read at all.

use memchr::memchr;

use crate::dialogue::{Progress, Reply};
use crate::tally::Failure;

/// `key:` and twelve digits.
pub const NAME_BYTES: usize = 16;
/// A line longer than this is none of Redis'.
const LINE_MAX_BYTES: usize = 16 * 1024;
/// Redis' own limit of a value.
const VALUE_MAX_BYTES: u64 = 512 << 20;

/// What a command brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// `+OK`.
    Done,
    /// The value of its key, of so many bytes.
    Value { bytes: u64 },
}

/// The name of a key.
pub fn name(key: u64) -> [u8; NAME_BYTES] {
    let (mut name, mut left) = (*b"key:000000000000", key);
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name
}

/// What a value begins with: as much of its key's name as it has room for, the end of it where that is not all.
pub fn head(name: &[u8; NAME_BYTES], value_bytes: u64) -> &[u8] {
    &name[NAME_BYTES - (NAME_BYTES as u64).min(value_bytes) as usize..]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Line,
    /// `at`: how much of the value has come.
    Value {
        at: u64,
        bytes: u64,
    },
    /// The CR and the LF after it; so many of them have come.
    ValueEnd {
        come: usize,
    },
}

/// The replies to one round of commands.
#[derive(Debug)]
pub struct Replies {
    expected: Expected,
    /// The keys that the commands name, in order: as many replies are awaited.
    pub keys: Vec<u64>,
    state: State,
    torn_line: Vec<u8>,
    answered: usize,
    /// The first thing that is wrong with what was read, though it can be read on.
    pub problem: Option<Failure>,
    /// The first error that the server told, as it put it.
    pub error: Option<Vec<u8>>,
    /// Bytes of values so far.
    pub value_bytes: u64,
}

impl Replies {
    /// `keys`: of the first round.
    pub fn new(expected: Expected, keys: Vec<u64>) -> Self {
        Replies {
            expected,
            keys,
            state: State::Line,
            torn_line: Vec::new(),
            answered: 0,
            problem: None,
            error: None,
            value_bytes: 0,
        }
    }

    /// Make ready for another round.
    pub fn reset(&mut self) {
        self.state = State::Line;
        self.torn_line.clear();
        self.answered = 0;
        self.problem = None;
        self.error = None;
        self.value_bytes = 0;
    }

    fn progress(&self) -> Progress {
        if self.answered == self.keys.len() {
            Progress::Done
        } else {
            Progress::More
        }
    }

    fn wrong(&mut self, problem: Failure) {
        self.problem.get_or_insert(problem);
    }

    fn step(&mut self, input: &[u8]) -> Result<usize, &'static str> {
        match self.state {
            _ if self.answered == self.keys.len() => Err("bytes after the last reply"),
            State::Line => self.line(input),
            State::Value { at, bytes } => {
                let taken = (bytes - at).min(input.len() as u64) as usize;
                self.compare(at, &input[..taken]);
                self.advance(taken as u64);
                Ok(taken)
            }
            State::ValueEnd { come } => {
                if input[0] != b"\r\n"[come] {
                    return Err("a value longer than its length");
                }
                self.state = State::ValueEnd { come: come + 1 };
                if come == 1 {
                    self.reply_ends();
                }
                Ok(1)
            }
        }
    }

    /// Read a line from the start of `input`, or keep it until the rest arrives.
    fn line(&mut self, input: &[u8]) -> Result<usize, &'static str> {
        let end = memchr(b'\n', input);
        let taken = end.map_or(input.len(), |at| at + 1);
        if self.torn_line.len() + taken > LINE_MAX_BYTES {
            return Err("a line that does not end");
        }
        if end.is_some() && self.torn_line.is_empty() {
            self.whole_line(&input[..taken])?;
            return Ok(taken);
        }
        self.torn_line.extend_from_slice(&input[..taken]);
        if end.is_some() {
            let line = std::mem::take(&mut self.torn_line);
            self.whole_line(&line)?;
            self.torn_line = line;
            self.torn_line.clear();
        }
        Ok(taken)
    }

    fn whole_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let line = line.strip_suffix(b"\r\n");
        match (line.ok_or("a line without a CR")?, self.expected) {
            (b"+OK", Expected::Done) => self.reply_ends(),
            ([b'$', b'-', b'1'], Expected::Value { .. }) => {
                self.wrong(Failure::Status); // no such key
                self.reply_ends();
            }
            ([b'$', digits @ ..], Expected::Value { bytes: expected }) => {
                let bytes = length(digits)?;
                if bytes != expected {
                    self.wrong(Failure::Length);
                }
                self.state = State::Value { at: 0, bytes };
                self.advance(0);
            }
            ([b'-', error @ ..], _) => {
                self.wrong(Failure::Status);
                self.error.get_or_insert_with(|| error.to_vec());
                self.reply_ends();
            }
            _ => return Err("a reply that its command does not bring"),
        }
        Ok(())
    }

    /// Hold what arrived of a value, `at` its beginning or later, against its head.
    fn compare(&mut self, at: u64, input: &[u8]) {
        let Expected::Value { bytes } = self.expected else {
            return;
        };
        let name = name(self.keys[self.answered]);
        let head = head(&name, bytes);
        let Some(due) = head.get(at as usize..) else {
            return;
        };
        let both = due.len().min(input.len());
        if due[..both] != input[..both] {
            self.wrong(Failure::Content);
        }
    }

    /// So many bytes of the value have come.
    fn advance(&mut self, taken: u64) {
        let State::Value { at, bytes } = self.state else {
            return;
        };
        self.value_bytes += taken;
        self.state = match at + taken == bytes {
            true => State::ValueEnd { come: 0 },
            false => State::Value {
                at: at + taken,
                bytes,
            },
        };
    }

    fn reply_ends(&mut self) {
        self.answered += 1;
        self.state = State::Line;
    }
}

impl Reply for Replies {
    #[inline]
    fn take(&mut self, mut input: &[u8]) -> Progress {
        while !input.is_empty() {
            match self.step(input) {
                Ok(taken) => input = &input[taken..],
                Err(why) => return Progress::Broken(why),
            }
        }
        self.progress()
    }

    fn skippable(&self) -> u64 {
        match self.state {
            State::Value { at, bytes } if at >= NAME_BYTES as u64 => bytes - at,
            _ => 0,
        }
    }

    fn skipped(&mut self, bytes: u64) -> Progress {
        self.advance(bytes);
        self.progress()
    }

    fn cut_off(&mut self) -> Option<Failure> {
        Some(self.torn())
    }

    /// What the server said before it went counts first: "max number of clients reached".
    fn torn(&self) -> Failure {
        let within = matches!(self.state, State::Value { .. } | State::ValueEnd { .. });
        let torn = if within {
            Failure::Length
        } else {
            Failure::Reset
        };
        self.problem.unwrap_or(torn)
    }
}

fn length(digits: &[u8]) -> Result<u64, &'static str> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err("a length that is no number");
    }
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    let length = digits.iter().try_fold(0, add);
    length
        .filter(|length| *length <= VALUE_MAX_BYTES)
        .ok_or("a value of impossible length")
}

#[cfg(test)]
#[path = "resp_tests.rs"]
mod tests;
