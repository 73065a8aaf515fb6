//! The conversation of RTSP: what is asked for, one after the other, and what the answers are taken for.

use super::message::{pair, parameter};
use super::*;

impl Rtsp<'_> {
    fn request(&mut self, method: &str, url: &str, fields: &str) -> Vec<u8> {
        self.number += 1;
        let session = match &self.session {
            Some(session) => format!("Session: {session}\r\n"),
            None => String::new(),
        };
        let number = self.number;
        format!("{method} {url} RTSP/1.0\r\nCSeq: {number}\r\nUser-Agent: virtoll-load\r\n{session}{fields}\r\n")
            .into_bytes()
    }

    pub(super) fn ask(&mut self, phase: Phase, method: &str, url: &str, fields: &str) {
        let request = self.request(method, url, fields);
        (self.phase, self.is_answered) = (phase, false);
        self.unsent.push_back(request);
    }

    pub(super) fn set_up(&mut self, index: usize) {
        let transport = match self.ports.get(index) {
            Some((rtp, rtcp)) => format!("RTP/AVP;unicast;client_port={rtp}-{rtcp}"),
            None => format!(
                "RTP/AVP/TCP;unicast;interleaved={}-{}",
                2 * index,
                2 * index + 1
            ),
        };
        let url = self.tracks[index].about.url.clone();
        let fields = format!("Transport: {transport}\r\n");
        self.ask(Phase::Setup(index), "SETUP", &url, &fields);
    }

    /// The server asks: it is told that nothing of the kind is done here. It may not send us elsewhere.
    pub(super) fn asked(&mut self, message: &Message) -> Result<(), Failure> {
        let number = message
            .field("CSeq")
            .and_then(|number| number.parse::<u32>().ok());
        if message.method() == "REDIRECT" || number.is_none() {
            return Err(Failure::Parse);
        }
        let answer = format!(
            "RTSP/1.0 501 Not Implemented\r\nCSeq: {}\r\n\r\n",
            number.unwrap_or(0)
        );
        self.unsent.push_back(answer.into_bytes());
        Ok(())
    }

    pub(super) fn answered(
        &mut self,
        status: u16,
        message: &Message,
        now: &mut Now,
    ) -> Result<(), Failure> {
        let number = message
            .field("CSeq")
            .and_then(|number| number.parse::<u32>().ok());
        if self.is_answered || number != Some(self.number) {
            return Err(Failure::Parse);
        }
        self.is_answered = true;
        now.count(|seen| seen.answers += 1);
        if status != 200 {
            self.refused = Some(status);
            return Err(Failure::Status);
        }
        match self.phase {
            Phase::Options => {
                let public = message.field("Public").unwrap_or("");
                self.knows_get_parameter =
                    public.split(',').any(|name| name.trim() == "GET_PARAMETER");
                let url = self.url.clone();
                self.ask(
                    Phase::Describe,
                    "DESCRIBE",
                    &url,
                    "Accept: application/sdp\r\n",
                );
            }
            Phase::Describe => self.described(message)?,
            Phase::Setup(index) => self.is_set_up(index, message)?,
            Phase::Play => {
                self.phase = Phase::Playing;
                (self.heard_ns, self.keep_ns) = (now.ns, now.ns + self.keep_every_ns);
                for track in &mut self.tracks {
                    track.begin(&mut self.random, now.ns);
                }
            }
            Phase::New | Phase::Unbound | Phase::Playing | Phase::Whole => {}
        }
        Ok(())
    }

    fn described(&mut self, message: &Message) -> Result<(), Failure> {
        let base = message
            .field("Content-Base")
            .or(message.field("Content-Location"));
        let base = base.filter(|base| base.starts_with("rtsp://") && sdp::is_url(base));
        let told = sdp::parse(message.body, base.unwrap_or(&self.source.url))?;
        self.url = told.url;
        if !self.source.is_live {
            self.length_ns = self.source.length_ns.or(told.length_ns);
        }
        self.tracks = told.tracks.into_iter().map(Track::new).collect();
        match self.source.transport {
            Transport::Tcp => self.set_up(0),
            Transport::Udp => self.phase = Phase::Unbound,
        }
        Ok(())
    }

    fn is_set_up(&mut self, index: usize, message: &Message) -> Result<(), Failure> {
        let session = message.field("Session").ok_or(Failure::Parse)?;
        let name = session.split(';').next().unwrap_or("").trim();
        let is_other = self.session.as_deref().is_some_and(|known| known != name);
        if is_other || name.is_empty() || name.len() > MOST_SESSION_BYTES {
            return Err(Failure::Parse);
        }
        self.session = Some(name.to_owned());
        let timeout_s = parameter(session, "timeout").and_then(|told| told.parse::<i64>().ok());
        if let Some(timeout_s) = timeout_s {
            // It holds for the session, also where it is not said again for the next track.
            self.keep_every_ns = timeout_s.clamp(2, MOST_TIMEOUT_S) * 500_000_000;
        }
        let transport = message.field("Transport").ok_or(Failure::Parse)?;
        let is_tcp = transport
            .split(';')
            .next()
            .is_some_and(|way| way.trim().ends_with("/TCP"));
        let name = match self.source.transport {
            Transport::Tcp if is_tcp => "interleaved",
            Transport::Udp if !is_tcp && !transport.contains("multicast") => "server_port",
            _ => return Err(Failure::Parse), // it will send elsewhere
        };
        let way = parameter(transport, name).and_then(pair);
        self.ways.push(match self.source.transport {
            Transport::Tcp => {
                let is_channel = |(rtp, rtcp): &(u16, u16)| *rtp.max(rtcp) <= MOST_CHANNEL;
                way.filter(is_channel).ok_or(Failure::Parse)?
            }
            Transport::Udp => way.unwrap_or((0, 0)), // it need not say
        });
        if index + 1 < self.tracks.len() {
            self.set_up(index + 1);
        } else {
            let range = if self.length_ns.is_some() {
                "Range: npt=0.000-\r\n"
            } else {
                ""
            };
            let url = self.url.clone();
            self.ask(Phase::Play, "PLAY", &url, range);
        }
        Ok(())
    }

    pub(super) fn farewell(&mut self) -> Option<Vec<u8>> {
        self.session.as_ref()?;
        let url = self.url.clone();
        let request = self.request("TEARDOWN", &url, "");
        self.session = None;
        Some(request)
    }
}
