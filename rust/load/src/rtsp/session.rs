//! A client's conversation: one request after the other, and what their answers say of the session.

use super::message::{pair, parameter, Message};
use crate::tally::Failure;

/// Of a session that is not heard of (12.37), and the bounds of what a server may say.
const TIMEOUT_S: i64 = 60;
const MOST_TIMEOUT_S: i64 = 86_400;
const MOST_SESSION_BYTES: usize = 256;
/// A frame's channel is one byte (10.12).
const MOST_CHANNEL: u16 = 255;

#[derive(Debug)]
pub struct Session {
    /// CSeq of the last request, and whether it was answered.
    number: u32,
    is_answered: bool,
    name: Option<String>,
    /// So often the server must hear of it: half of its timeout.
    keep_every_ns: i64,
}

impl Default for Session {
    fn default() -> Self {
        Session {
            number: 0,
            is_answered: true,
            name: None,
            keep_every_ns: TIMEOUT_S * 500_000_000,
        }
    }
}

impl Session {
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    pub fn keep_every_ns(&self) -> i64 {
        self.keep_every_ns
    }

    /// `fields`: whole lines; `body`: what they tell the length of.
    pub fn request(&mut self, method: &str, url: &str, fields: &str, body: &str) -> Vec<u8> {
        self.number += 1;
        self.is_answered = false;
        let session = match &self.name {
            Some(name) => format!("Session: {name}\r\n"),
            None => String::new(),
        };
        let number = self.number;
        format!("{method} {url} RTSP/1.0\r\nCSeq: {number}\r\nUser-Agent: virtoll-load\r\n{session}{fields}\r\n{body}")
            .into_bytes()
    }

    /// An answer came: it must be the last request's.
    pub fn answered(&mut self, message: &Message) -> Result<(), Failure> {
        if self.is_answered || number_of(message) != Some(self.number) {
            return Err(Failure::Parse);
        }
        self.is_answered = true;
        Ok(())
    }

    /// A track was set up: the answer names the session. Its field `Transport`, which must be there.
    pub fn is_set_up<'a>(&mut self, message: &Message<'a>) -> Result<&'a str, Failure> {
        let session = message.field("Session").ok_or(Failure::Parse)?;
        let name = session.split(';').next().unwrap_or("").trim();
        let is_other = self.name.as_deref().is_some_and(|known| known != name);
        if is_other || name.is_empty() || name.len() > MOST_SESSION_BYTES {
            return Err(Failure::Parse);
        }
        self.name = Some(name.to_owned());
        let timeout_s = parameter(session, "timeout").and_then(|told| told.parse::<i64>().ok());
        if let Some(timeout_s) = timeout_s {
            // It holds for the session, also where it is not said again for the next track.
            self.keep_every_ns = timeout_s.clamp(2, MOST_TIMEOUT_S) * 500_000_000;
        }
        message.field("Transport").ok_or(Failure::Parse)
    }

    /// What is said last; None: there is no session any more.
    pub fn farewell(&mut self, url: &str) -> Option<Vec<u8>> {
        self.name.as_ref()?;
        let request = self.request("TEARDOWN", url, "", "");
        self.name = None;
        Some(request)
    }

    /// The server has ended it.
    pub fn is_gone(&mut self) {
        self.name = None;
    }
}

/// What is answered to a server that asks: nothing of the kind is done here. It may not send us elsewhere.
pub fn declined(message: &Message) -> Result<Vec<u8>, Failure> {
    match number_of(message) {
        Some(number) if message.method() != "REDIRECT" => {
            Ok(format!("RTSP/1.0 501 Not Implemented\r\nCSeq: {number}\r\n\r\n").into_bytes())
        }
        _ => Err(Failure::Parse),
    }
}

/// Whether media come or go over the connection itself, by the answer's `Transport`.
pub fn is_tcp(transport: &str) -> bool {
    let way = transport.split(';').next();
    way.is_some_and(|way| way.trim().ends_with("/TCP"))
}

/// By which channels, RTP's and RTCP's; None: they do not.
pub fn channels(transport: &str) -> Option<(u8, u8)> {
    let (rtp, rtcp) = parameter(transport, "interleaved").and_then(pair)?;
    let is_right = is_tcp(transport) && rtp.max(rtcp) <= MOST_CHANNEL;
    is_right.then_some((rtp as u8, rtcp as u8))
}

/// A frame of media or control between messages (10.12); None: it is too long for one.
pub fn framed(channel: u8, packet: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(packet.len()).ok()?;
    let head = [&[b'$', channel][..], &length.to_be_bytes()].concat();
    Some([&head, packet].concat())
}

fn number_of(message: &Message) -> Option<u32> {
    message.field("CSeq")?.parse().ok()
}
