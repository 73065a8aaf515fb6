//! A track as packets of RTP (RFC 3550): H.264 a unit each, or in fragments (RFC 6184, 5.6 and 5.8); AAC a frame each
//! (RFC 3640, AAC-hbr). And what their sender reports of them.

use rtcp_types::prelude::*;
use rtcp_types::{Compound, Sdes, SdesChunk, SdesItem, SenderReport};
use rtp_types::RtpPacketBuilder;
use virtoll_generator::random::Random;

use crate::rtmp::chunk::integer;
use crate::rtsp::interval_ns;
use crate::rtsp::session::framed;

/// Where the media begin in a message (FLV 10.1, E.4.2 and E.4.3): video's behind its kind, and how much later than its
/// timestamp it is shown.
pub const VIDEO_AT: usize = 5;
pub const AUDIO_AT: usize = 2;
const LATER_AT: std::ops::Range<usize> = 2..VIDEO_AT;
/// Of a packet, without its header: it fits into a datagram on any Ethernet, for whoever passes it on as one.
const PAYLOAD_MAX: usize = 1400;
const VIDEO_HZ: u32 = 90_000;
const FRAGMENT: u8 = 28; // FU-A
const NAME: &str = "publisher@virtoll";
/// From 1900, as NTP counts, to 1970.
const NTP_S: u64 = 2_208_988_800;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Video,
    Audio { clock_hz: u32 },
}

impl Kind {
    pub fn payload_type(self) -> u8 {
        match self {
            Kind::Video => 96,
            Kind::Audio { .. } => 97,
        }
    }

    fn clock_hz(self) -> u32 {
        match self {
            Kind::Video => VIDEO_HZ,
            Kind::Audio { clock_hz } => clock_hz,
        }
    }
}

/// The parts of a picture, each behind its length; the last may be torn.
pub fn units(mut parts: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = parts.split_at_checked(4)?;
        let (unit, rest) = rest.split_at_checked(integer(length) as usize)?;
        parts = rest;
        Some(unit)
    })
    .filter(|unit| !unit.is_empty())
}

/// When play began, by both clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begun {
    pub monotonic_ns: i64,
    /// Since 1970.
    pub real_ns: u64,
}

/// Who sends one track.
pub struct Sender {
    kind: Kind,
    source: u32,
    /// Of the next packet; and the timestamp of play's beginning.
    number: u16,
    origin: u32,
    /// For the reports: as RFC 3550 counts, without headers.
    packets: u32,
    payload_bytes: u32,
    /// When the next is due: the first follows the first frame.
    pub report_ns: i64,
    /// Of RTP and of RTCP.
    pub channels: (u8, u8),
}

impl Sender {
    pub fn new(kind: Kind, random: &mut Random) -> Self {
        Sender {
            kind,
            source: random.below(1 << 32) as u32,
            number: random.below(1 << 16) as u16,
            origin: random.below(1 << 32) as u32,
            packets: 0,
            payload_bytes: 0,
            report_ns: i64::MIN,
            channels: (0, 0),
        }
    }

    /// Send a message of FLV, so long after play's beginning. `out`: what is to be sent.
    pub fn frame(&mut self, message: &[u8], at_ms: i64, out: &mut Vec<u8>) {
        match self.kind {
            Kind::Video => {
                let later = integer(&message[LATER_AT]) as i32;
                let timestamp =
                    self.timestamp(at_ms * 1_000_000 + i64::from(later << 8 >> 8) * 1_000_000);
                let mut all = units(&message[VIDEO_AT..]).peekable();
                while let Some(unit) = all.next() {
                    self.unit(unit, timestamp, all.peek().is_none(), out);
                }
            }
            Kind::Audio { .. } => {
                let sound = &message[AUDIO_AT..];
                // One header, of 16 bits: the size, and that it follows the one before.
                let head = [0, 16, (sound.len() >> 5) as u8, (sound.len() << 3) as u8];
                let timestamp = self.timestamp(at_ms * 1_000_000);
                self.packet(&head, sound, timestamp, true, out);
            }
        }
    }

