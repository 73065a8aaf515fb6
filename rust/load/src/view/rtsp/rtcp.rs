//! Reports of control (RTCP, RFC 3550): the sender's are read, and a receiver's are written.

use rtcp_types::prelude::*;
use rtcp_types::{Compound, Packet, ReceiverReport, ReportBlock, Sdes, SdesChunk, SdesItem};
use virtoll_generator::reception::Told;

use crate::tally::Failure;

const MOST_LOST: i64 = 0x7f_ffff;
const NAME: &str = "viewer@virtoll";

/// What a sender said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The middle 32 bits of the time at which it reported (6.4.1: LSR).
    Report {
        source: u32,
        time: u32,
    },
    Bye {
        source: u32,
    },
}

/// Show all that matters of a packet to `sink`; nothing of one that is wrong anywhere (A.2).
pub fn read(packet: &[u8], mut sink: impl FnMut(Said)) -> Result<(), Failure> {
    let parts = Compound::parse(packet).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for part in parts.map_err(|_| Failure::Parse)? {
        match part {
            Packet::Sr(report) => sink(Said::Report {
                source: report.ssrc(),
                time: (report.ntp_timestamp() >> 16) as u32,
            }),
            Packet::Bye(bye) => bye.ssrcs().for_each(|source| sink(Said::Bye { source })),
            _ => {}
        }
    }
    Ok(())
}

/// What a receiver remembers from one report to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reporter {
    told: Told,
    /// The last sender report's time, and when it came.
    last: Option<(u32, i64)>,
}

impl Reporter {
    pub fn heard(&mut self, time: u32, now_ns: i64) {
        self.last = Some((time, now_ns));
    }

