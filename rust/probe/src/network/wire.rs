//! What the two ends say to each other: little-endian records of fixed length, between two builds of one version.

use std::io::{self, Read, Write};
use std::ops::RangeInclusive;

use super::datagrams::HEADER_BYTES;
use super::{MOST_BYTES, MOST_DATAGRAM_BYTES};
use crate::windows::now_ns;

const MAGIC: [u8; 4] = *b"vtp2";
pub const GREETING_BYTES: usize = 16;

/// What a TCP connection to the peer is for. Its first bytes say so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Messages of the greeting's size, each sent back, until the connection ends.
    Echo = 1,
    /// One message, which came along with the greeting, sent back; then the peer closes.
    Once = 2,
    /// Runs of bytes towards the peer: each is announced by its length and answered by a tally.
    Sink = 3,
    /// Runs of bytes from the peer: each is asked for by its length and followed by a tally.
    Source = 4,
    /// Datagrams on the same port, each sent back; this connection only lasts as long as they do.
    EchoDatagrams = 5,
    /// Runs of datagrams on the same port, each begun by an [`Order`] on this connection.
    Datagrams = 6,
    /// One flow of datagrams on the same port, as ordered on this connection (flow/wire.rs).
    Flow = 7,
    /// One flow of bytes on this connection itself.
    FlowStream = 8,
}

impl Role {
    /// What messages of it may have: room is made for so much.
    fn sizes_bytes(self) -> RangeInclusive<u64> {
        match self {
            Role::Echo | Role::Once | Role::Sink | Role::Source | Role::FlowStream => {
                1..=MOST_BYTES
            }
            Role::EchoDatagrams => 1..=MOST_DATAGRAM_BYTES,
            Role::Datagrams | Role::Flow => HEADER_BYTES as u64..=MOST_DATAGRAM_BYTES,
        }
    }
}

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Greeting {
    pub role: Role,
    /// Whether the peer leaves the cutting into datagrams to the kernel (UDP_SEGMENT).
    pub segmentation: bool,
    pub size_bytes: u32,
    /// Tells this client's first datagram from another's.
    pub token: u32,
}

impl Greeting {
    pub fn new(role: Role, size_bytes: u64) -> Greeting {
        Greeting {
            role,
            segmentation: false,
            size_bytes: size_bytes as u32,
            token: now_ns() as u32,
        }
    }

    pub fn bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.role as u8;
        bytes[5] = self.segmentation.into();
        bytes[8..12].copy_from_slice(&self.size_bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    /// Whether these bytes are a greeting, whoever's.
    pub fn is_one(bytes: &[u8]) -> bool {
        <[u8; GREETING_BYTES]>::try_from(bytes).is_ok_and(|bytes| Greeting::parse(bytes).is_some())
    }

    /// None for anything that this version does not understand.
    pub fn parse(bytes: [u8; GREETING_BYTES]) -> Option<Greeting> {
        use Role::{Datagrams, Echo, EchoDatagrams, Flow, FlowStream, Once, Sink, Source};
        let roles = [
            Echo,
            Once,
            Sink,
            Source,
            EchoDatagrams,
            Datagrams,
            Flow,
            FlowStream,
        ];
        let role = roles.into_iter().find(|role| *role as u8 == bytes[4])?;
        let size_bytes = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        let fits = role.sizes_bytes().contains(&u64::from(size_bytes));
        let greeting = Greeting {
            role,
            segmentation: bytes[5] == 1,
            size_bytes,
            token: u32::from_le_bytes(bytes[12..].try_into().ok()?),
        };
        (bytes[..4] == MAGIC && fits).then_some(greeting)
    }
}

/// Begins one run of datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    /// In each of the run's datagrams too: one that comes late does not count for the next run.
    pub run: u32,
    pub direction: Direction,
    pub count: u64,
}

/// As the instance sees it, in which the peer stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Direction {
    In,
    Out,
}

impl Order {
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.run.to_le_bytes());
        bytes[4] = u8::from(self.direction == Direction::Out);
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: [u8; 16]) -> Order {
        let [a, b, c, d, out, _, _, _, count @ ..] = bytes;
        Order {
            run: u32::from_le_bytes([a, b, c, d]),
            direction: if out == 1 {
                Direction::Out
            } else {
                Direction::In
            },
            count: u64::from_le_bytes(count),
        }
    }
}

/// What one end counted of a run, by its own stamps. A sender's has `count` and `now_ns` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Bytes (TCP) or different datagrams (UDP).
    pub count: u64,
    /// How many of them had come by `start_ns`: they are no part of the rate.
    pub first: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    /// With other contents, or of another length, than they were sent with.
    pub wrong: u64,
    /// Overtaken by a later one.
    pub disordered: u64,
    /// Come once more; counted nowhere else.
    pub doubled: u64,
    /// The clock of whoever counted, at the moment of telling.
    pub now_ns: u64,
}

/// Nobody counts more of what should not be.
const MOST_COUNT: u64 = 1 << 48;

impl Tally {
    const FIELDS: usize = 8;

