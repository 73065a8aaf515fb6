//! A counted run of datagrams over UDP, each of which says which run it is of and its number in it.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::seen::{Came, Seen};
use super::sockets::{readable, segment, Batch};
use super::wire::Tally;
use crate::windows::now_ns;

/// Run, check word and number: what each datagram begins with.
pub const HEADER_BYTES: usize = 16;
/// A run is over when its sender says so and nothing has come for so long.
pub const QUIET: Duration = Duration::from_millis(100);

/// Messages in one system call.
const SLOTS: usize = 64;
/// The kernel cuts one message into no more datagrams than this (UDP_MAX_SEGMENTS of linux/udp.h before 6.9).
const MOST_SEGMENTS: usize = 64;

/// What datagrams are sent from.
pub struct Sender {
    batch: Batch,
    size_bytes: usize,
    segments: usize,
}

/// What datagrams are received into.
pub struct Receiver {
    batch: Batch,
    size_bytes: usize,
}

impl Sender {
    /// For datagrams of `size_bytes`; with `segmentation` the kernel cuts them from messages of up to 64.
    pub fn new(socket: &UdpSocket, size_bytes: usize, segmentation: bool) -> io::Result<Sender> {
        let segments = if segmentation {
            segment(socket, size_bytes)?;
            (super::MOST_DATAGRAM_BYTES as usize / size_bytes).clamp(1, MOST_SEGMENTS)
        } else {
            // Off again, where an earlier sender had it on; a kernel that refuses does not know it at all.
            let _ = segment(socket, 0);
            1
        };
        Ok(Sender {
            batch: Batch::new(SLOTS, segments * size_bytes),
            size_bytes,
            segments,
        })
    }

    /// Send datagrams 0 to `count` of a run, as fast as they go.
    pub fn send(&mut self, socket: &UdpSocket, run: u32, count: u64) -> io::Result<()> {
        let mut number = 0;
        while number < count {
            let mut slots = 0;
            while slots < self.batch.slots() && number < count {
                let segments = (count - number).min(self.segments as u64) as usize;
                let slot = self.batch.slot(slots);
                for datagram in slot.chunks_exact_mut(self.size_bytes).take(segments) {
                    datagram[..HEADER_BYTES].copy_from_slice(&header(run, number));
                    number += 1;
                }
                self.batch.set_length(slots, segments * self.size_bytes);
                slots += 1;
            }
            self.batch.send(socket, slots)?;
        }
        Ok(())
    }
}

impl Receiver {
    pub fn new(socket: &UdpSocket, size_bytes: usize) -> io::Result<Receiver> {
        socket.set_read_timeout(Some(QUIET))?;
        Ok(Receiver {
            batch: Batch::new(SLOTS, size_bytes),
            size_bytes,
        })
    }

    /// Receive a run: until all `count` are there, or `sender` has something to say and nothing has come for
    /// [`QUIET`]. TimedOut when neither happens for `patience`.
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        run: u32,
        count: u64,
        sender: &TcpStream,
        patience: Duration,
    ) -> io::Result<Tally> {
        let mut tally = Tally::default();
        let mut seen = Seen::default();
        let mut last = Instant::now();
        let mut is_sent = false;
        while tally.count < count {
            let got = match self.batch.receive(socket) {
                Ok(got) => got,
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if is_sent => break,
                Err(_) => {
                    // What was sent just before it says so may be here by now: that is looked for once more.
                    is_sent = readable(sender)?;
                    0
                }
            };
            let stamp_ns = now_ns();
            let before = tally.count;
            for slot in 0..got {
                note(
                    &mut tally,
                    &mut seen,
                    run,
                    self.size_bytes,
                    self.batch.received(slot),
                );
            }
            if tally.count > before {
                last = Instant::now();
                tally.end_ns = stamp_ns;
                if before == 0 {
                    (tally.first, tally.start_ns) = (tally.count, stamp_ns);
                }
            } else if last.elapsed() > patience {
                // Silence, or what is not of this run.
                return Err(ErrorKind::TimedOut.into());
            }
        }
        tally.now_ns = now_ns();
        Ok(tally)
    }
}

/// Count one datagram, however often it comes. One of another run is late, and counts for none.
fn note(tally: &mut Tally, seen: &mut Seen, run: u32, size_bytes: usize, datagram: Option<&[u8]>) {
    let Some(bytes) = datagram.filter(|bytes| bytes.len() >= HEADER_BYTES) else {
        tally.wrong += u64::from(datagram.is_none());
        return;
    };
    if bytes[..4] != run.to_le_bytes() {
        return;
    }
    let number = u64::from_le_bytes(bytes[8..HEADER_BYTES].try_into().expect("eight bytes"));
    if bytes.len() != size_bytes || bytes[..HEADER_BYTES] != header(run, number) {
        tally.wrong += 1;
        return;
    }
    let came = seen.note(number);
    tally.count += u64::from(came != Came::Again);
    tally.doubled += u64::from(came == Came::Again);
    tally.disordered += u64::from(came == Came::Overtaken);
}

