//! What the two ends of a flow say to each other: JSON with its length before it, and the header of each datagram.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::counts::Counted;
use super::schedule::{MOST_NS, MOST_SEGMENTS};
use super::settings::{LEAST_SERIES_NS, MOST_BUFFER_BYTES, MOST_TRACE};
use super::spread::{Bins, MOST_BINS};

/// Each datagram, and each message of a stream, begins with this.
pub const HEADER_BYTES: usize = 32;
/// The segment of a stream's last message.
pub const END: u32 = u32::MAX;
/// No order is longer than its segments are, no word than a few numbers, and no answer than its bins and its trace.
pub const MOST_ORDER_BYTES: u32 = 1 << 20;
pub const MOST_WORD_BYTES: u32 = 1 << 10;
pub const MOST_ANSWER_BYTES: u32 = 96 << 20;
/// What is said has so long to come whole, and a second more for so many bytes: one that trickles is no peer.
const PATIENCE: Duration = Duration::from_secs(60);
const SLOWEST_BYTES_PER_S: u32 = 100_000;
/// Room made beforehand for what is to come: as it comes there is more, and not because its length says so.
const PART_BYTES: usize = 64 << 10;
/// No peer has counted more of anything: sums of as many bins as there may be still fit a number.
const MOST_COUNT: u64 = 1 << 43;

/// What is in the header: which flow, which segment of its schedule, which number, and when it departed (ns from the
/// start of the flow, by the sender's clock).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    pub run: u32,
    pub segment: u32,
    pub number: u64,
    pub at_ns: u64,
}

impl Header {
    fn check(self) -> u64 {
        let mixed = self.number ^ self.at_ns.rotate_left(32);
        let flow = u64::from(self.run) << 32 | u64::from(self.segment);
        (mixed ^ flow).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    pub fn write(self, to: &mut [u8]) {
        to[..4].copy_from_slice(&self.run.to_le_bytes());
        to[4..8].copy_from_slice(&self.segment.to_le_bytes());
        to[8..16].copy_from_slice(&self.number.to_le_bytes());
        to[16..24].copy_from_slice(&self.at_ns.to_le_bytes());
        to[24..HEADER_BYTES].copy_from_slice(&self.check().to_le_bytes());
    }

    /// None where the check word is not that of the rest, or the bytes are too few.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let flow = word(0)?;
        let header = Header {
            run: flow as u32,
            segment: (flow >> 32) as u32,
            number: word(8)?,
            at_ns: word(16)?,
        };
        (word(24)? == header.check()).then_some(header)
    }
}

/// What the receiver is to expect.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Order {
    /// In each datagram too: one of another flow does not count.
    pub run: u32,
    pub size_bytes: usize,
    /// Bytes are counted by intervals of this length.
    pub series_ns: u64,
    /// How much room it is to ask for, for what it has not read yet.
    pub buffer_bytes: i32,
    /// The arrivals of so many datagrams are kept one by one.
    pub trace: usize,
    /// (start_ns, end_ns) of each segment, from the start of the flow. The first is the warm-up.
    pub segments: Vec<(u64, u64)>,
}

impl Order {
    /// The order, where a flow can be had by it: what a stranger sends is divided by, and room is made for it.
    pub fn sound(self, most_bytes: u64) -> io::Result<Order> {
        let mut end_ns = 0;
        let follows = |segment: &(u64, u64)| {
            let follows = segment.0 == end_ns && segment.1 >= segment.0;
            end_ns = segment.1;
            follows
        };
        let is_sound = (HEADER_BYTES as u64..=most_bytes).contains(&(self.size_bytes as u64))
            && self.series_ns >= LEAST_SERIES_NS
            && (0..=MOST_BUFFER_BYTES as i32).contains(&self.buffer_bytes)
            && self.trace as u64 <= MOST_TRACE
            && (1..=MOST_SEGMENTS + 1).contains(&self.segments.len())
            && self.segments.iter().all(follows)
            && end_ns <= 2 * MOST_NS;
        is_sound.then_some(self).ok_or_else(no_flow)
    }
}

/// The receiver is ready; its clock at that moment.
#[derive(Debug, Deserialize, Serialize)]
pub struct Ready {
    pub now_ns: u64,
}

