//! The codecs of video that a conference may have: all that differs between them is asked for here.

use serde::Deserialize;
use str0m::format::CodecConfig;

use super::frames::Part;
use super::{h264, vp8};

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    #[default]
    Vp8,
    H264,
}

impl Codec {
    /// As an IVF file's head names it (libwebrtc's ivf_file_writer.cc).
    pub fn named(four_cc: &[u8]) -> Option<Self> {
        match four_cc {
            b"VP80" => Some(Codec::Vp8),
            b"H264" => Some(Codec::H264),
            _ => None,
        }
    }

    /// It is one of those that are offered, and taken.
    pub fn enable(self, codecs: &mut CodecConfig) {
        match self {
            Codec::Vp8 => codecs.enable_vp8(true),
            Codec::H264 => h264::enable(codecs),
        }
    }

    /// Whether an encoded frame is one that a decoder can begin with. None: it is no frame.
    pub fn is_key(self, frame: &[u8]) -> Option<bool> {
        match self {
            Codec::Vp8 => vp8::is_key(frame),
            Codec::H264 => h264::is_key(frame),
        }
    }

    /// What a packet's payload says of its frame. None: it is none of this codec's. One of padding alone holds nothing of a
    /// frame, and is no hole in one.
    pub fn part(self, payload: &[u8], marker: bool) -> Option<Part> {
        match self {
            _ if payload.is_empty() => Some(Part {
                ends: false,
                key: 0,
            }),
            Codec::Vp8 => vp8::part(payload, marker),
            Codec::H264 => h264::part(payload, marker),
        }
    }
}
