//! One track of a presentation: its packets (RFC 3550), and how much media they brought.
//!
//! Media are what timestamps say: from the first that came to the newest. A hole of more than half a second in the
//! numbers brought no more than that. Timestamps that leap are no media: by more than 5 s back, or ahead of the clock.
//! Where thousands of packets are missing, it is for an outage if timestamps have gone on as time did.

use rtp_types::RtpPacket;
use virtoll_generator::random::Random;
use virtoll_generator::reception::{Leaped, Place, Reception};

use super::rtcp::{self, Reporter, Said};
use super::sdp;
use crate::rtmp::media::{sent_ns, Mark};
use crate::rtsp::interval_ns;
use crate::tally::Failure;
use crate::view::protocol::{Came, Now};

const LEAP_NS: i64 = 5_000_000_000;
const HOLE_NS: i64 = 500_000_000;

pub struct Track {
    pub about: sdp::Track,
    reception: Reception,
    reporter: Reporter,
    /// SSRC of whoever sends, and its last packet's number; whether two came one after the other, and it is sure.
    source: Option<u32>,
    number: u16,
    is_sure: bool,
    /// As long as it is not: another's SSRC, and its last packet's number.
    other: Option<(u32, u16)>,
    /// Timestamps: the first, the newest, and when that came.
    first: i64,
    newest: i64,
    newest_ns: i64,
    /// Media that came.
    pub media_ns: i64,
    /// The timestamp of a frame that bears its publisher's mark, and when that sent it.
    marked: Option<(u32, i64)>,
    /// The sender has said farewell.
    pub is_over: bool,
    /// When the next receiver report is due.
    pub report_ns: i64,
}

impl Track {
    pub fn new(about: sdp::Track) -> Self {
        Track {
            reception: Reception::new(about.clock_hz),
            about,
            reporter: Reporter::default(),
            source: None,
            number: 0,
            is_sure: false,
            other: None,
            first: 0,
            newest: 0,
            newest_ns: 0,
            media_ns: 0,
            marked: None,
            is_over: false,
            report_ns: i64::MAX,
        }
    }

    /// A packet of media came; whether it brings something.
    pub fn media(
        &mut self,
        packet: &[u8],
        came: Came,
        mark: Option<&Mark>,
        now: &mut Now,
    ) -> Result<bool, Failure> {
        let packet = RtpPacket::parse(packet).map_err(|_| Failure::Parse)?;
        if packet.payload_type() != self.about.payload_type
            || !self.is_of_source(packet.ssrc(), packet.sequence_number())
        {
            now.count(|seen| seen.rtp.strays += 1);
            return Ok(false);
        }
        let is_counted = now.watched.holds(now.ns);
        let mut window = is_counted.then_some(&mut now.seen.rtp);
        let (number, timestamp) = (packet.sequence_number(), packet.timestamp());
        let (stamp_ns, counts) = (came.stamp_ns, window.as_deref_mut());
        let mut place = self.reception.packet(number, timestamp, stamp_ns, counts);
        if place == Err(Leaped) && self.is_outage(number, timestamp, now.ns) {
            place = self
                .reception
                .after_outage(number, timestamp, stamp_ns, window);
        }
        let place = place.map_err(|Leaped| Failure::Timestamps)?;
        if place != Place::Useless {
            now.count(|seen| seen.media_bytes += packet.payload_len() as u64);
            if let Some(mark) = mark {
                self.age(&packet, came.at_ns, mark, now);
            }
        }
        self.on(place, now.ns)?;
        Ok(place != Place::Useless && packet.payload_len() > 0)
    }

    /// Whether a packet is of whoever sends: the first that is heard, or, until two packets of that one came one after the
    /// other, the first of whom two did (RFC 3550, A.1): a datagram may have been meant for who had this port before.
    fn is_of_source(&mut self, source: u32, number: u16) -> bool {
        match self.source {
            None => (self.source, self.is_over) = (Some(source), false), // a farewell before was another's
            Some(own) if own == source => self.is_sure |= number == self.number.wrapping_add(1),
            Some(_) if self.is_sure => return false,
            Some(_) if self.other != Some((source, number.wrapping_sub(1))) => {
                self.other = Some((source, number));
                return false;
            }
            Some(_) => {
                (self.source, self.is_sure) = (Some(source), true);
                (self.marked, self.is_over, self.media_ns) = (None, false, 0);
                self.reception = Reception::new(self.about.clock_hz);
                self.reporter = Reporter::default();
            }
        }
        self.number = number;
        true
    }

