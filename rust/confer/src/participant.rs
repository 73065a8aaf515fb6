//! One participant: its conversation with the server, and its connections of media.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use virtoll_generator::datagrams::Batch;
use virtoll_generator::random::Random;
use virtoll_generator::Failed;

use super::audio::Audio;
use super::line::Line;
use super::mix::Mix;
use super::peer::Peer;
use super::receiving::Receiving;
use super::room::{Failure, Room, Told, Way};
use super::sending::Sending;
use super::tally::Tally;
use super::Shared;

const WAYS: [Way; 3] = [Way::Sending, Way::Receiving, Way::Audio];

/// Why a participant cannot go on: it failed, or the generator did.
pub enum Trouble {
    Participant(Failure),
    Generator(std::io::Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble::Participant(failure)
    }
}

/// Times are nanoseconds, by CLOCK_MONOTONIC.
pub struct Participant<'a> {
    number: usize,
    role: usize,
    line: Line,
    line_fd: OwnedFd,
    room: Box<dyn Room + 'a>,
    sending: Option<Sending<'a>>,
    receiving: Option<Receiving>,
    audio: Option<Audio<'a>>,
    /// What it is to hear, as long as the server has not let it into the audio.
    unheard: Option<Mix>,
    /// Sockets that are to be waited for.
    new_sockets: Vec<Way>,
    /// It is in the room; `others`: and waits for streams of theirs.
    is_in: bool,
    others: bool,
    joined_ns: Option<i64>,
    deadline_ns: i64,
    keep_ns: i64,
    /// When streams were last heard of.
    heard_ns: i64,
}

impl<'a> Participant<'a> {
    /// An error is the generator's own.
    pub fn new(
        shared: &'a Shared<'a>,
        number: usize,
        role: usize,
        now_ns: i64,
    ) -> std::io::Result<Self> {
        let room = shared.room(number, role);
        let alive_every_ns = room.alive_every_ns();
        let (line, line_fd) = Line::connect(
            shared.spec.server.address(),
            &room.path(),
            room.subprotocol(),
        )?;
        Ok(Participant {
            number,
            role,
            line,
            line_fd,
            room,
            sending: None,
            receiving: None,
            audio: None,
            unheard: shared.spec.server.audio().map(|_| Mix::new(now_ns)),
            new_sockets: Vec::new(),
            is_in: false,
            others: false,
            joined_ns: None,
            deadline_ns: now_ns.saturating_add(shared.spec.patience_ns),
            keep_ns: now_ns + alive_every_ns,
            heard_ns: now_ns,
        })
    }

    pub fn line_fd(&self) -> &OwnedFd {
        &self.line_fd
    }

    /// It watches by this connection.
    #[cfg(test)]
    pub fn watches(&mut self, receiving: Receiving) {
        self.receiving = Some(receiving);
        self.new_sockets.push(Way::Receiving);
    }

    /// Sockets that have come since it was last asked.
    pub fn new_sockets(&mut self) -> Vec<Way> {
        std::mem::take(&mut self.new_sockets)
    }

    pub fn peer(&mut self, way: Way) -> Option<&mut Peer> {
        match way {
            Way::Sending => self.sending.as_mut().map(|sending| &mut sending.peer),
            Way::Receiving => self.receiving.as_mut().map(|receiving| &mut receiving.peer),
            Way::Audio => self.audio.as_mut().map(|audio| &mut audio.peer),
        }
    }

    /// Since when all that it asked for is connected.
    pub fn joined_ns(&self) -> Option<i64> {
        self.joined_ns
    }

    /// When it is to be driven, though nothing came.
    pub fn wake_ns(&self) -> i64 {
        let deadline_ns = if self.joined_ns.is_none() {
            self.deadline_ns
        } else {
            i64::MAX
        };
        let sending_ns = self.sending.as_ref().map_or(i64::MAX, Sending::wake_ns);
        let receiving_ns = self
            .receiving
            .as_ref()
            .map_or(i64::MAX, |receiving| receiving.peer.wake_ns);
        let audio_ns = self.audio.as_ref().map_or(i64::MAX, Audio::wake_ns);
        [deadline_ns, sending_ns, receiving_ns, audio_ns]
            .into_iter()
            .fold(self.keep_ns, i64::min)
    }

