//! The network between two ends: how long an answer takes, how much goes through, how fast connections are made.
//!
//! One end is [`peer`], a responder on one port (`virtoll-agent peer --port N`), which runs inside the instance. The
//! other is a probe, on the generator's side; so what is timed is timed by the host's clock wherever that can be. The
//! work is Netperf's (https://hewlettpackard.github.io/netperf/): TCP_RR and UDP_RR are `round-trip`, TCP_STREAM and
//! UDP_STREAM are `bulk`, TCP_CRR is `connect`.

mod bulk;
mod connect;
mod datagrams;
mod effort;
mod links;
pub(crate) mod meeting;
pub(crate) mod peer;
mod round_trip;
pub(crate) mod seen;
pub(crate) mod sockets;
mod stream;
pub(crate) mod wire;

pub use peer::main as peer;

pub use bulk::PROBE as BULK;
pub use connect::PROBE as CONNECT;
pub use round_trip::PROBE as ROUND_TRIP;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::Duration;

use virtoll_wire::hist::Histogram;

use crate::arguments::Arguments;
use crate::report::Failed;
use wire::Greeting;

/// No message over TCP is larger than this.
pub(crate) const MOST_BYTES: u64 = 16 << 20;
/// The largest payload of a UDP datagram over IPv4 (RFC 768: 65,535 less 8 and 20 of headers).
pub(crate) const MOST_DATAGRAM_BYTES: u64 = 65_507;

/// Where the peer is, and how long any one wait for it may take.
pub(crate) struct Line {
    pub address: SocketAddrV4,
    pub patience: Duration,
}

impl Line {
    /// From `--peer ADDRESS:PORT` and `--patience-ns`.
    pub fn from(arguments: &mut Arguments) -> Line {
        let given = arguments.required("peer");
        let patience_ns = arguments.at_least("patience-ns", 1_000_000, 10_000_000_000);
        let address = given.parse().unwrap_or_else(|_| {
            arguments.complain(format!("--peer {given:?} is not like 198.18.3.10:5210"));
            SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)
        });
        Line {
            address,
            patience: Duration::from_nanos(patience_ns),
        }
    }

    /// A connection to the peer, which has been told what it is for.
    pub fn connect(&self, greeting: Greeting) -> Result<TcpStream, Failed> {
        let open = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&self.address.into(), self.patience)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(self.patience))?;
            stream.set_write_timeout(Some(self.patience))?;
            io::Write::write_all(&mut &stream, &greeting.bytes())?;
            Ok(stream)
        };
        open().map_err(|error| self.lost("cannot reach the peer", &error))
    }

    /// The failure that an error on the way to the peer is.
    pub fn lost(&self, what: &str, error: &io::Error) -> Failed {
        use io::ErrorKind as Kind;
        let place = format!("peer {}", self.address);
        let why = match error.kind() {
            Kind::WouldBlock | Kind::TimedOut => {
                format!("{what}: nothing for {:?}", self.patience)
            }
            Kind::UnexpectedEof => format!("{what}: it closed the connection"),
            _ => format!("{what}: {error}"),
        };
        match error.kind() {
            Kind::OutOfMemory | Kind::InvalidInput | Kind::PermissionDenied | Kind::AddrNotAvailable => {
                Failed::system(place, error)
            }
            _ => Failed::new(
                "peer",
                why,
                place,
                "see that `virtoll-agent peer` of the same version runs there and that nothing on the way drops its port",
            ),
        }
    }
}

/// The length of a message, from `--size-bytes`.
pub(crate) fn size(arguments: &mut Arguments, least: u64, usual: u64, udp: bool) -> u64 {
    let most = if udp { MOST_DATAGRAM_BYTES } else { MOST_BYTES };
    let size_bytes = arguments.at_least("size-bytes", least, usual);
    if size_bytes > most {
        arguments.complain(format!("--size-bytes {size_bytes} is above {most}"));
    }
    size_bytes
}

/// A quantile of recorded nanoseconds in microseconds, evenly spread within its bucket (at most 0.4 % wide).
pub(crate) fn quantile_us(histogram: &Histogram, share: f64) -> f64 {
    let wanted = share * histogram.total() as f64;
    let mut below = 0.0;
    let mut at_ns = 0.0;
    for (lower, upper, count) in histogram.buckets() {
        let inside = ((wanted - below) / count as f64).clamp(0.0, 1.0);
        at_ns = lower as f64 + inside * (upper - lower) as f64;
        below += count as f64;
        if below >= wanted {
            break;
        }
    }
    at_ns / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_the_bucket_that_holds_them() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|us| histogram.record(us * 1000));
        assert!((quantile_us(&histogram, 0.5) - 50.0).abs() < 0.25);
        assert!((quantile_us(&histogram, 0.99) - 99.0).abs() < 0.5);
        assert!((quantile_us(&histogram, 1.0) - 100.0).abs() < 0.5);
    }

    #[test]
    fn what_is_no_address_or_too_large_is_complained_of() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut arguments = Arguments::parse(&words("--peer localhost")).unwrap();
        Line::from(&mut arguments);
        assert!(arguments.complaint().unwrap().contains("198.18.3.10:5210"));
        let mut arguments = Arguments::parse(&words("--size-bytes 65508")).unwrap();
        size(&mut arguments, 1, 1, false);
        assert!(arguments.are_right());
        let mut arguments = Arguments::parse(&words("--size-bytes 65508")).unwrap();
        size(&mut arguments, 1, 1, true);
        assert!(!arguments.are_right());
    }

    #[test]
    fn a_peer_that_is_gone_is_a_failure_of_that_kind() {
        let (_held, gone) = sockets::refusing().unwrap();
        let words = ["--peer".to_owned(), gone.to_string()];
        let line = Line::from(&mut Arguments::parse(&words).unwrap());
        let failed = line
            .connect(Greeting::new(wire::Role::Echo, 1))
            .unwrap_err();
        assert_eq!(failed.kind, "peer");
    }
}