    /// How old a frame is that bears the mark: told when its last packet has come (RFC 6184, 5.1), as a viewer by RTMP
    /// has it when the message is whole.
    fn age(&mut self, packet: &RtpPacket, came_ns: i64, mark: &Mark, now: &mut Now) {
        const SEI: u8 = 6;
        const TOGETHER: u8 = 24; // several units in a packet: STAP-A
        let payload = packet.payload();
        let unit = payload.first().map_or(0, |first| first & 0x1f);
        if matches!(unit, SEI | TOGETHER) {
            if let Some(sent_ns) = sent_ns(payload, mark) {
                self.marked = Some((packet.timestamp(), sent_ns));
            }
        }
        match self.marked {
            Some((timestamp, sent_ns))
                if packet.marker_bit() && timestamp == packet.timestamp() =>
            {
                self.marked = None;
                now.count_age(sent_ns, came_ns);
            }
            _ => {}
        }
    }

    /// Whether numbers leaped for all between was lost: timestamps went on as time did, and it is no more than twice what its
    /// source has sent in so long a time. One that began anew may be anywhere. Of more than 2^16 so many fewer are told.
    fn is_outage(&self, number: u16, timestamp: u32, now_ns: i64) -> bool {
        let Some(told) = self.reception.told() else {
            return false;
        };
        let step = timestamp.wrapping_sub(self.newest as u32) as i32;
        let (step_ns, passed_ns) = (self.reception.ns(step.into()), now_ns - self.newest_ns);
        let passed = i128::from(number.wrapping_sub(told.highest as u16));
        let is_sendable = passed * i128::from(self.at_ns())
            <= 2 * i128::from(told.expected) * i128::from(step_ns);
        self.at_ns() > 0 && is_sendable && (step_ns - passed_ns).abs() <= LEAP_NS
    }

    fn on(&mut self, place: Place, now_ns: i64) -> Result<(), Failure> {
        let timestamp = self.reception.timestamp();
        match place {
            Place::First => {
                (self.first, self.newest, self.newest_ns) = (timestamp, timestamp, now_ns);
                Ok(())
            }
            Place::Next(ahead) => {
                let step_ns = self.reception.ns(timestamp - self.newest);
                let passed_ns = now_ns - self.newest_ns;
                if step_ns < -LEAP_NS || step_ns > LEAP_NS + passed_ns {
                    return Err(Failure::Timestamps);
                }
                if step_ns > 0 {
                    // Frames are not always sent in the order in which they are shown.
                    (self.newest, self.newest_ns) = (timestamp, now_ns);
                    self.media_ns += if ahead > 1 {
                        step_ns.min(HOLE_NS)
                    } else {
                        step_ns
                    };
                }
                Ok(())
            }
            Place::Behind | Place::Useless => Ok(()),
        }
    }

    /// A packet of control came.
    pub fn control(&mut self, packet: &[u8], now: &mut Now) -> Result<(), Failure> {
        rtcp::read(packet, |said| match said {
            Said::Report { source, time } if self.source.is_none_or(|own| own == source) => {
                now.count(|seen| seen.rtp.sender_reports += 1);
                self.reporter.heard(time, now.ns);
            }
            Said::Bye { source } if self.source.is_none_or(|own| own == source) => {
                self.is_over = true;
            }
            _ => now.count(|seen| seen.rtp.strays += 1),
        })
    }

    /// When there may be something to report, from play's begin on.
    pub fn begin(&mut self, random: &mut Random, now_ns: i64) {
        if self.about.may_report {
            self.report_ns = now_ns + interval_ns(random, true);
        }
    }

    /// What is reported now; None: nothing has come.
    pub fn report(&mut self, own: u32, random: &mut Random, now: &mut Now) -> Option<Vec<u8>> {
        self.report_ns = now.ns + interval_ns(random, false);
        let report = self
            .reporter
            .report(own, self.source?, self.reception.told()?, now.ns);
        now.count(|seen| seen.rtp.receiver_reports += 1);
        Some(report)
    }

    /// How far into the presentation it has come.
    pub fn at_ns(&self) -> i64 {
        self.reception.ns(self.newest - self.first)
    }

    /// What comes from now on counts for another window.
    pub fn end_window(&mut self) {
        self.reception.renew();
    }

    pub fn jitter_ns(&self) -> Option<u64> {
        self.reception.jitter_ns()
    }
}
