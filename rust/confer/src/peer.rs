//! A connection of media (ICE, DTLS, SRTP; str0m) over a socket of its own, so that the kernel tells participants apart.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use str0m::change::{SdpAnswer, SdpOffer, SdpPendingOffer};
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::{Candidate, Event, IceConnectionState, Input, Output, Rtc, RtcConfig, RtcError};
use str0m_proto::crypto::dtls::DtlsCert;
use str0m_proto::crypto::CryptoProvider;
use virtoll_generator::datagrams::{Datagram, Sockets};
use virtoll_generator::sys;

use super::codec::Codec;
use super::frames;
use super::room::Failure;

/// How often str0m tells its statistics.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Packets that can be sent again, and for how long: as many as a receiver of ours can still put in place.
const KEPT_PACKETS: usize = frames::KEPT as usize;
const KEPT_FOR: Duration = Duration::from_secs(3);

/// Between the two kinds of time; CLOCK_MONOTONIC is behind both.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
    base_ns: i64,
}

impl Clock {
    pub fn new() -> Self {
        Clock {
            base: Instant::now(),
            base_ns: sys::now_ns(),
        }
    }

    pub fn at(&self, now_ns: i64) -> Instant {
        self.base + Duration::from_nanos((now_ns - self.base_ns).max(0) as u64)
    }

    fn ns(&self, at: Instant) -> i64 {
        let since = at.saturating_duration_since(self.base).as_nanos();
        i64::try_from(since).map_or(i64::MAX, |ns| self.base_ns.saturating_add(ns))
    }
}

/// What all connections of media have in common.
pub struct Common {
    pub clock: Clock,
    pub crypto: Arc<CryptoProvider>,
    pub certificate: DtlsCert,
    /// From where the server can be reached.
    pub local: Ipv4Addr,
    /// Of all video.
    pub codec: Codec,
}

/// RTP that was sent since it was last asked: packets, and bytes of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing {
    pub packets: u64,
    pub bytes: u64,
}

/// What all have, and no codec yet.
fn builder(common: &Common) -> RtcConfig {
    Rtc::builder()
        .set_crypto_provider(common.crypto.clone())
        .set_dtls_cert(common.certificate.clone())
        .clear_codecs()
}

pub struct Peer {
    pub rtc: Rtc,
    sockets: Sockets,
    local: SocketAddr,
    offered: Option<(Mid, SdpPendingOffer)>,
    is_agreed: bool,
    has_ice: bool,
    is_connected: bool,
    /// When it is to be driven, though nothing came.
    pub wake_ns: i64,
    pub outgoing: Outgoing,
    /// Datagrams that found no room in its socket since it was last asked: they were never sent.
    pub unsent: u64,
    /// Datagrams that found it.
    #[cfg(test)]
    pub sent: u64,
    /// What comes to its socket gathers.
    pub gathers: bool,
}

impl Peer {
    /// `sends`: whole frames are given to it; or it receives packets. An error is the generator's own.
    pub fn new(common: &Common, sends: bool, now_ns: i64) -> std::io::Result<Self> {
        let mut rtc = builder(common)
            .set_rtp_mode(!sends)
            .set_send_buffer_video(KEPT_PACKETS)
            .set_stats_interval(Some(TOLD_EVERY));
        common.codec.enable(rtc.codec_config());
        Peer::of(rtc, common, now_ns)
    }

    /// One of audio, in which packets are given to it, and received. An error is the generator's own.
    pub fn of_audio(common: &Common, now_ns: i64) -> std::io::Result<Self> {
        let rtc = builder(common).enable_opus(true, false).set_rtp_mode(true);
        Peer::of(rtc, common, now_ns)
    }

    fn of(rtc: RtcConfig, common: &Common, now_ns: i64) -> std::io::Result<Self> {
        let (sockets, port) = Sockets::bind_one(common.local)?;
        let local = SocketAddr::V4(SocketAddrV4::new(common.local, port));
        let mut rtc = rtc.build(common.clock.at(now_ns));
        if let Ok(candidate) = Candidate::host(local, "udp") {
            rtc.add_local_candidate(candidate);
        }
        Ok(Peer {
            rtc,
            sockets,
            local,
            offered: None,
            is_agreed: false,
            has_ice: false,
            is_connected: false,
            wake_ns: now_ns,
            outgoing: Outgoing::default(),
            unsent: 0,
            #[cfg(test)]
            sent: 0,
            gathers: false,
        })
    }