    /// A report of what has come from `source`.
    pub fn report(&mut self, own: u32, source: u32, told: Told, now_ns: i64) -> Vec<u8> {
        let expected = told.expected - self.told.expected;
        let lost = (told.lost - self.told.lost).clamp(0, expected.max(0));
        let fraction = if expected > 0 {
            lost * 256 / expected
        } else {
            0
        };
        self.told = told;
        let (time, since_ns) = self
            .last
            .map_or((0, 0), |(time, at_ns)| (time, now_ns - at_ns));
        let block = ReportBlock::builder(source)
            .fraction_lost(fraction.min(255) as u8)
            .cumulative_lost((told.lost.clamp(-MOST_LOST, MOST_LOST) & 0xff_ffff) as u32)
            .extended_sequence_number(told.highest)
            .interarrival_jitter(told.jitter)
            .last_sender_report_timestamp(time)
            .delay_since_last_sender_report_timestamp(
                (i128::from(since_ns) * 65_536 / 1_000_000_000) as u32,
            );
        let name = SdesChunk::builder(own).add_item(SdesItem::builder(SdesItem::CNAME, NAME));
        let report = Compound::builder()
            .add_packet(ReceiverReport::builder(own).add_report_block(block))
            .add_packet(Sdes::builder().add_chunk(name));
        let mut packet = vec![0; report.calculate_size().unwrap_or(0)];
        let written = report.write_into(&mut packet).unwrap_or(0);
        packet.truncate(written);
        packet
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rtsp::interval_ns;
    use virtoll_generator::random::Random;

    /// As VLC 3.0.24 sent them: a sender report, and one with its farewell.
    const REPORT: &str = "80c8000617617c9feeade91301f729059cd6fd6d000000c80000d4e381ca000717617c9f01093132372e302e302e31060a766c6320332e302e323400";
    const BYE: &str = "80c80006778ff552eeade92b5cdfef20a62e908d000009890025f12281ca0007778ff55201093132372e302e302e31060a766c6320332e302e32340081cb0001778ff552";

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits = hexadecimal.as_bytes().chunks(2);
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn said(packet: &[u8]) -> Result<Vec<Said>, Failure> {
        let mut all = Vec::new();
        read(packet, |said| all.push(said)).map(|()| all)
    }

    #[test]
    fn a_sender_is_understood() {
        let report = Said::Report {
            source: 0x1761_7c9f,
            time: 0xe913_01f7,
        };
        assert_eq!(said(&bytes(REPORT)), Ok(vec![report]));
        let last = Said::Report {
            source: 0x778f_f552,
            time: 0xe92b_5cdf,
        };
        assert_eq!(
            said(&bytes(BYE)),
            Ok(vec![
                last,
                Said::Bye {
                    source: 0x778f_f552
                }
            ])
        );
        assert_eq!(said(b"\x80\xc8\x00\x06"), Err(Failure::Parse));
        let mut all = Vec::new();
        let torn = [&bytes(BYE), &b"\x80\xc8\x00\x06"[..]].concat();
        assert_eq!(read(&torn, |said| all.push(said)), Err(Failure::Parse));
        assert_eq!(all, [], "what is wrong says nothing");
    }

    #[test]
    fn a_report_tells_what_was_lost_since_the_last_one() {
        let mut reporter = Reporter::default();
        reporter.heard(0x1234_5678, 1_000_000_000);
        let first = Told {
            highest: 99,
            expected: 100,
            lost: 50,
            jitter: 7,
        };
        reporter.report(1, 2, first, 0);
        let second = Told {
            highest: 65_536 + 5,
            expected: 300,
            lost: 100,
            jitter: 8,
        };
        let packet = reporter.report(1, 2, second, 2_500_000_000);
        let mut parts = Compound::parse(&packet).unwrap();
        let Some(Ok(Packet::Rr(report))) = parts.next() else {
            panic!("a receiver report comes first")
        };
        assert_eq!((report.ssrc(), report.n_reports()), (1, 1));
        let block = report.report_blocks().next().unwrap();
        assert_eq!(
            (block.ssrc(), block.fraction_lost(), block.cumulative_lost()),
            (2, 64, 100)
        );
        assert_eq!(
            (
                block.extended_sequence_number(),
                block.interarrival_jitter()
            ),
            (65_541, 8)
        );
        assert_eq!(block.last_sender_report_timestamp(), 0x1234_5678);
        assert_eq!(
            block.delay_since_last_sender_report_timestamp(),
            3 * 65_536 / 2
        );
        assert!(matches!(parts.next(), Some(Ok(Packet::Sdes(_)))));
        let more = Told {
            highest: 0,
            expected: 300,
            lost: -5,
            jitter: 0,
        };
        let packet = reporter.report(1, 2, more, 0);
        assert_eq!(
            packet[12..16],
            [0, 0xff, 0xff, 0xfb],
            "what comes twice is less than nothing lost"
        );
    }

    #[test]
    fn reports_come_every_five_seconds_or_so() {
        let mut random = Random(3);
        let intervals: Vec<_> = (0..1000).map(|_| interval_ns(&mut random, false)).collect();
        assert!(intervals
            .iter()
            .all(|ns| (2_000_000_000..6_200_000_000).contains(ns)));
        assert!((1_000_000_000..3_100_000_000).contains(&interval_ns(&mut random, true)));
    }

    proptest! {
        #[test]
        fn any_packet_is_read_without_panic(
            packet in prop::collection::vec(any::<u8>(), 0..200), kind in 195u8..215, words in 0u8..60, count in 0u8..64,
        ) {
            let _ = said(&packet);
            let mut headed = vec![0x80 | count, kind, 0, words];
            headed.extend(&packet);
            let _ = said(&headed);
            headed.truncate(4 + 4 * usize::from(words));
            let _ = said(&headed);
            let again = [&bytes(REPORT)[..], &headed].concat();
            let _ = said(&again);
        }

        #[test]
        fn any_report_can_be_written(highest: u32, expected in -70_000i64..1 << 40, lost in -(1i64 << 40)..1 << 40, jitter: u32, at_ns in 0i64..1 << 60) {
            let mut reporter = Reporter::default();
            reporter.heard(1, 0);
            let told = Told { highest, expected, lost, jitter };
            prop_assert!(!reporter.report(1, 2, told, at_ns).is_empty());
            prop_assert_eq!(said(&reporter.report(1, 2, told, at_ns)), Ok(vec![]));
        }
    }
}
