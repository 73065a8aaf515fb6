//! Floods of datagrams: one that is sent, and one that is received (its sender is at the generator's side).

use std::io;
use std::mem::zeroed;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use virtoll_probe::arguments::Arguments;
use virtoll_probe::messages;
use virtoll_probe::windows::now_ns;

use crate::shared::Shared;
use crate::{Aggressor, Work};

pub const SEND: Aggressor = Aggressor {
    name: "net-send",
    summary: "sends datagrams without end",
    usage: "--peer ADDRESS:PORT [--size-bytes 1470] [--rate-bit-per-s 0]",
    counts: &["packets", "sent_bytes", "refused"],
    prepare: prepare_send,
};

pub const RECEIVE: Aggressor = Aggressor {
    name: "net-receive",
    summary: "takes what datagrams come to a port; net-send sends them from elsewhere",
    usage: "--port PORT [--size-bytes 1470]",
    counts: &["packets", "received_bytes"],
    prepare: prepare_receive,
};

const PACKETS: usize = 0;
const BYTES: usize = 1;
const REFUSED: usize = 2;

/// Datagrams in one system call.
const SLOTS: usize = 64;
/// The payload that IPv4 carries at most.
const MOST_BYTES: u64 = 65_507;
/// The longest wait for what a rate allows, and what it lets through at once after one that was longer.
const STEP_NS: u64 = 1_000_000;

fn size(arguments: &mut Arguments) -> usize {
    let size_bytes = arguments.at_least("size-bytes", 1, 1470);
    if size_bytes > MOST_BYTES {
        arguments.complain(format!(
            "--size-bytes {size_bytes}: no datagram is above {MOST_BYTES}"
        ));
    }
    size_bytes.min(MOST_BYTES) as usize
}

fn prepare_send(arguments: &mut Arguments) -> Work {
    let peer = arguments.required("peer");
    let size_bytes = size(arguments);
    let rate_bit_per_s = arguments.get("rate-bit-per-s", 0_u64);
    let to = peer.parse::<SocketAddrV4>();
    if to.is_err() {
        arguments.complain(format!("--peer {peer:?} is no ADDRESS:PORT of IPv4"));
    }
    Box::new(move |shared: &Shared| match &to {
        Ok(to) => why(flood(shared, *to, size_bytes, rate_bit_per_s)),
        Err(error) => error.to_string(), // a complaint comes first
    })
}

fn prepare_receive(arguments: &mut Arguments) -> Work {
    let port = arguments.required("port");
    let size_bytes = size(arguments);
    let parsed = port.parse::<u16>().unwrap_or(0);
    if parsed == 0 {
        arguments.complain(format!("--port {port:?} is no port"));
    }
    Box::new(move |shared: &Shared| why(take(shared, parsed, size_bytes)))
}

fn why(outcome: io::Result<()>) -> String {
    outcome.map_or_else(|error| error.to_string(), |()| String::new())
}

/// Send for ever. An error before the first datagram is out is a reason; later ones (a full queue, a lost route) are
/// counted.
fn flood(
    shared: &Shared,
    to: SocketAddrV4,
    size_bytes: usize,
    rate_bit_per_s: u64,
) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let mut batch = Batch::new(SLOTS, size_bytes, Some(to));
    let mut pace = Pace::new(size_bytes, rate_bit_per_s);
    loop {
        match batch.send(&socket, pace.due()) {
            Ok(sent) => {
                pace.sent(sent);
                shared.add(PACKETS, sent);
                shared.add(BYTES, sent * size_bytes as u64);
            }
            Err(error) if shared.get(PACKETS) == 0 => return Err(error),
            Err(_) => {
                pace.sent(1);
                shared.add(REFUSED, 1);
            }
        }
    }
}

/// Receive for ever.
fn take(shared: &Shared, port: u16, size_bytes: usize) -> io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    let mut batch = Batch::new(SLOTS, size_bytes, None);
    loop {
        let (packets, bytes) = batch.receive(&socket)?;
        shared.add(PACKETS, packets);
        shared.add(BYTES, bytes);
    }
}

/// How many datagrams a rate of payload allows now.
struct Pace {
    interval_ns: f64,
    next_ns: f64,
}

impl Pace {
    fn new(size_bytes: usize, rate_bit_per_s: u64) -> Pace {
        let interval_ns = match rate_bit_per_s {
            0 => 0.0,
            rate => 8e9 * size_bytes as f64 / rate as f64,
        };
        Pace {
            interval_ns,
            next_ns: now_ns() as f64,
        }
    }