    fn unit(&mut self, unit: &[u8], timestamp: u32, is_last: bool, out: &mut Vec<u8>) {
        if unit.len() <= PAYLOAD_MAX {
            self.packet(&[], unit, timestamp, is_last, out);
            return;
        }
        let (head, body) = (unit[0], &unit[1..]);
        let pieces = body.chunks(PAYLOAD_MAX - 2);
        let count = pieces.len();
        for (at, piece) in pieces.enumerate() {
            let (begins, ends) = (at == 0, at + 1 == count);
            let part = u8::from(begins) << 7 | u8::from(ends) << 6 | head & 0x1f;
            self.packet(
                &[head & 0xe0 | FRAGMENT, part],
                piece,
                timestamp,
                is_last && ends,
                out,
            );
        }
    }

    fn packet(
        &mut self,
        head: &[u8],
        body: &[u8],
        timestamp: u32,
        marker: bool,
        out: &mut Vec<u8>,
    ) {
        let packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(self.kind.payload_type())
            .marker_bit(marker)
            .sequence_number(self.number)
            .timestamp(timestamp)
            .ssrc(self.source)
            .payload(head)
            .payload(body);
        // None is longer than `MOST_SOUND_BYTES` and some.
        let packet = packet.write_vec().ok();
        out.extend(
            packet
                .and_then(|packet| framed(self.channels.0, &packet))
                .unwrap_or_default(),
        );
        self.number = self.number.wrapping_add(1);
        self.packets = self.packets.wrapping_add(1);
        self.payload_bytes = self
            .payload_bytes
            .wrapping_add((head.len() + body.len()) as u32);
    }

    /// So long after play's beginning, by the track's own clock, which wraps around.
    fn timestamp(&self, since_ns: i64) -> u32 {
        let ticks = i128::from(since_ns) * i128::from(self.kind.clock_hz()) / 1_000_000_000;
        self.origin.wrapping_add(ticks as u32)
    }

    /// Report, if it is due (RFC 3550, 6.4.1): what the time is by the track's clock and by the world's.
    pub fn attend(&mut self, begun: Begun, random: &mut Random, now_ns: i64, out: &mut Vec<u8>) {
        if self.packets == 0 || self.report_ns > now_ns {
            return;
        }
        self.report_ns = now_ns + interval_ns(random, self.report_ns == i64::MIN);
        let since_ns = now_ns - begun.monotonic_ns;
        let name =
            SdesChunk::builder(self.source).add_item(SdesItem::builder(SdesItem::CNAME, NAME));
        let report = SenderReport::builder(self.source)
            .ntp_timestamp(ntp(begun.real_ns + since_ns.max(0) as u64))
            .rtp_timestamp(self.timestamp(since_ns))
            .packet_count(self.packets)
            .octet_count(self.payload_bytes);
        let report = Compound::builder()
            .add_packet(report)
            .add_packet(Sdes::builder().add_chunk(name));
        let mut packet = vec![0; report.calculate_size().unwrap_or(0)];
        let written = report.write_into(&mut packet).unwrap_or(0);
        out.extend(framed(self.channels.1, &packet[..written]).unwrap_or_default());
    }

    /// When it is to be asked again: not before there is something to report.
    pub fn wakes_ns(&self) -> i64 {
        match self.packets {
            0 => i64::MAX,
            _ => self.report_ns,
        }
    }
}

/// Seconds since 1900 and their 2^32nds (RFC 5905, 6).
fn ntp(real_ns: u64) -> u64 {
    let seconds = real_ns / 1_000_000_000 + NTP_S;
    let fraction = (u128::from(real_ns % 1_000_000_000) << 32) / 1_000_000_000;
    seconds << 32 | fraction as u64
}

#[cfg(test)]
#[path = "packets_tests.rs"]
mod tests;
