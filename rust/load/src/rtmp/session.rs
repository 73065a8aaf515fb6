//! A client's half of a connection: the simple handshake (5.2), `connect` and `createStream` (7.2.1), and what the server
//! wants of it meanwhile: acknowledgements, pongs. Whoever drives it sends what it says and hands it what comes.

use virtoll_generator::Failed;

use super::amf::{field, value, Said, Value};
use super::chunk::{Chunks, Message};
use super::media::Media;
use super::write::{self, Head};
use super::{kind, CHUNK_BYTES};
use crate::tally::Failure;

const VERSION: u8 = 3;
const HELLO_BYTES: usize = 1536;
/// What a server says first: its version, its hello, and ours again.
const HELLOS_BYTES: usize = 1 + 2 * HELLO_BYTES;

const NAME_MAX: usize = 1000;

const CONNECT: f64 = 1.0;
const CREATE: f64 = 2.0;

/// User control events (7.1.7).
const STREAM_END: u32 = 1;
const SET_BUFFER: u16 = 3;
const PING: u32 = 6;
const PONG: u16 = 7;

/// Where a stream is: an application of a server.
#[derive(Clone, Debug)]
pub struct Application {
    pub name: String,
    /// `rtmp://host:port/name`.
    pub url: String,
}

impl Application {
    pub fn checked(name: &str, url: &str) -> Result<Self, Failed> {
        Ok(Application {
            name: checked_name(name)?,
            url: checked_name(url)?,
        })
    }
}

/// What is said of an application or a stream must fit into a command.
pub fn checked_name(name: &str) -> Result<String, Failed> {
    match name.len() {
        1..=NAME_MAX => Ok(name.to_owned()),
        length => Err(Failed(format!(
            "the specification cannot be run: RTMP names and URLs have 1 to {NAME_MAX} bytes, and one has {length}"
        ))),
    }
}

/// What the server said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a stream: it can be played or published to.
    Created,
    /// What is published is taken.
    Published,
    /// Audio or video, of so many bytes.
    Media(Media, usize),
    /// The stream has ended.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// So much of the server's handshake has come.
    Greeting(usize),
    Connecting,
    Creating,
    Created,
}

#[derive(Debug)]
pub struct Session<'a> {
    application: &'a Application,
    phase: Phase,
    chunks: Chunks,
    /// Payload in our own chunks.
    chunk_bytes: usize,
    unsent: Vec<u8>,
    stream: u32,
    /// Bytes that came, and those that were acknowledged; the window, where the server has one.
    received: u64,
    acknowledged: u64,
    window: Option<u64>,
    told_window: u32,
}

impl<'a> Session<'a> {
    /// It begins to speak.
    pub fn new(application: &'a Application) -> Self {
        let mut unsent = vec![VERSION];
        unsent.resize(1 + HELLO_BYTES, 0); // time 0, zero, and "random" bytes, which nobody needs
        Session {
            application,
            phase: Phase::Greeting(0),
            chunks: Chunks::default(),
            chunk_bytes: CHUNK_BYTES,
            unsent,
            stream: 0,
            received: 0,
            acknowledged: 0,
            window: None,
            told_window: 0,
        }
    }

    /// Whether there is a stream.
    pub fn is_created(&self) -> bool {
        self.phase == Phase::Created
    }

    /// What is to be sent; None: nothing.
    pub fn said(&mut self) -> Option<Vec<u8>> {
        (!self.unsent.is_empty()).then(|| std::mem::take(&mut self.unsent))
    }

    /// Have the stream of this name played, from its beginning or from what is live now; the server is told how much it
    /// may send ahead.
    pub fn play(&mut self, name: &str, is_live: bool, buffer_ms: u32) {
        write::user_control(&mut self.unsent, SET_BUFFER, &[self.stream, buffer_ms]);
        // In milliseconds, whatever 7.2.2.1 says: what Flash's player sent, and servers divide.
        let start = if is_live { -1000.0 } else { 0.0 };
        self.command(Said::command("play", 0.0).null().text(name).number(start));
    }

