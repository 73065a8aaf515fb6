//! The conversation of RTSP: what is asked for, one after the other, and what the answers are taken for.

use super::*;
use crate::rtsp::is_url;
use crate::rtsp::message::{pair, parameter};

impl Rtsp<'_> {
    pub(super) fn ask(&mut self, phase: Phase, method: &str, url: &str, fields: &str) {
        let request = self.session.request(method, url, fields, "");
        self.phase = phase;
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

    pub(super) fn answered(
        &mut self,
        status: u16,
        message: &Message,
        now: &mut Now,
    ) -> Result<(), Failure> {
        self.session.answered(message)?;
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
                (self.heard_ns, self.keep_ns) = (now.ns, now.ns + self.session.keep_every_ns());
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
        let base = base.filter(|base| base.starts_with("rtsp://") && is_url(base));
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
        let transport = self.session.is_set_up(message)?;
        self.ways.push(match self.source.transport {
            Transport::Tcp => {
                let (rtp, rtcp) = session::channels(transport).ok_or(Failure::Parse)?;
                (rtp.into(), rtcp.into())
            }
            Transport::Udp if !session::is_tcp(transport) && !transport.contains("multicast") => {
                let ports = parameter(transport, "server_port").and_then(pair);
                ports.unwrap_or((0, 0)) // it need not say
            }
            Transport::Udp => return Err(Failure::Parse), // it will send elsewhere
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
}
