//! A server's clock beside ours: by that one its playlists tell when media were made, by ours they come. Before each window
//! it is asked for the time a few times, over a connection each; the answer that came back the fastest says how far apart
//! the two are, and half of its way how sure that is (Cristian, 1989). What was known before and is surer, as of a server
//! that had nothing to do yet, stays, unless the two contradict each other. After the window it is asked again, to see
//! whether the clocks have moved.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use virtoll_generator::sys;

use super::super::fetch::{Fetch, Right};
use super::date::unix_ns;
use super::keep;

const ASKED: usize = 16;
/// For one answer; and from when on none is asked for any more: well before a window begins that others share, for which
/// who gives the order leaves two seconds (src/virtoll/trial/company.py).
const PATIENCE: Duration = Duration::from_secs(5);
const ENOUGH_NS: i64 = 500_000_000;
const MOST_BYTES: usize = 64;
/// Servers tell milliseconds: one that tells whole seconds seems to stand still from window to window, and is not believed.
const RESOLUTION_NS: i64 = 1_000_000;
const UNKNOWN: i64 = i64::MIN;

#[derive(Debug)]
pub struct Clock {
    address: SocketAddrV4,
    request: Vec<u8>,
    /// Ages are told where the clock is known so well.
    within_ns: i64,
    compared: Mutex<Option<Compared>>,
    /// What the server's Unix time is ahead of our CLOCK_MONOTONIC, for all threads.
    ahead_ns: AtomicI64,
}

/// By one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compared {
    ahead_ns: i64,
    /// How long it took.
    trip_ns: i64,
}

impl Compared {
    /// How far the clocks have moved between the two at the least; 0: they need not have.
    fn apart_ns(self, other: Compared) -> i64 {
        let unsure_ns = (self.trip_ns + other.trip_ns) / 2 + RESOLUTION_NS;
        let apart_ns = self.ahead_ns.saturating_sub(other.ahead_ns);
        (apart_ns.saturating_abs() - unsure_ns).max(0)
    }
}

/// How well the clock was known in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// How long the answer took by which ages go.
    trip_ns: i64,
    /// How far the clocks have moved since, at the least.
    apart_ns: i64,
    /// Well enough for ages to be told.
    pub is_sure: bool,
}

impl Clock {
    /// That is told at `request`, which it has not been yet.
    pub fn new(address: SocketAddrV4, request: Vec<u8>, within_ns: i64) -> Self {
        Clock {
            address,
            request,
            within_ns,
            compared: Mutex::default(),
            ahead_ns: AtomicI64::new(UNKNOWN),
        }
    }

    #[cfg(test)]
    pub fn known(ahead_ns: i64) -> Self {
        let address = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1);
        let clock = Clock::new(address, Vec::new(), 1);
        clock.ahead_ns.store(ahead_ns, Relaxed);
        clock
    }

    /// The server's time at this one of ours; None: not known.
    pub fn theirs_ns(&self, now_ns: i64) -> Option<i64> {
        let ahead_ns = self.ahead_ns.load(Relaxed);
        (ahead_ns != UNKNOWN).then(|| now_ns.saturating_add(ahead_ns))
    }

    /// Compare them before a window, and go by what is the surest from now on; by what was known, where nothing is told.
    pub fn compare(&self) {
        let found = self.found();
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        *compared = match (*compared, found) {
            (Some(before), Some(found))
                if before.trip_ns <= found.trip_ns && before.apart_ns(found) == 0 =>
            {
                Some(before)
            }
            (before, found) => found.or(before),
        };
        let ahead_ns = compared.map_or(UNKNOWN, |compared| compared.ahead_ns);
        self.ahead_ns.store(ahead_ns, Relaxed);
    }

    /// After the window: how well it was known. None: it does not tell the time, or did not before.
    pub fn held(&self) -> Option<Held> {
        let compared = *self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, after) = (compared?, self.found()?);
        let apart_ns = before.apart_ns(after);
        Some(Held {
            trip_ns: before.trip_ns,
            apart_ns,
            is_sure: before.trip_ns / 2 <= self.within_ns && apart_ns <= self.within_ns,
        })
    }

    /// By the fastest of some answers, of a server that is slow of fewer. None: it does not tell the time.
    fn found(&self) -> Option<Compared> {
        let began_ns = sys::now_ns();
        let mut best: Option<Compared> = None;
        for _ in 0..ASKED {
            let Some(compared) = self.ask() else { break };
            if best.is_none_or(|best| compared.trip_ns < best.trip_ns) {
                best = Some(compared);
            }
            if sys::now_ns() - began_ns > ENOUGH_NS {
                break;
            }
        }
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
            let count = match stream.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue, // it was stopped, and goes on
                read => read.ok()?,
            };
            let is_whole = match count {
                0 => fetch.closed().ok()?,
                _ => fetch
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
        let told = std::str::from_utf8(&said).ok()?.trim();
        let theirs_ns = unix_ns(told).filter(|_| tells_milliseconds(told))?;
        Some(Compared {
            ahead_ns: theirs_ns.checked_sub(sent_ns + trip_ns / 2)?,
            trip_ns,
        })
    }
}

