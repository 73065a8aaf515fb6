//! A server that speaks as Janus does, for tests: it takes what is sent, and sends a film of its own to who watches.

use std::io;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{json, Value};
use tungstenite::handshake::server::{Request, Response};
use tungstenite::{Message, WebSocket};
use virtoll_generator::datagrams::Batch;
use virtoll_generator::sys;

use super::audio::Audio;
use super::peer::Peer;
use super::sending::Sending;
use super::tally::Tally;
use super::Shared;

/// What the server does out of the ordinary.
#[derive(Clone, Copy, PartialEq)]
pub enum Whim {
    None,
    /// Nobody may publish.
    Full,
    /// Who publishes is hung up on, once it is connected.
    HangsUp,
    /// It never answers who would watch.
    Silent,
    /// There is no room for audio.
    Deaf,
    /// It never answers who would come into its audio.
    Aloof,
    /// It never answers an offer of audio.
    Mute,
    /// It answers that, and is not where it says.
    Away,
}

/// Of the AudioBridge.
const AUDIO: i64 = 10;

/// One participant's session.
pub struct Session<'a> {
    pub shared: &'a Shared<'a>,
    pub socket: WebSocket<TcpStream>,
    pub whim: Whim,
    /// What it takes of the participant, and sends to it.
    pub taken: Option<Peer>,
    pub sending: Option<Sending<'a>>,
    /// By which it says something to who comes to hear; to who speaks only once that was heard.
    pub audio: Option<Audio<'a>>,
    pub tally: Tally,
    pub batch: Batch,
}

