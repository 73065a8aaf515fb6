//! The responder: TCP and UDP on one port. Every TCP connection says first what it is for (`wire.rs`).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::datagrams::{Receiver, Sender, QUIET};
use super::meeting::{be_met, passing};
use super::sockets::{bound_waits, readable};
use super::stream;
use super::wire::{Direction, Greeting, Order, Role, Tally, GREETING_BYTES};
use crate::arguments::Arguments;
use crate::flow;

const USAGE: &str =
    "usage: virtoll-agent peer --port PORT [--address 0.0.0.0] [--idle-ns 600000000000]";
/// A connection that does not say in this time what it is for is closed.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client waits for the datagrams of the one before it to end.
const TURN_PATIENCE: Duration = Duration::from_secs(2);

/// What all connections share.
struct Peer {
    datagrams: Mutex<UdpSocket>,
    idle: Duration,
    clients: AtomicUsize,
}

/// One who is being attended to, and keeps the peer from being idle.
struct Client(Arc<Peer>);

impl Client {
    fn new(peer: &Arc<Peer>) -> Client {
        peer.clients.fetch_add(1, SeqCst);
        Client(Arc::clone(peer))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, SeqCst);
    }
}

/// Serve on a port until nobody has been there for the idle time. Exit 0; 1 where the port cannot be had; 2 for wrong
/// arguments.
pub fn main(words: &[String]) -> ExitCode {
    if words.iter().any(|word| crate::asks_for_help(word)) {
        return crate::say(USAGE, ExitCode::SUCCESS);
    }
    let (place, idle) = match settings(words) {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("virtoll-agent: peer: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match bind(place).and_then(|(listener, datagrams)| serve(&listener, datagrams, idle)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "virtoll-agent: peer: {place}: {error}\n    -> give it a port that is free, at an address it has"
            );
            ExitCode::FAILURE
        }
    }
}

fn settings(words: &[String]) -> Result<(SocketAddrV4, Duration), String> {
    let mut arguments = Arguments::parse(words)?;
    let port = arguments.at_least("port", 1, 0);
    let address = arguments.get("address", Ipv4Addr::UNSPECIFIED.to_string());
    let idle = Duration::from_nanos(arguments.at_least("idle-ns", 1_000_000, 600_000_000_000));
    let port = u16::try_from(port).map_err(|_| format!("--port {port} is above 65535"))?;
    let address = address
        .parse()
        .map_err(|_| format!("--address {address:?} is no address of IPv4"))?;
    let place = SocketAddrV4::new(address, port);
    arguments.complaint().map_or(Ok((place, idle)), Err)
}

fn bind(place: SocketAddrV4) -> io::Result<(TcpListener, UdpSocket)> {
    let datagrams = UdpSocket::bind(place)?;
    let listener = TcpListener::bind(place)?;
    Ok((listener, datagrams))
}

