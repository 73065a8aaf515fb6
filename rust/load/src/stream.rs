//! One blocking connection with a deadline, plain or TLS: what `get`, `wait` and `fill` speak on.

use std::io::{self, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use ring::digest::{digest, SHA256};
use rustls::{ClientConnection, StreamOwned};
use serde::Serialize;

use crate::spec::Target;
use crate::tls::hexadecimal;

/// A moment after which nothing more is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    after: Duration,
}

impl Deadline {
    pub fn after(after: Duration) -> Self {
        Deadline {
            start: Instant::now(),
            after,
        }
    }

    pub fn has_passed(&self) -> bool {
        self.start.elapsed() >= self.after
    }

    /// How long a call may take: what is left, and a little, for a time-out of zero would mean none.
    pub fn patience(&self) -> Duration {
        self.after
            .saturating_sub(self.start.elapsed())
            .max(Duration::from_millis(1))
    }
}

/// What was agreed on, and with whom.
#[derive(Debug, Serialize)]
pub struct Facts {
    pub suite: String,
    pub group: String,
    /// SHA-256 of the server's certificate (DER).
    pub certificate_sha256: String,
}

pub enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    /// Connect, for at most `patience`; what follows ends by `deadline`. The handshake is made with the first bytes.
    pub fn connect(target: &Target, deadline: Deadline, patience: Duration) -> io::Result<Self> {
        let tls = target.tls().map_err(|failed| Error::other(failed.0))?;
        let stream = Timed::connect(target.address, deadline, patience)?;
        let Some(tls) = tls else {
            return Ok(Stream::Plain(stream));
        };
        let connection = ClientConnection::new(tls.config, tls.name).map_err(Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    /// Of TLS, after the handshake.
    pub fn facts(&self) -> Option<Facts> {
        let Stream::Tls(stream) = self else {
            return None;
        };
        let leaf = stream.conn.peer_certificates()?.first()?;
        Some(Facts {
            suite: format!("{:?}", stream.conn.negotiated_cipher_suite()?.suite()),
            group: format!("{:?}", stream.conn.negotiated_key_exchange_group()?.name()),
            certificate_sha256: hexadecimal(digest(&SHA256, leaf).as_ref()),
        })
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// A socket whose every call ends by the deadline, however little comes at a time.
pub struct Timed {
    stream: TcpStream,
    deadline: Deadline,
}

impl Timed {
    pub fn connect(
        address: SocketAddrV4,
        deadline: Deadline,
        patience: Duration,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::V4(address), patience)?;
        Ok(Timed { stream, deadline })
    }

    fn in_time(&self) -> io::Result<Option<Duration>> {
        match self.deadline.has_passed() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(Some(self.deadline.patience())),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(self.in_time()?)?;
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {} // it was stopped, and goes on
                other => return other,
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.in_time()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
