//! A place for one connection at a time, and what arrives on it.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::response::{Progress, Response};
use crate::sys;
use crate::tally::Failure;

/// From so much outstanding body on it is thrown away in the kernel instead of being read.
const DISCARD_FROM_BYTES: u64 = 16 * 1024;
/// After so much of one answer it is the other connections' turn.
pub const TURN_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No request under way; the connection may be open.
    Idle,
    /// The request could not be sent yet.
    Unsent,
    /// The request is sent. `once`: epoll reports one event only.
    Sent { once: bool },
}

/// What reading from a connection came to.
pub enum Outcome {
    /// All there is has been read.
    Waiting,
    /// The turn is over, and there may be more to read: no event will tell.
    Unread,
    Answered {
        server_closed: bool,
    },
    Failed(Failure),
}

pub struct Slot {
    pub fd: Option<OwnedFd>,
    /// The previous connection, answered; kept until the server has closed it.
    pub lingering: Option<OwnedFd>,
    pub phase: Phase,
    pub intended_ns: i64,
    pub started_ns: i64,
    /// How long the request waited for the generator itself.
    pub own_late_ns: i64,
    /// The request has its place in the log.
    pub logged: bool,
    pub response: Response,
}

impl Slot {
    pub fn new() -> Self {
        Slot {
            fd: None,
            lingering: None,
            phase: Phase::Idle,
            intended_ns: 0,
            started_ns: 0,
            own_late_ns: 0,
            logged: false,
            response: Response::default(),
        }
    }

    /// Read what there is, for at most a turn. `ending`: the stream is known to end after it.
    pub fn receive(&mut self, ending: bool, buffer: &mut [u8]) -> Outcome {
        let Some(fd) = &self.fd else {
            return Outcome::Waiting;
        };
        let mut turn_bytes = 0;
        while turn_bytes < TURN_BYTES {
            let skippable = self.response.skippable();
            let skip = skippable >= DISCARD_FROM_BYTES;
            let (asked, read) = if skip {
                let asked = skippable.min(TURN_BYTES) as usize;
                (asked, sys::discard(fd, asked))
            } else {
                (buffer.len(), sys::receive(fd, buffer))
            };
            let progress = match read {
                Ok(0) => return self.end_of_stream(),
                Ok(bytes) if skip => self.response.skipped(bytes as u64),
                Ok(bytes) => self.response.feed(&buffer[..bytes], |_| ()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Outcome::Waiting,
                Err(_) => return Outcome::Failed(Failure::Reset),
            };
            turn_bytes += read.as_ref().map_or(0, |bytes| *bytes as u64);
            let server_closed = ending;
            match progress {
                Progress::Done => return Outcome::Answered { server_closed },
                Progress::Broken(_) => return Outcome::Failed(Failure::Parse),
                // Less than asked for: the queue was empty, and what comes next is a new edge.
                Progress::More if !ending && read.is_ok_and(|bytes| bytes < asked) => {
                    return Outcome::Waiting
                }
                Progress::More => {}
            }
        }
        Outcome::Unread
    }

    /// Whether its connection is open and has nothing to say.
    pub fn is_quiet(&self, buffer: &mut [u8]) -> bool {
        let read = self.fd.as_ref().map(|fd| sys::receive(fd, buffer));
        matches!(read, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock)
    }

    fn end_of_stream(&mut self) -> Outcome {
        let server_closed = true;
        match self.response.end_of_stream() {
            Progress::Done => Outcome::Answered { server_closed },
            _ if self.response.has_head() => Outcome::Failed(Failure::Length),
            _ => Outcome::Failed(Failure::Reset),
        }
    }
}

/// Whether `fd` is open and has this number.
pub fn is(fd: &Option<OwnedFd>, number: RawFd) -> bool {
    fd.as_ref().is_some_and(|fd| fd.as_raw_fd() == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// A socket without an end to what comes: one that waits instead of saying that it has nothing, so that only the
    /// end of the turn can end the reading.
    #[test]
    fn a_full_speed_connection_is_read_for_a_turn_at_most() {
        for head in ["Content-Length: 1000000000000\r\n", ""] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut slot = Slot::new();
            slot.fd = Some(listener.accept().unwrap().0.into());
            let feeder = std::thread::spawn(move || {
                let _ = write!(sender, "HTTP/1.1 200 OK\r\n{head}\r\n");
                while sender.write_all(&[b'x'; 64 * 1024]).is_ok() {}
            });
            let mut buffer = vec![0; 64 * 1024];
            for _ in 0..3 {
                let before = slot.response.body_bytes;
                assert!(matches!(slot.receive(true, &mut buffer), Outcome::Unread));
                assert!(slot.response.body_bytes - before < 2 * TURN_BYTES);
            }
            slot.fd = None;
            feeder.join().unwrap();
        }
    }
}
