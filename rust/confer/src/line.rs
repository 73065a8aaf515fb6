//! A participant's conversation with its server, over a WebSocket (RFC 6455), which blocks nobody.

use std::io::ErrorKind;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;

use tungstenite::client::{ClientRequestBuilder, IntoClientRequest};
use tungstenite::handshake::client::ClientHandshake;
use tungstenite::handshake::MidHandshake;
use tungstenite::http::Uri;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, HandshakeError, Message, WebSocket};
use virtoll_generator::sys::{self, Address};

use super::room::{Failure, Words};

/// What a server says at once: an offer of a hundred feeds.
const MESSAGE_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 4096;
/// What a server says before it lets others have their turn, pings too: of a room of ten thousand senders.
const HEARD_MAX: usize = 10_000;

enum State {
    Opening(MidHandshake<ClientHandshake<TcpStream>>),
    Open(Box<WebSocket<TcpStream>>),
    Closed,
}

pub struct Line {
    state: State,
    /// Something came, be it a refusal: there is a connection.
    is_connected: bool,
    /// How much came without a pause.
    heard: usize,
}

impl Line {
    /// Begin to connect; and a second descriptor of the connection, by which to wait for it. An error is the generator's
    /// own.
    pub fn connect(
        address: SocketAddrV4,
        path: &str,
        subprotocol: Option<&str>,
    ) -> std::io::Result<(Self, OwnedFd)> {
        let fd = sys::connect(&Address::from(address))?;
        sys::no_delay(&fd)?;
        let stream = TcpStream::from(fd);
        let twin = stream.try_clone()?.into();
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(4 * MESSAGE_BYTES)
            .max_message_size(Some(MESSAGE_BYTES))
            .max_frame_size(Some(MESSAGE_BYTES));
        let wrong = |error: &dyn std::fmt::Display| {
            std::io::Error::new(ErrorKind::InvalidInput, error.to_string())
        };
        let uri: Uri = format!("ws://{address}{path}")
            .parse()
            .map_err(|error| wrong(&error))?;
        let mut request = ClientRequestBuilder::new(uri);
        if let Some(subprotocol) = subprotocol {
            request = request.with_sub_protocol(subprotocol);
        }
        let request = request
            .into_client_request()
            .map_err(|error| wrong(&error))?;
        let opening =
            ClientHandshake::start(stream, request, Some(config)).map_err(|error| wrong(&error))?;
        let line = Line {
            state: State::Opening(opening),
            is_connected: false,
            heard: 0,
        };
        Ok((line, twin))
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Why nothing has come of it by now.
    pub fn lacks(&self) -> Failure {
        match self.state {
            State::Opening(_) if !self.is_connected => Failure::Connect,
            State::Opening(_) => Failure::Signalling,
            _ => Failure::Timeout,
        }
    }

    /// It may be written to, or read from. Go on with opening it.
    pub fn open(&mut self) -> Result<(), Failure> {
        let opening = match std::mem::replace(&mut self.state, State::Closed) {
            State::Opening(opening) => opening,
            other => {
                self.state = other;
                return Ok(());
            }
        };
        match opening.handshake() {
            Ok((socket, _)) => self.state = State::Open(Box::new(socket)),
            Err(HandshakeError::Interrupted(opening)) => {
                self.is_connected |= opening.get_ref().get_ref().peer_addr().is_ok();
                self.state = State::Opening(opening);
            }
            Err(HandshakeError::Failure(Error::Io(error))) if !self.is_connected => {
                return Err(match error.kind() {
                    ErrorKind::ConnectionRefused
                    | ErrorKind::TimedOut
                    | ErrorKind::HostUnreachable => Failure::Connect,
                    _ => Failure::Signalling,
                });
            }
            Err(HandshakeError::Failure(Error::Http(answer)))
                if [401, 403].contains(&answer.status().as_u16()) =>
            {
                return Err(Failure::Refused)
            }
            Err(HandshakeError::Failure(_)) => return Err(Failure::Signalling),
        }
        Ok(())
    }

    /// What came next; None: nothing more has. Who goes on and on without a pause would keep all others of this thread
    /// from their turns, and its window from its end: that is no server's word.
    pub fn hear(&mut self) -> Result<Option<Words>, Failure> {
        self.open()?;
        let socket = match &mut self.state {
            State::Open(socket) => socket,
            State::Opening(_) => return Ok(None),
            State::Closed => return Err(Failure::Signalling),
        };
        loop {
            self.heard += 1;
            if self.heard > HEARD_MAX {
                return Err(Failure::Signalling);
            }
            match socket.read() {
                Ok(Message::Text(text)) => return Ok(Some(Words::Text(text.as_str().to_owned()))),
                Ok(Message::Binary(bytes)) => return Ok(Some(Words::Bytes(bytes.to_vec()))),
                Ok(Message::Close(_)) => return Err(Failure::Signalling),
                Ok(_) => {}
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    self.heard = 0;
                    return Ok(None);
                }
                Err(_) => return Err(Failure::Signalling),
            }
        }
    }

    /// Say something, as soon as there is room.
    pub fn say(&mut self, words: Words) -> Result<(), Failure> {
        let State::Open(socket) = &mut self.state else {
            return Err(Failure::Signalling);
        };
        let message = match words {
            Words::Text(text) => Message::text(text),
            Words::Bytes(bytes) => Message::binary(bytes),
        };
        blocked(socket.send(message))
    }

    /// There is room again.
    pub fn flush(&mut self) -> Result<(), Failure> {
        match &mut self.state {
            State::Open(socket) => blocked(socket.flush()),
            _ => Ok(()),
        }
    }
}

fn blocked(sent: tungstenite::Result<()>) -> Result<(), Failure> {
    match sent {
        Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => Ok(()), // it keeps what is left
        sent => sent.map_err(|_| Failure::Signalling),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    const PONG_BYTES: usize = 2;

    /// What becomes of a line whose server says so many pongs, which nobody asked for, before anybody looks.
    fn heard(pongs: usize) -> Result<Option<Words>, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            panic!("IPv4 expected")
        };
        let (mut line, fd) = Line::connect(address, "/", None).unwrap();
        let server =
            std::thread::spawn(move || tungstenite::accept(listener.accept().unwrap().0).unwrap());
        assert!(sys::has_within(&fd, libc::POLLOUT, 60_000_000_000)); // it is connected
        line.open().unwrap();
        let mut socket = server.join().unwrap();
        while !line.is_open() {
            assert!(sys::readable_within(&fd, 60_000_000_000));
            line.open().unwrap();
        }
        for _ in 0..pongs {
            socket.write(Message::Pong(Default::default())).unwrap();
        }
        socket.flush().unwrap();
        let (lies_there, mut all) = (TcpStream::from(fd), vec![0; pongs * PONG_BYTES]);
        while lies_there.peek(&mut all).unwrap_or_default() < all.len() {
            std::thread::yield_now();
        }
        line.hear()
    }

    #[test]
    fn a_server_that_goes_on_and_on_has_failed() {
        assert_eq!(heard(HEARD_MAX / 2), Ok(None));
        assert_eq!(heard(2 * HEARD_MAX), Err(Failure::Signalling));
    }
}
