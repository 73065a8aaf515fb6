//! How two UDP sockets find each other: the TCP connection that asks for datagrams holds them together.
//!
//! The peer says on it when it is this client's turn. The client then sends the greeting as a datagram too, again every
//! [`STEP`] until it comes back. The peer answers it and connects its socket to where it came from, which may be an
//! address translator. Then each says so on the connection, so that nothing that follows is taken for a greeting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::sockets::{disconnect, readable};
use super::wire::{Greeting, GREETING_BYTES};
use super::Line;
use crate::report::Failed;

const STEP: Duration = Duration::from_millis(100);
/// The peer looks this often whether the client has its answer.
const GLANCE: Duration = Duration::from_millis(5);

/// The client's ends. Failed ("peer") where no datagram comes back.
pub fn meet(line: &Line, greeting: Greeting) -> Result<(TcpStream, UdpSocket), Failed> {
    let control = line.connect(greeting)?;
    let hear = || (&control).read_exact(&mut [0]);
    hear().map_err(|error| line.lost("it has no time for datagrams", &error))?;
    let socket = introduced(line, greeting)?;
    (&control)
        .write_all(&[1])
        .and_then(|()| hear())
        .map_err(|error| line.lost("it does not begin", &error))?;
    Ok((control, socket))
}

/// A socket whose datagrams reach the peer, and the peer's it.
fn introduced(line: &Line, greeting: Greeting) -> Result<UdpSocket, Failed> {
    let ask = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(line.address)?;
        socket.set_read_timeout(Some(STEP))?;
        repeat(&socket, greeting, Instant::now() + line.patience)?;
        Ok(socket)
    };
    ask().map_err(|error| no_datagrams(line, &error))
}

fn repeat(socket: &UdpSocket, greeting: Greeting, deadline: Instant) -> io::Result<()> {
    let mut answer = [0; GREETING_BYTES + 1];
    while Instant::now() < deadline {
        socket.send(&greeting.bytes())?;
        match socket.recv(&mut answer) {
            Ok(length) if answer[..length] == greeting.bytes() => return Ok(()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
    Err(ErrorKind::TimedOut.into())
}

fn no_datagrams(line: &Line, error: &io::Error) -> Failed {
    Failed {
        remedy: "the way there may carry TCP alone, as published and translated ports do: attach the instance with an \
                 address of its own",
        ..line.lost("connections reach the peer, and datagrams do not", error)
    }
}

/// The peer's side: connect `socket` to the client. False when the client went away, or was silent for `patience`.
pub fn be_met(
    control: &TcpStream,
    socket: &UdpSocket,
    greeting: Greeting,
    patience: Duration,
) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    disconnect(socket)?;
    socket.set_read_timeout(Some(GLANCE))?;
    (&mut &*control).write_all(&[1])?;
    let mut bytes = [0; GREETING_BYTES + 1];
    while !readable(control)? {
        match socket.recv_from(&mut bytes) {
            Ok((length, client)) if bytes[..length] == greeting.bytes() => {
                socket.connect(client)?;
                socket.send(&bytes[..length])?;
            }
            Err(error) if !passing(&error) => return Err(error),
            _ if Instant::now() > deadline => return Ok(false),
            _ => {}
        }
    }
    let mut control = control;
    let there = control.read(&mut bytes[..1])? == 1;
    if there {
        control.write_all(&[1])?;
    }
    Ok(there)
}

/// Errors that end no conversation: nothing came in time, or what was sent to an earlier client came back.
pub fn passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use crate::network::peer::both_on_loopback;
    use crate::network::wire::Role;
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    fn line(address: SocketAddr, patience_ns: u64) -> Line {
        let words = format!("--peer {address} --patience-ns {patience_ns}");
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        Line::from(&mut Arguments::parse(&words).unwrap())
    }

    #[test]
    fn a_way_that_carries_connections_alone_is_told() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let line = line(silent.local_addr().unwrap(), 150_000_000);
        let failed = introduced(&line, Greeting::new(Role::EchoDatagrams, 1)).unwrap_err();
        assert_eq!(failed.kind, "peer");
        assert!(failed.what.contains("datagrams do not"), "{}", failed.what);
        assert!(failed.remedy.contains("address of its own"));
    }

    #[test]
    fn a_peer_that_ends_the_connection_has_no_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = line(listener.local_addr().unwrap(), 3_600_000_000_000);
        let peer = thread::spawn(move || {
            let mut control = listener.accept().unwrap().0;
            control.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        });
        let failed = meet(&line, Greeting::new(Role::EchoDatagrams, 1)).unwrap_err();
        assert!(failed.what.contains("no time"), "{}", failed.what);
        peer.join().unwrap();
    }

    #[test]
    fn strangers_datagrams_are_no_greeting() {
        let (listener, datagrams) = both_on_loopback();
        let address = listener.local_addr().unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        for bytes in [&b""[..], &[0; 16], &[b'v'; 17], &[1; 1000]] {
            stranger.send_to(bytes, address).unwrap();
        }
        let greeting = Greeting::new(Role::EchoDatagrams, 1);
        let line = line(address, 3_600_000_000_000);
        let peer = thread::spawn(move || {
            let mut control = listener.accept().unwrap().0;
            control.read_exact(&mut [0; GREETING_BYTES]).unwrap();
            be_met(&control, &datagrams, greeting, Duration::from_secs(3600)).unwrap()
        });
        let (_control, socket) = meet(&line, greeting).unwrap();
        assert!(peer.join().unwrap());
        assert_eq!(socket.peer_addr().unwrap(), address);
    }
}
