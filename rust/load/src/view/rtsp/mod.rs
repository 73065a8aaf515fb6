//! RTSP 1.0 (RFC 2326): a presentation is described, its tracks are set up, and played; the media come as RTP, over the
//! connection itself or as datagrams. The server sets the pace, and whatever a viewer does is brought about by what comes;
//! so that it is known whether the generator looks in time, it also looks up by itself.
//!
//! A film is whole when all its tracks came to within 2 s of its length (VLC keeps back what its own buffer holds) and the
//! server said farewell, or nothing more for a second; one that ends before is cut. What is live has no end.

mod conversation;
mod rtcp;
mod sdp;
mod track;

use std::collections::VecDeque;

use serde::Deserialize;
use virtoll_generator::random::Random;

use super::protocol::{Came, Looks, Now, Protocol, Want};
use crate::rtmp::media::Mark;
use crate::rtsp::message::{Framer, Item, Message};
use crate::rtsp::session::{self, Session};
use crate::tally::Failure;
use track::Track;

const READ_BYTES: usize = 64 * 1024;
const TAIL_NS: i64 = 2_000_000_000;
const SILENCE_NS: i64 = 1_000_000_000;
/// RTSP, RTP and RTCP of one track, and of as many as there may be.
pub const LEAST_DESCRIPTORS: u64 = 1 + 2;
pub const MOST_DESCRIPTORS: u64 = 1 + 2 * sdp::MOST_TRACKS as u64;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Udp,
}

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Source {
    pub url: String,
    pub transport: Transport,
    /// None: as the server says.
    pub length_ns: Option<i64>,
    /// It goes on for ever.
    pub is_live: bool,
    /// By which it is known when its publisher, on this machine, sent a frame.
    pub mark: Option<Mark>,
}

/// What the last request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Options,
    Describe,
    /// Ports are needed.
    Unbound,
    Setup(usize),
    Play,
    Playing,
    Whole,
}

pub struct Rtsp<'a> {
    source: &'a Source,
    random: Random,
    looks: Looks,
    /// SSRC of our reports.
    own: u32,
    phase: Phase,
    framer: Framer,
    unsent: VecDeque<Vec<u8>>,
    /// From which socket, to which port.
    unsent_datagrams: Vec<(usize, u16, Vec<u8>)>,
    session: Session,
    knows_get_parameter: bool,
    keep_ns: i64,
    /// What the whole is played by.
    url: String,
    length_ns: Option<i64>,
    tracks: Vec<Track>,
    /// Of each track, RTP's and RTCP's: channels, or the server's ports.
    ways: Vec<(u16, u16)>,
    ports: Vec<(u16, u16)>,
    heard_ns: i64,
    refused: Option<u16>,
}

impl<'a> Rtsp<'a> {
    /// `seed`: of what is drawn, so that reports do not come all at once.
    pub fn new(source: &'a Source, seed: u64) -> Self {
        let mut random = Random(seed);
        let own = random.below(1 << 32) as u32;
        Rtsp {
            source,
            random,
            looks: Looks::new(seed),
            own,
            phase: Phase::New,
            framer: Framer::default(),
            unsent: VecDeque::new(),
            unsent_datagrams: Vec::new(),
            session: Session::default(),
            knows_get_parameter: false,
            keep_ns: i64::MAX,
            url: source.url.clone(),
            length_ns: None,
            tracks: Vec::new(),
            ways: Vec::new(),
            ports: Vec::new(),
            heard_ns: 0,
            refused: None,
        }
    }

    fn item(&mut self, item: Item, now: &mut Now) -> Result<(), Failure> {
        match item {
            Item::Frame { channel, payload } => {
                let channel = u16::from(channel);
                match self
                    .ways
                    .iter()
                    .position(|(rtp, rtcp)| *rtp == channel || *rtcp == channel)
                {
                    Some(index) if self.source.transport == Transport::Tcp => {
                        let is_media = self.ways[index].0 == channel;
                        self.packet(index, is_media, payload, Came::just(now.ns), now)
                    }
                    _ => {
                        now.count(|seen| seen.rtp.strays += 1);
                        Ok(())
                    }
                }
            }
            Item::Message(message) => match message.status() {
                Some(status) => self.answered(status, &message, now),
                None => {
                    self.unsent.push_back(session::declined(&message)?);
                    Ok(())
                }
            },
        }
    }

    fn packet(
        &mut self,
        index: usize,
        is_media: bool,
        packet: &[u8],
        came: Came,
        now: &mut Now,
    ) -> Result<(), Failure> {
        if !matches!(self.phase, Phase::Play | Phase::Playing | Phase::Whole) {
            // Meant for whoever had these ports before: nothing has been asked for yet.
            now.count(|seen| seen.rtp.strays += 1);
            return Ok(());
        }
        let was_over = self.is_over();
        let track = &mut self.tracks[index];
        if !is_media {
            track.control(packet, now)?;
            if self.is_over() && !was_over {
                self.heard_ns = now.ns; // what follows is due from now on, and not since the last media
            }
            return Ok(());
        }
        if !track.media(packet, came, self.source.mark.as_ref(), now)? {
            return Ok(()); // nor does what brings nothing keep alive what has ended
        }
        self.heard_ns = now.ns;
        let going = self.tracks.iter().filter(|track| !track.is_over);
        let came_ns = going.map(|track| track.media_ns).min().unwrap_or(0);
        let more_ns = came_ns - now.player.got_ns();
        if more_ns > 0 && self.phase != Phase::Whole {
            now.media(more_ns, false);
            now.player.may_be_whole(self.is_near_end());
        }
        Ok(())
    }

