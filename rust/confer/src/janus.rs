//! Janus's VideoRoom (Janus 1.x), over its WebSocket: one session, one handle that joins and may publish, and one that
//! receives all feeds over one connection of media; and one for audio, where there is any (`bridge.rs`). (Janus's documentation: "RESTful, WebSockets, ... JavaScript API" and
//! "VideoRoom plugin documentation".)
//!
//! Every request's transaction says what it was; no two of one kind are under way at a time.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{json, Value};

use super::bridge::{self, Bridge};
use super::janus_said::{text, Event, Jsep, Message, Publisher, Subscribed};
use super::room::{expect_short, Failure, Feed, Room, Told, Way, Words, MOST_SENDERS};
use super::spec::JanusSpec;

const PLUGIN: &str = "janus.plugin.videoroom";
/// VideoRoom's own codes.
const NO_SUCH_ROOM: u64 = 426;
const NO_SUCH_FEED: u64 = 428;
const UNAUTHORIZED: u64 = 433;
const PUBLISHERS_FULL: u64 = 432;
/// Janus forgets a session of which it has heard nothing for 60 s.
const KEEP_ALIVE_NS: i64 = 25_000_000_000;
/// Janus's own: the secret, or the token, is wrong.
const WRONG_SECRET: [u64; 2] = [403, 405];

/// One stream of somebody's, by its `mid`.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    feed: Value,
    mid: String,
}

/// How far the receiving handle has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subscription {
    /// It has not been asked for anything.
    None,
    /// Something was asked for, or offered, and Janus has yet to say that it has begun.
    UnderWay,
    Begun,
}

pub struct Janus<'a> {
    spec: &'a JanusSpec,
    display: String,
    watches: bool,
    session: u64,
    sending: u64,
    receiving: u64,
    bridge: Option<Bridge<'a>>,
    private_id: Option<u64>,
    /// Streams to ask for, and those that have been, until they have begun.
    wanted: Vec<Wanted>,
    asked: Vec<Wanted>,
    /// Ask for them one by one: one of many was gone.
    singly: usize,
    subscription: Subscription,
    /// Names of senders.
    displays: BTreeMap<String, String>,
    say: VecDeque<Words>,
    told: VecDeque<Told>,
}

impl<'a> Janus<'a> {
    /// `speaks`: it is heard, where there is audio.
    pub fn new(spec: &'a JanusSpec, display: String, watches: bool, speaks: bool) -> Self {
        let audio = spec.audio.as_ref();
        let mut janus = Janus {
            spec,
            display,
            watches,
            session: 0,
            sending: 0,
            receiving: 0,
            bridge: audio.map(|audio| Bridge::new(audio, speaks)),
            private_id: None,
            wanted: Vec::new(),
            asked: Vec::new(),
            singly: 0,
            subscription: Subscription::None,
            displays: BTreeMap::new(),
            say: VecDeque::new(),
            told: VecDeque::new(),
        };
        janus.request("create", "create", 0, json!({}));
        janus
    }

    /// A request to a handle (0: to the session, or to Janus), with more keys.
    fn request(&mut self, janus: &str, transaction: &str, handle: u64, more: Value) {
        let mut request = json!({"janus": janus, "transaction": transaction});
        let mut put = |key: &str, value: Value| request[key] = value;
        if let Value::Object(more) = more {
            more.into_iter().for_each(|(key, value)| put(&key, value));
        }
        if self.session != 0 {
            put("session_id", self.session.into());
        }
        if handle != 0 {
            put("handle_id", handle.into());
        }
        let secrets = [
            ("token", &self.spec.token),
            ("apisecret", &self.spec.api_secret),
        ];
        for (key, secret) in secrets {
            if let Some(secret) = secret {
                put(key, secret.as_str().into());
            }
        }
        let text = request.to_string(); // without a line's end, which Janus would refuse
        self.say.push_back(Words::Text(text));
    }

    fn message(&mut self, transaction: &str, handle: u64, body: Value, jsep: Option<Value>) {
        let mut more = json!({"body": body});
        if let Some(jsep) = jsep {
            more["jsep"] = jsep;
        }
        self.request("message", transaction, handle, more);
    }

    fn join(&mut self) {
        let mut body = json!({"request": "join", "ptype": "publisher", "room": self.spec.room, "display": self.display});
        if let Some(pin) = &self.spec.pin {
            body["pin"] = pin.as_str().into();
        }
        self.message("join", self.sending, body, None);
    }

