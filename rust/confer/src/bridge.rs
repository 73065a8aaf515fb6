//! Janus's AudioBridge (Janus's documentation: "AudioBridge plugin documentation"): a room beside the VideoRoom's, in which
//! the server mixes what is said and sends each participant the mix of all others. One handle joins it, and offers its
//! connection of media once it is in.

use serde_json::{json, Value};

use super::janus_said::{Event, Jsep};
use super::room::{Failure, Told};
use super::spec::AudioSpec;

pub const PLUGIN: &str = "janus.plugin.audiobridge";
/// Transactions.
pub const ATTACH: &str = "attach audio";
pub const JOIN: &str = "join audio";
pub const OFFER: &str = "offer audio";
/// AudioBridge's own codes.
const NO_SUCH_ROOM: u64 = 485;
const UNAUTHORIZED: u64 = 489;

pub struct Bridge<'a> {
    spec: &'a AudioSpec,
    speaks: bool,
    /// 0: there is none yet.
    pub handle: u64,
}

impl<'a> Bridge<'a> {
    pub fn new(spec: &'a AudioSpec, speaks: bool) -> Self {
        Bridge {
            spec,
            speaks,
            handle: 0,
        }
    }

    /// What it asks for, to be let in; the mix is to have this bit rate.
    pub fn join(&self, display: &str) -> Value {
        json!({"request": "join", "room": self.spec.room, "display": display, "muted": !self.speaks,
            "bitrate": self.spec.bitrate_bit_per_s})
    }

    /// What goes with its offer.
    pub fn configure(&self) -> Value {
        json!({"request": "configure", "muted": !self.speaks})
    }

    /// What it says to this handle: also of others, who come and go, and are none of ours.
    pub fn event(
        transaction: &str,
        event: Event,
        jsep: Option<Jsep>,
    ) -> Result<Option<Told>, Failure> {
        if event.error_code != 0 || event.error.is_some() {
            return Err(match event.error_code {
                NO_SUCH_ROOM => Failure::NoRoom,
                UNAUTHORIZED => Failure::Refused,
                code => Failure::Janus(code, event.error.unwrap_or_default()),
            });
        }
        Ok(match (event.audiobridge.as_str(), transaction, jsep) {
            ("destroyed", _, _) => return Err(Failure::Destroyed),
            ("joined", JOIN, _) => Some(Told::InAudio),
            (_, OFFER, Some(jsep)) => Some(Told::AudioAnswer(jsep.sdp)),
            _ => None,
        })
    }
}
