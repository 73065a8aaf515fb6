//! What differs between conference servers: how a participant and its server agree on who sends what to whom. Machines
//! without input and output of their own.

use std::fmt;

/// Why somebody did not get into the room, or did not stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No TCP connection.
    Connect,
    /// No WebSocket, what came over it was not the protocol, or it was closed.
    Signalling,
    /// Joining took too long, and the server was to say something.
    Timeout,
    RoomFull,
    NoRoom,
    Refused,
    /// By Janus's own code and words.
    Janus(u64, String),
    /// In LiveKit's words.
    LiveKit(String),
    /// An offer or an answer that cannot be taken.
    Sdp,
    Ice,
    Dtls,
    /// Somebody who was in the room is cut off.
    Lost,
    /// The room is gone.
    Destroyed,
}

/// Of a server that tells of more senders than that, or has more of them watched at once, nothing is believed any more:
/// what it says is kept for as long as it goes on.
pub const MOST_SENDERS: usize = 10_000;
pub const MOST_FEEDS: usize = 2_000;
/// Of an identity, or a name, that is kept.
pub const MOST_TEXT_BYTES: usize = 256;
const TEXT_CHARS: usize = 100;

impl Failure {
    /// As it is told.
    pub fn kind(&self) -> String {
        match self {
            Failure::Connect => "connect".into(),
            Failure::Signalling => "signalling".into(),
            Failure::Timeout => "timeout".into(),
            Failure::RoomFull => "room full".into(),
            Failure::NoRoom => "no room".into(),
            Failure::Refused => "refused".into(),
            Failure::Janus(code, text) => format!("janus {code} {}", bounded(text)),
            Failure::LiveKit(text) => format!("livekit {}", bounded(text)),
            Failure::Sdp => "sdp".into(),
            Failure::Ice => "ice failed".into(),
            Failure::Dtls => "dtls failed".into(),
            Failure::Lost => "connection lost".into(),
            Failure::Destroyed => "destroyed".into(),
        }
    }
}

/// A server's words, as far as they can be shown.
fn bounded(text: &str) -> String {
    let shown = text.chars().filter(|char| !char.is_control());
    shown.take(TEXT_CHARS).collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.kind())
    }
}

/// Texts of a server's that are to be kept are as short as those are.
pub fn expect_short<'a>(texts: impl IntoIterator<Item = &'a String>) -> Result<(), Failure> {
    match texts.into_iter().any(|text| text.len() > MOST_TEXT_BYTES) {
        true => Err(Failure::Signalling),
        false => Ok(()),
    }
}

/// One of the streams that an offer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Of the offer's media; "" where it is yet to be offered.
    pub mid: String,
    /// Who sends it, as the server tells them apart, and by what name.
    pub sender: String,
    pub display: String,
}

/// A connection of media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Sending,
    Receiving,
    /// Both ways.
    Audio,
}

/// What a participant is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is in the room, and may publish. `others`: somebody there sends, and it is to receive that.
    Joined { others: bool },
    /// Of those whose streams it was to receive at first, nobody sends any more.
    Alone,
    /// To what it offered to send.
    Answer(String),
    /// Streams that the server is to offer from now on, by itself or because it is asked to.
    Heard(Vec<Feed>),
    /// What the server would send: all feeds, also those of offers before.
    Offer { sdp: String, feeds: Vec<Feed> },
    /// Somebody sends no longer.
    Gone { sender: String },
    /// It is in the room in which audio is mixed, and may offer to hear it.
    InAudio,
    /// To that.
    AudioAnswer(String),
    /// One more address of the server's (an SDP attribute's value).
    Candidate { way: Way, candidate: String },
}

/// What is said to a server, or comes from it, at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    Text(String),
    Bytes(Vec<u8>),
}

pub trait Room {
    /// The WebSocket's path, with what lets this participant in.
    fn path(&self) -> String;

    /// The WebSocket's subprotocol, if it has one.
    fn subprotocol(&self) -> Option<&'static str>;

    /// How often the server is to hear of it, lest it forget it.
    fn alive_every_ns(&self) -> i64;

    /// What is to be said next.
    fn say(&mut self) -> Option<Words>;

    /// Something came.
    fn hear(&mut self, words: &Words) -> Result<(), Failure>;

    /// What of it concerns the participant.
    fn told(&mut self) -> Option<Told>;

    /// Offer to send.
    fn publish(&mut self, sdp: String);

    /// Answer what was offered.
    fn answer(&mut self, sdp: String);

    /// Offer to take part in the audio, after `Told::InAudio`; a server that never tells that has none.
    fn offer_audio(&mut self, _sdp: String) {}

    /// It is time for the server to hear of it.
    fn keep_alive(&mut self);

    /// The last thing to be said.
    fn leave(&mut self);
}
