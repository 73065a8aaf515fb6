//! One stream's connection: what is due is sent at its time, and what comes is heard.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use virtoll_generator::sys::{self, Address};

use super::film::{Film, Frame};
use super::{Publication, Report};
use crate::tally::{kind_of, Failure};

const MS: i64 = 1_000_000;
const BUFFER_BYTES: usize = 16 * 1024;
/// What a server has yet to take of a stream; who is farther behind has failed.
const BACKLOG_MAX: usize = 64 << 20;
/// What a server may say at a time: to a publisher it has only answers and reports to give, a few bytes each.
const HEARD_MAX: usize = 128 * 1024;

/// What differs between protocols: who says how a film is published, without input and output of its own.
pub trait Speaker {
    /// This came; whether the server takes the stream by now.
    fn hear(&mut self, input: &[u8]) -> Result<bool, Failure>;

    /// Play begins: say how the film is to be read.
    fn begin(&mut self, film: &Film, now_ns: i64);

    /// A frame, so long after play's beginning; `bytes`: its own, or those with the mark.
    fn frame(&mut self, frame: &Frame, at_ms: i64, bytes: &[u8]);

    /// Say what else is due while it plays; when the next is.
    fn attend(&mut self, _now_ns: i64) -> i64 {
        i64::MAX
    }

    /// Say the end of it.
    fn leave(&mut self);

    /// What is to be sent.
    fn said(&mut self) -> Option<Vec<u8>>;
}

/// A connection.
pub struct Line<'a> {
    pub fd: OwnedFd,
    speaker: Box<dyn Speaker + 'a>,
    since_ns: i64,
    unsent: Vec<u8>,
    sent: usize,
    /// Since when the server has taken nothing of what is to be sent.
    blocked_ns: Option<i64>,
    /// Since it was taken.
    play: Option<Play>,
}

/// What is to be sent next: a frame of a round, which begins at a time and so long after the first.
struct Play {
    frame: usize,
    begin_ns: i64,
    begin_ms: i64,
}

impl<'a> Line<'a> {
    pub fn connect(publication: &'a Publication, index: usize) -> io::Result<Self> {
        let fd = sys::connect(&Address::from(publication.address))?;
        sys::no_delay(&fd)?;
        Ok(Line {
            fd,
            speaker: publication.speaker(index),
            since_ns: sys::now_ns(),
            unsent: Vec::new(),
            sent: 0,
            blocked_ns: None,
            play: None,
        })
    }

    /// Whether the server takes it.
    pub fn is_published(&self) -> bool {
        self.play.is_some()
    }

    /// Say the end of it.
    pub fn leave(&mut self) {
        self.speaker.leave();
    }

    /// Say what is due by now; when the next is.
    pub fn send_due(&mut self, publication: &Publication, report: &mut Report) -> i64 {
        let film = &publication.film;
        let Some(play) = &mut self.play else {
            return self.since_ns + publication.patience_ns;
        };
        let first_ms = film.frames[0].at_ms;
        loop {
            let frame = &film.frames[play.frame];
            let since_ms = frame.at_ms - first_ms;
            let (due_ns, now_ns) = (play.begin_ns + since_ms * MS, sys::now_ns());
            if due_ns > now_ns {
                return due_ns.min(self.speaker.attend(now_ns));
            }
            let marked = publication
                .mark
                .and_then(|mark| film.marked(frame, &mark, now_ns));
            let bytes = marked.as_deref().unwrap_or_else(|| film.bytes(frame));
            self.speaker.frame(frame, play.begin_ms + since_ms, bytes);
            report.sent(bytes.len(), due_ns, now_ns);
            play.frame += 1;
            if play.frame == film.frames.len() {
                play.frame = 0;
                play.begin_ns += film.length_ms * MS;
                play.begin_ms += film.length_ms;
            }
        }
    }

    /// Send what there is; until when the server may take nothing.
    pub fn flush(&mut self, patience_ns: i64) -> Result<i64, Failure> {
        if let Some(said) = self.speaker.said() {
            // Not each time: where the server is behind, all that it has yet to take would be moved.
            if self.sent >= self.unsent.len() / 2 {
                self.unsent.drain(..self.sent);
                self.sent = 0;
            }
            self.unsent.extend_from_slice(&said);
        }
        while self.is_blocked() {
            match sys::send(&self.fd, &self.unsent[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    self.blocked_ns = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.unsent.len() - self.sent > BACKLOG_MAX {
                        return Err(Failure::Timeout);
                    }
                    let blocked_ns = *self.blocked_ns.get_or_insert_with(sys::now_ns);
                    return self.patient(blocked_ns, patience_ns);
                }
                Err(error) => return Err(kind_of(&error)),
            }
        }
        self.blocked_ns = None;
        match self.play {
            Some(_) => Ok(i64::MAX),
            None => self.patient(self.since_ns, patience_ns),
        }
    }

    fn patient(&self, since_ns: i64, patience_ns: i64) -> Result<i64, Failure> {
        match since_ns + patience_ns {
            until_ns if until_ns > sys::now_ns() => Ok(until_ns),
            _ => Err(Failure::Timeout),
        }
    }

    pub fn is_blocked(&self) -> bool {
        self.sent < self.unsent.len()
    }

    /// Read all that has come; play from when the server takes the stream. Who says more at a time than a server has to
    /// say has failed: what is answered to it would grow for as long as it goes on.
    pub fn hear(&mut self, publication: &Publication) -> Result<(), Failure> {
        let mut buffer = [0; BUFFER_BYTES];
        let mut heard_bytes = 0;
        loop {
            let input = match sys::receive(&self.fd, &mut buffer) {
                Ok(0) => return Err(Failure::Reset),
                Ok(count) => &buffer[..count],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(kind_of(&error)),
            };
            heard_bytes += input.len();
            if heard_bytes > HEARD_MAX {
                return Err(Failure::Parse);
            }
            if self.speaker.hear(input)? && self.play.is_none() {
                let now_ns = sys::now_ns();
                self.speaker.begin(&publication.film, now_ns);
                self.play = Some(Play {
                    frame: 0,
                    begin_ns: now_ns,
                    begin_ms: 0,
                });
            }
        }
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