impl Session<'_> {
    fn say(&mut self, mut answer: Value, request: &Value) {
        answer["transaction"] = request["transaction"].clone();
        let _ = self.socket.send(Message::text(answer.to_string())); // it may have gone
    }

    fn event(&mut self, request: &Value, data: Value, jsep: Option<Value>) {
        let mut event =
            json!({"janus": "event", "sender": request["handle_id"], "plugindata": {"data": data}});
        if let Some(jsep) = jsep {
            event["jsep"] = jsep;
        }
        self.say(event, request);
    }

    fn hear(&mut self, request: &Value) {
        let id = match request["transaction"].as_str() {
            Some("create") => 7,
            Some("attach receiving") => 9,
            Some("attach audio") => AUDIO,
            _ => 8,
        };
        let now_ns = sys::now_ns();
        let sdp = request["jsep"]["sdp"].as_str().unwrap_or_default();
        match (
            request["janus"].as_str().unwrap(),
            request["body"]["request"].as_str().unwrap_or_default(),
        ) {
            ("create" | "attach", _) => {
                self.say(json!({"janus": "success", "data": {"id": id}}), request)
            }
            (_, "join") if request["handle_id"] == AUDIO && self.whim == Whim::Aloof => {}
            (_, "join") if request["handle_id"] == AUDIO && self.whim == Whim::Deaf => {
                self.event(
                    request,
                    json!({"audiobridge": "event", "error_code": 485, "error": "No such room"}),
                    None,
                );
            }
            (_, "join") if request["handle_id"] == AUDIO => {
                self.event(
                    request,
                    json!({"audiobridge": "joined", "room": 1, "id": 5, "participants": []}),
                    None,
                );
            }
            (_, "configure") if self.whim == Whim::Mute => {}
            (_, "configure") => {
                let peer = Peer::of_audio(&self.shared.common, now_ns).unwrap();
                let sound = self.shared.sound.as_ref().unwrap();
                let (audio, answer) = Audio::answering(peer, sdp, sound);
                assert_eq!(sdp.contains("a=recvonly"), request["body"]["muted"] == true);
                self.audio = Some(audio).filter(|_| self.whim != Whim::Away);
                let jsep = json!({"type": "answer", "sdp": answer});
                self.event(
                    request,
                    json!({"audiobridge": "event", "result": "ok"}),
                    Some(jsep),
                );
            }
            (_, "join") if request["body"]["ptype"] == "publisher" => {
                let stream = json!({"type": "video", "mid": "v"});
                let film = json!([{"id": 99, "display": "virtoll 9 film", "streams": [stream]}]);
                self.event(
                    request,
                    json!({"videoroom": "joined", "private_id": 3, "publishers": film}),
                    None,
                );
            }
            (_, "join") if self.whim == Whim::Silent => {}
            (_, "join") => {
                let peer = Peer::new(&self.shared.common, true, now_ns).unwrap();
                let film = self.shared.roles[0].film.as_ref().unwrap();
                let (sending, offer) = Sending::new(peer, 0, film, 0).unwrap();
                let mid = offer
                    .lines()
                    .find_map(|line| line.strip_prefix("a=mid:"))
                    .unwrap();
                let stream = json!({"type": "video", "active": true, "mid": mid, "feed_id": 99});
                self.sending = Some(sending);
                let jsep = json!({"type": "offer", "sdp": offer});
                self.event(
                    request,
                    json!({"videoroom": "attached", "streams": [stream]}),
                    Some(jsep),
                );
            }
            (_, "publish") if self.whim == Whim::Full => {
                self.event(
                    request,
                    json!({"videoroom": "event", "error_code": 432, "error": "full"}),
                    None,
                );
            }
            (_, "publish") => {
                let mut peer = Peer::new(&self.shared.common, false, now_ns).unwrap();
                let answer = peer.answer(sdp).unwrap();
                self.taken = Some(peer);
                let jsep = json!({"type": "answer", "sdp": answer});
                self.event(
                    request,
                    json!({"videoroom": "event", "configured": "ok"}),
                    Some(jsep),
                );
            }
            (_, "start") => {
                self.sending.as_mut().unwrap().peer.answered(sdp).unwrap();
                self.event(
                    request,
                    json!({"videoroom": "event", "started": "ok"}),
                    None,
                );
            }
            _ => {}
        }
    }

    /// Take what has come over a connection of media; whether it is there still.
    fn media(&mut self) -> bool {
        let now_ns = sys::now_ns();
        let clock = self.shared.common.clock;
        let sending = self.sending.as_mut().map(|sending| &mut sending.peer);
        for peer in sending.into_iter().chain(&mut self.taken) {
            let count = self.batch.receive(&peer.sockets().all()[0]).unwrap_or(0);
            for index in 0..count {
                let datagram = self.batch.get(index);
                let taken = peer.take(&datagram, now_ns, now_ns, &clock);
                if taken.is_err() {
                    return false;
                }
                while let Ok(Some(_)) = peer.next(&clock, now_ns) {}
            }
            if peer.wake_ns <= now_ns && peer.on_timer(clock.at(now_ns)).is_err() {
                return false;
            }
            while let Ok(Some(_)) = peer.next(&clock, now_ns) {}
        }
        let sending = self.sending.as_mut();
        sending.is_none_or(|sending| sending.drive(now_ns, self.shared, &mut self.tally).is_ok())
    }

    /// The same of audio.
    fn audio(&mut self) -> bool {
        let (now_ns, shared) = (sys::now_ns(), self.shared);
        let Some(audio) = &mut self.audio else {
            return true;
        };
        let count = self
            .batch
            .receive(&audio.peer.sockets().all()[0])
            .unwrap_or(0);
        for index in 0..count {
            let datagram = self.batch.get(index);
            let taken = audio.take(&datagram, now_ns, now_ns, shared, &mut self.tally);
            if taken.is_err() {
                return false;
            }
        }
        let clock = shared.common.clock;
        if audio.peer.wake_ns <= now_ns && audio.peer.on_timer(clock.at(now_ns)).is_err() {
            return false;
        }
        if audio.peer.is_connected() && audio.is_spoken_to() && !audio.has_heard() {
            while let Ok(Some(_)) = audio.peer.next(&clock, now_ns) {}
            return true;
        }
        audio.drive(now_ns, shared, &mut self.tally).is_ok()
    }

    /// Until the participant goes.
    pub fn run(mut self) {
        self.socket.get_mut().set_nonblocking(true).unwrap();
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) => {
                    assert!(!text.ends_with('\n'));
                    self.hear(&serde_json::from_str(&text).unwrap());
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return,
            }
            let is_taken = self.taken.as_ref().is_some_and(Peer::is_connected);
            if !self.media() || !self.audio() || self.whim == Whim::HangsUp && is_taken {
                let hangup = json!({"janus": "hangup", "sender": 8, "reason": "Close PC"});
                let _ = self.socket.send(Message::text(hangup.to_string()));
                (self.taken, self.audio) = (None, None);
            }
        }
    }
}

/// A WebSocket; None where it is no participant that comes.
#[allow(clippy::result_large_err)] // tungstenite's own
pub fn accepted(stream: TcpStream) -> Option<WebSocket<TcpStream>> {
    let answer = |_: &Request, mut response: Response| {
        let protocol = "janus-protocol".parse().unwrap();
        let headers = response.headers_mut();
        headers.insert("sec-websocket-protocol", protocol);
        Ok(response)
    };
    tungstenite::accept_hdr(stream, answer).ok()
}
