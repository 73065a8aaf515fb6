//! What the two ends of a flow say to each other: JSON with its length before it, and the header of each datagram.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::counts::Counted;
use super::spread::Bins;

/// Each datagram, and each message of a stream, begins with this.
pub const HEADER_BYTES: usize = 32;
/// The segment of a stream's last message.
pub const END: u32 = u32::MAX;
const MOST_JSON_BYTES: u32 = 256 << 20;

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

pub fn tell(mut stream: impl Write, what: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(what)?;
    stream.write_all(&(text.len() as u32).to_le_bytes())?;
    stream.write_all(&text)
}

pub fn hear<T: DeserializeOwned>(mut stream: impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MOST_JSON_BYTES {
        return Err(io::Error::other(
            "what the other end says is no part of a flow",
        ));
    }
    let mut text = vec![0; length as usize];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(hear::<Ended>(bytes.as_slice()).unwrap().taken, 42);
        assert!(hear::<Ended>(&b"GET / HTTP/1.1"[..]).is_err());
        assert!(hear::<Ended>(&bytes[..5]).is_err());
    }
}
