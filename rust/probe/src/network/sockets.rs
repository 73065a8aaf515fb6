//! The system calls on sockets that the standard library lacks, each wrapped once.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::messages;

/// Level and name of the option by which the kernel cuts what one send gives it into datagrams (linux/udp.h).
const UDP_SEGMENT: c_int = 103;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn set_option<T>(fd: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of a valid value.
    check(unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), length) })?;
    Ok(())
}

fn timeval(time: Duration) -> libc::timeval {
    libc::timeval {
        tv_sec: time.as_secs() as _,
        tv_usec: time.subsec_micros() as _,
    }
}

/// Let the kernel cut what is sent into datagrams of this size.
pub fn segment(socket: &UdpSocket, size_bytes: usize) -> io::Result<()> {
    set_option(
        socket.as_raw_fd(),
        libc::SOL_UDP,
        UDP_SEGMENT,
        &(size_bytes as c_int),
    )
}

/// Whether the socket has something to read, its end included. Does not wait.
pub fn readable(socket: &impl AsRawFd) -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    Ok(check(unsafe { libc::poll(&mut poll, 1, 0) })? == 1)
}

/// End every wait on this socket after `patience`, with WouldBlock. What a listener accepts inherits it.
pub fn bound_waits(socket: &impl AsRawFd, patience: Duration) -> io::Result<()> {
    for side in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        set_option(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            side,
            &timeval(patience),
        )?;
    }
    Ok(())
}

/// How a client waits for an answer.
pub enum Wait {
    /// Asleep, as long as the socket's time-out allows.
    Block,
    /// Asking again and again, for so long.
    Spin(Duration),
}

/// Receive what is there, or wait for it: WouldBlock when nothing comes in time.
pub fn receive(socket: &impl AsRawFd, buffer: &mut [u8], wait: &Wait) -> io::Result<usize> {
    let Wait::Spin(patience) = wait else {
        return receive_with(socket, buffer, 0);
    };
    let deadline = Instant::now() + *patience;
    loop {
        match receive_with(socket, buffer, libc::MSG_DONTWAIT) {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            outcome => return outcome,
        }
    }
}

fn receive_with(socket: &impl AsRawFd, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
    messages::uninterrupted(|| unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags,
        )
    })
}

/// Let a UDP socket that was connected take datagrams from anyone again; its port remains (connect(2), AF_UNSPEC).
pub fn disconnect(socket: &UdpSocket) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr is valid; the kernel reads no more than its family, AF_UNSPEC.
    check(unsafe {
        let mut nobody: libc::sockaddr = zeroed();
        nobody.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
        let length = size_of::<libc::sockaddr>() as libc::socklen_t;
        libc::connect(socket.as_raw_fd(), &nobody, length)
    })?;
    Ok(())
}

/// Connect with as few calls as can be: blocking, every wait bounded by `patience`. Closing it resets the connection
/// (SO_LINGER of 0 s), so that no port is held in TIME_WAIT.
pub fn connect_briefly(address: SocketAddrV4, patience: Duration) -> io::Result<TcpStream> {
    let to = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.ip().octets()),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: `socket` returns a descriptor that nobody else owns.
    let stream = unsafe {
        let fd = check(libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
        ))?;
        TcpStream::from_raw_fd(fd)
    };
    let fd = stream.as_raw_fd();
    let reset = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &reset)?;
    bound_waits(&stream, patience)?;
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: the kernel reads a valid sockaddr_in of the given length.
    match check(unsafe { libc::connect(fd, std::ptr::from_ref(&to).cast(), length) }) {
        // What SO_SNDTIMEO makes of a connection that is not there in time (socket(7)).
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            Err(io::ErrorKind::TimedOut.into())
        }
        Err(error) => Err(error),
        Ok(_) => Ok(stream),
    }
}

/// A port of the loopback where nobody listens, and nobody can as long as the socket is there.
#[cfg(test)]
pub fn refusing() -> io::Result<(TcpStream, SocketAddrV4)> {
    // SAFETY: `socket` returns a descriptor that nobody else owns.
    let stream = unsafe {
        TcpStream::from_raw_fd(check(libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
        ))?)
    };
    let mut at = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
        },
        sin_zero: [0; 8],
    };
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let place = std::ptr::from_mut(&mut at).cast();
    // SAFETY: the kernel reads, and then writes, a valid sockaddr_in of the given length.
    unsafe {
        check(libc::bind(stream.as_raw_fd(), place, length))?;
        check(libc::getsockname(stream.as_raw_fd(), place, &mut length))?;
    }
    let address = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, u16::from_be(at.sin_port));
    Ok((stream, address))
}

