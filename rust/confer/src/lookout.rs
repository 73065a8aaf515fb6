//! What a thread waits for: sockets that it looks at as soon as something comes, and those that it lets gather what the
//! kernel stamps. One look finds then what came to many; to wake for each datagram costs as much as half of what is done
//! with it. Each says when it came (`Datagram::came_ns`), and so loses nothing by it.

use std::io;
use std::os::fd::OwnedFd;

use virtoll_generator::sys::{self, Epoll};

/// So long, at the most, it gathers: a fifth of the lateness by which a generator is judged.
const GATHER_NS: i64 = 2_000_000;

pub struct Lookout {
    at_once: Epoll,
    gathers: Epoll,
    has_gathering: bool,
    /// When it looks again at what gathers.
    due_ns: i64,
}

impl Lookout {
    pub fn new() -> io::Result<Self> {
        Ok(Lookout {
            at_once: Epoll::new()?,
            gathers: Epoll::new()?,
            has_gathering: false,
            due_ns: 0,
        })
    }

    /// Look at it as soon as something comes.
    pub fn add(&self, fd: &OwnedFd, flags: u32, tag: u64) -> io::Result<()> {
        self.at_once.add(fd, flags, tag)
    }

    /// From now on let what comes to it gather. What has come, and was not told, is not lost.
    pub fn gather(&mut self, fd: &OwnedFd, flags: u32, tag: u64) -> io::Result<()> {
        self.at_once.remove(fd)?;
        self.gathers.add(fd, flags, tag)?;
        self.has_gathering = true;
        Ok(())
    }

    /// One that gathers was not read to its end: it is due.
    pub fn hurry(&mut self) {
        self.due_ns = 0;
    }

    #[cfg(test)]
    pub fn is_in_a_hurry(&self) -> bool {
        self.due_ns == 0
    }

    /// What has come, as soon as something does that does not gather, when it is time to look at what does, or when
    /// `timeout_ns` has passed; how many of `events` were filled.
    pub fn look(&mut self, events: &mut [libc::epoll_event], timeout_ns: i64) -> io::Result<usize> {
        if !self.has_gathering {
            return self.at_once.wait(events, timeout_ns);
        }
        let due_ns = self.due_ns - sys::now_ns();
        let count = self.at_once.wait(events, timeout_ns.min(due_ns))?;
        if count == events.len() {
            return Ok(count);
        }
        let found = self.gathers.wait(&mut events[count..], 0)?;
        let is_full = count + found == events.len(); // there may be more
        self.due_ns = sys::now_ns() + if is_full { 0 } else { GATHER_NS };
        // A sender that leaves said so after its last packets.
        events[..count + found].rotate_left(count);
        Ok(count + found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{Ipv4Addr, UdpSocket};

    use libc::{epoll_event, EPOLLIN};

    use super::*;

    const MINUTE_NS: i64 = 60_000_000_000;

    /// A socket that something has come to, if it `has`.
    fn socket(has: bool) -> OwnedFd {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (to, fd) = (
            socket.local_addr().unwrap(),
            OwnedFd::from(socket.try_clone().unwrap()),
        );
        while has && !sys::readable_within(&fd, 1_000_000) {
            let _ = socket.send_to(b"one", to);
        }
        fd
    }

    /// Sockets of which those from the second on gather, and to which something has come; and who looks at them.
    fn with(has: &[bool]) -> (Lookout, Vec<OwnedFd>) {
        let mut lookout = Lookout::new().unwrap();
        let sockets: Vec<_> = has.iter().map(|has| socket(*has)).collect();
        for (tag, fd) in (0..).zip(&sockets) {
            lookout.add(fd, EPOLLIN as u32, tag).unwrap();
            if tag > 0 {
                lookout.gather(fd, EPOLLIN as u32, tag).unwrap();
            }
        }
        (lookout, sockets)
    }

    fn looked(lookout: &mut Lookout, timeout_ns: i64) -> Vec<u64> {
        let mut events = [epoll_event { events: 0, u64: 0 }; 2];
        let count = lookout.look(&mut events, timeout_ns).unwrap();
        events[..count].iter().map(|event| event.u64).collect()
    }

    #[test]
    fn what_comes_gathers_between_two_looks() {
        let (mut lookout, _sockets) = with(&[false, true]);
        for _ in 0..5 {
            let before_ns = lookout.due_ns;
            assert_eq!(looked(&mut lookout, MINUTE_NS), [1]);
            let now_ns = sys::now_ns();
            assert!(now_ns >= before_ns, "it was not due");
            assert!(lookout.due_ns <= now_ns + GATHER_NS);
            assert!(lookout.due_ns >= before_ns + GATHER_NS);
        }
        lookout.due_ns = i64::MAX;
        assert_eq!(looked(&mut lookout, 0), [1], "where it waits for nothing");
    }

    #[test]
    fn nothing_else_waits_for_it() {
        let (mut lookout, _sockets) = with(&[true, true]);
        lookout.due_ns = i64::MAX;
        assert_eq!(looked(&mut lookout, MINUTE_NS), [1, 0]);
        let (mut lookout, _sockets) = with(&[true]);
        assert_eq!(looked(&mut lookout, MINUTE_NS), [0]);
        let (mut lookout, _sockets) = with(&[false, false]);
        lookout.due_ns = i64::MAX;
        assert!(looked(&mut lookout, 0).is_empty());
    }

    #[test]
    fn where_there_may_be_more_it_looks_sooner() {
        let (mut lookout, sockets) = with(&[false, true, true, true]);
        let mut tags = BTreeSet::new();
        for _ in 1..sockets.len() {
            tags.extend(looked(&mut lookout, MINUTE_NS));
            assert!(lookout.due_ns <= sys::now_ns(), "it did not hold all");
        }
        assert_eq!(tags, BTreeSet::from([1, 2, 3]));
        lookout.due_ns = i64::MAX;
        lookout.hurry();
        assert!(
            !looked(&mut lookout, MINUTE_NS).is_empty(),
            "it does not wait"
        );
    }

    /// Of events that are told once.
    #[test]
    fn what_had_come_before_it_gathers_is_told() {
        let flags = (EPOLLIN | libc::EPOLLET) as u32;
        let (mut lookout, fd) = (Lookout::new().unwrap(), socket(true));
        lookout.add(&fd, flags, 1).unwrap();
        lookout.gather(&fd, flags, 2).unwrap();
        assert_eq!(looked(&mut lookout, MINUTE_NS), [2]);
        assert!(looked(&mut lookout, 0).is_empty());
    }
}