    fn success(&mut self, transaction: &str, id: u64) -> Result<(), Failure> {
        match transaction {
            "create" | "attach sending" | "attach receiving" | bridge::ATTACH if id == 0 => {
                return Err(Failure::Signalling)
            }
            "create" => {
                self.session = id;
                self.request("attach", "attach sending", 0, json!({"plugin": PLUGIN}));
                if self.watches {
                    self.request("attach", "attach receiving", 0, json!({"plugin": PLUGIN}));
                }
                if self.bridge.is_some() {
                    let plugin = json!({"plugin": bridge::PLUGIN});
                    self.request("attach", bridge::ATTACH, 0, plugin);
                }
            }
            "attach sending" => {
                self.sending = id;
                self.join();
            }
            "attach receiving" => {
                self.receiving = id;
                self.subscribe();
            }
            bridge::ATTACH => {
                if let Some(bridge) = &mut self.bridge {
                    bridge.handle = id;
                    let join = bridge.join(&self.display);
                    self.message(bridge::JOIN, id, join, None);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Ask for what is wanted, unless something is under way.
    fn subscribe(&mut self) {
        let is_ready = self.receiving != 0 && self.private_id.is_some();
        if self.wanted.is_empty() || !is_ready || self.subscription == Subscription::UnderWay {
            return;
        }
        let count = if self.singly > 0 {
            1
        } else {
            self.wanted.len()
        };
        self.singly = self.singly.saturating_sub(1);
        self.asked = self.wanted.drain(..count).collect();
        let stream = |wanted: &Wanted| json!({"feed": wanted.feed, "mid": wanted.mid});
        let streams: Vec<Value> = self.asked.iter().map(stream).collect();
        let body = match self.subscription {
            Subscription::None => {
                let mut body = json!({"request": "join", "ptype": "subscriber", "room": self.spec.room,
                    "private_id": self.private_id, "streams": streams});
                if let Some(pin) = &self.spec.pin {
                    body["pin"] = pin.as_str().into();
                }
                body
            }
            _ => json!({"request": "subscribe", "streams": streams}),
        };
        let transaction = match self.subscription {
            Subscription::None => "subscribe first",
            _ => "subscribe",
        };
        self.subscription = Subscription::UnderWay;
        self.message(transaction, self.receiving, body, None);
    }

    /// Somebody publishes. What is to be watched of it is waited for from now on, asked for or not: a server that has too
    /// much to do leaves what was asked before unanswered.
    fn published(&mut self, publishers: Vec<Publisher>) -> Result<(), Failure> {
        let mut heard = Vec::new();
        for publisher in publishers {
            if self.displays.len().max(self.wanted.len()) >= MOST_SENDERS {
                return Err(Failure::Signalling);
            }
            let sender = text(&publisher.id);
            let mids = publisher.streams.iter().map(|stream| &stream.mid);
            expect_short([&sender, &publisher.display].into_iter().chain(mids))?;
            self.displays
                .insert(sender.clone(), publisher.display.clone());
            if !self.watches {
                continue;
            }
            let videos = publisher
                .streams
                .iter()
                .filter(|stream| stream.kind == "video" && !stream.disabled);
            for video in videos {
                let wanted = Wanted {
                    feed: publisher.id.clone(),
                    mid: video.mid.clone(),
                };
                if !self.wanted.contains(&wanted) && !self.asked.contains(&wanted) {
                    self.wanted.push(wanted);
                    heard.push(Feed {
                        mid: String::new(),
                        sender: sender.clone(),
                        display: publisher.display.clone(),
                    });
                }
            }
        }
        if !heard.is_empty() {
            self.told.push_back(Told::Heard(heard));
        }
        self.subscribe();
        Ok(())
    }

    fn gone(&mut self, feed: &Value) {
        if feed.is_string() && feed == "ok" {
            return; // it is we who go
        }
        self.wanted.retain(|wanted| wanted.feed != *feed);
        let sender = text(feed);
        self.displays.remove(&sender);
        self.told.push_back(Told::Gone { sender });
        self.alone();
    }

    /// There is nothing to wait for where all have gone before they were subscribed to.
    fn alone(&mut self) {
        let has_none = self.wanted.is_empty() && self.asked.is_empty();
        if has_none && self.subscription == Subscription::None {
            self.told.push_back(Told::Alone);
        }
    }

    fn event(
        &mut self,
        transaction: &str,
        sender: u64,
        event: Event,
        jsep: Option<Jsep>,
    ) -> Result<(), Failure> {
        if self.is_of_audio(sender) {
            let told = Bridge::event(transaction, event, jsep)?;
            self.told.extend(told);
            return Ok(());
        }
        if event.error_code != 0 || event.error.is_some() {
            return self.wrong(
                transaction,
                event.error_code,
                event.error.unwrap_or_default(),
            );
        }
        if event.videoroom == "destroyed" {
            return Err(Failure::Destroyed);
        }
        if event.videoroom == "joined" && sender == self.sending {
            self.private_id = Some(event.private_id.unwrap_or_default());
            self.published(event.publishers)?;
            let others = !self.wanted.is_empty() || !self.asked.is_empty();
            self.told.push_back(Told::Joined { others });
            return Ok(());
        }
        self.published(event.publishers)?;
        for gone in [event.unpublished, event.leaving].iter().flatten() {
            self.gone(gone);
        }
        match jsep {
            Some(jsep) if sender == self.receiving => self.offer(jsep.sdp, event.streams),
            Some(jsep) => self.told.push_back(Told::Answer(jsep.sdp)),
            // What was asked for changed nothing, or it has begun.
            None if sender == self.receiving && ["started", "subscribe"].contains(&transaction) => {
                self.begun()
            }
            None => {}
        }
        Ok(())
    }

    fn offer(&mut self, sdp: String, streams: Vec<Subscribed>) {
        self.subscription = Subscription::UnderWay;
        let is_video = |stream: &Subscribed| stream.kind == "video" && stream.active != Some(false);
        let videos = streams.into_iter().filter(is_video);
        let feeds = videos.filter_map(|stream| {
            let sender = text(&stream.feed_id?);
            let known = self.displays.get(&sender).cloned();
            Some(Feed {
                mid: stream.mid,
                display: known.or(stream.feed_display).unwrap_or_default(),
                sender,
            })
        });
        let feeds = feeds.collect();
        self.told.push_back(Told::Offer { sdp, feeds });
    }

    fn begun(&mut self) {
        self.asked.clear();
        self.subscription = Subscription::Begun;
        self.subscribe();
    }

    fn wrong(&mut self, transaction: &str, code: u64, reason: String) -> Result<(), Failure> {
        match (transaction, code) {
            // Who was asked for has just left: the others are still there.
            ("subscribe" | "subscribe first", NO_SUCH_FEED) => {
                let asked = std::mem::take(&mut self.asked);
                if let [gone] = &asked[..] {
                    let sender = text(&gone.feed);
                    self.told.push_back(Told::Gone { sender });
                } else {
                    self.singly = asked.len();
                    self.wanted.splice(..0, asked);
                }
                self.subscription = match transaction {
                    "subscribe" => Subscription::Begun,
                    _ => Subscription::None,
                };
                self.subscribe();
                self.alone();
                Ok(())
            }
            (_, PUBLISHERS_FULL) => Err(Failure::RoomFull),
            (_, NO_SUCH_ROOM) => Err(Failure::NoRoom),
            (_, code) if code == UNAUTHORIZED || WRONG_SECRET.contains(&code) => {
                Err(Failure::Refused)
            }
            _ => Err(Failure::Janus(code, reason)),
        }
    }

    fn is_of_audio(&self, handle: u64) -> bool {
        let bridge = self.bridge.as_ref();
        handle != 0 && bridge.is_some_and(|bridge| bridge.handle == handle)
    }

    fn way(&self, handle: u64) -> Way {
        match handle {
            _ if self.is_of_audio(handle) => Way::Audio,
            handle if handle == self.receiving => Way::Receiving,
            _ => Way::Sending,
        }
    }
}

impl Room for Janus<'_> {
    fn path(&self) -> String {
        self.spec.path.clone()
    }

    fn subprotocol(&self) -> Option<&'static str> {
        Some("janus-protocol")
    }

    fn alive_every_ns(&self) -> i64 {
        KEEP_ALIVE_NS
    }

    fn say(&mut self) -> Option<Words> {
        self.say.pop_front()
    }

    fn hear(&mut self, words: &Words) -> Result<(), Failure> {
        let Words::Text(text) = words else {
            return Err(Failure::Signalling);
        };
        let message: Message = serde_json::from_str(text).map_err(|_| Failure::Signalling)?;
        match message.janus.as_str() {
            "success" => {
                let id = message.data.map_or(0, |data| data.id);
                self.success(&message.transaction, id)
            }
            "error" => {
                let wrong = message.error.unwrap_or_default();
                self.wrong(&message.transaction, wrong.code, wrong.reason)
            }
            "event" => match message.plugindata {
                Some(plugin) => self.event(
                    &message.transaction,
                    message.sender,
                    plugin.data,
                    message.jsep,
                ),
                None => Ok(()),
            },
            "trickle" => {
                let way = self.way(message.sender);
                let candidate = message.candidate.and_then(|trickle| trickle.candidate);
                let told = candidate.map(|candidate| Told::Candidate { way, candidate });
                self.told.extend(told);
                Ok(())
            }
            "hangup" | "timeout" => Err(Failure::Lost),
            _ => Ok(()), // ack, webrtcup, media, slowlink, detached
        }
    }

    fn told(&mut self) -> Option<Told> {
        self.told.pop_front()
    }

    fn publish(&mut self, sdp: String) {
        let body = json!({"request": "publish"});
        let jsep = json!({"type": "offer", "sdp": sdp});
        self.message("publish", self.sending, body, Some(jsep));
    }

    fn answer(&mut self, sdp: String) {
        let jsep = json!({"type": "answer", "sdp": sdp});
        let body = json!({"request": "start"});
        self.message("started", self.receiving, body, Some(jsep));
    }

    fn offer_audio(&mut self, sdp: String) {
        if let Some(bridge) = &self.bridge {
            let (handle, body) = (bridge.handle, bridge.configure());
            let jsep = json!({"type": "offer", "sdp": sdp});
            self.message(bridge::OFFER, handle, body, Some(jsep));
        }
    }

    fn keep_alive(&mut self) {
        if self.session != 0 {
            self.request("keepalive", "keepalive", 0, json!({}));
        }
    }

    fn leave(&mut self) {
        if self.session != 0 {
            self.request("destroy", "destroy", 0, json!({}));
        }
    }
}

#[cfg(test)]
#[path = "janus_tests.rs"]
mod tests;
