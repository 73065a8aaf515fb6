//! RTMP as a client speaks it, without input and output of its own: Adobe's Real Time Messaging Protocol, specification
//! 1.0 of 2012 (sections in comments are of it), and AMF0 of the same house.
//!
//! `chunk.rs` takes messages out of the stream of chunks, `write.rs` puts them into it, `amf.rs` reads and writes the
//! values in commands, `media.rs` says what a media message is, and `session.rs` is the client: handshake, commands,
//! control. A player is in `view/rtmp.rs`, a publisher in `publish/`.

pub mod amf;
pub mod chunk;
pub mod media;
pub mod session;
pub mod write;

/// Message types (5.4, 7.1).
pub mod kind {
    pub const SET_CHUNK_SIZE: u8 = 1;
    pub const ABORT: u8 = 2;
    pub const ACKNOWLEDGEMENT: u8 = 3;
    pub const USER_CONTROL: u8 = 4;
    pub const WINDOW_SIZE: u8 = 5;
    pub const PEER_BANDWIDTH: u8 = 6;
    pub const AUDIO: u8 = 8;
    pub const VIDEO: u8 = 9;
    pub const DATA_AMF3: u8 = 15;
    pub const COMMAND_AMF3: u8 = 17;
    pub const DATA: u8 = 18;
    pub const COMMAND: u8 = 20;
    pub const AGGREGATE: u8 = 22;
}

/// Of each direction, until it is told otherwise (5.4.1).
pub const CHUNK_BYTES: usize = 128;
