//! A room of a LiveKit server, over its WebSocket: one connection of media to send by, and one that receives all that is
//! sent, which the server offers, and offers anew whenever it changes (LiveKit's documentation: "Client protocol").
//!
//! Who joins is let in by a token of the server's key (RFC 7519, with HMAC-SHA256).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base64::prelude::{Engine, BASE64_URL_SAFE_NO_PAD};
use prost::Message;
use ring::hmac;
use serde_json::{json, Value};

use super::livekit_said::{
    AddTrackRequest, Leave, Participant, Ping, Request, Response, SessionDescription,
    SignalRequest, SignalResponse, Track, CAMERA, DISCONNECTED, ROOM_CLOSED, ROOM_DELETED,
    SCREEN_SHARE, SUBSCRIBER, VIDEO,
};
use super::room::{expect_short, Failure, Feed, Room, Told, Way, Words, MOST_SENDERS};
use super::spec::LiveKitSpec;

const PROTOCOL: u32 = 15;
/// Whoever says nothing for 15 s counts as gone (`PingTimeoutSeconds`); clients say something every 5 s.
const PING_EVERY_NS: i64 = 5_000_000_000;
/// Tokens hold until the year 2100: nobody's clock is asked.
const EXPIRES_S: u64 = 4_102_444_800;

/// Who sends a track.
struct Sender {
    sid: String,
    display: String,
}

pub struct LiveKit<'a> {
    spec: &'a LiveKitSpec,
    display: String,
    watches: bool,
    /// Video that is published, by its tracks' ids.
    senders: BTreeMap<String, Sender>,
    /// How far participants are known, by their ids.
    versions: BTreeMap<String, u32>,
    /// Of the last offer: where each track is (`mid`), and its number.
    places: BTreeMap<String, String>,
    offer_id: u32,
    /// Of the one that we make.
    own_offer_id: u32,
    has_been_offered: bool,
    say: VecDeque<Words>,
    told: VecDeque<Told>,
}

impl<'a> LiveKit<'a> {
    pub fn new(spec: &'a LiveKitSpec, display: String, watches: bool) -> Self {
        LiveKit {
            spec,
            display,
            watches,
            senders: BTreeMap::new(),
            versions: BTreeMap::new(),
            places: BTreeMap::new(),
            offer_id: 0,
            own_offer_id: 0,
            has_been_offered: false,
            say: VecDeque::new(),
            told: VecDeque::new(),
        }
    }

    fn request(&mut self, request: Request) {
        let message = SignalRequest {
            message: Some(request),
        };
        self.say.push_back(Words::Bytes(message.encode_to_vec()));
    }

    /// What opens the room to this participant.
    fn token(&self) -> String {
        let claims = json!({
            "iss": self.spec.key, "sub": self.display, "name": self.display, "exp": EXPIRES_S,
            "video": {"room": self.spec.room, "roomJoin": true, "canPublish": true, "canSubscribe": self.watches},
        });
        let part = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!(
            "{}.{}",
            part(json!({"alg": "HS256", "typ": "JWT"})),
            part(claims)
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.spec.secret.as_bytes());
        let signature = hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    /// Who is there, and what each of them sends now; those who are not named are as before.
    fn seen(&mut self, participants: Vec<Participant>) -> Result<(), Failure> {
        for participant in participants {
            if self.versions.len() >= MOST_SENDERS {
                // Who comes again has another one: of those who send nothing the last versions are of no use.
                let sids = self.senders.values().map(|sender| sender.sid.as_str());
                let sending: BTreeSet<&str> = sids.collect();
                self.versions
                    .retain(|sid, _| sending.contains(sid.as_str()));
            }
            if self.versions.len().max(self.senders.len()) >= MOST_SENDERS {
                return Err(Failure::Signalling);
            }
            let tracks = participant.tracks.iter().map(|track| &track.sid);
            expect_short(
                [&participant.sid, &participant.identity]
                    .into_iter()
                    .chain(tracks),
            )?;
            let version = self.versions.entry(participant.sid.clone()).or_default();
            if participant.identity != self.display && participant.version >= *version {
                *version = participant.version; // they may come in another order
                self.changed(&participant);
            }
        }
        if self.senders.is_empty() && !self.has_been_offered {
            self.told.push_back(Told::Alone);
        }
        Ok(())
    }

    fn changed(&mut self, participant: &Participant) {
        let is_there = participant.state != DISCONNECTED;
        let is_video = |track: &&Track| track.kind == VIDEO && !track.muted && is_there;
        let videos: Vec<_> = participant.tracks.iter().filter(is_video).collect();
        // Whoever has come again under his name is the one that counts: of the other nothing more is told.
        let is_before = |sender: &Sender| {
            is_there && sender.display == participant.identity && sender.sid != participant.sid
        };
        let is_over = |id: &String, sender: &Sender| {
            let is_his = sender.sid == participant.sid;
            is_before(sender) || is_his && !videos.iter().any(|track| track.sid == *id)
        };
        let mut gone = Vec::new();
        self.senders.retain(|id, sender| {
            let over = is_over(id, sender);
            if over && (is_before(sender) || videos.is_empty()) {
                gone.push(sender.sid.clone());
            }
            !over
        });
        self.told
            .extend(gone.into_iter().map(|sender| Told::Gone { sender }));
        let mut heard = Vec::new();
        for track in videos {
            let sender = Sender {
                sid: participant.sid.clone(),
                display: participant.identity.clone(),
            };
            if self.senders.insert(track.sid.clone(), sender).is_none() {
                heard.push(self.feed(&track.sid));
            }
        }
        if self.watches && !heard.is_empty() {
            let feeds = heard.into_iter().flatten().collect();
            self.told.push_back(Told::Heard(feeds)); // the server subscribes for us
        }
    }

    /// A track whose sender is known, in its place of the last offer.
    fn feed(&self, track: &str) -> Option<Feed> {
        let sender = self.senders.get(track)?;
        Some(Feed {
            mid: self.places.get(track).cloned().unwrap_or_default(),
            sender: sender.sid.clone(),
            display: sender.display.clone(),
        })
    }

    fn offered(&mut self, offer: SessionDescription) {
        self.offer_id = offer.id;
        let places = videos(&offer.sdp).map(|(mid, track)| (track.to_owned(), mid.to_owned()));
        self.places = places.collect();
        let feeds: Vec<Feed> = self
            .places
            .keys()
            .filter_map(|track| self.feed(track))
            .collect();
        self.has_been_offered |= !feeds.is_empty();
        let sdp = offer.sdp;
        self.told.push_back(Told::Offer { sdp, feeds });
    }
}

/// The videos that an offer would send: of each its place (`mid`), and the track's id (RFC 8830: the second word of
/// `msid`).
fn videos(sdp: &str) -> impl Iterator<Item = (&str, &str)> {
    let media = sdp.split("\nm=").skip(1);
    media.filter_map(|section| {
        let value = |name: &str| {
            section
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim_end)
        };
        let is_sent = section
            .lines()
            .any(|line| ["a=sendonly", "a=sendrecv"].contains(&line.trim_end()));
        let is_video = section.starts_with("video ") && is_sent;
        let track = value("a=msid:")?.split(' ').nth(1)?;
        is_video.then_some((value("a=mid:")?, track))
    })
}