    /// Publish under this name, in chunks of this size.
    pub fn publish(&mut self, name: &str, chunk_bytes: usize) {
        write::control(
            &mut self.unsent,
            kind::SET_CHUNK_SIZE,
            &[chunk_bytes as u32],
        );
        self.chunk_bytes = chunk_bytes;
        self.command(Said::command("publish", 0.0).null().text(name).text("live"));
    }

    /// Say the end of what was published.
    pub fn unpublish(&mut self) {
        let said = Said::command("deleteStream", 0.0).null();
        self.command(said.number(f64::from(self.stream)));
    }

    /// Send a message of the stream: audio, video or data.
    pub fn send(&mut self, kind: u8, timestamp: u32, payload: &[u8]) {
        let chunks = match kind {
            kind::AUDIO => write::AUDIO,
            kind::VIDEO => write::VIDEO,
            _ => write::STREAM,
        };
        let head = Head {
            chunks,
            kind,
            stream: self.stream,
            timestamp,
        };
        write::message(&mut self.unsent, head, payload, self.chunk_bytes);
    }

    /// Take what there is of the server's next word off `input`; None: there is no more of it.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Failure> {
        if let Phase::Greeting(got) = self.phase {
            self.greet(got, input)?;
        }
        if let Phase::Greeting(_) = self.phase {
            return Ok(None);
        }
        loop {
            let before = input.len();
            let message = self.chunks.next(input)?;
            self.received += (before - input.len()) as u64;
            let Some(message) = message else {
                self.acknowledge();
                return Ok(None);
            };
            if let Some(event) = self.heard(&message)? {
                return Ok(Some(event));
            }
        }
    }

    /// The beginning of the media message that came last.
    pub fn head(&self) -> &[u8] {
        self.chunks.held()
    }

    /// The server's version and hello, which ours answers; then ours again, which nobody compares.
    fn greet(&mut self, got: usize, input: &mut &[u8]) -> Result<(), Failure> {
        if got == 0 && input.first().is_some_and(|version| *version != VERSION) {
            return Err(Failure::Parse);
        }
        let until = match got <= HELLO_BYTES {
            true => 1 + HELLO_BYTES,
            false => HELLOS_BYTES,
        };
        let (hello, rest) = input.split_at((until - got).min(input.len()));
        *input = rest;
        if until == 1 + HELLO_BYTES {
            // Its hello again, bit by bit as it comes; its version is no part of it.
            let skip = usize::from(got == 0).min(hello.len());
            self.unsent.extend_from_slice(&hello[skip..]);
        }
        let got = got + hello.len();
        self.phase = Phase::Greeting(got);
        if got == 1 + HELLO_BYTES && !hello.is_empty() {
            self.connect();
            return self.greet(got, input);
        }
        if got == HELLOS_BYTES {
            self.phase = Phase::Connecting;
        }
        Ok(())
    }

    fn connect(&mut self) {
        let said = Said::command("connect", CONNECT).object(&[
            ("app", &self.application.name),
            ("type", "nonprivate"),
            ("flashVer", "LNX 9,0,124,2"), // servers look at it: what rtmpdump sends
            ("tcUrl", &self.application.url),
        ]);
        self.command(said);
    }

    fn command(&mut self, said: Said) {
        let head = Head {
            chunks: write::COMMANDS,
            kind: kind::COMMAND,
            stream: self.stream,
            timestamp: 0,
        };
        write::message(&mut self.unsent, head, &said.0, self.chunk_bytes);
    }

    /// Say what has come, as often as the server wants to hear it (5.4.3, 5.4.4).
    fn acknowledge(&mut self) {
        if self
            .window
            .is_some_and(|window| self.received - self.acknowledged >= window)
        {
            self.acknowledged = self.received;
            let number = self.received as u32; // it wraps around
            write::control(&mut self.unsent, kind::ACKNOWLEDGEMENT, &[number]);
        }
    }

    fn heard(&mut self, message: &Message) -> Result<Option<Event>, Failure> {
        match message.kind {
            kind::AUDIO | kind::VIDEO => {
                let media = Media::of(message, self.chunks.held());
                Ok(media.map(|media| Event::Media(media, message.length)))
            }
            kind::COMMAND => self.told(0),
            kind::COMMAND_AMF3 => self.told(1), // a byte before what is AMF0 nevertheless
            kind::DATA => Ok(self.data(0)),
            kind::DATA_AMF3 => Ok(self.data(1)),
            kind::USER_CONTROL => self.controlled(),
            kind::WINDOW_SIZE => {
                let window = self.chunks.number().ok_or(Failure::Parse)?;
                self.window = Some(u64::from(window)).filter(|window| *window > 0);
                Ok(None)
            }
            kind::PEER_BANDWIDTH => {
                let window = self.chunks.number().ok_or(Failure::Parse)?;
                if window != self.told_window {
                    self.told_window = window;
                    write::control(&mut self.unsent, kind::WINDOW_SIZE, &[window]);
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn controlled(&mut self) -> Result<Option<Event>, Failure> {
        let (event, rest) = self
            .chunks
            .held()
            .split_at_checked(2)
            .ok_or(Failure::Parse)?;
        match super::chunk::integer(event) {
            STREAM_END => Ok(Some(Event::Ended)),
            PING => {
                let time = rest.get(..4).ok_or(Failure::Parse)?;
                let time = super::chunk::integer(time);
                write::user_control(&mut self.unsent, PONG, &[time]);
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// A command: an answer to ours, or a stream's status.
    fn told(&mut self, skip: usize) -> Result<Option<Event>, Failure> {
        let mut rest = self.chunks.held().get(skip..).ok_or(Failure::Parse)?;
        let (Some(Value::Text(name)), Some(Value::Number(transaction))) =
            (value(&mut rest), value(&mut rest))
        else {
            return Err(Failure::Parse);
        };
        match name {
            b"_result" if transaction == CONNECT && self.phase == Phase::Connecting => {
                self.phase = Phase::Creating;
                self.command(Said::command("createStream", CREATE).null());
                Ok(None)
            }
            b"_result" if transaction == CREATE && self.phase == Phase::Creating => {
                value(&mut rest);
                let Some(Value::Number(stream)) = value(&mut rest) else {
                    return Err(Failure::Parse);
                };
                (self.stream, self.phase) = (stream as u32, Phase::Created);
                Ok(Some(Event::Created))
            }
            b"_error" | b"close" => Err(Failure::Status),
            b"onStatus" => {
                value(&mut rest);
                status(rest)
            }
            _ => Ok(None),
        }
    }

    /// A data message: of those only one says anything, that all of what was asked for has been played.
    fn data(&self, skip: usize) -> Option<Event> {
        let mut rest = self.chunks.held().get(skip..)?;
        if value(&mut rest)? != Value::Text(b"onPlayStatus") {
            return None;
        }
        loop {
            if let Value::Object(fields) = value(&mut rest)? {
                let is_end = field(fields, b"code") == Some(b"NetStream.Play.Complete");
                return is_end.then_some(Event::Ended);
            }
        }
    }
}

/// What a stream's status means (7.2.2); what says nothing of it is passed over.
fn status(mut rest: &[u8]) -> Result<Option<Event>, Failure> {
    let Some(Value::Object(fields)) = value(&mut rest) else {
        return Err(Failure::Parse);
    };
    if field(fields, b"level") == Some(b"error") {
        return Err(Failure::Status);
    }
    match field(fields, b"code").unwrap_or_default() {
        b"NetStream.Publish.Start" => Ok(Some(Event::Published)),
        b"NetStream.Play.Stop" | b"NetStream.Play.UnpublishNotify" | b"NetStream.Play.Complete" => {
            Ok(Some(Event::Ended))
        }
        b"NetStream.Play.StreamNotFound"
        | b"NetStream.Play.Failed"
        | b"NetStream.Publish.BadName"
        | b"NetStream.Publish.Denied" => Err(Failure::Status),
        _ => Ok(None),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