    /// Whether all has come but for what a server may keep back; never, where there is no end.
    fn is_near_end(&self) -> bool {
        let at_ns = self.tracks.iter().map(Track::at_ns).min().unwrap_or(0);
        self.length_ns
            .is_some_and(|length_ns| at_ns >= length_ns - TAIL_NS.min(length_ns / 2))
    }

    fn is_over(&self) -> bool {
        self.tracks.iter().all(|track| track.is_over)
    }

    /// Whatever is due by now.
    fn attend(&mut self, now: &mut Now) -> Result<(), Failure> {
        if self.phase != Phase::Playing {
            return Ok(());
        }
        let is_silent = now.ns - self.heard_ns >= SILENCE_NS;
        if self.is_near_end() && (self.is_over() || is_silent) {
            self.end(now);
            return Ok(());
        }
        if self.is_over() && is_silent {
            return Err(Failure::Length);
        }
        if self.keep_ns <= now.ns && self.session.is_answered() {
            self.keep_ns = now.ns + self.session.keep_every_ns();
            let method = if self.knows_get_parameter {
                "GET_PARAMETER"
            } else {
                "OPTIONS"
            };
            let url = self.url.clone();
            self.ask(Phase::Playing, method, &url, "");
        }
        for index in 0..self.tracks.len() {
            if self.tracks[index].report_ns <= now.ns {
                if let Some(report) = self.tracks[index].report(self.own, &mut self.random, now) {
                    self.send_report(index, report);
                }
            }
        }
        Ok(())
    }

    fn send_report(&mut self, index: usize, report: Vec<u8>) {
        let way = self.ways[index].1;
        match self.source.transport {
            Transport::Tcp => {
                self.unsent.extend(session::framed(way as u8, &report));
            }
            Transport::Udp if way != 0 => self.unsent_datagrams.push((2 * index + 1, way, report)),
            Transport::Udp => {}
        }
    }

    fn end(&mut self, now: &mut Now) {
        self.phase = Phase::Whole;
        let farewell = self.session.farewell(&self.url);
        self.unsent.extend(farewell);
        now.media(0, true);
    }
}

impl Protocol for Rtsp<'_> {
    fn want(&mut self, now: &mut Now) -> Want {
        self.looks.look(now.ns);
        if let Err(failure) = self.attend(now) {
            return Want::Fail(failure);
        }
        if self.phase == Phase::New {
            let url = self.url.clone();
            self.ask(Phase::Options, "OPTIONS", &url, "");
            return Want::Connect;
        }
        if let Some(bytes) = self.unsent.pop_front() {
            return Want::Say(bytes);
        }
        if let Some((socket, port, bytes)) = self.unsent_datagrams.pop() {
            return Want::Datagram {
                socket,
                port,
                bytes,
            };
        }
        match self.phase {
            Phase::Unbound => Want::Bind(self.tracks.len()),
            Phase::Whole => Want::Nothing,
            _ => Want::Read(READ_BYTES),
        }
    }

    fn take(&mut self, input: &[u8], now: &mut Now) -> Result<(), Failure> {
        let mut framer = std::mem::take(&mut self.framer);
        let told = framer.feed(input, |item| self.item(item, now));
        self.framer = framer;
        told
    }

    fn closed(&mut self, now: &mut Now) -> Result<(), Failure> {
        match self.phase {
            Phase::Whole => Ok(()),
            Phase::Playing if self.may_close() => {
                self.session.is_gone();
                self.end(now);
                Ok(())
            }
            Phase::Playing => Err(Failure::Length),
            _ => Err(Failure::Reset),
        }
    }

    fn may_close(&self) -> bool {
        match self.phase {
            Phase::Whole => true,
            Phase::Playing => self.is_near_end(),
            _ => false,
        }
    }

    fn wakes_ns(&self) -> i64 {
        match self.phase {
            Phase::Playing => {}
            Phase::Whole => return i64::MAX,
            _ => return self.looks.due_ns(),
        }
        let ends_ns = match (self.is_near_end(), self.is_over()) {
            (true, true) => self.heard_ns,
            (false, false) => i64::MAX,
            _ => self.heard_ns + SILENCE_NS,
        };
        let keep_ns = if self.session.is_answered() {
            self.keep_ns
        } else {
            i64::MAX
        };
        let reports_ns = self.tracks.iter().map(|track| track.report_ns);
        let first_ns = ends_ns.min(keep_ns).min(self.looks.due_ns());
        reports_ns.fold(first_ns, i64::min)
    }

    fn bound(&mut self, ports: Vec<(u16, u16)>) {
        self.ports = ports;
        self.set_up(0);
    }

    fn datagram(
        &mut self,
        socket: usize,
        packet: &[u8],
        came: Came,
        now: &mut Now,
    ) -> Result<(), Failure> {
        match self.packet(socket / 2, socket & 1 == 0, packet, came, now) {
            // Keep-alives of the network's, as of STUN, come to these ports too: what is no packet is thrown away (RFC
            // 3550, A.1 and A.2).
            Err(Failure::Parse) => {
                now.count(|seen| seen.rtp.strays += 1);
                Ok(())
            }
            told => told,
        }
    }

    fn end_window(&mut self, now: &mut Now) {
        if let Some(jitter_ns) = self.tracks.iter().filter_map(Track::jitter_ns).max() {
            now.seen.rtp.jitter(jitter_ns);
        }
        self.tracks.iter_mut().for_each(Track::end_window);
    }

    fn leave(&mut self, now: &mut Now) -> Option<Vec<u8>> {
        self.end_window(now);
        self.session.farewell(&self.url)
    }

    fn refused(&self) -> Option<u16> {
        self.refused
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