impl Room for LiveKit<'_> {
    fn path(&self) -> String {
        let token = self.token();
        let watches = u8::from(self.watches);
        format!("/rtc?access_token={token}&auto_subscribe={watches}&protocol={PROTOCOL}&sdk=rust&version=1")
    }

    fn subprotocol(&self) -> Option<&'static str> {
        None
    }

    fn alive_every_ns(&self) -> i64 {
        PING_EVERY_NS
    }

    fn say(&mut self) -> Option<Words> {
        self.say.pop_front()
    }

    fn hear(&mut self, words: &Words) -> Result<(), Failure> {
        let Words::Bytes(bytes) = words else {
            return Err(Failure::Signalling);
        };
        let response = SignalResponse::decode(&bytes[..]).map_err(|_| Failure::Signalling)?;
        match response.message {
            Some(Response::Join(join)) => {
                self.seen(join.others)?;
                let others = self.watches && !self.senders.is_empty();
                self.told.push_back(Told::Joined { others });
            }
            Some(Response::Update(update)) => self.seen(update.participants)?,
            Some(Response::Offer(offer)) => self.offered(offer),
            Some(Response::Answer(answer)) => self.told.push_back(Told::Answer(answer.sdp)),
            Some(Response::Trickle(trickle)) => {
                let told: Option<Value> = serde_json::from_str(&trickle.candidate).ok();
                let candidate = told.and_then(|told| Some(told["candidate"].as_str()?.to_owned()));
                let way = match trickle.target {
                    SUBSCRIBER => Way::Receiving,
                    _ => Way::Sending,
                };
                let told = candidate.map(|candidate| Told::Candidate { way, candidate });
                self.told.extend(told);
            }
            Some(Response::Leave(leave)) => {
                return Err(match leave.reason {
                    ROOM_DELETED | ROOM_CLOSED => Failure::Destroyed,
                    reason => Failure::LiveKit(format!("leave {reason}")),
                })
            }
            Some(Response::RequestResponse(told)) if told.reason != 0 => {
                return Err(Failure::LiveKit(told.message));
            }
            _ => {} // of the room, speakers and the quality of connections
        }
        Ok(())
    }

    fn told(&mut self) -> Option<Told> {
        self.told.pop_front()
    }

    fn publish(&mut self, sdp: String) {
        let own = sdp.split("\nm=").find_map(|section| {
            let told = section
                .lines()
                .find_map(|line| line.strip_prefix("a=msid:"));
            told?.trim_end().split(' ').nth(1)
        });
        let is_desktop = self.display.ends_with(" desktop");
        let track = AddTrackRequest {
            cid: own.unwrap_or_default().to_owned(),
            name: "video".into(),
            kind: VIDEO,
            source: if is_desktop { SCREEN_SHARE } else { CAMERA },
        };
        self.request(Request::AddTrack(track));
        self.own_offer_id += 1;
        let offer = SessionDescription {
            kind: "offer".into(),
            sdp,
            id: self.own_offer_id,
        };
        self.request(Request::Offer(offer));
    }

    fn answer(&mut self, sdp: String) {
        let answer = SessionDescription {
            kind: "answer".into(),
            sdp,
            id: self.offer_id,
        };
        self.request(Request::Answer(answer));
    }

    fn keep_alive(&mut self) {
        self.request(Request::Ping(Ping { timestamp: 1 }));
    }

    fn leave(&mut self) {
        self.request(Request::Leave(Leave { reason: 1 })); // CLIENT_INITIATED
    }
}

#[cfg(test)]
#[path = "livekit_tests.rs"]
mod tests;