    /// Something came on the conversation's connection, or there is room on it again.
    pub fn on_line(
        &mut self,
        now_ns: i64,
        shared: &'a Shared<'a>,
        tally: &mut Tally,
    ) -> Result<(), Trouble> {
        self.line.flush()?;
        while let Some(words) = self.line.hear()? {
            self.room.hear(&words)?;
            self.on_told(now_ns, shared, tally)?; // one by one: nothing heaps up, however fast it comes
        }
        self.drive(now_ns, shared, tally)
    }

    /// Datagrams came.
    pub fn on_datagrams(
        &mut self,
        fd: RawFd,
        batch: &mut Batch,
        clocks: &dyn Fn() -> (i64, i64),
        shared: &'a Shared<'a>,
        tally: &mut Tally,
    ) -> Result<(), Trouble> {
        let is_its = |way: &Way| self.peer(*way).is_some_and(|peer| peer.is_socket(fd));
        let Some(way) = WAYS.into_iter().find(is_its) else {
            return Ok(());
        };
        self.read(way, Some(fd), batch, clocks, shared, tally)
            .map(|_| ())
    }

    /// Datagrams that came before then, and were not looked at yet, if there are any.
    pub fn on_rest(
        &mut self,
        before_ns: i64,
        batch: &mut Batch,
        clocks: &dyn Fn() -> (i64, i64),
        shared: &'a Shared<'a>,
        tally: &mut Tally,
    ) -> Result<(), Trouble> {
        for way in WAYS {
            let mut read = || self.read(way, None, batch, clocks, shared, tally);
            while read()?.is_some_and(|came_ns| came_ns < before_ns) {}
        }
        Ok(())
    }

    /// Take what lies in the socket, a batch at the most; when the last of it came.
    fn read(
        &mut self,
        way: Way,
        fd: Option<RawFd>,
        batch: &mut Batch,
        clocks: &dyn Fn() -> (i64, i64),
        shared: &'a Shared<'a>,
        tally: &mut Tally,
    ) -> Result<Option<i64>, Trouble> {
        let is_its = |peer: &&mut Peer| fd.is_none_or(|fd| peer.is_socket(fd));
        let Some(peer) = self.peer(way).filter(is_its) else {
            return Ok(None);
        };
        let mut last_ns = None;
        let count = batch.receive(&peer.sockets().all()[0]).unwrap_or(0);
        // What came waited to be looked at for as long as its stamp says.
        let (now_ns, real_ns) = clocks();
        for index in 0..count {
            let datagram = batch.get(index);
            let came_ns = datagram.came_ns(now_ns, real_ns);
            last_ns = Some(came_ns);
            if let Some(peer) = self.peer(way) {
                let dropped = peer.sockets().dropped(0, datagram.drops);
                if tally.span.holds(came_ns) {
                    tally.received[shared.roles.len()].dropped += dropped;
                }
            }
            match (way, &mut self.sending, &mut self.receiving, &mut self.audio) {
                (Way::Receiving, _, Some(receiving), _) => {
                    receiving.take(&datagram, came_ns, now_ns, shared, tally)?
                }
                (Way::Audio, _, _, Some(audio)) => {
                    audio.take(&datagram, came_ns, now_ns, shared, tally)?;
                    audio.drive(now_ns, shared, tally)?;
                }
                (Way::Sending, Some(sending), _, _) => {
                    let clock = &shared.common.clock;
                    sending.peer.take(&datagram, came_ns, now_ns, clock)?;
                    sending.drive(now_ns, shared, tally)?;
                }
                _ => {}
            }
        }
        self.join(now_ns, shared);
        self.unsent(now_ns, shared, tally);
        Ok(last_ns)
    }

    /// A timer.
    pub fn on_timer(
        &mut self,
        now_ns: i64,
        shared: &'a Shared<'a>,
        tally: &mut Tally,
    ) -> Result<(), Trouble> {
        if self.joined_ns.is_none() && now_ns >= self.deadline_ns {
            return Err(self.lacks(shared).into());
        }
        if now_ns >= self.keep_ns {
            self.keep_ns = now_ns + self.room.alive_every_ns();
            self.room.keep_alive();
        }
        for way in WAYS {
            if let Some(peer) = self.peer(way).filter(|peer| peer.wake_ns <= now_ns) {
                peer.on_timer(shared.common.clock.at(now_ns))?;
            }
        }
        self.drive(now_ns, shared, tally)
    }

