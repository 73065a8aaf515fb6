//! One GET after another, on one connection where the server keeps it.

use super::fetch::{Fetch, Right};
use super::protocol::Want;
use crate::tally::Failure;

const READ_BYTES: usize = 64 * 1024;

/// What is under way; `W`: what it is asked for.
pub(super) struct Request<W> {
    what: W,
    pub(super) bytes: Vec<u8>,
    fetch: Fetch,
    pub(super) sent_ns: i64,
    /// Something of the answer has come.
    is_answered: bool,
    /// It went over a connection that had brought an answer before.
    is_reused: bool,
}

/// What has come whole, and is right.
pub struct Answer<W> {
    pub what: W,
    pub sent_ns: i64,
    pub body_bytes: u64,
    /// It is not there, and need not be.
    pub lacks: bool,
}

pub struct Asking<W> {
    pub(super) request: Option<Request<W>>,
    /// To be sent, as soon as there is a connection.
    pub(super) unsent: Option<Vec<u8>>,
    is_connected: bool,
    /// The connection has brought an answer.
    is_used: bool,
}

impl<W> Default for Asking<W> {
    fn default() -> Self {
        Asking {
            request: None,
            unsent: None,
            is_connected: false,
            is_used: false,
        }
    }
}

impl<W> Asking<W> {
    /// Nothing is asked for.
    pub fn is_idle(&self) -> bool {
        self.request.is_none()
    }

    /// What is under way is not there, and need not be.
    pub fn lacks(&self) -> bool {
        let request = self.request.as_ref();
        request.is_some_and(|request| request.fetch.lacks())
    }

    pub fn ask(&mut self, bytes: Vec<u8>, what: W, right: Right, now_ns: i64) {
        self.unsent = Some(bytes.clone());
        self.request = Some(Request {
            what,
            bytes,
            fetch: Fetch::new(right),
            sent_ns: now_ns,
            is_answered: false,
            is_reused: self.is_connected && self.is_used,
        });
    }

    /// What the request that is under way needs.
    pub fn want(&mut self) -> Want {
        if !self.is_connected {
            (self.is_connected, self.is_used) = (true, false);
            return Want::Connect;
        }
        match self.unsent.take() {
            Some(request) => Want::Send(request),
            None => Want::Read(READ_BYTES),
        }
    }

    /// These bytes came; the body's are shown to `sink`, which says whether it can be so.
    pub fn take(
        &mut self,
        input: &[u8],
        mut sink: impl FnMut(&mut W, &[u8]) -> bool,
    ) -> Result<Option<Answer<W>>, Failure> {
        let Some(request) = &mut self.request else {
            return Err(Failure::Parse); // it talks unasked
        };
        request.is_answered = true;
        let (what, mut can_be) = (&mut request.what, true);
        let is_whole = request
            .fetch
            .take(input, |body| can_be = can_be && sink(what, body))?;
        if !can_be {
            return Err(Failure::Parse);
        }
        Ok(self.answered_if(is_whole))
    }

    /// The server has closed the connection.
    pub fn closed(&mut self) -> Result<Option<Answer<W>>, Failure> {
        if self.reset() {
            return Ok(None);
        }
        match &mut self.request {
            None => Ok(None),
            Some(request) => {
                let is_whole = request.fetch.closed()?;
                Ok(self.answered_if(is_whole))
            }
        }
    }

    /// A server may close a connection that it had kept while the next request is on its way to it: that one is asked
    /// anew (RFC 9112, 9.3.1), once, for then the connection is a new one.
    pub fn reset(&mut self) -> bool {
        self.is_connected = false;
        match &mut self.request {
            Some(request) if request.is_reused && !request.is_answered => {
                request.is_reused = false;
                self.unsent = Some(request.bytes.clone());
                true
            }
            _ => false,
        }
    }

    fn answered_if(&mut self, is_whole: bool) -> Option<Answer<W>> {
        let request = self.request.take_if(|_| is_whole)?;
        self.is_connected &= request.fetch.keep_alive();
        self.is_used = true;
        Some(Answer {
            what: request.what,
            sent_ns: request.sent_ns,
            body_bytes: request.fetch.body_bytes(),
            lacks: request.fetch.lacks(),
        })
    }
}

/// Keep what came of a manifest; whether it is not too long to be one.
pub fn keep(text: &mut Vec<u8>, body: &[u8], most_bytes: usize) -> bool {
    let fits = text.len() + body.len() <= most_bytes;
    if fits {
        text.extend_from_slice(body);
    }
    fits
}
