//! What a participant sends: a film, over a connection of media.

use std::time::Duration;

use str0m::media::{MediaTime, Mid, Pt};
use str0m::stats::MediaEgressStats;
use str0m::Event;

use super::film::Film;
use super::peer::Peer;
use super::play::Play;
use super::room::Failure;
use super::tally::{Tally, LATE_NS};
use super::Shared;

/// What a receiver reported, as str0m last told it: each second, whether a report has come since or not.
#[derive(Debug, Default)]
struct Reports {
    nacks: u64,
    /// The last report's round trip, and the highest number that had come.
    last: (Option<Duration>, Option<u64>),
}

impl Reports {
    /// How many times something was asked for again since, and the round trip of a report that is another than before.
    fn since(&mut self, told: &MediaEgressStats) -> (u64, Option<Duration>) {
        let nacks = told.nacks.saturating_sub(self.nacks);
        let remote = told.remote.as_ref();
        let highest = remote.map(|remote| *remote.maximum_sequence_number);
        let before = std::mem::replace(&mut self.last, (told.rtt, highest));
        self.nacks = told.nacks;
        (nacks, told.rtt.filter(|_| before != self.last))
    }
}

pub struct Sending<'a> {
    pub peer: Peer,
    role: usize,
    film: &'a Film,
    /// Where in the film it begins, in millionths.
    place: u64,
    mid: Mid,
    /// Since it is connected.
    play: Option<(Play<'a>, Pt)>,
    reports: Reports,
    /// A frame that was due within the window.
    has_sent: bool,
}

impl<'a> Sending<'a> {
    /// And what it offers.
    pub fn new(
        mut peer: Peer,
        role: usize,
        film: &'a Film,
        place: u64,
    ) -> Result<(Self, String), Failure> {
        let (mid, offer) = peer.offer()?;
        let sending = Sending {
            peer,
            role,
            film,
            place,
            mid,
            play: None,
            reports: Reports::default(),
            has_sent: false,
        };
        Ok((sending, offer))
    }

    pub fn wake_ns(&self) -> i64 {
        let due_ns = self
            .play
            .as_ref()
            .map_or(i64::MAX, |(play, _)| play.due_ns());
        due_ns.min(self.peer.wake_ns)
    }

    /// What happened since; and send what is due.
    pub fn drive(
        &mut self,
        now_ns: i64,
        shared: &Shared,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        self.events(now_ns, shared, tally)?;
        if self.play.is_none() && self.peer.is_connected() {
            let writer = self.peer.rtc.writer(self.mid).ok_or(Failure::Sdp)?;
            let payload_type = writer.payload_params().next().map(|params| params.pt());
            let payload_type = payload_type.ok_or(Failure::Sdp)?; // it does not take the codec
            self.play = Some((Play::new(self.film, self.place, now_ns), payload_type));
        }
        while let Some((play, payload_type)) = &mut self.play {
            let Some((frame, due_ns, timestamp)) = play.frame(now_ns) else {
                break;
            };
            let writer = self.peer.rtc.writer(self.mid).ok_or(Failure::Sdp)?;
            let at = shared.common.clock.at(due_ns);
            let written = writer.write(
                *payload_type,
                at,
                MediaTime::from_90khz(timestamp),
                frame.bytes.clone(),
            );
            written.map_err(|_| Failure::Sdp)?;
            if tally.span.holds(due_ns) {
                let sent = &mut tally.sent[self.role];
                sent.frames += 1;
                sent.key_frames += u64::from(frame.is_key);
                sent.late_frames += u64::from(now_ns - due_ns > LATE_NS);
                self.has_sent = true;
            }
            self.peer.on_timer(shared.common.clock.at(now_ns))?; // its packets are made
            self.events(now_ns, shared, tally)?;
        }
        Ok(())
    }

    fn events(&mut self, now_ns: i64, shared: &Shared, tally: &mut Tally) -> Result<(), Failure> {
        let in_window = tally.span.holds(now_ns);
        let sent = &mut tally.sent[self.role];
        while let Some(event) = self.peer.next(&shared.common.clock, now_ns)? {
            match event {
                Event::KeyframeRequest(_) => {
                    sent.key_frames_asked += u64::from(in_window);
                    if let Some((play, _)) = &mut self.play {
                        play.ask();
                    }
                }
                Event::MediaEgressStats(told) => {
                    let (nacks, rtt) = self.reports.since(&told);
                    if in_window {
                        sent.nacks += nacks;
                        if let Some(rtt) = rtt {
                            sent.rtt.record(rtt.as_nanos() as u64);
                        }
                    }
                }
                _ => {}
            }
        }
        let outgoing = std::mem::take(&mut self.peer.outgoing);
        if in_window {
            sent.packets += outgoing.packets;
            sent.bytes += outgoing.bytes;
        }
        Ok(())
    }

    pub fn end_window(&mut self, tally: &mut Tally) {
        tally.sent[self.role].streams += u64::from(std::mem::take(&mut self.has_sent));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use str0m::stats::RemoteIngressStats;

    use super::*;

    #[test]
    fn a_round_trip_is_told_once_however_long_no_other_report_comes() {
        let told = |highest: u64, rtt_ms| MediaEgressStats {
            mid: "0".into(),
            rid: None,
            bytes: 1,
            packets: 1,
            firs: 0,
            plis: 0,
            nacks: highest / 10,
            rtt: Some(Duration::from_millis(rtt_ms)),
            loss: None,
            timestamp: Instant::now(),
            remote: Some(RemoteIngressStats {
                jitter: 0,
                maximum_sequence_number: highest.into(),
                packets_lost: 0,
            }),
        };
        let mut reports = Reports::default();
        let mut since = |highest, rtt_ms| {
            let (nacks, rtt) = reports.since(&told(highest, rtt_ms));
            (nacks, rtt.map(|rtt| rtt.as_millis()))
        };
        assert_eq!(since(100, 5), (10, Some(5)));
        assert_eq!(since(100, 5), (0, None), "the same report");
        assert_eq!(since(100, 5), (0, None));
        assert_eq!(since(120, 5), (2, Some(5)), "another that took as long");
        assert_eq!(since(120, 90), (0, Some(90)), "nothing came meanwhile");
        assert_eq!(since(120, 90), (0, None));
    }
}
