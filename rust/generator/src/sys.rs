//! The system calls generators need, each wrapped once.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_short, c_void};

/// CLOCK_MONOTONIC.
pub fn now_ns() -> i64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, by which the kernel stamps datagrams.
pub fn real_ns() -> i64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn clock_ns(clock: libc::clockid_t) -> i64 {
    // SAFETY: `time` is a valid timespec to write to, and the two clocks above always exist.
    let time = unsafe {
        let mut time: libc::timespec = zeroed();
        libc::clock_gettime(clock, &mut time);
        time
    };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CPU time that a thread used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    pub user_ns: i64,
    pub system_ns: i64,
}

impl CpuTime {
    /// Of the calling thread, so far.
    pub fn of_thread() -> Self {
        // SAFETY: `usage` is a valid rusage to write to.
        let usage = unsafe {
            let mut usage: libc::rusage = zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
            usage
        };
        let ns = |time: libc::timeval| time.tv_sec * 1_000_000_000 + time.tv_usec * 1000;
        CpuTime {
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
        }
    }

    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime {
            user_ns: self.user_ns - earlier.user_ns,
            system_ns: self.system_ns - earlier.system_ns,
        }
    }
}

impl std::ops::AddAssign for CpuTime {
    fn add_assign(&mut self, other: CpuTime) {
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
    }
}

/// Bind the calling thread to one CPU.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero cpu_set_t is valid and `cpu` is within it; pid 0 is the calling thread.
    check(unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    })?;
    Ok(())
}

/// Let timers of the calling thread fire when they are due, not up to 50 us later.
pub fn no_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory. It cannot fail.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Sleep for `time_ns` (less than a second), or until a signal comes.
pub fn doze(time_ns: i64) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: time_ns,
    };
    // SAFETY: the kernel reads a valid timespec; what is left after a signal is not asked for.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Sleep until CLOCK_MONOTONIC says so; signals do not end it.
pub fn sleep_until(at_ns: i64) {
    let at = libc::timespec {
        tv_sec: at_ns / 1_000_000_000,
        tv_nsec: at_ns % 1_000_000_000,
    };
    let clock = libc::CLOCK_MONOTONIC;
    let sleep = || {
        // SAFETY: the kernel reads a valid timespec; nothing is left of an absolute time.
        unsafe { libc::clock_nanosleep(clock, libc::TIMER_ABSTIME, &at, std::ptr::null_mut()) }
    };
    while sleep() == libc::EINTR {}
}

/// Allow `count` open files; where the hard limit must not be raised, as many as it allows. How many are allowed then:
/// whoever needs more says so, or is told when it opens one.
pub fn raise_open_files(count: u64) -> io::Result<u64> {
    // SAFETY: `limit` is a valid rlimit to read from and write to.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
        if limit.rlim_cur >= count {
            return Ok(limit.rlim_cur);
        }
        let wanted = libc::rlimit {
            rlim_cur: count,
            rlim_max: limit.rlim_max.max(count),
        };
        // Not even root may raise the hard limit without CAP_SYS_RESOURCE, nor anybody beyond fs.nr_open.
        if libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) != 0 {
            limit.rlim_cur = limit.rlim_max.min(count);
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
            return Ok(limit.rlim_cur);
        }
    }
    Ok(count)
}

/// An IPv4 address in the kernel's form.
#[derive(Clone, Copy)]
pub struct Address(libc::sockaddr_in);

impl From<SocketAddrV4> for Address {
    fn from(address: SocketAddrV4) -> Self {
        Address(libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(address.ip().octets()),
            },
            sin_zero: [0; 8],
        })
    }
}

/// Begin to connect. It may still be under way on return, and its failure may show only at the first `send`.
pub fn connect(address: &Address) -> io::Result<OwnedFd> {
    connect_within(address, 0)
}

/// The same, with at most so much kernel memory for what comes (the window that it offers is less); 0: as the kernel
/// finds right. `receive_bytes_granted` tells whether it gives as much.
pub fn connect_within(address: &Address, receive_bytes: u32) -> io::Result<OwnedFd> {
    let fd = tcp_socket(libc::SOCK_NONBLOCK)?;
    bound_receiving(&fd, receive_bytes)?;
    begin_connect(&fd, address)?;
    Ok(fd)
}

