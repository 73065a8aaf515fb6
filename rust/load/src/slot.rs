//! A place for one connection at a time, and what arrives on it.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use virtoll_generator::sys;

use crate::dialogue::{Progress, Reply};
use crate::tally::Failure;
use crate::tls::{Broken, Session};

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
    /// TLS; says why.
    Refused(String),
}

pub struct Slot<R> {
    pub fd: Option<OwnedFd>,
    /// What is spoken on it; none: the protocol in plain.
    pub tls: Option<Box<Session>>,
    /// The previous connection, answered; kept until the server has closed it.
    pub lingering: Option<OwnedFd>,
    pub phase: Phase,
    pub intended_ns: i64,
    pub started_ns: i64,
    /// It was answered once: before that its user may not be there, but on the way.
    pub has_begun: bool,
    /// The request was sent in the window, by what was known of it then.
    pub counts: bool,
    /// How long the request waited for the generator itself.
    pub own_late_ns: i64,
    /// The request has its place in the log.
    pub logged: bool,
    /// A request that did not go out at once, and how much of it has gone.
    pub unsent: Vec<u8>,
    pub sent: usize,
    pub reply: R,
}

impl<R: Reply> Slot<R> {
    pub fn new(reply: R) -> Self {
        Slot {
            fd: None,
            tls: None,
            lingering: None,
            phase: Phase::Idle,
            intended_ns: 0,
            started_ns: 0,
            has_begun: false,
            counts: false,
            own_late_ns: 0,
            logged: false,
            unsent: Vec::new(),
            sent: 0,
            reply,
        }
    }

