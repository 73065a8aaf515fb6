//! A counted run of datagrams over UDP, each of which says which run it is of and its number in it.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

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
        while tally.count < count {
            let got = match self.batch.receive(socket) {
                Ok(got) => got,
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if readable(sender)? => break,
                Err(_) if last.elapsed() > patience => return Err(ErrorKind::TimedOut.into()),
                Err(_) => continue,
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
            }
        }
        tally.now_ns = now_ns();
        Ok(tally)
    }
}

/// Which numbers of a run have come, as far back as [`Seen::REACH`]: farther than any queue on the way is long.
struct Seen {
    /// The number expected next: one more than the highest that came.
    next: u64,
    bits: Box<[u64]>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            next: 0,
            bits: vec![0; (Seen::REACH / 64) as usize].into_boxed_slice(),
        }
    }
}

/// How a datagram came.
#[derive(Debug, PartialEq)]
enum Came {
    InOrder,
    /// After one with a higher number, for the first time.
    Overtaken,
    /// Once more; or so late that it cannot be told from one that did.
    Again,
}

impl Seen {
    const REACH: u64 = 1 << 16;

    fn note(&mut self, number: u64) -> Came {
        if number >= self.next {
            for skipped in self.next.max(number.saturating_sub(Seen::REACH))..number {
                self.set(skipped, false); // until now its bit was of a number that is out of reach
            }
            self.next = number + 1;
            self.set(number, true);
            return Came::InOrder;
        }
        if number + Seen::REACH < self.next || self.has(number) {
            return Came::Again;
        }
        self.set(number, true);
        Came::Overtaken
    }

    fn has(&self, number: u64) -> bool {
        let place = number % Seen::REACH;
        self.bits[(place / 64) as usize] >> (place % 64) & 1 == 1
    }

    fn set(&mut self, number: u64, came: bool) {
        let place = number % Seen::REACH;
        let word = &mut self.bits[(place / 64) as usize];
        *word = *word & !(1 << (place % 64)) | u64::from(came) << (place % 64);
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
    fn numbers_are_remembered_as_far_as_the_reach_and_not_mixed_up_beyond_it() {
        const REACH: u64 = Seen::REACH;
        let mut seen = Seen::default();
        let came: Vec<Came> = [5, REACH + 5, REACH + 4, REACH + 4, 6, 7, 5, 4 * REACH]
            .map(|number| seen.note(number))
            .into();
        use Came::{Again, InOrder, Overtaken};
        let expected = [
            InOrder, InOrder, Overtaken, Again, Overtaken, Overtaken, Again,
        ];
        assert_eq!(came[..7], expected);
        assert_eq!(came[7], InOrder);
        assert_eq!(seen.note(3 * REACH + 4), Overtaken, "skipped, not seen");
        assert_eq!(seen.note(3 * REACH), Again, "too late to be told");
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
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let control = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for segmentation in [false, true] {
            let near = UdpSocket::bind("127.0.0.1:0").unwrap();
            let far = UdpSocket::bind("127.0.0.1:0").unwrap();
            far.connect(near.local_addr().unwrap()).unwrap();
            let mut receiver = Receiver::new(&near, 100).unwrap();
            Sender::new(&far, 100, segmentation)
                .unwrap()
                .send(&far, 3, 90)
                .unwrap();
            let patience = Duration::from_secs(5);
            let tally = receiver.receive(&near, 3, 90, &control, patience).unwrap();
            assert_eq!((tally.count, tally.wrong, tally.doubled), (90, 0, 0));
        }
    }

    #[test]
    fn segmentation_ends_with_its_sender() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        Sender::new(&far, 16, true).unwrap();
        Sender::new(&far, 64, false)
            .unwrap()
            .send(&far, 1, 1)
            .unwrap();
        assert_eq!(near.recv(&mut [0; 100]).unwrap(), 64);
    }

    #[test]
    fn a_silent_sender_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let control = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut receiver = Receiver::new(&near, 100).unwrap();
        let silent = receiver.receive(&near, 1, 1, &control, Duration::from_millis(1));
        assert_eq!(silent.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