fn header(run: u32, number: u64) -> [u8; HEADER_BYTES] {
    let check = (number ^ u64::from(run)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&run.to_le_bytes());
    bytes[4..8].copy_from_slice(&(check as u32).to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// Only against hanging.
    const PATIENCE: Duration = Duration::from_secs(3600);

    fn controls() -> (TcpStream, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn tallied(datagrams: &[(u32, u64, usize)]) -> Tally {
        let mut tally = Tally::default();
        let mut seen = Seen::default();
        for (run, number, size_bytes) in datagrams {
            let mut bytes = header(*run, *number).to_vec();
            bytes.resize(*size_bytes, 1);
            note(&mut tally, &mut seen, 7, 64, Some(&bytes));
        }
        tally
    }

    #[test]
    fn only_the_runs_own_are_counted() {
        let tally = tallied(&[(6, 9, 64), (7, 0, 64), (7, 1, 64), (8, 2, 64)]);
        assert_eq!((tally.count, tally.wrong, tally.disordered), (2, 0, 0));
    }

    #[test]
    fn what_is_overtaken_is_told_from_what_comes_twice_whatever_is_lost() {
        // 3 to 8 are lost, 1 is overtaken, 2 and 1 come once more.
        let numbers = [0, 2, 1, 2, 9, 1];
        let datagrams = numbers.map(|number| (7, number, 64));
        let tally = tallied(&datagrams);
        assert_eq!((tally.count, tally.doubled, tally.disordered), (4, 2, 1));
    }

    #[test]
    fn other_contents_or_another_length_is_wrong() {
        let mut tally = tallied(&[(7, 0, 63), (7, 1, 65)]);
        let mut changed = header(7, 2).to_vec();
        changed.resize(64, 1);
        changed[15] ^= 1;
        note(&mut tally, &mut Seen::default(), 7, 64, Some(&changed));
        note(&mut tally, &mut Seen::default(), 7, 64, None);
        assert_eq!((tally.count, tally.wrong), (0, 4));
    }

    #[test]
    fn a_run_is_received_whole_with_and_without_segmentation() {
        let (control, mut said) = controls();
        said.write_all(&[1]).unwrap(); // and is not read: each run is over when nothing comes any more
        for segmentation in [false, true] {
            let near = UdpSocket::bind("127.0.0.1:0").unwrap();
            let far = UdpSocket::bind("127.0.0.1:0").unwrap();
            far.connect(near.local_addr().unwrap()).unwrap();
            let mut receiver = Receiver::new(&near, 100).unwrap();
            let mut sender = Sender::new(&far, 100, segmentation).unwrap();
            // The loopback's own queue may have no room on a busy machine: one run of many comes whole.
            let is_whole = |run| {
                sender.send(&far, run, 90).unwrap();
                let tally = receiver
                    .receive(&near, run, 90, &control, PATIENCE)
                    .unwrap();
                assert_eq!((tally.wrong, tally.doubled), (0, 0));
                tally.count == 90
            };
            assert!((1..100).any(is_whole));
        }
    }

    #[test]
    fn what_comes_while_its_sender_says_that_it_is_sent_is_waited_for() {
        let (control, mut said) = controls();
        said.write_all(&[1]).unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut receiver = Receiver::new(&near, 100).unwrap();
        let start = Instant::now();
        let tally = receiver.receive(&near, 1, 1, &control, PATIENCE).unwrap();
        assert_eq!(tally.count, 0);
        assert!(start.elapsed() >= 2 * QUIET - Duration::from_millis(2)); // the kernel's ticks
    }

    #[test]
    fn datagrams_of_others_without_end_are_no_run() {
        let (control, _said) = controls();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        let mut receiver = Receiver::new(&near, 100).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    far.send(&[1; 100]).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let outcome = receiver.receive(&near, 1, 1, &control, Duration::from_millis(1));
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
        });
    }

    proptest! {
        #[test]
        fn any_datagram_is_counted_without_a_panic(
            size_bytes in 16..100_usize, bytes in prop::collection::vec(any::<u8>(), 0..120), number: u64,
        ) {
            let (mut tally, mut seen) = (Tally::default(), Seen::default());
            note(&mut tally, &mut seen, 7, size_bytes, Some(&bytes));
            let mut own = header(7, number).to_vec();
            own.resize(size_bytes, 1);
            note(&mut tally, &mut seen, 7, size_bytes, Some(&own));
            note(&mut tally, &mut seen, 7, size_bytes, Some(&own));
            prop_assert!(tally.count <= 2 && tally.doubled >= 1);
        }
    }

    #[test]
    fn segmentation_ends_with_its_sender() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.set_read_timeout(Some(QUIET)).unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        Sender::new(&far, 16, true).unwrap();
        let mut sender = Sender::new(&far, 64, false).unwrap();
        let length = (1..100).find_map(|run| {
            sender.send(&far, run, 1).unwrap();
            near.recv(&mut [0; 100]).ok()
        });
        assert_eq!(length, Some(64));
    }

    #[test]
    fn a_silent_sender_is_given_up() {
        let (control, _said) = controls();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut receiver = Receiver::new(&near, 100).unwrap();
        let silent = receiver.receive(&near, 1, 1, &control, Duration::from_millis(1));
        assert_eq!(silent.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
