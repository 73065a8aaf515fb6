//! What LiveKit and a participant say to each other, as far as it concerns us: protocol buffers (LiveKit's
//! `livekit_rtc.proto` and `livekit_models.proto`, protocol version 15). What is not told here is passed over.

use prost::{Message, Oneof};

/// Of `TrackType`.
pub const VIDEO: i32 = 1;
/// Of `ParticipantInfo.State`.
pub const DISCONNECTED: i32 = 3;
/// Of `TrackSource`.
pub const CAMERA: i32 = 1;
pub const SCREEN_SHARE: i32 = 3;
/// Of `SignalTarget`.
pub const SUBSCRIBER: i32 = 1;
/// Of `DisconnectReason`.
pub const ROOM_DELETED: i32 = 5;
pub const ROOM_CLOSED: i32 = 10;

#[derive(Clone, PartialEq, Message)]
pub struct SignalRequest {
    #[prost(oneof = "Request", tags = "1, 2, 4, 8, 16")]
    pub message: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Request {
    #[prost(message, tag = "1")]
    Offer(SessionDescription),
    #[prost(message, tag = "2")]
    Answer(SessionDescription),
    #[prost(message, tag = "4")]
    AddTrack(AddTrackRequest),
    #[prost(message, tag = "8")]
    Leave(Leave),
    #[prost(message, tag = "16")]
    Ping(Ping),
}

#[derive(Clone, PartialEq, Message)]
pub struct SignalResponse {
    #[prost(oneof = "Response", tags = "1, 2, 3, 4, 5, 8, 22")]
    pub message: Option<Response>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Response {
    #[prost(message, tag = "1")]
    Join(JoinResponse),
    #[prost(message, tag = "2")]
    Answer(SessionDescription),
    #[prost(message, tag = "3")]
    Offer(SessionDescription),
    #[prost(message, tag = "4")]
    Trickle(Trickle),
    #[prost(message, tag = "5")]
    Update(Update),
    #[prost(message, tag = "8")]
    Leave(Leave),
    #[prost(message, tag = "22")]
    RequestResponse(RequestResponse),
}

/// `id`: an answer has that of its offer.
#[derive(Clone, PartialEq, Message)]
pub struct SessionDescription {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub sdp: String,
    #[prost(uint32, tag = "3")]
    pub id: u32,
}

/// `cid`: the track's id in the offer that follows.
#[derive(Clone, PartialEq, Message)]
pub struct AddTrackRequest {
    #[prost(string, tag = "1")]
    pub cid: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(int32, tag = "3")]
    pub kind: i32,
    #[prost(int32, tag = "8")]
    pub source: i32,
}

/// `candidate`: JSON, as browsers write an RTCIceCandidate.
#[derive(Clone, PartialEq, Message)]
pub struct Trickle {
    #[prost(string, tag = "1")]
    pub candidate: String,
    #[prost(int32, tag = "2")]
    pub target: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct JoinResponse {
    #[prost(message, repeated, tag = "3")]
    pub others: Vec<Participant>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Update {
    #[prost(message, repeated, tag = "1")]
    pub participants: Vec<Participant>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Participant {
    #[prost(string, tag = "1")]
    pub sid: String,
    #[prost(string, tag = "2")]
    pub identity: String,
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(message, repeated, tag = "4")]
    pub tracks: Vec<Track>,
    /// It goes up with each change.
    #[prost(uint32, tag = "10")]
    pub version: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Track {
    #[prost(string, tag = "1")]
    pub sid: String,
    #[prost(int32, tag = "2")]
    pub kind: i32,
    #[prost(bool, tag = "4")]
    pub muted: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Leave {
    #[prost(int32, tag = "2")]
    pub reason: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ping {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
}

/// `reason`: 0 of what was granted.
#[derive(Clone, PartialEq, Message)]
pub struct RequestResponse {
    #[prost(int32, tag = "2")]
    pub reason: i32,
    #[prost(string, tag = "3")]
    pub message: String,
}