    /// Let all that is due be said, sent and noticed.
    fn drive(
        &mut self,
        now_ns: i64,
        shared: &'a Shared<'a>,
        tally: &mut Tally,
    ) -> Result<(), Trouble> {
        if let Some(sending) = &mut self.sending {
            sending.drive(now_ns, shared, tally)?;
        }
        if let Some(receiving) = &mut self.receiving {
            receiving.drive(now_ns, shared, tally)?;
        }
        if let Some(audio) = &mut self.audio {
            audio.drive(now_ns, shared, tally)?;
        }
        self.join(now_ns, shared);
        self.unsent(now_ns, shared, tally);
        self.speak()
    }

    /// Count what found no room in a socket with what was thrown away of one that was full: neither is the service's loss.
    fn unsent(&mut self, now_ns: i64, shared: &Shared, tally: &mut Tally) {
        for way in WAYS {
            let unsent = self
                .peer(way)
                .map_or(0, |peer| std::mem::take(&mut peer.unsent));
            if tally.span.holds(now_ns) {
                tally.received[shared.roles.len()].dropped += unsent;
            }
        }
    }

    fn speak(&mut self) -> Result<(), Trouble> {
        while self.line.is_open() {
            let Some(words) = self.room.say() else { break };
            self.line.say(words)?;
        }
        Ok(())
    }

    fn on_told(
        &mut self,
        now_ns: i64,
        shared: &'a Shared<'a>,
        tally: &mut Tally,
    ) -> Result<(), Trouble> {
        while let Some(told) = self.room.told() {
            match told {
                Told::Joined { others } => {
                    (self.is_in, self.others) = (true, others);
                    if let Some(film) = &shared.roles[self.role].film {
                        let place = self.place(shared);
                        let (sending, offer) =
                            Sending::new(peer(shared, true, now_ns)?, self.role, film, place)?;
                        self.sending = Some(sending);
                        self.new_sockets.push(Way::Sending);
                        self.room.publish(offer);
                    }
                }
                Told::Alone => self.others = false,
                Told::Answer(sdp) => {
                    self.peer(Way::Sending)
                        .ok_or(Failure::Sdp)?
                        .answered(&sdp)?;
                }
                Told::Heard(feeds) => {
                    self.heard_ns = now_ns;
                    self.receiving(now_ns, shared)?
                        .heard(feeds, now_ns, shared)?;
                }
                Told::Offer { sdp, feeds } => {
                    let heard_ns = self.heard_ns;
                    let receiving = self.receiving(now_ns, shared)?;
                    let answer = receiving.peer.answer(&sdp)?;
                    receiving.offered(feeds, heard_ns, now_ns, shared, tally)?;
                    self.room.answer(answer);
                }
                Told::Gone { sender } => {
                    if let Some(receiving) = &mut self.receiving {
                        receiving.gone(&sender, now_ns, shared, tally);
                    }
                }
                Told::InAudio => {
                    let peer =
                        Peer::of_audio(&shared.common, now_ns).map_err(Trouble::Generator)?;
                    let (says, place) = (shared.says(self.number), self.place(shared));
                    let mix = self.unheard.take().ok_or(Failure::Signalling)?;
                    let (audio, offer) = Audio::new(peer, says, place, mix)?;
                    self.audio = Some(audio);
                    self.new_sockets.push(Way::Audio);
                    self.room.offer_audio(offer);
                }
                Told::AudioAnswer(sdp) => {
                    let peer = self.peer(Way::Audio).ok_or(Failure::Sdp)?;
                    peer.answered(&sdp)?;
                }
                Told::Candidate { way, candidate } => {
                    if let Some(peer) = self.peer(way) {
                        peer.candidate(&candidate);
                    }
                }
            }
        }
        Ok(())
    }

    /// Where in its footage, or its sound, it begins: in millionths.
    fn place(&self, shared: &Shared) -> u64 {
        Random::derived(shared.spec.seed, self.number as u64).below(1_000_000)
    }

    /// The connection of media by which it watches, begun where it was not yet.
    fn receiving(&mut self, now_ns: i64, shared: &Shared) -> Result<&mut Receiving, Trouble> {
        if self.receiving.is_none() {
            self.receiving = Some(Receiving::new(peer(shared, false, now_ns)?));
            self.new_sockets.push(Way::Receiving);
        }
        self.receiving.as_mut().ok_or(Failure::Sdp.into())
    }

