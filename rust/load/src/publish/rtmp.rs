//! By RTMP (7.2.2.6): the frames as they are in the film.

use super::film::{Film, Frame};
use super::line::Speaker;
use crate::rtmp::kind;
use crate::rtmp::session::{Application, Event, Session};
use crate::tally::Failure;

const CHUNK_BYTES: usize = 4096;

pub struct Rtmp<'a> {
    session: Session<'a>,
    /// Under which it is published.
    name: &'a str,
    is_taken: bool,
}

impl<'a> Rtmp<'a> {
    pub fn new(application: &'a Application, name: &'a str) -> Self {
        Rtmp {
            session: Session::new(application),
            name,
            is_taken: false,
        }
    }
}

impl Speaker for Rtmp<'_> {
    fn hear(&mut self, mut input: &[u8]) -> Result<bool, Failure> {
        while let Some(event) = self.session.next(&mut input)? {
            match event {
                Event::Created => self.session.publish(self.name, CHUNK_BYTES),
                Event::Published => self.is_taken = true,
                Event::Ended => return Err(Failure::Reset),
                Event::Media(..) => {}
            }
        }
        Ok(self.is_taken)
    }

    fn begin(&mut self, film: &Film, _now_ns: i64) {
        if let Some(metadata) = &film.metadata {
            self.session.send(kind::DATA, 0, metadata);
        }
        for frame in &film.setup {
            self.session.send(frame.kind, 0, film.bytes(frame));
        }
    }

    fn frame(&mut self, frame: &Frame, at_ms: i64, bytes: &[u8]) {
        let timestamp = at_ms as u32; // it wraps around
        self.session.send(frame.kind, timestamp, bytes);
    }

    fn leave(&mut self) {
        self.session.unpublish();
    }

    fn said(&mut self) -> Option<Vec<u8>> {
        self.session.said()
    }
}
