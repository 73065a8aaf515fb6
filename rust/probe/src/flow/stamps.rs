//! Datagrams with the time the kernel took them in (SO_TIMESTAMPNS), and how many it had no room for (SO_MEMINFO).

use std::io;
use std::mem::size_of;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use libc::c_int;

use crate::network::sockets::Batch;
use crate::windows::{clock_ns, now_ns};

const SLOTS: usize = 64;
/// Room for a timespec with its header (cmsg(3)) and more, in words of 8 bytes, as it must be aligned.
const CONTROL_WORDS: usize = 8;
/// An option of sockets, and the place of the drops in what it gives (asm-generic/socket.h, linux/sock_diag.h).
const SO_MEMINFO: c_int = 55;
const MEMINFO_DROPS: usize = 8;
const NS_PER_S: u64 = 1_000_000_000;

/// One that was received.
pub struct Stamped<'a> {
    /// None where it was longer than its place.
    pub bytes: Option<&'a [u8]>,
    /// By CLOCK_REALTIME; None where the kernel gave none.
    pub realtime_ns: Option<u64>,
}

impl Stamped<'_> {
    /// By CLOCK_MONOTONIC, where CLOCK_REALTIME is so much ahead of it ([`Ahead`]).
    pub fn monotonic_ns(&self, ahead_ns: i64) -> Option<u64> {
        self.realtime_ns
            .map(|stamp_ns| (stamp_ns as i64).wrapping_sub(ahead_ns) as u64)
    }
}

/// Messages to receive, each with its place and room for what the kernel says of it.
pub struct Stamps {
    batch: Batch,
    control: Vec<[u64; CONTROL_WORDS]>, // `batch` points into it; never resized
}

impl Stamps {
    /// For messages of at most `slot_bytes`.
    pub fn new(slot_bytes: usize) -> Stamps {
        Stamps {
            batch: Batch::new(SLOTS, slot_bytes),
            control: vec![[1; CONTROL_WORDS]; SLOTS],
        }
    }

    /// Wait for one and take what else is there; how many came. WouldBlock after the socket's time-out.
    pub fn receive(&mut self, socket: &impl AsRawFd) -> io::Result<usize> {
        // SAFETY: the rooms live as long as the batch, in `self`, and are never resized.
        unsafe { self.batch.ask_for_control(&mut self.control) };
        self.batch.receive(socket)
    }

    pub fn received(&self, slot: usize) -> Stamped<'_> {
        Stamped {
            bytes: self.batch.received(slot),
            realtime_ns: self
                .stamp(slot)
                .map(|time| time.tv_sec as u64 * NS_PER_S + time.tv_nsec as u64),
        }
    }

    fn stamp(&self, slot: usize) -> Option<libc::timespec> {
        let header = self.batch.header(slot);
        // Before the first `receive` there is nothing that the kernel could have said.
        let room = self.control[slot].as_ptr();
        if header.msg_control.cast_const() != room.cast() {
            return None;
        }
        let least_bytes = size_of::<libc::timespec>() as libc::c_uint;
        // SAFETY: the kernel filled `msg_controllen` bytes of control data, in which the CMSG functions stay; a message
        // of this name holds a timespec, which need not be aligned.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(header);
            while !at.is_null() {
                let is_stamp = (*at).cmsg_level == libc::SOL_SOCKET
                    && (*at).cmsg_type == libc::SCM_TIMESTAMPNS
                    && (*at).cmsg_len as usize >= libc::CMSG_LEN(least_bytes) as usize;
                if is_stamp {
                    return Some(
                        libc::CMSG_DATA(at)
                            .cast::<libc::timespec>()
                            .read_unaligned(),
                    );
                }
                at = libc::CMSG_NXTHDR(header, at);
            }
        }
        None
    }
}

/// A socket with options set for a flow, that has those of before again in the end.
pub struct Prepared<'a> {
    socket: &'a UdpSocket,
    buffer_before: Option<c_int>,
    drops_before: Option<u32>,
    /// Whether the kernel stamps what comes.
    pub stamped: bool,
    pub buffer_bytes: u64,
}

impl Prepared<'_> {
    /// Ask for stamps, and for a receive buffer of so much, where the system grants it.
    pub fn new(socket: &UdpSocket, buffer_bytes: c_int) -> Prepared<'_> {
        let buffer_before = option(socket, libc::SO_RCVBUF);
        if set_option(socket, libc::SO_RCVBUFFORCE, buffer_bytes).is_err() {
            let _ = set_option(socket, libc::SO_RCVBUF, buffer_bytes); // as much as an ordinary user may have
        }
        Prepared {
            socket,
            buffer_before,
            drops_before: drops(socket),
            stamped: set_option(socket, libc::SO_TIMESTAMPNS, 1).is_ok(),
            buffer_bytes: option(socket, libc::SO_RCVBUF).unwrap_or(0) as u64,
        }
    }

    /// How many datagrams the buffer had no room for since; None where the kernel does not tell.
    pub fn overrun(&self) -> Option<u64> {
        let more = drops(self.socket)?.wrapping_sub(self.drops_before?);
        Some(u64::from(more))
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        let _ = set_option(self.socket, libc::SO_TIMESTAMPNS, 0);
        if let Some(bytes) = self.buffer_before {
            // The kernel doubles what it is told (socket(7)).
            let _ = set_option(self.socket, libc::SO_RCVBUF, bytes / 2);
        }
    }
}