/// Messages for sendmmsg and recvmmsg, each with a place of its own.
pub struct Batch {
    bytes: Vec<u8>,
    slot_bytes: usize,
    parts: Vec<libc::iovec>,     // into `bytes`, which is never resized
    headers: Vec<libc::mmsghdr>, // into `parts`, the same
}

impl Batch {
    /// `slots` messages of at most `slot_bytes`, allocated and touched.
    pub fn new(slots: usize, slot_bytes: usize) -> Batch {
        let mut bytes = vec![1_u8; slots * slot_bytes];
        let mut parts: Vec<libc::iovec> = bytes
            .chunks_exact_mut(slot_bytes)
            .map(|slot| libc::iovec {
                iov_base: slot.as_mut_ptr().cast(),
                iov_len: slot_bytes,
            })
            .collect();
        let headers = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: an all-zero mmsghdr is valid: no address, no control data, no parts.
                let mut header: libc::mmsghdr = unsafe { zeroed() };
                header.msg_hdr.msg_iov = part;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Batch {
            bytes,
            slot_bytes,
            parts,
            headers,
        }
    }

    pub fn slots(&self) -> usize {
        self.headers.len()
    }

    /// The place of message `slot`.
    pub fn slot(&mut self, slot: usize) -> &mut [u8] {
        let start = slot * self.slot_bytes;
        &mut self.bytes[start..start + self.slot_bytes]
    }

    /// Say that message `slot` has this length.
    pub fn set_length(&mut self, slot: usize, length_bytes: usize) {
        assert!(length_bytes <= self.slot_bytes);
        self.parts[slot].iov_len = length_bytes;
    }

    /// Send the first `count` messages on a connected socket, all of them.
    pub fn send(&mut self, socket: &UdpSocket, count: usize) -> io::Result<()> {
        let mut sent = 0;
        while sent < count {
            sent += self.send_some(socket, sent, count, 0)?;
        }
        Ok(())
    }

    /// Send the first `count` messages as far as the socket's buffer has room for them; how many went.
    pub fn offer(&mut self, socket: &UdpSocket, count: usize) -> io::Result<usize> {
        let mut sent = 0;
        while sent < count {
            match self.send_some(socket, sent, count, libc::MSG_DONTWAIT) {
                Ok(done) => sent += done,
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)) =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    fn send_some(
        &mut self,
        socket: &UdpSocket,
        from: usize,
        to: usize,
        flags: c_int,
    ) -> io::Result<usize> {
        // SAFETY: each header points to one part, and that to its own bytes; all of them live in `self`. Padding is
        // zero since `new`.
        unsafe { messages::send(socket.as_raw_fd(), &mut self.headers[from..to], flags) }
    }

    /// Let the kernel say more of each message than its bytes: control data in `rooms`, one for each slot.
    ///
    /// # Safety
    ///
    /// `rooms` must stay where they are as long as this batch receives.
    pub unsafe fn ask_for_control<T>(&mut self, rooms: &mut [T]) {
        for (header, room) in self.headers.iter_mut().zip(rooms) {
            header.msg_hdr.msg_control = std::ptr::from_mut(room).cast();
            header.msg_hdr.msg_controllen = size_of::<T>() as _;
        }
    }

    /// What the kernel said of message `slot`.
    pub fn header(&self, slot: usize) -> &libc::msghdr {
        &self.headers[slot].msg_hdr
    }

    /// Wait for one message and take what else is there; how many came. WouldBlock after the socket's time-out.
    pub fn receive(&mut self, socket: &impl AsRawFd) -> io::Result<usize> {
        // SAFETY: as in `send_some`; the kernel writes at most a slot's bytes to each slot, and control data to the
        // room that `ask_for_control` was given.
        unsafe { messages::receive(socket.as_raw_fd(), &mut self.headers) }
    }

    /// Message `slot` as it came; None when it was longer than its place.
    pub fn received(&self, slot: usize) -> Option<&[u8]> {
        let header = &self.headers[slot];
        let start = slot * self.slot_bytes;
        let cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        (!cut).then(|| &self.bytes[start..start + header.msg_len as usize])
    }
}