    /// Wait until at least one is due; how many are, as far as one call takes them. What a pause of more than
    /// [`STEP_NS`] would have allowed is not made up for.
    fn due(&mut self) -> usize {
        if self.interval_ns == 0.0 {
            return SLOTS;
        }
        loop {
            let ahead_ns = self.next_ns - now_ns() as f64;
            if ahead_ns <= 0.0 {
                let least_ns = self.interval_ns.max(STEP_NS as f64);
                self.next_ns = self.next_ns.max(now_ns() as f64 - least_ns);
                let late_ns = (now_ns() as f64 - self.next_ns).max(0.0);
                return SLOTS.min(1 + (late_ns / self.interval_ns) as usize);
            }
            std::thread::sleep(Duration::from_nanos(STEP_NS.min(ahead_ns as u64 + 1)));
        }
    }

    fn sent(&mut self, count: u64) {
        self.next_ns += count as f64 * self.interval_ns;
    }
}

/// Datagrams for sendmmsg and recvmmsg, all in the same place: what they say is of no matter.
struct Batch {
    headers: Vec<libc::mmsghdr>,
    // What the headers point to; never moved, never resized.
    _bytes: Vec<u8>,
    _part: Box<libc::iovec>,
    _to: Option<Box<libc::sockaddr_in>>,
}

impl Batch {
    fn new(slots: usize, size_bytes: usize, to: Option<SocketAddrV4>) -> Batch {
        let mut bytes = vec![1_u8; size_bytes];
        let mut part = Box::new(libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: size_bytes,
        });
        let mut to = to.map(|to| {
            Box::new(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(to.ip().octets()),
                },
                sin_zero: [0; 8],
            })
        });
        // SAFETY: an all-zero mmsghdr is valid: no address, no control data, no parts.
        let mut header: libc::mmsghdr = unsafe { zeroed() };
        header.msg_hdr.msg_iov = &mut *part;
        header.msg_hdr.msg_iovlen = 1;
        if let Some(to) = &mut to {
            header.msg_hdr.msg_name = std::ptr::from_mut(&mut **to).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        }
        Batch {
            headers: vec![header; slots],
            _bytes: bytes,
            _part: part,
            _to: to,
        }
    }

    /// Send `count`; how many were taken.
    fn send(&mut self, socket: &UdpSocket, count: usize) -> io::Result<u64> {
        // SAFETY: each header points to one part, its bytes and an address; all of them live in `self`. Padding is
        // zero since `new`.
        let sent = unsafe { messages::send(socket.as_raw_fd(), &mut self.headers[..count], 0)? };
        Ok(sent as u64)
    }

    /// Wait for one and take what else is there; how many came, and how many bytes (those past the size not counted).
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<(u64, u64)> {
        // SAFETY: as in `send`; all datagrams are written to the same bytes, which nobody reads.
        let came = unsafe { messages::receive(socket.as_raw_fd(), &mut self.headers)? };
        let bytes = self.headers[..came]
            .iter()
            .map(|header| u64::from(header.msg_len));
        Ok((came as u64, bytes.sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_arrives_and_is_counted() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(to) = near.local_addr().unwrap() else {
            panic!("not IPv4")
        };
        assert_eq!(Batch::new(8, 100, Some(to)).send(&far, 8).unwrap(), 8);
        let mut receiver = Batch::new(16, 100, None);
        let mut came = (0, 0);
        while came.0 < 8 {
            let (packets, bytes) = receiver.receive(&near).unwrap(); // those that are there: all, or some first
            came = (came.0 + packets, came.1 + bytes);
        }
        assert_eq!(came, (8, 800));
    }

    #[test]
    fn a_rate_is_kept() {
        let (start_ns, mut sent) = (now_ns(), 0);
        let mut pace = Pace::new(1250, 100_000_000); // 10,000 /s
        while sent < 500 {
            let due = pace.due() as u64;
            pace.sent(due);
            sent += due;
        }
        let most = 1 + (now_ns() - start_ns) / 100_000;
        assert!(sent <= most, "{sent} were let through, {most} were due");
    }

    #[test]
    fn without_a_rate_all_is_due_at_once() {
        assert_eq!(Pace::new(1, 0).due(), SLOTS);
    }
}
