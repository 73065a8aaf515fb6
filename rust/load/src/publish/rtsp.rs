//! By RTSP: the film is announced, each of its tracks set up, and recorded (RFC 2326, 10.3, 10.4 and 10.11); the media
//! go as RTP over the connection itself (10.12).

use std::time::{SystemTime, UNIX_EPOCH};

use virtoll_generator::random::Random;

use super::announced::Announced;
use super::film::{Film, Frame};
use super::line::Speaker;
use super::packets::{Begun, Sender};
use crate::rtmp::kind;
use crate::rtsp::message::{Framer, Item, Message};
use crate::rtsp::session::{channels, declined, Session};
use crate::tally::Failure;

/// What the last request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Announce,
    Setup(usize),
    Record,
    Recording,
}

pub struct Rtsp<'a> {
    url: &'a str,
    phase: Phase,
    session: Session,
    framer: Framer,
    random: Random,
    /// In the order of the description: video, and audio.
    senders: [Sender; 2],
    begun: Begun,
    keep_ns: i64,
    unsent: Vec<u8>,
}

impl<'a> Rtsp<'a> {
    /// `seed`: of what is drawn, so that no two senders are the same.
    pub fn new(announced: &Announced, url: &'a str, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut session = Session::default();
        let length = announced.description.len();
        let fields = format!("Content-Type: application/sdp\r\nContent-Length: {length}\r\n");
        Rtsp {
            url,
            phase: Phase::Announce,
            unsent: session.request("ANNOUNCE", url, &fields, &announced.description),
            session,
            framer: Framer::default(),
            senders: announced.tracks.map(|kind| Sender::new(kind, &mut random)),
            random,
            begun: Begun::default(),
            keep_ns: i64::MAX,
        }
    }

    fn ask(&mut self, phase: Phase, method: &str, url: &str, fields: &str) {
        self.phase = phase;
        self.unsent
            .extend(self.session.request(method, url, fields, ""));
    }

    fn set_up(&mut self, index: usize) {
        let (rtp, rtcp) = (2 * index, 2 * index + 1);
        let url = format!("{}/streamid={index}", self.url);
        let fields =
            format!("Transport: RTP/AVP/TCP;unicast;interleaved={rtp}-{rtcp};mode=record\r\n");
        self.ask(Phase::Setup(index), "SETUP", &url, &fields);
    }

    fn item(&mut self, item: Item) -> Result<(), Failure> {
        match item {
            Item::Frame { .. } => Ok(()), // its receiver reports
            Item::Message(message) => match message.status() {
                Some(status) => self.answered(status, &message),
                None => {
                    self.unsent.extend(declined(&message)?);
                    Ok(())
                }
            },
        }
    }

    fn answered(&mut self, status: u16, message: &Message) -> Result<(), Failure> {
        self.session.answered(message)?;
        match (self.phase, status) {
            (_, 200) | (Phase::Record, 201 | 250) => {} // created, and low on space (7.1.1)
            _ => return Err(Failure::Status),
        }
        match self.phase {
            Phase::Announce => self.set_up(0),
            Phase::Setup(index) => {
                let transport = self.session.is_set_up(message)?;
                self.senders[index].channels = channels(transport).ok_or(Failure::Parse)?;
                if index + 1 < self.senders.len() {
                    self.set_up(index + 1);
                } else {
                    self.ask(Phase::Record, "RECORD", self.url, "Range: npt=0.000-\r\n");
                }
            }
            Phase::Record => self.phase = Phase::Recording,
            Phase::Recording => {}
        }
        Ok(())
    }
}

impl Speaker for Rtsp<'_> {
    fn hear(&mut self, input: &[u8]) -> Result<bool, Failure> {
        let mut framer = std::mem::take(&mut self.framer);
        let told = framer.feed(input, |item| self.item(item));
        self.framer = framer;
        told.map(|()| self.phase == Phase::Recording)
    }

    fn begin(&mut self, _film: &Film, now_ns: i64) {
        let real = SystemTime::now().duration_since(UNIX_EPOCH);
        self.begun = Begun {
            monotonic_ns: now_ns,
            real_ns: real.map_or(0, |since| since.as_nanos() as u64),
        };
        self.keep_ns = now_ns + self.session.keep_every_ns();
    }

    fn frame(&mut self, frame: &Frame, at_ms: i64, bytes: &[u8]) {
        let sender = &mut self.senders[usize::from(frame.kind == kind::AUDIO)];
        sender.frame(bytes, at_ms, &mut self.unsent);
    }

    fn attend(&mut self, now_ns: i64) -> i64 {
        if self.keep_ns <= now_ns && self.session.is_answered() {
            self.keep_ns = now_ns + self.session.keep_every_ns();
            self.ask(Phase::Recording, "OPTIONS", self.url, "");
        }
        let keep_ns = match self.session.is_answered() {
            true => self.keep_ns,
            false => i64::MAX,
        };
        for sender in &mut self.senders {
            sender.attend(self.begun, &mut self.random, now_ns, &mut self.unsent);
        }
        let reports_ns = self.senders.iter().map(Sender::wakes_ns);
        reports_ns.fold(keep_ns, i64::min)
    }

    fn leave(&mut self) {
        self.unsent
            .extend(self.session.farewell(self.url).unwrap_or_default());
    }

    fn said(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.unsent)).filter(|said| !said.is_empty())
    }
}

#[cfg(test)]
#[path = "rtsp_tests.rs"]
mod tests;
