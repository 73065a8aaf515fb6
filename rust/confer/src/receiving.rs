//! What a participant receives: all streams of others, over one connection of media.

use str0m::media::{KeyframeRequestKind, Mid};
use str0m::rtp::{RtpPacket, Ssrc};
use str0m::stats::{MediaIngressStats, PeerStats};
use str0m::Event;
use virtoll_generator::datagrams::Datagram;

use super::peer::{payload_type, Peer};
use super::room::{Failure, Feed, MOST_FEEDS};
use super::stream::{Packet, Stream};
use super::tally::Tally;
use super::Shared;

/// A feed, and what comes of it.
struct Fed {
    feed: Feed,
    stream: Stream,
}

pub struct Receiving {
    pub peer: Peer,
    feeds: Vec<Fed>,
    has_been_offered: bool,
    /// Which feed each source is of.
    sources: Vec<(Ssrc, usize)>,
    /// Counted so far by str0m of each place among the media, whoever's it was.
    nacks: Vec<(Mid, u64)>,
    /// Of ICE, as last told.
    answers: u64,
}

/// The datagram that is looked at.
#[derive(Clone, Copy)]
struct Came {
    payload_type: Option<u8>,
    bytes: usize,
    came_ns: i64,
}

impl Receiving {
    pub fn new(peer: Peer) -> Self {
        Receiving {
            peer,
            feeds: Vec::new(),
            has_been_offered: false,
            sources: Vec::new(),
            nacks: Vec::new(),
            answers: 0,
        }
    }

    /// The server has offered a stream.
    pub fn has_been_offered(&self) -> bool {
        self.has_been_offered
    }