/// The sender has sent all it had.
#[derive(Debug, Deserialize, Serialize)]
pub struct Ended {
    pub taken: u64,
}

/// What the receiver saw. Times are its CLOCK_MONOTONIC, in ns.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Answer {
    /// When the flow began, as it is seen there: an arrival, less the time since the start when it departed; the
    /// earliest such of the warm-up.
    pub start_ns: u64,
    pub segments: Vec<Counted>,
    pub bins: Bins,
    /// (number, arrival_ns) of the first measured ones.
    pub trace: Vec<(u64, u64)>,
    /// Times between arrivals: (lower_ns, upper_ns, count).
    pub histogram: Vec<(u64, u64, u64)>,
    pub received: u64,
    pub wrong: u64,
    pub reordered: u64,
    /// Come once more; counted nowhere else.
    pub doubled: u64,
    /// Whose arrival times these are: "kernel", or "program".
    pub stamps: String,
    /// Datagrams that came without the kernel's time.
    pub unstamped: u64,
    /// Datagrams that the receiver's own buffer had no room for, where the kernel tells.
    pub overrun: Option<u64>,
    pub buffer_bytes: u64,
    /// How far the clock that the kernel stamps by was moved meanwhile.
    pub clock_moved_ns: u64,
    pub now_ns: u64,
}

impl Answer {
    /// Whether this answers that order, in numbers that can be reckoned with: the receiver stands in the instance, and
    /// may say anything.
    pub fn fits(&self, order: &Order) -> bool {
        let counts = self
            .segments
            .iter()
            .flat_map(|one| [one.received, one.arrived, one.arrived_bytes, one.gaps.count])
            .chain(self.bins.bytes.iter().copied())
            .chain([self.received, self.wrong, self.reordered, self.doubled]);
        self.segments.len() == order.segments.len()
            && self.bins.step_ns == order.series_ns
            && self.bins.bytes.len() <= MOST_BINS
            && self.trace.len() <= order.trace
            && counts.into_iter().all(|count| count <= MOST_COUNT)
            && self.histogram.iter().all(|(lower, upper, _)| lower < upper)
            && self.histogram.is_sorted_by(|one, next| one.1 <= next.0)
            && ["kernel", "program", ""].contains(&self.stamps.as_str())
    }
}

pub fn tell(mut stream: impl Write, what: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(what)?;
    stream.write_all(&(text.len() as u32).to_le_bytes())?;
    stream.write_all(&text)
}

/// What the other end says, of no more than so many bytes. TimedOut where it trickles; each wait has the stream's own
/// time-out too.
pub fn hear<T: DeserializeOwned>(mut stream: impl Read, most_bytes: u32) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > most_bytes {
        return Err(no_flow());
    }
    let patience = PATIENCE + Duration::from_secs((length / SLOWEST_BYTES_PER_S).into());
    let text = part(stream, length as usize, Instant::now() + patience)?;
    Ok(serde_json::from_slice(&text)?)
}