    pub fn sockets(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    pub fn is_socket(&self, fd: RawFd) -> bool {
        self.sockets
            .all()
            .iter()
            .any(|socket| socket.as_raw_fd() == fd)
    }

    /// ICE and DTLS are done.
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// The two have told each other of it.
    pub fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// What it lacks.
    pub fn lacks(&self) -> Failure {
        match self.has_ice {
            true => Failure::Dtls,
            false => Failure::Ice,
        }
    }

    /// Offer to send one video.
    pub fn offer(&mut self) -> Result<(Mid, String), Failure> {
        self.offer_of(MediaKind::Video, Direction::SendOnly)
    }

    /// Offer one audio: to hear it, and to speak besides or not.
    pub fn offer_audio(&mut self, speaks: bool) -> Result<(Mid, String), Failure> {
        let direction = match speaks {
            true => Direction::SendRecv,
            false => Direction::RecvOnly,
        };
        self.offer_of(MediaKind::Audio, direction)
    }

    fn offer_of(
        &mut self,
        kind: MediaKind,
        direction: Direction,
    ) -> Result<(Mid, String), Failure> {
        let mut changes = self.rtc.sdp_api();
        let mid = changes.add_media(kind, direction, None, None, None);
        let (offer, pending) = changes.apply().ok_or(Failure::Sdp)?;
        self.offered = Some((mid, pending));
        Ok((mid, offer.to_sdp_string()))
    }

    pub fn answered(&mut self, sdp: &str) -> Result<(), Failure> {
        let (mid, pending) = self.offered.take().ok_or(Failure::Sdp)?;
        let answer = SdpAnswer::from_sdp_string(sdp).map_err(|_| Failure::Sdp)?;
        let accepted = self.rtc.sdp_api().accept_answer(pending, answer);
        self.is_agreed = accepted.is_ok();
        accepted.map_err(|_| Failure::Sdp)?;
        if let Some(stream) = self.rtc.direct_api().stream_tx_by_mid(mid, None) {
            // All that is asked for is sent again. With a cap (15 % of what is sent, by itself) str0m throws away what
            // waits, and that would be told as lost by the server.
            stream.set_rtx_cache(KEPT_PACKETS, KEPT_FOR, None);
        }
        Ok(())
    }

    /// Answer what is offered.
    pub fn answer(&mut self, sdp: &str) -> Result<String, Failure> {
        let offer = SdpOffer::from_sdp_string(sdp).map_err(|_| Failure::Sdp)?;
        let answer = self.rtc.sdp_api().accept_offer(offer);
        self.is_agreed |= answer.is_ok();
        Ok(answer.map_err(|_| Failure::Sdp)?.to_sdp_string())
    }

    /// One that is no address of UDP, or of IPv6, is none to us.
    pub fn candidate(&mut self, candidate: &str) {
        if let Ok(candidate) = Candidate::from_sdp_string(candidate) {
            if candidate.addr().is_ipv4() && candidate.proto() == Protocol::Udp {
                self.rtc.add_remote_candidate(candidate);
            }
        }
    }

    /// A datagram came at `came_ns`; what is neither STUN, DTLS nor RTP is a stray. `next` is to be asked for what became
    /// of it. What is due goes first: str0m drives its timers with each datagram, by the datagram's time, and would note
    /// what they send now as sent when that came.
    pub fn take(
        &mut self,
        datagram: &Datagram,
        came_ns: i64,
        now_ns: i64,
        clock: &Clock,
    ) -> Result<(), Failure> {
        if self.wake_ns <= now_ns {
            self.on_timer(clock.at(now_ns))?;
        }
        let from = SocketAddr::V4(SocketAddrV4::new(datagram.from, datagram.port));
        let received = Receive::new(Protocol::Udp, from, self.local, datagram.bytes);
        let Ok(received) = received else {
            return Ok(());
        };
        let taken = self
            .rtc
            .handle_input(Input::Receive(clock.at(came_ns), received));
        taken.map_err(|error| self.failure(&error))
    }

    pub fn on_timer(&mut self, now: Instant) -> Result<(), Failure> {
        let taken = self.rtc.handle_input(Input::Timeout(now));
        taken.map_err(|error| self.failure(&error))
    }

    /// What happened next, until there is nothing more; what it has to send is sent.
    pub fn next(&mut self, clock: &Clock, now_ns: i64) -> Result<Option<Event>, Failure> {
        loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(at)) => {
                    // "At once" is told as when it was last driven, however long ago.
                    self.wake_ns = clock.ns(at).max(now_ns);
                    return Ok(None);
                }
                Ok(Output::Transmit(datagram)) => {
                    let SocketAddr::V4(to) = datagram.destination else {
                        continue;
                    };
                    let to = (*to.ip(), to.port());
                    match self.sockets.send(0, to, &datagram.contents) {
                        true => self.count(&datagram.contents),
                        false => self.unsent += 1,
                    }
                }
                Ok(Output::Event(event)) => {
                    self.notice(&event)?;
                    return Ok(Some(event));
                }
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    fn count(&mut self, datagram: &[u8]) {
        #[cfg(test)]
        {
            self.sent += 1;
        }
        if payload_type(datagram).is_some() {
            self.outgoing.packets += 1;
            self.outgoing.bytes += datagram.len() as u64;
        }
    }

    fn notice(&mut self, event: &Event) -> Result<(), Failure> {
        match event {
            Event::Connected => self.is_connected = true,
            Event::IceConnectionStateChange(IceConnectionState::Disconnected) => {
                return Err(match self.is_connected {
                    true => Failure::Lost,
                    false => self.lacks(),
                });
            }
            Event::IceConnectionStateChange(state) => self.has_ice |= state.is_connected(),
            Event::Closed => return Err(Failure::Lost),
            _ => {}
        }
        Ok(())
    }

    fn failure(&self, error: &RtcError) -> Failure {
        match error {
            _ if self.is_connected => Failure::Lost,
            RtcError::Ice(_) => Failure::Ice,
            _ => Failure::Dtls,
        }
    }
}

/// Of a datagram of RTP (RFC 7983, 7; RFC 5761, 4).
pub fn payload_type(datagram: &[u8]) -> Option<u8> {
    match datagram {
        [128..=191, second, ..] if !(64..96).contains(&(second & 0x7f)) => Some(second & 0x7f),
        _ => None,
    }
}
