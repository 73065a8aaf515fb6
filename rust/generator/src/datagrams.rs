//! Sockets for datagrams, each viewer's own as a player's are: a server that sends the same to many, tells them apart by
//! their ports alone.
//!
//! The kernel stamps each datagram when it comes, so that how soon it is looked at changes no jitter; and counts what it
//! throws away because a socket is full, which is this machine's doing and not the network's. Datagrams are not joined
//! in the kernel (UDP_GRO): there is one stamp for what it joins.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_void, socklen_t};

/// What a socket holds that is not read at once, or that a slow line has not taken yet: half of it is datagrams, several
/// seconds of a film.
const HELD_BYTES: c_int = 1024 * 1024;
/// Of one call; a datagram that is longer than a jumbo frame is cut off.
const BATCH: usize = 32;
const MOST_BYTES: usize = 9216;
const TRIES: usize = 100;
/// Room for a time stamp and a count of drops.
const CONTROL_BYTES: usize = 64;

/// A viewer's sockets, in pairs.
#[derive(Default)]
pub struct Sockets {
    all: Vec<OwnedFd>,
    /// What the kernel has thrown away of each.
    drops: Vec<u32>,
}

impl Sockets {
    /// Pairs of ports, the first of each even.
    pub fn bind(pairs: usize) -> io::Result<(Self, Vec<(u16, u16)>)> {
        let (mut sockets, mut ports) = (Sockets::default(), Vec::new());
        for _ in 0..pairs {
            let (first, second, port) = pair()?;
            sockets.all.extend([first, second]);
            sockets.drops.extend([0, 0]);
            ports.push((port, port + 1));
        }
        Ok((sockets, ports))
    }

    /// One socket of this address, and its port.
    pub fn bind_one(address: Ipv4Addr) -> io::Result<(Self, u16)> {
        let (socket, port) = bound_at(address, 0)?;
        let sockets = Sockets {
            all: vec![socket],
            drops: vec![0],
        };
        Ok((sockets, port))
    }

    pub fn all(&self) -> &[OwnedFd] {
        &self.all
    }

    pub fn position(&self, fd: RawFd) -> Option<usize> {
        self.all.iter().position(|socket| socket.as_raw_fd() == fd)
    }

    /// Send. Whether there was room: without it, what is missing at the other end was never sent. That nobody is there is
    /// no want of room.
    pub fn send(&self, socket: usize, to: (Ipv4Addr, u16), bytes: &[u8]) -> bool {
        let address = address(to.0, to.1);
        let Some(fd) = self.all.get(socket) else {
            return true;
        };
        // SAFETY: the kernel reads `bytes` and a valid sockaddr_in, of the sizes given.
        let sent = unsafe {
            libc::sendto(
                fd.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_in>() as socklen_t,
            )
        };
        let full = [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM].map(Some);
        sent >= 0 || !full.contains(&io::Error::last_os_error().raw_os_error())
    }

    /// Datagrams that were thrown away since it was last asked, as a datagram that came after them tells (SO_RXQ_OVFL).
    pub fn dropped(&mut self, socket: usize, drops: Option<u32>) -> u64 {
        match (drops, self.drops.get_mut(socket)) {
            (Some(drops), Some(known)) => {
                u64::from(drops.wrapping_sub(std::mem::replace(known, drops)))
            }
            _ => 0,
        }
    }
}

/// Two sockets of an even port and the next.
fn pair() -> io::Result<(OwnedFd, OwnedFd, u16)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..TRIES {
        let (one, port) = bound(0)?;
        let other = bound(port ^ 1);
        match other {
            Ok((other, _)) if port % 2 == 0 => return Ok((one, other, port)),
            Ok((other, _)) => return Ok((other, one, port ^ 1)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn bound(port: u16) -> io::Result<(OwnedFd, u16)> {
    bound_at(Ipv4Addr::UNSPECIFIED, port)
}

fn bound_at(ip: Ipv4Addr, port: u16) -> io::Result<(OwnedFd, u16)> {
    // SAFETY: `socket` returns a descriptor that nobody else owns.
    let fd = unsafe {
        let flags = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, flags, 0))?)
    };
    for option in [libc::SO_TIMESTAMPNS, libc::SO_RXQ_OVFL] {
        set(&fd, option, 1)?;
    }
    for (forced, asked) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        if set(&fd, forced, HELD_BYTES / 2).is_err() {
            set(&fd, asked, HELD_BYTES / 2)?; // as much of it as net.core.rmem_max and wmem_max allow
        }
    }
    let mut local = address(ip, port);
    let mut length = size_of::<libc::sockaddr_in>() as socklen_t;
    // SAFETY: the kernel reads, and then writes, a valid sockaddr_in of the given size.
    unsafe {
        check(libc::bind(
            fd.as_raw_fd(),
            (&raw const local).cast(),
            length,
        ))?;
        check(libc::getsockname(
            fd.as_raw_fd(),
            (&raw mut local).cast(),
            &mut length,
        ))?;
    }
    Ok((fd, u16::from_be(local.sin_port)))
}

