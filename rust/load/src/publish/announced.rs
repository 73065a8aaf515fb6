//! What a film's tracks are to an RTSP server: the description that is announced (SDP, RFC 8866; of H.264: RFC 6184,
//! 8.2; of AAC: RFC 3640, 4.4), out of what sets up their decoders in FLV.

use base64::prelude::{Engine, BASE64_STANDARD};

use super::film::{Film, Frame};
use super::packets::{units, Kind, AUDIO_AT, VIDEO_AT};
use crate::rtmp::kind;

/// The codecs by the first byte of a message (FLV 10.1, E.4.2 and E.4.3).
const AVC: u8 = 7;
const AAC: u8 = 10;
/// Of AAC's frequencies, by index; 15 stands before the frequency itself (ISO/IEC 14496-3, 1.6.3.4).
const FREQUENCIES_HZ: [u32; 13] = [
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000,
    7_350,
];
/// The size of a unit of AAC has 13 bits (RFC 3640, 3.3.6).
const MOST_SOUND_BYTES: usize = 8191;

/// A film as it is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    pub description: String,
    /// In the order of the description.
    pub tracks: [Kind; 2],
}

impl Announced {
    /// Why not, where RTP cannot carry it.
    pub fn of(film: &Film) -> Result<Announced, &'static str> {
        let setup = |kind| {
            let mut setups = film.setup.iter().filter(|frame| frame.kind == kind);
            setups.next().map(|frame| film.bytes(frame))
        };
        let video = setup(kind::VIDEO).and_then(|setup| Video::of(setup.get(VIDEO_AT..)?));
        let video = video.ok_or("it does not say how its H.264 is decoded")?;
        let audio = setup(kind::AUDIO).and_then(|setup| Audio::of(setup.get(AUDIO_AT..)?));
        let audio = audio.ok_or("it does not say how its AAC is decoded")?;
        if !film.frames.iter().all(|frame| is_carried(film, frame)) {
            return Err("a frame of it is neither whole H.264 nor AAC");
        }
        Ok(Announced {
            description: description(&video, &audio),
            tracks: [
                Kind::Video,
                Kind::Audio {
                    clock_hz: audio.clock_hz,
                },
            ],
        })
    }
}

fn is_carried(film: &Film, frame: &Frame) -> bool {
    let bytes = film.bytes(frame);
    match frame.kind {
        kind::VIDEO => {
            let whole: Option<usize> = bytes
                .get(VIDEO_AT..)
                .map(|parts| units(parts).map(|unit| 4 + unit.len()).sum());
            bytes[0] & 0x8f == AVC
                && whole.is_some_and(|whole| whole > 0 && VIDEO_AT + whole == bytes.len())
        }
        _ => {
            let sound_bytes = bytes.len().saturating_sub(AUDIO_AT);
            bytes[0] >> 4 == AAC && (1..=MOST_SOUND_BYTES).contains(&sound_bytes)
        }
    }
}

/// The decoder's configuration (ISO/IEC 14496-15, 5.2.4.1).
struct Video {
    /// Profile, constraints and level.
    profile: [u8; 3],
    sets: Vec<Vec<u8>>,
}

impl Video {
    fn of(config: &[u8]) -> Option<Video> {
        const FOUR_BYTES: u8 = 3;
        let [1, profile, constraints, level, length, count, rest @ ..] = config else {
            return None;
        };
        if length & 3 != FOUR_BYTES {
            return None;
        }
        let (mut sets, rest) = taken(rest, count & 0x1f)?;
        let (count, rest) = rest.split_first()?;
        let (pictures, _) = taken(rest, *count)?;
        sets.extend(pictures);
        Some(Video {
            profile: [*profile, *constraints, *level],
            sets,
        })
    }
}

/// So many parameter sets, each behind its length.
fn taken(mut input: &[u8], count: u8) -> Option<(Vec<Vec<u8>>, &[u8])> {
    let mut sets = Vec::new();
    for _ in 0..count {
        let (length, rest) = input.split_at_checked(2)?;
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let (set, rest) = rest.split_at_checked(length)?;
        sets.push(set.to_vec());
        input = rest;
    }
    Some((sets, input))
}

/// AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1), as far as it is needed.
struct Audio {
    config: Vec<u8>,
    clock_hz: u32,
    channels: u8,
}

impl Audio {
    fn of(config: &[u8]) -> Option<Audio> {
        let [first, second, ..] = *config else {
            return None;
        };
        let index = (first & 7) << 1 | second >> 7;
        let clock_hz = *FREQUENCIES_HZ.get(usize::from(index))?;
        Some(Audio {
            config: config.to_vec(),
            clock_hz,
            channels: second >> 3 & 0xf,
        })
    }
}

fn description(video: &Video, audio: &Audio) -> String {
    let profile = hexadecimal(&video.profile);
    let sets: Vec<String> = video
        .sets
        .iter()
        .map(|set| BASE64_STANDARD.encode(set))
        .collect();
    let sets = sets.join(",");
    let (clock_hz, channels) = (audio.clock_hz, audio.channels);
    let config = hexadecimal(&audio.config);
    let (video, audio) = (
        Kind::Video.payload_type(),
        Kind::Audio { clock_hz }.payload_type(),
    );
    format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=virtoll\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n\
m=video 0 RTP/AVP {video}\r\na=rtpmap:{video} H264/90000\r\n\
a=fmtp:{video} packetization-mode=1;profile-level-id={profile};sprop-parameter-sets={sets}\r\na=control:streamid=0\r\n\
m=audio 0 RTP/AVP {audio}\r\na=rtpmap:{audio} MPEG4-GENERIC/{clock_hz}/{channels}\r\n\
a=fmtp:{audio} streamtype=5;profile-level-id=1;mode=AAC-hbr;sizelength=13;indexlength=3;indexdeltalength=3;\
config={config}\r\na=control:streamid=1\r\n"
    )
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "announced_tests.rs"]
pub mod tests;