    /// Read what there is, for at most a turn. `ending`: the stream is known to end after it.
    pub fn receive(&mut self, ending: bool, buffer: &mut [u8]) -> Outcome {
        let Some(fd) = &self.fd else {
            return Outcome::Waiting;
        };
        if self.tls.is_some() {
            return self.receive_tls(ending, buffer);
        }
        let mut turn_bytes = 0;
        while turn_bytes < TURN_BYTES {
            let skippable = self.reply.skippable();
            let skip = skippable >= DISCARD_FROM_BYTES;
            let (asked, read) = if skip {
                let asked = skippable.min(TURN_BYTES) as usize;
                (asked, sys::discard(fd, asked))
            } else {
                (buffer.len(), sys::receive(fd, buffer))
            };
            let progress = match read {
                Ok(0) => return self.end_of_stream(),
                Ok(bytes) if skip => self.reply.skipped(bytes as u64),
                Ok(bytes) => self.reply.take(&buffer[..bytes]),
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

    /// The same with TLS: send what there is to send, too.
    fn receive_tls(&mut self, ending: bool, buffer: &mut [u8]) -> Outcome {
        let (Some(fd), Some(tls)) = (&self.fd, &mut self.tls) else {
            return Outcome::Waiting;
        };
        let mut turn_bytes = 0;
        while turn_bytes < TURN_BYTES {
            let mut progress = Progress::More;
            let read = tls.receive(fd, buffer, |text| {
                if !matches!(progress, Progress::Broken(_)) {
                    progress = self.reply.take(text);
                }
            });
            let (bytes, asked) = match read {
                Ok(read) => read,
                Err(Broken::Tls(why)) => return Outcome::Refused(why),
                Err(Broken::Io(error)) => match error.kind() {
                    ErrorKind::WouldBlock => return Outcome::Waiting,
                    _ if !tls.has_spoken => return Outcome::Failed(Failure::Connect),
                    _ if tls.is_established => return Outcome::Failed(Failure::Reset),
                    _ => return Outcome::Refused(format!("within the handshake: {error}")),
                },
            };
            turn_bytes += bytes as u64;
            match progress {
                Progress::Done => {
                    let server_closed = ending;
                    return Outcome::Answered { server_closed };
                }
                Progress::Broken(_) => return Outcome::Failed(Failure::Parse),
                Progress::More if tls.is_ended => return self.end_of_stream(),
                Progress::More if bytes == 0 && !tls.is_established => {
                    return Outcome::Refused("the connection ended within the handshake".into())
                }
                // Cut off without a word: a body of unknown length is not known to be whole.
                Progress::More if bytes == 0 => return Outcome::Failed(self.reply.torn()),
                Progress::More if !ending && bytes < asked => return Outcome::Waiting,
                Progress::More => {}
            }
        }
        Outcome::Unread
    }

    /// The lingering connection has something to tell; mostly that it has `ended`. With TLS a last word comes before:
    /// a socket closed with something unread would answer with a reset.
    pub fn part(&mut self, ended: bool, with_tls: bool, buffer: &mut [u8]) {
        if let Some(fd) = self.lingering.as_ref().filter(|_| with_tls) {
            let _ = sys::receive(fd, buffer);
        }
        if ended || !with_tls {
            self.lingering = None;
        }
    }

    /// Give up its connection.
    pub fn close(&mut self) {
        self.fd = None;
        self.tls = None;
    }

    /// Whether its connection is open and has nothing to say. Looks for at most a turn: more is not quiet.
    pub fn is_quiet(&mut self, buffer: &mut [u8]) -> bool {
        if let (Some(fd), Some(tls)) = (&self.fd, &mut self.tls) {
            let (mut said_bytes, mut turn_bytes) = (0, 0);
            while turn_bytes < TURN_BYTES {
                match tls.receive(fd, buffer, |text| said_bytes += text.len()) {
                    // Tickets come when it pleases the server.
                    Ok((bytes, _)) if bytes > 0 && said_bytes == 0 && !tls.is_ended => {
                        turn_bytes += bytes as u64;
                    }
                    Err(Broken::Io(error)) => return error.kind() == ErrorKind::WouldBlock,
                    _ => return false,
                }
            }
            return false;
        }
        let read = self.fd.as_ref().map(|fd| sys::receive(fd, buffer));
        matches!(read, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock)
    }

    fn end_of_stream(&mut self) -> Outcome {
        let server_closed = true;
        match self.reply.cut_off() {
            None => Outcome::Answered { server_closed },
            Some(failure) => Outcome::Failed(failure),
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
    use crate::response::Response;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// A socket without an end to what comes: one that waits instead of saying that it has nothing, so that only the
    /// end of the turn can end the reading.
    #[test]
    fn a_full_speed_connection_is_read_for_a_turn_at_most() {
        for head in ["Content-Length: 1000000000000\r\n", ""] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut slot = Slot::new(Response::default());
            slot.fd = Some(listener.accept().unwrap().0.into());
            let feeder = std::thread::spawn(move || {
                let _ = write!(sender, "HTTP/1.1 200 OK\r\n{head}\r\n");
                while sender.write_all(&[b'x'; 64 * 1024]).is_ok() {}
            });
            let mut buffer = vec![0; 64 * 1024];
            for _ in 0..3 {
                let before = slot.reply.body_bytes;
                assert!(matches!(slot.receive(true, &mut buffer), Outcome::Unread));
                assert!(slot.reply.body_bytes - before < 2 * TURN_BYTES);
            }
            slot.fd = None;
            feeder.join().unwrap();
        }
    }

    /// The last word and the end come one after the other, and the server must not see a reset for having said it.
    #[test]
    fn a_lingering_connection_with_tls_is_read_and_closed_when_it_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut server = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut slot = Slot::new(Response::default());
        let client = listener.accept().unwrap().0;
        slot.lingering = Some(client.into());
        server.write_all(b"close_notify").unwrap();
        let mut buffer = [0; 64];
        slot.part(false, true, &mut buffer);
        assert!(slot.lingering.is_some());
        server.shutdown(std::net::Shutdown::Write).unwrap();
        slot.part(true, true, &mut buffer);
        assert!(slot.lingering.is_none());
        let read = std::io::Read::read(&mut server, &mut buffer);
        assert_eq!(read.unwrap(), 0, "an end, and no reset");
    }
}
