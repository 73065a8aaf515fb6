//! What Janus, its VideoRoom and its AudioBridge say, as far as it matters here (see `janus.rs`).

use serde::Deserialize;
use serde_json::Value;

/// What Janus says, as far as it matters here.
#[derive(Debug, Deserialize)]
pub struct Message {
    pub janus: String,
    #[serde(default)]
    pub transaction: String,
    #[serde(default)]
    pub sender: u64,
    pub data: Option<Created>,
    pub error: Option<Wrong>,
    pub plugindata: Option<Plugin>,
    pub jsep: Option<Jsep>,
    pub candidate: Option<Trickle>,
}

#[derive(Debug, Deserialize)]
pub struct Created {
    #[serde(default)]
    pub id: u64,
}

#[derive(Debug, Default, Deserialize)]
pub struct Wrong {
    #[serde(default)]
    pub code: u64,
    #[serde(default)]
    pub reason: String,
}

#[derive(Debug, Deserialize)]
pub struct Plugin {
    pub data: Event,
}

#[derive(Debug, Deserialize)]
pub struct Jsep {
    pub sdp: String,
}

#[derive(Debug, Deserialize)]
pub struct Trickle {
    pub candidate: Option<String>,
}

/// What the VideoRoom says, or the AudioBridge.
#[derive(Debug, Deserialize)]
pub struct Event {
    #[serde(default)]
    pub videoroom: String,
    #[serde(default)]
    pub audiobridge: String,
    pub private_id: Option<u64>,
    #[serde(default)]
    pub publishers: Vec<Publisher>,
    #[serde(default)]
    pub streams: Vec<Subscribed>,
    pub unpublished: Option<Value>,
    pub leaving: Option<Value>,
    #[serde(default)]
    pub error_code: u64,
    pub error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Publisher {
    pub id: Value,
    #[serde(default)]
    pub display: String,
    #[serde(default)]
    pub streams: Vec<Published>,
}

#[derive(Debug, Deserialize)]
pub struct Published {
    #[serde(default)]
    pub mid: String,
    #[serde(default, rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub disabled: bool,
}

#[derive(Debug, Deserialize)]
pub struct Subscribed {
    #[serde(default)]
    pub mid: String,
    #[serde(default, rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub active: Option<bool>,
    pub feed_id: Option<Value>,
    pub feed_display: Option<String>,
}

/// An identity, which is a number or (in rooms with `string_ids`) a text.
pub fn text(id: &Value) -> String {
    match id {
        Value::String(id) => id.clone(),
        id => id.to_string(),
    }
}