    /// Of an end that has sent so much.
    pub fn of_sender(count: u64) -> Tally {
        Tally {
            count,
            ..Tally::default()
        }
    }

    /// What came after the first stamp, a second; None where nothing did: one stamp gives no rate.
    pub fn per_s(&self) -> Option<f64> {
        let after = self
            .count
            .checked_sub(self.first)
            .filter(|after| *after > 0)?;
        Some(after as f64 * 1e9 / self.duration_ns() as f64)
    }

    /// Whether it can be told of a run of so much: whoever counted may be a stranger, and may say anything.
    pub fn is_of(&self, whole: u64) -> bool {
        self.first <= self.count
            && self.count <= whole
            && self.start_ns <= self.end_ns
            && [self.wrong, self.disordered, self.doubled]
                .iter()
                .all(|count| *count <= MOST_COUNT)
    }

    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns).max(1)
    }

    pub fn write(&self, mut stream: impl Write) -> io::Result<()> {
        let fields = [
            self.count,
            self.first,
            self.start_ns,
            self.end_ns,
            self.wrong,
            self.disordered,
            self.doubled,
            now_ns(),
        ];
        let bytes: Vec<u8> = fields
            .iter()
            .flat_map(|field| field.to_le_bytes())
            .collect();
        stream.write_all(&bytes)
    }

    pub fn read(mut stream: impl Read) -> io::Result<Tally> {
        let mut bytes = [0; 8 * Tally::FIELDS];
        stream.read_exact(&mut bytes)?;
        let mut fields = bytes
            .chunks_exact(8)
            .map(|field| u64::from_le_bytes(field.try_into().expect("eight bytes")));
        let mut next = || fields.next().expect("eight fields");
        Ok(Tally {
            count: next(),
            first: next(),
            start_ns: next(),
            end_ns: next(),
            wrong: next(),
            disordered: next(),
            doubled: next(),
            now_ns: next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_is_understood_and_nothing_else() {
        let greeting = Greeting {
            segmentation: true,
            ..Greeting::new(Role::Datagrams, 1470)
        };
        assert_eq!(Greeting::parse(greeting.bytes()), Some(greeting));
        assert_eq!(Greeting::parse(*b"GET / HTTP/1.1\r\n"), None);
        assert_eq!(Greeting::parse(Greeting::new(Role::Echo, 0).bytes()), None);
    }

    #[test]
    fn orders_and_tallies_come_over_whole() {
        let order = Order {
            run: 7,
            direction: Direction::Out,
            count: 1 << 40,
        };
        assert_eq!(Order::parse(order.bytes()), order);
        let tally = Tally {
            count: 1000,
            first: 64,
            start_ns: 5,
            end_ns: 1_000_000_005,
            wrong: 1,
            disordered: 2,
            doubled: 3,
            now_ns: 0,
        };
        let mut bytes = Vec::new();
        tally.write(&mut bytes).unwrap();
        let read = Tally::read(bytes.as_slice()).unwrap();
        assert!(read.now_ns > 0);
        assert_eq!(Tally { now_ns: 0, ..read }, tally);
        assert!((tally.per_s().unwrap() - 936.0).abs() < 1e-6);
        assert_eq!(
            Tally {
                first: 1000,
                ..tally
            }
            .per_s(),
            None,
            "all came at once"
        );
        assert!(tally.is_of(1000) && !tally.is_of(999));
    }

    #[test]
    fn a_size_that_its_role_has_no_room_for_is_not_understood() {
        for (role, size_bytes, fits) in [
            (Role::Datagrams, 15, false),
            (Role::Datagrams, 16, true),
            (Role::Datagrams, 65_508, false),
            (Role::EchoDatagrams, 1, true),
            (Role::Flow, 65_508, false),
            (Role::Echo, 16 << 20, true),
            (Role::Sink, (16 << 20) + 1, false),
        ] {
            let greeting = Greeting::new(role, size_bytes);
            assert_eq!(
                Greeting::parse(greeting.bytes()),
                fits.then_some(greeting),
                "{role:?} {size_bytes}"
            );
        }
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_are_read_without_a_panic(bytes: [u8; 16], kind in 0..12_u8, tally in prop::array::uniform32(any::<u8>())) {
            let mut greeting = bytes;
            Greeting::parse(greeting);
            greeting[..4].copy_from_slice(&MAGIC);
            greeting[4] = kind;
            if let Some(parsed) = Greeting::parse(greeting) {
                prop_assert!(u64::from(parsed.size_bytes) <= MOST_BYTES);
                prop_assert!(Greeting::is_one(&greeting));
            }
            prop_assert_eq!(Order::parse(Order::parse(bytes).bytes()), Order::parse(bytes));
            let read = Tally::read([tally, tally].concat().as_slice()).unwrap();
            read.per_s();
            if read.is_of(1 << 30) {
                prop_assert!(read.count <= 1 << 30 && read.per_s().is_none_or(|rate| rate > 0.0));
            }
            prop_assert!(Tally::read(&tally[..]).is_err(), "too short");
        }
    }
}