    /// Whether all that it asked for is connected by now, and something of it was offered.
    fn join(&mut self, now_ns: i64, shared: &Shared) {
        if self.joined_ns.is_none() && self.is_in && self.missing(shared).is_none() {
            self.joined_ns = Some(now_ns);
        }
    }

    /// The connection of media that is not there yet; the inner None: it has not been begun.
    fn missing(&self, shared: &Shared) -> Option<Option<&Peer>> {
        let sending = self.sending.as_ref().map(|sending| &sending.peer);
        if shared.roles[self.role].film.is_some() && !sending.is_some_and(Peer::is_connected) {
            return Some(sending);
        }
        let audio = self.audio.as_ref().map(|audio| &audio.peer);
        if shared.spec.server.audio().is_some() && !audio.is_some_and(Peer::is_connected) {
            return Some(audio);
        }
        let receiving = self.receiving.as_ref();
        let watches = receiving.is_some_and(|it| it.peer.is_connected() && it.has_been_offered());
        (self.others && !watches).then(|| receiving.map(|receiving| &receiving.peer))
    }

    /// What it waited for when its patience ended: the server's word, or media.
    fn lacks(&self, shared: &Shared) -> Failure {
        match self.missing(shared) {
            Some(Some(peer)) if self.is_in && peer.is_agreed() && !peer.is_connected() => {
                peer.lacks()
            }
            _ => self.line.lacks(),
        }
    }

    /// It goes: by order, or for a failure.
    pub fn leave(&mut self, now_ns: i64, shared: &Shared, tally: &mut Tally) {
        if let Some(sending) = &mut self.sending {
            sending.end_window(tally);
        }
        if let Some(receiving) = &mut self.receiving {
            receiving.leave(now_ns, shared, tally);
        }
        if let Some(mix) = self.mix() {
            mix.leave(
                tally.span,
                now_ns,
                shared.spec.patience_ns,
                &mut tally.heard,
            );
        }
        if let Some(joined_ns) = self.joined_ns {
            tally.present_ns += tally.span.part_ns(joined_ns, now_ns);
        }
        self.room.leave();
        let _ = self.speak(); // whoever is cut off has nobody to tell
    }

    /// It did not get in: what it waited for until now never came, however short a while that was.
    pub fn give_up(&mut self, tally: &mut Tally) {
        if let Some(receiving) = &mut self.receiving {
            receiving.give_up(tally);
        }
        if let Some(mix) = self.mix() {
            mix.give_up(&mut tally.heard);
        }
    }

    pub fn begin_window(&mut self, tally: &mut Tally) {
        tally.joined_at_start += u64::from(self.joined_ns.is_some());
    }

    pub fn end_window(&mut self, shared: &Shared, tally: &mut Tally) {
        if let Some(sending) = &mut self.sending {
            sending.end_window(tally);
        }
        if let Some(receiving) = &mut self.receiving {
            receiving.end_window(shared, tally);
        }
        if let Some(mix) = self.mix() {
            let (span, patience_ns) = (tally.span, shared.spec.patience_ns);
            mix.end(span, span.until_ns, patience_ns, &mut tally.heard);
        }
        if let Some(joined_ns) = self.joined_ns {
            tally.joined_at_end += 1;
            tally.present_ns += tally.span.part_ns(joined_ns, tally.span.until_ns);
        }
    }

    /// What it hears, or is to hear, where there is audio.
    fn mix(&mut self) -> Option<&mut Mix> {
        self.audio
            .as_mut()
            .map(Audio::mix)
            .or(self.unheard.as_mut())
    }

    pub fn fd_number(&self) -> RawFd {
        self.line_fd.as_raw_fd()
    }
}

fn peer(shared: &Shared, sends: bool, now_ns: i64) -> Result<Peer, Trouble> {
    Peer::new(&shared.common, sends, now_ns).map_err(Trouble::Generator)
}

/// What the generator itself lacks.
pub fn failed(error: &std::io::Error) -> Failed {
    match virtoll_generator::is_own_limit(error) {
        true => Failed::own_limit(error),
        false => Failed::system("socket", error),
    }
}
