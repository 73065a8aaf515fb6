//! A server's clock beside ours: by that one its playlists tell when media were made, by ours they come. It is asked for
//! the time a few times, over a connection each; the answer that came back the fastest says how far apart the two are,
//! and half of its way how sure that is (Cristian, 1989).

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;
use virtoll_generator::sys;

use super::super::fetch::{Fetch, Right};
use super::date::unix_ns;
use super::keep;

const ASKED: usize = 8;
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_BYTES: usize = 64;
/// Ages are told where the clocks are known that well.
const MOST_UNSURE_NS: i64 = 10_000_000;
const UNKNOWN: i64 = i64::MIN;

#[derive(Debug)]
pub struct Clock {
    address: SocketAddrV4,
    request: Vec<u8>,
    /// What the server's Unix time is ahead of our CLOCK_MONOTONIC.
    ahead_ns: AtomicI64,
}

/// By one comparison.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    ahead_ns: i64,
    /// How long the answer took.
    trip_ns: i64,
}

/// What two comparisons, before a window and after it, say of what was told in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The longer one of the two answers, and how far apart the clocks have moved.
    trip_ns: i64,
    apart_ns: i64,
}

impl Held {
    /// None: one of them could not be made.
    pub fn between(before: Option<Compared>, after: Option<Compared>) -> Option<Self> {
        let (before, after) = (before?, after?);
        Some(Held {
            trip_ns: before.trip_ns.max(after.trip_ns),
            apart_ns: (before.ahead_ns - after.ahead_ns).abs(),
        })
    }

    /// Whether an age is known well enough to be told.
    pub fn is_sure(&self) -> bool {
        self.trip_ns / 2 <= MOST_UNSURE_NS && self.apart_ns <= MOST_UNSURE_NS
    }
}

impl Clock {
    /// That is told at `request`, which it has not been yet.
    pub fn new(address: SocketAddrV4, request: Vec<u8>) -> Self {
        Clock {
            address,
            request,
            ahead_ns: AtomicI64::new(UNKNOWN),
        }
    }

    #[cfg(test)]
    pub fn known(ahead_ns: i64) -> Self {
        let clock = Clock::new(SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1), Vec::new());
        clock.ahead_ns.store(ahead_ns, Relaxed);
        clock
    }

    /// The server's time at this one of ours; None: not known.
    pub fn theirs_ns(&self, now_ns: i64) -> Option<i64> {
        let ahead_ns = self.ahead_ns.load(Relaxed);
        (ahead_ns != UNKNOWN).then(|| now_ns.saturating_add(ahead_ns))
    }

    /// Compare, and go by that from now on. None: it does not tell the time.
    pub fn compare(&self) -> Option<Compared> {
        let mut best: Option<Compared> = None;
        for _ in 0..ASKED {
            let Some(compared) = self.ask() else {
                best = None;
                break;
            };
            if best.is_none_or(|best| compared.trip_ns < best.trip_ns) {
                best = Some(compared);
            }
        }
        let ahead_ns = best.map_or(UNKNOWN, |best| best.ahead_ns);
        self.ahead_ns.store(ahead_ns, Relaxed);
        best
    }

    fn ask(&self) -> Option<Compared> {
        let mut stream = TcpStream::connect_timeout(&self.address.into(), PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        let (mut fetch, mut said) = (Fetch::new(Right::default()), Vec::new());
        let sent_ns = sys::now_ns();
        stream.write_all(&self.request).ok()?;
        let mut buffer = [0; 4096];
        loop {
            let mut is_short = true;
            let is_whole = match stream.read(&mut buffer).ok()? {
                0 => fetch.closed().ok()?,
                count => fetch
                    .take(&buffer[..count], |body| {
                        is_short = is_short && keep(&mut said, body, MOST_BYTES);
                    })
                    .ok()?,
            };
            if !is_short || sys::now_ns() - sent_ns > PATIENCE.as_nanos() as i64 {
                return None;
            }
            if is_whole {
                break;
            }
        }
        let trip_ns = sys::now_ns() - sent_ns;
        let theirs_ns = unix_ns(std::str::from_utf8(&said).ok()?.trim())?;
        Some(Compared {
            ahead_ns: theirs_ns.checked_sub(sent_ns + trip_ns / 2)?,
            trip_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// The clock of a server that says `answers`, and then no more.
    fn of(answers: Vec<&'static str>) -> Clock {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 100];
                let _ = stream.read(&mut asked).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        Clock::new(address, b"GET /clock HTTP/1.1\r\n\r\n".to_vec())
    }

    const TOLD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n2026-11-23T21:51:39.615Z";

    #[test]
    fn the_time_that_is_told_is_known_from_then_on() {
        let clock = of(vec![TOLD; ASKED]);
        assert_eq!(clock.theirs_ns(7), None);
        let before_ns = sys::now_ns();
        let compared = clock.compare().unwrap();
        let after_ns = sys::now_ns();
        let told_ns = 1_795_470_699_615_000_000;
        assert!((told_ns - after_ns..=told_ns - before_ns).contains(&compared.ahead_ns));
        assert_eq!(clock.theirs_ns(7), Some(compared.ahead_ns + 7));
        assert!(compared.trip_ns <= after_ns - before_ns);
    }

    #[test]
    fn who_does_not_tell_the_time_or_not_always_is_not_believed() {
        for said in [
            "",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnoon",
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n2026-11-23T21:51:39.615Z",
        ] {
            let clock = of([vec![TOLD; 3], vec![said]].concat());
            assert!(clock.compare().is_none(), "{said}");
            assert_eq!(clock.theirs_ns(7), None);
        }
        let long = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{}",
            "9".repeat(999)
        );
        assert!(of(vec![long.leak()]).compare().is_none());
    }

    #[test]
    fn what_is_told_between_two_comparisons_is_as_sure_as_both() {
        let compared = |ahead_ns, trip_ns| Some(Compared { ahead_ns, trip_ns });
        let held = |before, after| Held::between(before, after).map(|held| held.is_sure());
        assert_eq!(held(compared(5, 1), compared(-5, 20_000_001)), Some(true));
        assert_eq!(held(compared(5, 20_000_002), compared(-5, 1)), Some(false));
        assert_eq!(held(compared(0, 1), compared(10_000_001, 1)), Some(false));
        assert_eq!(held(compared(0, 1), None), None);
    }
}