fn part(mut stream: impl Read, length: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut buffer = vec![0; length.min(PART_BYTES)];
    while text.len() < length {
        let most = buffer.len().min(length - text.len());
        match stream.read(&mut buffer[..most]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => text.extend_from_slice(&buffer[..got]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if text.len() < length && Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(text)
}

fn no_flow() -> io::Error {
    io::Error::other("what the other end says is no part of a flow")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_comes_over_whole_or_not_at_all() {
        let header = Header {
            run: 7,
            segment: 3,
            number: 1 << 40,
            at_ns: 123_456_789_012,
        };
        let mut bytes = [1; 64];
        header.write(&mut bytes);
        assert_eq!(Header::read(&bytes), Some(header));
        assert_eq!(Header::read(&bytes[..31]), None);
        for at in [0, 5, 9, 17, 31] {
            let mut changed = bytes;
            changed[at] ^= 4;
            assert_eq!(Header::read(&changed), None, "byte {at}");
        }
    }

    #[test]
    fn words_come_over_whole_and_strangers_are_not_believed() {
        let mut bytes = Vec::new();
        tell(&mut bytes, &Ended { taken: 42 }).unwrap();
        let heard = |bytes: &[u8]| hear::<Ended>(bytes, MOST_WORD_BYTES);
        assert_eq!(heard(&bytes).unwrap().taken, 42);
        assert!(heard(b"GET / HTTP/1.1").is_err());
        assert!(heard(&bytes[..5]).is_err());
        assert!(hear::<Ended>(bytes.as_slice(), 3).is_err());
    }

    #[test]
    fn one_who_trickles_is_not_waited_for() {
        struct Trickle;
        impl Read for Trickle {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                buffer[0] = b' ';
                Ok(1)
            }
        }
        let late = part(Trickle, 1 << 30, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert_eq!(part(Trickle, 1, Instant::now()).unwrap(), b" ");
    }

    fn order() -> Order {
        Order {
            run: 1,
            size_bytes: 64,
            series_ns: LEAST_SERIES_NS,
            buffer_bytes: 1,
            trace: 5,
            segments: vec![(0, 2000), (2000, 6000)],
        }
    }

    #[test]
    fn an_order_that_no_flow_can_be_had_by_is_refused() {
        assert!(order().sound(65_507).is_ok());
        let wrong: [fn(&mut Order); 9] = [
            |order| order.size_bytes = 0,
            |order| order.size_bytes = usize::MAX,
            |order| order.series_ns = 0,
            |order| order.buffer_bytes = -1,
            |order| order.trace = usize::MAX,
            |order| order.segments.clear(),
            |order| order.segments = vec![(0, 1); 5000],
            |order| order.segments[1] = (2000, 1000),
            |order| order.segments[1].1 = u64::MAX,
        ];
        for (number, spoil) in wrong.iter().enumerate() {
            let mut order = order();
            spoil(&mut order);
            assert!(order.sound(65_507).is_err(), "{number}");
        }
    }

    #[test]
    fn an_answer_that_fits_no_such_flow_is_not_believed() {
        let answer = || Answer {
            segments: vec![Counted::default(); 2],
            bins: Bins {
                step_ns: LEAST_SERIES_NS,
                bytes: vec![1],
            },
            histogram: vec![(0, 1, 1), (5, 9, 1)],
            ..Answer::default()
        };
        assert!(answer().fits(&order()));
        let wrong: [fn(&mut Answer); 9] = [
            |answer| answer.segments.clear(),
            |answer| answer.segments.push(Counted::default()),
            |answer| answer.segments[1].received = u64::MAX,
            |answer| answer.bins.step_ns = 0,
            |answer| answer.bins.bytes = vec![u64::MAX],
            |answer| answer.trace = vec![(0, 0); 6],
            |answer| answer.histogram[1] = (9, 9, 1),
            |answer| answer.histogram[1] = (0, 9, 1),
            |answer| answer.stamps = "a".repeat(1000),
        ];
        for (number, spoil) in wrong.iter().enumerate() {
            let mut answer = answer();
            spoil(&mut answer);
            assert!(!answer.fits(&order()), "{number}");
        }
    }

    proptest! {
        #[test]
        fn any_header_comes_over_and_any_bytes_are_no_panic(
            run: u32, segment: u32, number: u64, at_ns: u64, bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let header = Header { run, segment, number, at_ns };
            let mut written = [0; HEADER_BYTES];
            header.write(&mut written);
            prop_assert_eq!(Header::read(&written), Some(header));
            Header::read(&bytes);
        }

        #[test]
        fn any_bytes_are_heard_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = hear::<Order>(bytes.as_slice(), MOST_ORDER_BYTES);
            let _ = hear::<Answer>(bytes.as_slice(), MOST_ANSWER_BYTES);
            let mut with_length = (bytes.len() as u32).to_le_bytes().to_vec();
            with_length.extend(&bytes);
            let _ = hear::<Ready>(with_length.as_slice(), MOST_WORD_BYTES);
        }

        #[test]
        fn any_change_of_an_order_is_refused_or_sound(at: prop::sample::Index, byte: u8) {
            let mut bytes = Vec::new();
            tell(&mut bytes, &order()).unwrap();
            let at = 4 + at.index(bytes.len() - 4);
            bytes[at] = byte;
            if let Ok(heard) = hear::<Order>(bytes.as_slice(), MOST_ORDER_BYTES) {
                if let Ok(order) = heard.sound(65_507) {
                    super::super::counts::Counts::new(order).datagram(Some(&[1; 64]), 5);
                }
            }
        }
    }
}