/// How much kernel memory for what comes a connection gets that asks for so much: without CAP_NET_ADMIN no more than
/// net.core.rmem_max allows, and the kernel does not say so.
pub fn receive_bytes_granted(receive_bytes: u32) -> io::Result<u32> {
    let fd = tcp_socket(0)?;
    bound_receiving(&fd, receive_bytes)?;
    let (mut granted, mut length): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes a valid integer of the given size.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw mut granted).cast(),
            &raw mut length,
        )
    })?;
    Ok(granted.max(0) as u32)
}

fn bound_receiving(fd: &OwnedFd, receive_bytes: u32) -> io::Result<()> {
    if receive_bytes == 0 {
        return Ok(());
    }
    let half = (receive_bytes / 2).min(c_int::MAX as u32) as c_int; // the kernel doubles it (socket(7))
    let length = size_of::<c_int>() as libc::socklen_t;
    let set = |option| {
        // SAFETY: the kernel reads a valid integer of the given size.
        check(unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const half).cast(),
                length,
            )
        })
    };
    set(libc::SO_RCVBUFFORCE).or_else(|_| set(libc::SO_RCVBUF))?;
    Ok(())
}

/// What is sent goes at once, and does not wait for what went before to be acknowledged.
pub fn no_delay(fd: &OwnedFd) -> io::Result<()> {
    let on: c_int = 1;
    let length = size_of::<c_int>() as libc::socklen_t;
    let value = (&raw const on).cast();
    let (raw_fd, protocol) = (fd.as_raw_fd(), libc::IPPROTO_TCP);
    // SAFETY: the kernel reads a valid integer of the given size.
    check(unsafe { libc::setsockopt(raw_fd, protocol, libc::TCP_NODELAY, value, length) })?;
    Ok(())
}

/// Connect a socket whose `send` and `recv` block for about `patience_ns` and then say `WouldBlock`. The connection
/// too may still be under way after that time.
pub fn connect_blocking(address: &Address, patience_ns: i64) -> io::Result<OwnedFd> {
    let fd = tcp_socket(0)?;
    let patience = libc::timeval {
        tv_sec: patience_ns / 1_000_000_000,
        tv_usec: patience_ns % 1_000_000_000 / 1000,
    };
    for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
        let length = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: the kernel reads a valid timeval of the given size.
        check(unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const patience).cast(),
                length,
            )
        })?;
    }
    begin_connect(&fd, address)?;
    Ok(fd)
}