fn set_option(socket: &impl AsRawFd, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one valid integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of::<c_int>() as _,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn option(socket: &impl AsRawFd, name: c_int) -> Option<c_int> {
    let mut value = [0];
    read_option(socket, name, &mut value).map(|_| value[0])
}

/// Of a socket since it was made: a counter that wraps.
fn drops(socket: &impl AsRawFd) -> Option<u32> {
    let mut values = [0_u32; 16];
    let count = read_option(socket, SO_MEMINFO, &mut values)?;
    (count > MEMINFO_DROPS).then_some(values[MEMINFO_DROPS])
}

/// How many values the kernel gave; None where it does not know the option.
fn read_option<T: Copy, const N: usize>(
    socket: &impl AsRawFd,
    name: c_int,
    values: &mut [T; N],
) -> Option<usize> {
    let mut length = size_of::<[T; N]>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes of integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            values.as_mut_ptr().cast(),
            &mut length,
        )
    };
    (result == 0).then_some(length as usize / size_of::<T>())
}

/// How far CLOCK_REALTIME, by which the kernel stamps, is ahead of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ahead {
    /// How long the look took: `ns` is off by half of that at most.
    took_ns: u64,
    pub ns: i64,
}

impl Ahead {
    /// By the closest of a few looks.
    pub fn now() -> Ahead {
        let look = |_| {
            let before_ns = now_ns();
            let realtime_ns = clock_ns(libc::CLOCK_REALTIME);
            let took_ns = now_ns().saturating_sub(before_ns);
            let middle_ns = before_ns + took_ns / 2;
            Ahead {
                took_ns,
                ns: (realtime_ns as i64).wrapping_sub(middle_ns as i64),
            }
        };
        let looks = [(); 10].map(look);
        looks.into_iter().min().expect("there are ten")
    }

    /// How far at least the clock was moved from here to `later`: what reading it leaves open is no move.
    pub fn moved_ns(self, later: Ahead) -> u64 {
        let open_ns = self.took_ns.saturating_add(later.took_ns).div_ceil(2) + 1;
        self.ns.abs_diff(later.ns).saturating_sub(open_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Send until it comes, and where it is then: on a busy machine the loopback's own queue may have no room.
    fn come(
        stamps: &mut Stamps,
        ends: &(UdpSocket, UdpSocket),
        sent: &[u8],
        as_what: Option<&[u8]>,
    ) -> usize {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            ends.1.send(sent).unwrap();
            let count = stamps.receive(&ends.0).unwrap_or(0);
            if let Some(slot) = (0..count).find(|slot| stamps.received(*slot).bytes == as_what) {
                return slot;
            }
        }
        panic!("nothing came");
    }

    #[test]
    fn datagrams_bring_their_time_and_options_end_with_their_user() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        let ends = (near, far);
        let before = option(&ends.0, libc::SO_RCVBUF);
        let mut stamps = Stamps::new(16);
        {
            let prepared = Prepared::new(&ends.0, 1 << 20);
            assert!(prepared.stamped && prepared.buffer_bytes > 0);
            for (sent, as_what) in [(&[7; 10][..], Some(&[7; 10][..])), (&[7; 17], None)] {
                let slot = come(&mut stamps, &ends, sent, as_what);
                assert!(stamps.received(slot).realtime_ns.is_some());
            }
        }
        assert_eq!(option(&ends.0, libc::SO_RCVBUF), before);
        let slot = come(&mut stamps, &ends, &[9; 10], Some(&[9; 10]));
        assert_eq!(stamps.received(slot).realtime_ns, None);
    }

    #[test]
    fn a_clock_that_stands_is_not_moved_and_one_that_is_is() {
        let ahead = Ahead::now();
        assert_eq!(ahead.moved_ns(Ahead::now()), 0);
        let ns = ahead.ns - 1_000_000;
        let took_ns = 80;
        let before = Ahead { took_ns, ns };
        assert_eq!(before.moved_ns(before), 0);
        let later = Ahead {
            took_ns,
            ns: ns + 10_081,
        };
        assert_eq!(before.moved_ns(later), 10_000);
        assert_eq!(later.moved_ns(before), 10_000);
    }

    #[test]
    fn what_a_full_buffer_drops_is_known() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        let prepared = Prepared::new(&near, 1);
        assert_eq!(prepared.overrun(), Some(0));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut sent = 0;
        while prepared.overrun() == Some(0) {
            far.send(&[1; 1000]).unwrap();
            sent += 1;
            assert!(Instant::now() < deadline, "{sent} were sent");
        }
        let received = Stamps::new(1000).receive(&near).unwrap() as u64;
        let overrun = prepared.overrun().unwrap();
        assert!(received > 0 && overrun > 0 && received + overrun <= sent);
    }
}