    /// These are to be offered, and are waited for from now on.
    pub fn heard(&mut self, feeds: Vec<Feed>, now_ns: i64, shared: &Shared) -> Result<(), Failure> {
        for feed in feeds {
            if !self.feeds.iter().any(|fed| fed.feed.sender == feed.sender) {
                self.push(feed, now_ns, shared)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, feed: Feed, since_ns: i64, shared: &Shared) -> Result<(), Failure> {
        if self.feeds.len() >= MOST_FEEDS {
            return Err(Failure::Signalling);
        }
        let role = shared.role_named(&feed.display);
        let stream = Stream::new(role, shared.common.codec, since_ns);
        self.feeds.push(Fed { feed, stream });
        Ok(())
    }

    /// The feeds are these from now on, and those that are yet to be offered; the new ones were heard of at `since_ns`.
    pub fn offered(
        &mut self,
        feeds: Vec<Feed>,
        since_ns: i64,
        now_ns: i64,
        shared: &Shared,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let is_same =
            |fed: &Fed, feed: &Feed| fed.feed.mid == feed.mid && fed.feed.sender == feed.sender;
        self.has_been_offered |= !feeds.is_empty();
        self.end(now_ns, shared, tally, |fed| {
            !fed.feed.mid.is_empty() && !feeds.iter().any(|feed| is_same(fed, feed))
        });
        for feed in feeds {
            if self.feeds.iter().any(|fed| is_same(fed, &feed)) {
                continue;
            }
            let is_awaited =
                |fed: &&mut Fed| fed.feed.mid.is_empty() && fed.feed.sender == feed.sender;
            match self.feeds.iter_mut().find(is_awaited) {
                Some(fed) => fed.feed = feed,
                None => self.push(feed, since_ns, shared)?,
            }
        }
        Ok(())
    }

    /// Somebody sends no longer.
    pub fn gone(&mut self, sender: &str, now_ns: i64, shared: &Shared, tally: &mut Tally) {
        self.end(now_ns, shared, tally, |fed| fed.feed.sender == sender);
    }

    fn end(
        &mut self,
        now_ns: i64,
        shared: &Shared,
        tally: &mut Tally,
        is_over: impl Fn(&Fed) -> bool,
    ) {
        let patience_ns = shared.spec.patience_ns;
        let before = self.feeds.len();
        self.feeds.retain_mut(|fed| {
            let over = is_over(fed);
            if over && now_ns >= tally.span.from_ns {
                let counts = &mut tally.received[fed.stream.role];
                fed.stream.end(
                    tally.span,
                    now_ns.min(tally.span.until_ns - 1),
                    patience_ns,
                    counts,
                );
            }
            !over
        });
        if self.feeds.len() < before {
            self.sources.clear(); // they are learned again
        }
    }

    /// The participant gives up before it has come in.
    pub fn give_up(&mut self, tally: &mut Tally) {
        for fed in &mut self.feeds {
            fed.stream.give_up(&mut tally.received[fed.stream.role]);
        }
    }

    /// All of it is over.
    pub fn leave(&mut self, now_ns: i64, shared: &Shared, tally: &mut Tally) {
        self.end(now_ns, shared, tally, |_| true);
    }

    pub fn end_window(&mut self, shared: &Shared, tally: &mut Tally) {
        let (span, patience_ns) = (tally.span, shared.spec.patience_ns);
        for fed in &mut self.feeds {
            let counts = &mut tally.received[fed.stream.role];
            fed.stream.end(span, span.until_ns, patience_ns, counts);
        }
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
        let came = Came {
            payload_type: payload_type(datagram.bytes),
            bytes: datagram.bytes.len(),
            came_ns,
        };
        let clock = &shared.common.clock;
        self.peer.take(datagram, came_ns, now_ns, clock)?;
        let has_told = self.events(Some(came), came_ns, shared, tally)?;
        if came.payload_type.is_some() && !has_told && tally.span.holds(came_ns) {
            tally.received[shared.roles.len()].duplicates += 1;
        }
        Ok(())
    }

    /// What happened since, of a datagram or of time; whether a packet came of it.
    pub fn drive(
        &mut self,
        now_ns: i64,
        shared: &Shared,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        self.events(None, now_ns, shared, tally).map(|_| ())
    }

    fn events(
        &mut self,
        came: Option<Came>,
        now_ns: i64,
        shared: &Shared,
        tally: &mut Tally,
    ) -> Result<bool, Failure> {
        let mut has_told = false;
        while let Some(event) = self.peer.next(&shared.common.clock, now_ns)? {
            match event {
                Event::RtpPacket(packet) => {
                    has_told = true;
                    self.packet(&packet, came, now_ns, tally);
                }
                Event::MediaIngressStats(told) => self.told(&told, now_ns, tally),
                Event::PeerStats(told) => self.round_trip(&told, now_ns, tally),
                _ => {}
            }
        }
        Ok(has_told)
    }

    fn packet(&mut self, packet: &RtpPacket, came: Option<Came>, now_ns: i64, tally: &mut Tally) {
        let ssrc = packet.header.ssrc;
        let Some(index) = self.feed_of(ssrc) else {
            if tally.span.holds(now_ns) {
                tally
                    .received
                    .iter_mut()
                    .last()
                    .into_iter()
                    .for_each(|counts| counts.duplicates += 1);
            }
            return;
        };
        let stream = &mut self.feeds[index].stream;
        let payload_type = came.and_then(|came| came.payload_type);
        let packet = Packet {
            number: *packet.seq_no,
            timestamp: packet.header.timestamp,
            marker: packet.header.marker,
            payload: &packet.payload,
            // str0m has put it in the place of the one that it stands for.
            is_repair: payload_type.is_some_and(|wire| wire != *packet.header.payload_type),
            came_ns: came.map_or(now_ns, |came| came.came_ns),
            datagram_bytes: came.map_or(0, |came| came.bytes),
        };
        let counts = &mut tally.received[stream.role];
        if stream.came(&packet, tally.span, counts) {
            counts.key_frames_asked += u64::from(tally.span.holds(now_ns));
            if let Some(source) = self.peer.rtc.direct_api().stream_rx(&ssrc) {
                source.request_keyframe(KeyframeRequestKind::Pli);
            }
        }
    }

    fn feed_of(&mut self, ssrc: Ssrc) -> Option<usize> {
        let known = self.sources.iter().find(|(source, _)| *source == ssrc);
        if let Some((_, index)) = known {
            return Some(*index);
        }
        let mid = self.peer.rtc.direct_api().stream_rx(&ssrc)?.mid();
        let index = self.feeds.iter().position(|fed| *fed.feed.mid == *mid)?;
        self.sources.push((ssrc, index));
        Some(index)
    }

    fn told(&mut self, told: &MediaIngressStats, now_ns: i64, tally: &mut Tally) {
        let known = self.nacks.iter_mut().find(|(mid, _)| *mid == told.mid);
        let before = match known {
            Some((_, nacks)) => std::mem::replace(nacks, told.nacks),
            None => {
                self.nacks.push((told.mid, told.nacks));
                0
            }
        };
        let fed = self.feeds.iter().find(|fed| *fed.feed.mid == *told.mid);
        if let Some(fed) = fed.filter(|_| tally.span.holds(now_ns)) {
            let more = told.nacks.checked_sub(before).unwrap_or(told.nacks); // another source counts anew
            tally.received[fed.stream.role].nacks += more;
        }
    }

    fn round_trip(&mut self, told: &PeerStats, now_ns: i64, tally: &mut Tally) {
        let Some(pair) = &told.selected_candidate_pair else {
            return;
        };
        let has_more =
            std::mem::replace(&mut self.answers, pair.responses_received) < pair.responses_received;
        if let Some(rtt) = pair
            .current_round_trip_time
            .filter(|_| has_more && tally.span.holds(now_ns))
        {
            tally.ice_rtt.record(rtt.as_nanos() as u64);
        }
    }
}

#[cfg(test)]
#[path = "receiving_tests.rs"]
mod tests;