/// Whether a moment is told as well as `RESOLUTION_NS`.
fn tells_milliseconds(moment: &str) -> bool {
    let fraction = moment.split_once('.').map_or("", |(_, rest)| rest);
    fraction.bytes().take_while(u8::is_ascii_digit).count() >= 3
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
        let request = b"GET /clock HTTP/1.1\r\n\r\n".to_vec();
        Clock::new(address, request, 10_000_000)
    }

    const TOLD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n2026-11-23T21:51:39.615Z";

    #[test]
    fn the_time_that_is_told_is_known_from_then_on() {
        let clock = of(vec![TOLD; 2]);
        assert_eq!(clock.theirs_ns(7), None);
        let before_ns = sys::now_ns();
        clock.compare();
        let after_ns = sys::now_ns();
        let told_ns = 1_795_470_699_615_000_000;
        let ahead_ns = clock.theirs_ns(0).unwrap();
        assert!((told_ns - after_ns..=told_ns - before_ns).contains(&ahead_ns));
        // Whoever was kept waiting for the first answer has not asked for the second yet.
        assert!((0..2).any(|_| clock.held().is_none()), "it says no more");
    }

    #[test]
    fn who_does_not_tell_the_time_is_not_believed() {
        let long = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{}",
            "9".repeat(999)
        );
        for said in [
            "",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnoon",
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n2026-11-23T21:51:39Z",
            "HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\n2026-11-23T21:51:39.61+00:00",
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n2026-11-23T21:51:39.615Z",
            long.leak(),
        ] {
            let clock = of(vec![said]);
            clock.compare();
            assert_eq!((clock.theirs_ns(7), clock.held()), (None, None), "{said}");
        }
    }

    #[test]
    fn what_was_known_stays_where_nothing_is_told_now() {
        let clock = of(vec![TOLD]);
        clock.compare();
        let known_ns = clock.theirs_ns(0);
        assert!(known_ns.is_some());
        clock.compare();
        assert_eq!((clock.theirs_ns(0), clock.held()), (known_ns, None));
    }

    #[test]
    fn a_server_that_is_slow_does_not_keep_a_window_that_others_share() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
        let served = thread::spawn(move || {
            let mut answers = 0;
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 100];
                let _ = stream.read(&mut asked).unwrap();
                if asked.starts_with(b"END") {
                    return answers;
                }
                thread::sleep(Duration::from_millis(150));
                stream.write_all(TOLD.as_bytes()).unwrap();
                answers += 1;
            }
        });
        let request = b"GET /clock HTTP/1.1\r\n\r\n".to_vec();
        let clock = Clock::new(address.parse().unwrap(), request, 10_000_000);
        clock.compare();
        assert!(clock.theirs_ns(0).is_some());
        let mut last = TcpStream::connect(address).unwrap();
        last.write_all(b"END").unwrap();
        assert!((1..=4).contains(&served.join().unwrap()));
    }

    #[test]
    fn clocks_have_moved_where_two_answers_contradict_each_other() {
        let compared = |ahead_ns, trip_ns| Compared { ahead_ns, trip_ns };
        let apart_ns = |one, other| compared(one, 2_000_000).apart_ns(compared(other, 4_000_000));
        assert_eq!(
            apart_ns(0, 4_000_000),
            0,
            "half of both ways, and a millisecond"
        );
        assert_eq!((apart_ns(0, 4_000_007), apart_ns(4_000_007, 0)), (7, 7));
        assert!(apart_ns(i64::MIN, i64::MAX) > 1 << 60);
    }

    #[test]
    fn what_is_surer_stays_until_it_is_contradicted() {
        // The server answers as often as it is asked, and its clock stands still.
        let clock = of(vec![TOLD; 3 * ASKED]);
        let surer = |ahead_ns| {
            *clock.compared.lock().unwrap() = Some(Compared {
                ahead_ns,
                trip_ns: 0,
            });
        };
        clock.compare();
        let ahead_ns = clock.theirs_ns(0).unwrap();
        surer(ahead_ns - 3_600_000_000_000);
        clock.compare();
        assert!((clock.theirs_ns(0).unwrap() - ahead_ns).abs() < 1_800_000_000_000);
        surer(ahead_ns - 3_600_000_000_000);
        let held = clock.held().unwrap();
        assert!((held.apart_ns > 1_800_000_000_000) && !held.is_sure);
    }
}
