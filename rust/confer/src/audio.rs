//! A participant's audio, over a connection of media of its own: it hears the mix of all who speak, and may speak itself
//! (Opus in RTP, RFC 7587).

use str0m::media::{Mid, Pt};
use str0m::rtp::RtpWrite;
use str0m::Event;
use virtoll_generator::datagrams::Datagram;

use super::mix::{Mix, Packet};
use super::peer::{payload_type, Peer};
use super::room::Failure;
use super::sound::{Sound, FRAME_NS, FRAME_TICKS};
use super::tally::{Tally, LATE_NS};
use super::Shared;

/// What one participant says: a sound from somewhere on, round and round.
struct Voice<'a> {
    sound: &'a Sound,
    /// The frame with which it begins.
    first: usize,
    /// When that was said; None: it is not connected yet.
    begin_ns: Option<i64>,
    /// How many have been said.
    said: u64,
}

impl Voice<'_> {
    fn due_ns(&self) -> i64 {
        self.begin_ns.map_or(i64::MAX, |begin_ns| {
            begin_ns.saturating_add(self.said as i64 * FRAME_NS)
        })
    }
}

pub struct Audio<'a> {
    pub peer: Peer,
    mid: Mid,
    /// None: it only listens.
    voice: Option<Voice<'a>>,
    mix: Mix,
}

impl<'a> Audio<'a> {
    /// And what it offers. `sound`: what it says; `place`: where in that it begins, in millionths; `mix`: what it hears,
    /// since its participant came in.
    pub fn new(
        mut peer: Peer,
        sound: Option<&'a Sound>,
        place: u64,
        mix: Mix,
    ) -> Result<(Self, String), Failure> {
        let (mid, offer) = peer.offer_audio(sound.is_some())?;
        let voice = |sound: &'a Sound| Voice {
            sound,
            first: (place as usize % 1_000_000) * sound.frames.len() / 1_000_000,
            begin_ns: None,
            said: 0,
        };
        let audio = Audio {
            peer,
            mid,
            voice: sound.map(voice),
            mix,
        };
        Ok((audio, offer))
    }

    /// The other side: it takes what was offered, says this to whoever offered it, and answers so.
    #[cfg(test)]
    pub fn answering(mut peer: Peer, offer: &str, sound: &'a Sound) -> (Self, String) {
        let answer = peer.answer(offer).unwrap();
        let mid = offer.lines().find_map(|line| line.strip_prefix("a=mid:"));
        let voice = Voice {
            sound,
            first: 0,
            begin_ns: None,
            said: 0,
        };
        let audio = Audio {
            peer,
            mid: mid.unwrap().into(),
            voice: Some(voice),
            mix: Mix::new(0),
        };
        (audio, answer)
    }

    /// Who offered it speaks.
    #[cfg(test)]
    pub fn is_spoken_to(&mut self) -> bool {
        let media = self.peer.rtc.media(self.mid);
        media.is_some_and(|media| media.direction().is_receiving())
    }

    #[cfg(test)]
    pub fn has_heard(&self) -> bool {
        self.mix.has_begun()
    }

    pub fn wake_ns(&self) -> i64 {
        let due_ns = self.voice.as_ref().map_or(i64::MAX, Voice::due_ns);
        due_ns.min(self.peer.wake_ns)
    }

    /// A datagram came.
    pub fn take(
        &mut self,
        datagram: &Datagram,
        came_ns: i64,
        now_ns: i64,
        shared: &Shared,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let clock = &shared.common.clock;
        self.peer.take(datagram, came_ns, now_ns, clock)?;
        let has_heard = self.events(came_ns, shared, tally)?;
        let is_media = payload_type(datagram.bytes).is_some();
        tally.heard.useless += u64::from(is_media && !has_heard && tally.span.holds(came_ns));
        Ok(())
    }

    /// What happened since; and say what is due.
    pub fn drive(
        &mut self,
        now_ns: i64,
        shared: &Shared,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        self.events(now_ns, shared, tally)?;
        if !self.peer.is_connected() {
            return Ok(());
        }
        if let Some(voice) = &mut self.voice {
            voice.begin_ns.get_or_insert(now_ns);
        }
        while self
            .voice
            .as_ref()
            .is_some_and(|voice| voice.due_ns() <= now_ns)
        {
            self.say(now_ns, shared, tally)?;
            self.peer.on_timer(shared.common.clock.at(now_ns))?; // so that it goes out
            self.events(now_ns, shared, tally)?;
        }
        Ok(())
    }

    /// The next frame. The first after silence is marked (RFC 7587, 4.1).
    fn say(&mut self, now_ns: i64, shared: &Shared, tally: &mut Tally) -> Result<(), Failure> {
        let payload_type = self.payload_type().ok_or(Failure::Sdp)?; // it does not take Opus
        let Some(voice) = &mut self.voice else {
            return Ok(());
        };
        let (due_ns, number) = (voice.due_ns(), voice.said);
        let frames = &voice.sound.frames;
        let frame = &frames[(voice.first + number as usize) % frames.len()];
        let timestamp = (number as u32).wrapping_mul(FRAME_TICKS);
        let at = shared.common.clock.at(due_ns);
        let packet = RtpWrite::new(
            payload_type,
            (number + 1).into(), // the first must be below 2^16
            timestamp,
            at,
            frame.clone(),
        );
        voice.said += 1;
        let mut direct = self.peer.rtc.direct_api();
        let stream = direct.stream_tx_by_mid(self.mid, None);
        stream
            .ok_or(Failure::Sdp)?
            .write_rtp(packet.marker(number == 0));
        if tally.span.holds(due_ns) {
            tally.heard.said += 1;
            tally.heard.said_late += u64::from(now_ns - due_ns > LATE_NS);
        }
        Ok(())
    }

    fn payload_type(&self) -> Option<Pt> {
        let agreed = self.peer.rtc.media(self.mid)?.remote_pts();
        let known = self.peer.rtc.codec_config().params();
        let opus = known.iter().find(|params| agreed.contains(&params.pt()));
        opus.map(|params| params.pt())
    }

    /// What happened, of a datagram that came then or of time; whether something was to be heard of it.
    fn events(&mut self, at_ns: i64, shared: &Shared, tally: &mut Tally) -> Result<bool, Failure> {
        let mut has_heard = false;
        while let Some(event) = self.peer.next(&shared.common.clock, at_ns)? {
            if let Event::RtpPacket(packet) = event {
                has_heard = true;
                let packet = Packet {
                    number: *packet.seq_no,
                    timestamp: packet.header.timestamp,
                    came_ns: at_ns,
                    bytes: packet.payload.len(),
                };
                self.mix.came(packet, tally.span, &mut tally.heard);
            }
        }
        Ok(has_heard)
    }

    pub fn mix(&mut self) -> &mut Mix {
        &mut self.mix
    }
}