fn set(fd: &OwnedFd, option: c_int, value: c_int) -> io::Result<()> {
    let length = size_of::<c_int>() as socklen_t;
    let value = (&raw const value).cast::<c_void>();
    // SAFETY: the kernel reads a valid integer of the given size.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, length) })?;
    Ok(())
}

fn address(ip: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(ip.octets()),
        },
        sin_zero: [0; 8],
    }
}

/// One that came.
#[derive(Debug)]
pub struct Datagram<'a> {
    pub bytes: &'a [u8],
    pub from: Ipv4Addr,
    pub port: u16,
    /// By CLOCK_REALTIME.
    pub stamp_ns: i64,
    /// What the kernel has thrown away of this socket so far; None: nothing.
    pub drops: Option<u32>,
}

/// No datagram waits longer to be read: more is a step of CLOCK_REALTIME.
const MOST_WAIT_NS: i64 = 1_000_000_000;

impl Datagram<'_> {
    /// When it came, by CLOCK_MONOTONIC: it waited to be looked at for as long as its stamp says. `now_ns` and `real_ns`:
    /// what the two clocks say now.
    pub fn came_ns(&self, now_ns: i64, real_ns: i64) -> i64 {
        match self.stamp_ns {
            0 => now_ns,
            stamp_ns => now_ns - (real_ns - stamp_ns).clamp(0, MOST_WAIT_NS),
        }
    }
}

/// A control message's buffer must be aligned as its header is.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// Room for what comes at once, one for a thread.
pub struct Batch {
    bytes: Vec<u8>,
    controls: [Control; BATCH],
    names: [libc::sockaddr_in; BATCH],
    lengths: [usize; BATCH],
    control_lengths: [usize; BATCH],
    is_full: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            bytes: vec![0; BATCH * MOST_BYTES],
            controls: [Control([0; CONTROL_BYTES]); BATCH],
            names: [address(Ipv4Addr::UNSPECIFIED, 0); BATCH],
            lengths: [0; BATCH],
            control_lengths: [0; BATCH],
            is_full: false,
        }
    }
}