fn tcp_socket(flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` returns a descriptor that nobody else owns.
    unsafe {
        let fd = check(libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags,
            0,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn begin_connect(fd: &OwnedFd, address: &Address) -> io::Result<()> {
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: the kernel reads a valid sockaddr_in of the given size.
    match check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address.0).cast(), length) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
}

pub fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads at most `bytes.len()` bytes from `bytes`.
    uninterrupted(|| unsafe {
        libc::send(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    })
}

pub fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
    uninterrupted(|| unsafe {
        libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
    })
}

/// Receive up to `bytes` bytes and throw them away in the kernel: with MSG_TRUNC, TCP takes them off its queue
/// without copying (tcp(7)).
pub fn discard(fd: &OwnedFd, bytes: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC a TCP socket writes nothing to the buffer, so a null pointer is never followed.
    uninterrupted(|| unsafe {
        libc::recv(
            fd.as_raw_fd(),
            std::ptr::null_mut::<c_void>(),
            bytes,
            libc::MSG_TRUNC,
        )
    })
}

/// Wait until there is something to read, or the end, for at most `time_ns`; whether there is. A signal ends it, too.
pub fn readable_within(fd: &OwnedFd, time_ns: i64) -> bool {
    has_within(fd, libc::POLLIN, time_ns)
}

/// The same for any of poll's events.
pub fn has_within(fd: &OwnedFd, events: c_short, time_ns: i64) -> bool {
    let time = libc::timespec {
        tv_sec: time_ns.max(0) / 1_000_000_000,
        tv_nsec: time_ns.max(0) % 1_000_000_000,
    };
    let mut asked = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: the kernel reads a valid timespec and writes to the one pollfd.
    unsafe { libc::ppoll(&mut asked, 1, &time, std::ptr::null()) > 0 }
}

/// An epoll instance. Descriptors leave it when they are closed.
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: `epoll_create1` returns a descriptor nobody else owns.
        Ok(Epoll(unsafe {
            OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?)
        }))
    }

    pub fn add(&self, fd: &OwnedFd, flags: u32, tag: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, flags, tag)
    }

    pub fn modify(&self, fd: &OwnedFd, flags: u32, tag: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, flags, tag)
    }

    pub fn remove(&self, fd: &OwnedFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, operation: c_int, fd: &OwnedFd, flags: u32, tag: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: flags,
            u64: tag,
        };
        // SAFETY: `event` is valid for the call; both descriptors are open.
        check(unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &mut event)
        })?;
        Ok(())
    }

    /// Wait for events until `timeout_ns` has passed; how many of `events` were filled (0 after a signal).
    pub fn wait(&self, events: &mut [libc::epoll_event], timeout_ns: i64) -> io::Result<usize> {
        let timeout_ns = timeout_ns.max(0);
        let timeout = libc::timespec {
            tv_sec: timeout_ns / 1_000_000_000,
            tv_nsec: timeout_ns % 1_000_000_000,
        };
        // SAFETY: the kernel fills at most `events.len()` events and reads a valid timespec; no signal mask is given.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as c_int,
                &raw const timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match length(count as isize) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other,
        }
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What stands in an epoll event's tag: a slot and the descriptor it was about.
pub fn tag(slot: usize, fd: &OwnedFd) -> u64 {
    (slot as u64) << 32 | fd.as_raw_fd() as u64
}

/// The inverse of `tag`.
pub fn untag(tag: u64) -> (usize, RawFd) {
    ((tag >> 32) as usize, tag as u32 as RawFd)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A socket with a time-out ends its call where the process was stopped and goes on (signal(7)): nothing has failed.
fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match length(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn length(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn discarding_takes_bytes_off_the_stream_and_leaves_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver: OwnedFd = listener.accept().unwrap().0.into();
        sender.write_all(&[b'x'; 100_000]).unwrap();
        sender.write_all(b"the end").unwrap();
        let mut left = 100_000;
        while left > 0 {
            left -= discard(&receiver, left).unwrap();
        }
        let mut buffer = [0; 7];
        let received = receive(&receiver, &mut buffer).unwrap();
        assert_eq!(&buffer[..received], &b"the end"[..received]);
        assert!(received > 0);
    }

    #[test]
    fn where_the_hard_limit_must_not_be_raised_it_allows_as_many_files_as_there_are() {
        let allowed = raise_open_files(1 << 40).unwrap(); // beyond any fs.nr_open: nobody may
                                                          // SAFETY: `limit` is a valid rlimit to write to.
        let limit = unsafe {
            let mut limit: libc::rlimit = zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit
        };
        assert_eq!(limit.rlim_cur, limit.rlim_max);
        assert_eq!(limit.rlim_cur, allowed);
        assert!(allowed < 1 << 40);
        assert_eq!(
            raise_open_files(1).unwrap(),
            allowed,
            "it is lowered for nobody"
        );
    }

    #[test]
    fn a_connection_gets_as_much_memory_as_it_asks_for_or_it_is_told() {
        assert!(receive_bytes_granted(0).unwrap() > 0);
        assert_eq!(receive_bytes_granted(65_536).unwrap(), 65_536);
        let most: u32 = std::fs::read_to_string("/proc/sys/net/core/rmem_max")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        if most > 1 << 28 {
            return; // more than is ever asked for
        }
        let socket = tcp_socket(0).unwrap();
        let (one, length): (c_int, _) = (1, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: the kernel reads a valid integer of the given size.
        let may_force = check(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const one).cast(),
                length,
            )
        });
        let granted = receive_bytes_granted(4 * most).unwrap();
        assert_eq!(granted, if may_force.is_ok() { 4 } else { 2 } * most);
    }

    #[test]
    fn a_blocking_connection_is_only_so_patient() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            panic!("IPv4 expected")
        };
        let connection = connect_blocking(&address.into(), 20_000_000).unwrap();
        let start_ns = now_ns();
        let error = receive(&connection, &mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(now_ns() - start_ns >= 10_000_000);
    }
}