fn serve(listener: &TcpListener, datagrams: UdpSocket, idle: Duration) -> io::Result<()> {
    let peer = Arc::new(Peer {
        datagrams: Mutex::new(datagrams),
        idle,
        clients: AtomicUsize::new(0),
    });
    // accept(2) ends after this time too, and what it returns waits no longer for its greeting.
    bound_waits(listener, GREETING_PATIENCE.min(idle))?;
    let mut payload = Vec::new();
    let mut last = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                // One that breaks off is its client's affair.
                if let Err(error) = begin(&peer, stream, &mut payload) {
                    eprintln!("virtoll-agent: peer: a connection ended: {error}");
                }
                last = Instant::now();
            }
            Err(error) if passing(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {
                if peer.clients.load(SeqCst) > 0 {
                    last = Instant::now();
                } else if last.elapsed() >= idle {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Hear what a connection is for. What is over at once is done here, for a thread costs as much as a connection.
fn begin(peer: &Arc<Peer>, stream: TcpStream, payload: &mut Vec<u8>) -> io::Result<()> {
    let mut bytes = [0; GREETING_BYTES];
    let deadline = Instant::now() + GREETING_PATIENCE;
    read_by(&stream, &mut bytes, deadline)?;
    let greeting =
        Greeting::parse(bytes).ok_or_else(|| io::Error::other("it is no probe of this version"))?;
    if greeting.role == Role::Once {
        payload.resize(greeting.size_bytes as usize, 0);
        read_by(&stream, payload, deadline)?;
        return (&stream).write_all(payload);
    }
    let client = Client::new(peer);
    let work = move || {
        if let Err(error) = client.0.attend(&stream, greeting) {
            eprintln!("virtoll-agent: peer: {:?} ended: {error}", greeting.role);
        }
    };
    thread::Builder::new().spawn(work).map(|_| ())
}

/// Fill `bytes`, all of them in time: each wait is bounded by the stream's own time-out, and who trickles would keep all
/// others from being heard.
fn read_by(mut stream: impl Read, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled < bytes.len() && Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

impl Peer {
    fn attend(&self, stream: &TcpStream, greeting: Greeting) -> io::Result<()> {
        stream.set_nodelay(true)?;
        bound_waits(stream, self.idle)?;
        match greeting.role {
            Role::Echo | Role::Once => echo(stream, greeting.size_bytes as usize),
            Role::Sink | Role::Source => runs(stream, greeting),
            Role::FlowStream => flow::stream::receive(stream),
            Role::EchoDatagrams | Role::Datagrams | Role::Flow => {
                let socket = self.take_turn()?;
                if !be_met(stream, &socket, greeting, self.idle)? {
                    return Ok(());
                }
                match greeting.role {
                    Role::EchoDatagrams => self.echo_datagrams(stream, &socket),
                    Role::Flow => flow::datagrams::receive(stream, &socket, self.idle),
                    _ => self.datagram_runs(stream, &socket, greeting),
                }
            }
        }
    }

    fn take_turn(&self) -> io::Result<MutexGuard<'_, UdpSocket>> {
        let deadline = Instant::now() + TURN_PATIENCE;
        loop {
            match self.datagrams.try_lock() {
                Ok(socket) => return Ok(socket),
                Err(_) if Instant::now() > deadline => {
                    return Err(io::Error::other("another client has the datagrams"));
                }
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Send every datagram back until the client's connection ends.
    fn echo_datagrams(&self, control: &TcpStream, socket: &UdpSocket) -> io::Result<()> {
        let mut buffer = vec![0; super::MOST_DATAGRAM_BYTES as usize];
        socket.set_read_timeout(Some(QUIET))?;
        let mut quiet = Duration::ZERO;
        while quiet < self.idle {
            match socket.recv(&mut buffer) {
                Ok(length) => {
                    socket.send(&buffer[..length])?;
                    quiet = Duration::ZERO;
                }
                Err(error) if !passing(&error) => return Err(error),
                Err(_) if readable(control)? => return Ok(()),
                Err(_) => quiet += QUIET,
            }
        }
        Ok(())
    }

    fn datagram_runs(
        &self,
        control: &TcpStream,
        socket: &UdpSocket,
        greeting: Greeting,
    ) -> io::Result<()> {
        let size_bytes = greeting.size_bytes as usize;
        let mut sender = Sender::new(socket, size_bytes, greeting.segmentation)?;
        let mut receiver = Receiver::new(socket, size_bytes)?;
        while let Some(bytes) = next_record(control)? {
            let order = Order::parse(bytes);
            let mut control = control;
            let tally = match order.direction {
                Direction::Out => sent(&mut sender, socket, order),
                Direction::In => {
                    control.write_all(&[1])?; // from now on nothing is missed
                    let tally =
                        receiver.receive(socket, order.run, order.count, control, self.idle)?;
                    control.read_exact(&mut [0])?; // that everything has been sent
                    tally
                }
            };
            tally.write(control)?;
        }
        Ok(())
    }
}

fn echo(mut stream: &TcpStream, size_bytes: usize) -> io::Result<()> {
    let mut buffer = vec![1; size_bytes];
    loop {
        match stream.read_exact(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            outcome => outcome?,
        }
        stream.write_all(&buffer)?;
    }
}

/// Counted runs of bytes, one way.
fn runs(mut stream: &TcpStream, greeting: Greeting) -> io::Result<()> {
    let message = stream::message(greeting.size_bytes as usize);
    let mut buffer = stream::buffer();
    while let Some(bytes) = next_record(stream)? {
        let count = u64::from_le_bytes(bytes);
        let total_bytes = count
            .checked_mul(message.len() as u64)
            .ok_or_else(|| io::Error::other("nobody moves so many messages"))?;
        let tally = if greeting.role == Role::Sink {
            stream::receive(stream, total_bytes, &message, &mut buffer)?
        } else {
            stream::send(stream, count, &message)?;
            Tally::of_sender(total_bytes)
        };
        tally.write(&mut stream)?;
    }
    Ok(())
}

/// What could be sent: nothing, with a line in the log, where the system refused.
fn sent(sender: &mut Sender, socket: &UdpSocket, order: Order) -> Tally {
    match sender.send(socket, order.run, order.count) {
        Ok(()) => Tally::of_sender(order.count),
        Err(error) => {
            eprintln!("virtoll-agent: peer: cannot send datagrams: {error}");
            Tally::default()
        }
    }
}

/// The next record of fixed length; None at the end of the connection.
fn next_record<const N: usize>(mut stream: &TcpStream) -> io::Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    match stream.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        outcome => outcome.map(|()| Some(bytes)),
    }
}

/// A port of the loopback that is ours for both protocols.
#[cfg(test)]
pub(crate) fn both_on_loopback() -> (TcpListener, UdpSocket) {
    let both = || {
        let listener = TcpListener::bind("127.0.0.1:0").ok()?;
        let datagrams = UdpSocket::bind(listener.local_addr().ok()?).ok()?;
        Some((listener, datagrams))
    };
    (0..100)
        .find_map(|_| both())
        .expect("a port that is free for both protocols")
}

/// So long a test's client waits for its peer, which needs a thread for most: on a busy machine it may be minutes until
/// one can begin.
#[cfg(test)]
pub(crate) const PATIENCE: &str = "--patience-ns 3600000000000";

/// A peer there, for the tests of its clients. It ends with the process.
#[cfg(test)]
pub(crate) fn on_loopback() -> String {
    let (listener, datagrams) = both_on_loopback();
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || serve(&listener, datagrams, Duration::from_secs(86_400)));
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_port_must_be_one() {
        let place = |text| settings(&words(text)).unwrap().0.to_string();
        assert_eq!(place("--port 5210"), "0.0.0.0:5210");
        assert_eq!(place("--port 5210 --address 10.0.0.1"), "10.0.0.1:5210");
        for wrong in [
            "--port 5210 --address here",
            "--port 0",
            "--port 70000",
            "--idle-ns 5000000",
            "--port 1 --prot 2",
        ] {
            assert!(settings(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_says_nothing_known_is_sent_away_and_the_next_is_served() {
        let address = on_loopback();
        let mut stranger = TcpStream::connect(&address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        // Its request was not read to the end, so the close may be a reset.
        assert_eq!(stranger.read_to_end(&mut rest).unwrap_or(0), 0);
        let mut client = TcpStream::connect(&address).unwrap();
        client
            .write_all(&Greeting::new(Role::Once, 3).bytes())
            .unwrap();
        client.write_all(b"abc").unwrap();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"abc");
    }

    #[test]
    fn one_who_trickles_keeps_nobody_waiting() {
        let trickle = |length, deadline| {
            struct Trickle;
            impl Read for Trickle {
                fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                    bytes[0] = 1;
                    Ok(1)
                }
            }
            read_by(Trickle, &mut vec![0; length], deadline)
        };
        let now = Instant::now();
        assert_eq!(trickle(2, now).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(trickle(1, now).is_ok());
        assert!(trickle(100, now + Duration::from_secs(600)).is_ok());
    }

    #[test]
    fn orders_that_no_number_holds_and_sizes_without_room_end_their_connection_alone() {
        let address = on_loopback();
        for (role, size_bytes, order) in [
            (Role::Sink, 1000, u64::MAX.to_le_bytes()),
            (Role::Source, 1000, u64::MAX.to_le_bytes()),
            (Role::Datagrams, 1, [0; 8]),
            (Role::Datagrams, 16 << 20, [0; 8]),
            (Role::FlowStream, 64, [255; 8]),
            (Role::FlowStream, 64, *b"\x02\0\0\0{}\0\0"),
        ] {
            let mut client = TcpStream::connect(&address).unwrap();
            client
                .write_all(&Greeting::new(role, size_bytes).bytes())
                .unwrap();
            let _ = client.write_all(&order); // it may have been sent away already
            let mut rest = Vec::new();
            assert_eq!(client.read_to_end(&mut rest).unwrap_or(0), 0, "{role:?}");
        }
        let mut client = TcpStream::connect(&address).unwrap();
        client
            .write_all(&Greeting::new(Role::Once, 3).bytes())
            .unwrap();
        client.write_all(b"abc").unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"abc");
    }

    #[test]
    fn an_idle_peer_ends() {
        let (listener, datagrams) = bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        serve(&listener, datagrams, Duration::from_millis(1)).unwrap();
    }
}