impl Batch {
    /// Receive what has come, and is not more than fits; how many.
    #[allow(clippy::unnecessary_cast)] // musl's lengths are narrower
    pub fn receive(&mut self, fd: &OwnedFd) -> io::Result<usize> {
        self.is_full = false;
        // SAFETY: all-zero vectors and headers are valid; they are filled below before the kernel sees them.
        let (mut vectors, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { zeroed() };
        let rooms = self.bytes.chunks_exact_mut(MOST_BYTES);
        for (index, room) in rooms.enumerate() {
            vectors[index].iov_base = room.as_mut_ptr().cast();
            vectors[index].iov_len = room.len();
            let header = &mut headers[index].msg_hdr;
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as socklen_t;
            header.msg_control = (&raw mut self.controls[index]).cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: each header points to a vector, a name and a control buffer that live through the call, with their sizes.
        let count = check(unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as _,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        })? as usize;
        for (index, header) in headers[..count].iter().enumerate() {
            self.lengths[index] = (header.msg_len as usize).min(MOST_BYTES);
            self.control_lengths[index] =
                (header.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        }
        self.is_full = count == BATCH;
        Ok(count)
    }

    /// There may be more than came last.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// One of those that came last.
    pub fn get(&self, index: usize) -> Datagram<'_> {
        let begin = index * MOST_BYTES;
        let control = &self.controls[index].0[..self.control_lengths[index]];
        let (stamp_ns, drops) = told(control);
        Datagram {
            bytes: &self.bytes[begin..begin + self.lengths[index]],
            from: Ipv4Addr::from(self.names[index].sin_addr.s_addr.to_ne_bytes()),
            port: u16::from_be(self.names[index].sin_port),
            stamp_ns,
            drops,
        }
    }
}

/// The stamp and the count of drops among control messages.
#[allow(clippy::unnecessary_cast)]
fn told(mut control: &[u8]) -> (i64, Option<u32>) {
    const HEAD: usize = size_of::<libc::cmsghdr>();
    let (mut stamp_ns, mut drops) = (0, None);
    while control.len() >= HEAD {
        // SAFETY: a cmsghdr is plain numbers, and so many bytes are there; they need not be aligned.
        let head: libc::cmsghdr =
            unsafe { control.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let length = (head.cmsg_len as usize).clamp(HEAD, control.len());
        let data = &control[HEAD..length];
        match head.cmsg_type {
            libc::SCM_TIMESTAMPNS if data.len() >= size_of::<libc::timespec>() => {
                // SAFETY: a timespec is plain numbers, and so many bytes are there.
                let time: libc::timespec =
                    unsafe { data.as_ptr().cast::<libc::timespec>().read_unaligned() };
                stamp_ns = time.tv_sec * 1_000_000_000 + time.tv_nsec;
            }
            libc::SO_RXQ_OVFL => {
                drops = data.first_chunk().map(|count| u32::from_ne_bytes(*count));
            }
            _ => {}
        }
        let next = length
            .next_multiple_of(size_of::<usize>())
            .min(control.len());
        control = &control[next..];
    }
    (stamp_ns, drops)
}

fn check(result: c_int) -> io::Result<c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn what_waited_came_before_it_was_read() {
        let datagram = |stamp_ns| Datagram {
            bytes: b"",
            from: Ipv4Addr::LOCALHOST,
            port: 0,
            stamp_ns,
            drops: None,
        };
        for (stamp_ns, came_ns) in [
            (9_000_000_000, 4_000_000_000),
            (10_000_000_000, 5_000_000_000),
            (11_000_000_000, 5_000_000_000),
            (1_000_000_000, 4_000_000_000),
            (0, 5_000_000_000),
        ] {
            assert_eq!(
                datagram(stamp_ns).came_ns(5_000_000_000, 10_000_000_000),
                came_ns
            );
        }
    }

    /// In a network of its own, whose line takes a datagram a second, for as long as the test goes on: what waits is thrown
    /// away then. It would keep that network for minutes, and with what refuses it (ICMP) the kernel's own socket full, by
    /// which it answers on the whole machine.
    fn before_a_slow_line(test: fn()) {
        let thread = std::thread::spawn(move || {
            // SAFETY: it changes what this thread alone sees.
            let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(alone, 0, "a network of its own needs root");
            run("ip link set lo up");
            run("tc qdisc add dev lo root tbf rate 8kbit burst 2000 limit 100000000");
            let told = std::panic::catch_unwind(test);
            run("tc qdisc del dev lo root");
            told.unwrap_or_else(|told| std::panic::resume_unwind(told));
        });
        assert!(thread.join().is_ok());
    }

    fn run(line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let status = Command::new(words[0]).args(&words[1..]).status();
        assert!(status.is_ok_and(|status| status.success()), "{line}");
    }

    #[test]
    fn what_finds_no_room_is_told() {
        before_a_slow_line(|| {
            let (_taker, port) = Sockets::bind_one(Ipv4Addr::LOCALHOST).unwrap();
            let (sockets, _) = Sockets::bind_one(Ipv4Addr::LOCALHOST).unwrap();
            let send = || sockets.send(0, (Ipv4Addr::LOCALHOST, port), &[0; 1000]);
            assert!((0..100).all(|_| send()), "as much as a key frame waits");
            assert!((0..10_000).any(|_| !send()));
        });
    }

    #[test]
    fn where_nobody_is_there_is_room() {
        let (sockets, _) = Sockets::bind_one(Ipv4Addr::LOCALHOST).unwrap();
        let nowhere = Ipv4Addr::BROADCAST; // which the kernel refuses: nobody asked for it (SO_BROADCAST)
        assert!((0..10).all(|_| sockets.send(0, (nowhere, 1), &[0; 1000])));
    }

    #[test]
    fn what_comes_is_stamped_and_what_is_dropped_is_counted() {
        let (mut sockets, ports) = Sockets::bind(2).unwrap();
        assert!(ports
            .iter()
            .all(|(rtp, rtcp)| rtp.is_multiple_of(2) && *rtcp == rtp + 1));
        assert_eq!(sockets.all().len(), 4);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut batch, mut came, mut dropped) = (Batch::default(), 0, 0);
        let real_ns = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_nanos() as i64
        };
        let begun_ns = real_ns();
        // The kernel begins to stamp a while after the first socket asks for it; till then it stamps what is read.
        let mut is_stamped = false;
        while !is_stamped {
            let _ = sender.send_to(b"the first", ("127.0.0.1", ports[1].0));
            let sent_ns = real_ns();
            let count = batch.receive(&sockets.all()[2]).unwrap_or(0);
            is_stamped = count > 0 && batch.get(0).stamp_ns <= sent_ns;
        }
        for number in 0..100_000u32 {
            // far more than there is room for
            let _ = sender.send_to(&number.to_be_bytes(), ("127.0.0.1", ports[1].0));
        }
        let mut is_last = false;
        while !is_last {
            // The last one comes when there is room again, and tells of all that were thrown away before it.
            let _ = sender.send_to(b"the last", ("127.0.0.1", ports[1].0));
            for index in 0..batch.receive(&sockets.all()[2]).unwrap_or(0) {
                let datagram = batch.get(index);
                assert_eq!(datagram.from, Ipv4Addr::LOCALHOST);
                // No two need be in order: CPUs that carry them stamp them before they queue up for the socket.
                assert!((begun_ns..=real_ns()).contains(&datagram.stamp_ns));
                dropped += sockets.dropped(2, datagram.drops);
                is_last |= datagram.bytes == b"the last";
                came += u64::from(datagram.bytes.len() == 4);
            }
        }
        assert!(came > 100, "{came}");
        assert!(dropped > 0);
        let to = (Ipv4Addr::LOCALHOST, sender.local_addr().unwrap().port());
        let mut buffer = [0; 8];
        // The loopback's own queue may have no room on a busy machine.
        let step = std::time::Duration::from_millis(100);
        sender.set_read_timeout(Some(step)).unwrap();
        let (length, from) = loop {
            sockets.send(0, to, b"back");
            if let Ok(came) = sender.recv_from(&mut buffer) {
                break came;
            }
        };
        assert_eq!((&buffer[..length], from.port()), (&b"back"[..], ports[0].0));
    }
}
