//! What differs between protocols: whom to ask, the bytes of a request, and what is read in its answer.
//!
//! A worker is made for one of them by the compiler, so that nothing is chosen per request or byte.

use std::net::SocketAddrV4;

use virtoll_generator::Failed;

use crate::response::Response;
use crate::spec::{Expect, HttpAsk};
use crate::tally::Failure;
use crate::tls::Tls;

/// What a specification says of a protocol.
pub trait Ask: Sync {
    type Dialogue: Dialogue;

    /// What cannot be asked, and how it would be right.
    fn problem(&self) -> Option<&'static str>;

    fn place(&self) -> Result<Place, Failed>;

    /// Of one thread.
    fn dialogue(&self, thread: usize) -> Result<Self::Dialogue, Failed>;
}

/// Where to connect, and how.
#[derive(Clone, Debug)]
pub struct Place {
    pub address: SocketAddrV4,
    /// None: plain.
    pub tls: Option<Tls>,
    /// A connection carries one request after another.
    pub keep_alive: bool,
}

/// What a thread says on its connections.
pub trait Dialogue: Send {
    type Reply: Reply + Send;

    /// What is kept for a connection, from one request to the next; asked for once for each, from number 0 on.
    fn reply(&mut self) -> Self::Reply;

    /// Make the next request of a connection, and its reply ready for the answer.
    fn prepare(&mut self, connection: usize, reply: &mut Self::Reply);

    /// The bytes of the request that was prepared last.
    fn request(&self) -> &[u8];

    /// What a whole answer is worth.
    fn judge(&self, reply: &Self::Reply) -> Judged;
}

/// A whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// None: it is correct.
    pub failure: Option<Failure>,
    /// As the request log shows it; 0 where the protocol has none.
    pub status: u16,
    pub body_bytes: u64,
    /// The connection can carry another request.
    pub keep_alive: bool,
}

/// Where an answer stands after some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More is to come.
    More,
    /// The last byte has arrived.
    Done,
    /// This is not the protocol; says why.
    Broken(&'static str),
}

/// One answer on its way in, without input and output of its own.
pub trait Reply {
    /// Read what arrived.
    fn take(&mut self, input: &[u8]) -> Progress;

    /// How many of the next bytes may be thrown away unseen.
    fn skippable(&self) -> u64;

    /// So many (at most `skippable`) arrived and were thrown away.
    fn skipped(&mut self, bytes: u64) -> Progress;

    /// The stream has ended: None where that makes the answer whole.
    fn cut_off(&mut self) -> Option<Failure>;

    /// What it is when an end of the stream never makes an answer whole.
    fn torn(&self) -> Failure;
}

/// One and the same GET on each connection.
pub struct Http {
    request: Vec<u8>,
    expect: Expect,
}

impl Ask for HttpAsk {
    type Dialogue = Http;

    fn problem(&self) -> Option<&'static str> {
        None
    }

    fn place(&self) -> Result<Place, Failed> {
        Ok(Place {
            address: self.target.address,
            tls: self.target.tls()?,
            keep_alive: self.keep_alive,
        })
    }

    fn dialogue(&self, _: usize) -> Result<Http, Failed> {
        Ok(Http {
            request: self.target.request(self.keep_alive)?,
            expect: self.expect,
        })
    }
}

impl Dialogue for Http {
    type Reply = Response;

    fn reply(&mut self) -> Response {
        Response::default()
    }

    fn prepare(&mut self, _: usize, response: &mut Response) {
        response.reset();
    }

    fn request(&self) -> &[u8] {
        &self.request
    }

    fn judge(&self, response: &Response) -> Judged {
        let expected = self.expect.length_bytes.unwrap_or(response.body_bytes);
        let failure = if response.status != self.expect.status {
            Some(Failure::Status)
        } else {
            (response.body_bytes != expected).then_some(Failure::Length)
        };
        Judged {
            failure,
            status: response.status,
            body_bytes: response.body_bytes,
            keep_alive: response.keep_alive,
        }
    }
}

impl Reply for Response {
    #[inline]
    fn take(&mut self, input: &[u8]) -> Progress {
        self.feed(input, |_| ())
    }

    fn skippable(&self) -> u64 {
        Response::skippable(self)
    }

    fn skipped(&mut self, bytes: u64) -> Progress {
        Response::skipped(self, bytes)
    }

    fn cut_off(&mut self) -> Option<Failure> {
        (self.end_of_stream() != Progress::Done).then(|| self.torn())
    }

    fn torn(&self) -> Failure {
        match self.has_head() {
            true => Failure::Length,
            false => Failure::Reset,
        }
    }
}
