//! What a participant sends: a film, over a connection of media.

use str0m::media::{MediaTime, Mid, Pt};
use str0m::Event;

use super::film::Film;
use super::peer::Peer;
use super::play::Play;
use super::room::Failure;
use super::tally::{Tally, LATE_NS};
use super::Shared;

pub struct Sending<'a> {
    pub peer: Peer,
    role: usize,
    film: &'a Film,
    /// Where in the film it begins, in millionths.
    place: u64,
    mid: Mid,
    /// Since it is connected.
    play: Option<(Play<'a>, Pt)>,
    nacks: u64,
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
            nacks: 0,
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
                    let before = std::mem::replace(&mut self.nacks, told.nacks);
                    if in_window {
                        sent.nacks += told.nacks.saturating_sub(before);
                        if let Some(rtt) = told.rtt {
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
