use proptest::prelude::*;

use super::*;
use crate::publish::film::tests::{file, tag};

/// Of a film as ours are: main profile, level 3.1; 48 kHz, two channels.
const VIDEO: &[u8] = &[
    0x17, 0, 0, 0, 0, 1, 0x4d, 0x40, 0x1f, 0xff, 0xe1, 0, 4, 0x67, 0x4d, 0x40, 0x1f, 1, 0, 3, 0x68,
    0xee, 0x3c,
];
const AUDIO: &[u8] = &[0xaf, 0, 0x11, 0x90];
const PICTURE: &[u8] = &[0x17, 1, 0, 0, 0, 0, 0, 0, 2, 0x65, 1];
const SOUND: &[u8] = &[0xaf, 1, 1, 2];

pub fn film(setup: &[(u8, &[u8])], frames: &[(u8, &[u8])]) -> Film {
    let tags = setup.iter().chain(frames).enumerate();
    let tags = tags.map(|(at, (kind, payload))| tag(*kind, at as u32 * 20, payload));
    Film::of(file(&tags.collect::<Vec<_>>())).unwrap()
}

pub fn usual() -> Film {
    film(
        &[(kind::VIDEO, VIDEO), (kind::AUDIO, AUDIO)],
        &[
            (kind::VIDEO, PICTURE),
            (kind::AUDIO, SOUND),
            (kind::VIDEO, PICTURE),
        ],
    )
}

#[test]
fn a_film_is_described_by_what_sets_up_its_decoders() {
    let announced = Announced::of(&usual()).unwrap();
    assert_eq!(
        announced.description,
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=virtoll\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n\
m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n\
a=fmtp:96 packetization-mode=1;profile-level-id=4d401f;sprop-parameter-sets=Z01AHw==,aO48\r\na=control:streamid=0\r\n\
m=audio 0 RTP/AVP 97\r\na=rtpmap:97 MPEG4-GENERIC/48000/2\r\n\
a=fmtp:97 streamtype=5;profile-level-id=1;mode=AAC-hbr;sizelength=13;indexlength=3;indexdeltalength=3;config=1190\r\n\
a=control:streamid=1\r\n"
    );
    assert_eq!(
        announced.tracks,
        [Kind::Video, Kind::Audio { clock_hz: 48_000 }]
    );
}

#[test]
fn what_rtp_cannot_carry_is_refused() {
    let (video, audio) = ((kind::VIDEO, VIDEO), (kind::AUDIO, AUDIO));
    let frames = [
        (kind::VIDEO, PICTURE),
        (kind::AUDIO, SOUND),
        (kind::VIDEO, PICTURE),
    ];
    let short_lengths = [&VIDEO[..9], &[0xfd], &VIDEO[10..]].concat();
    let odd_sound: &[u8] = &[0xaf, 0, 0x17, 0x90]; // its frequency follows
    let long_sound = [&[0xaf, 1][..], &[1; MOST_SOUND_BYTES + 1]].concat();
    for (setup, frame, why) in [
        (vec![audio], frames[0], "how its H.264"),
        (vec![video], frames[0], "how its AAC"),
        (
            vec![(kind::VIDEO, &VIDEO[..20]), audio],
            frames[0],
            "how its H.264",
        ),
        (
            vec![(kind::VIDEO, &short_lengths), audio],
            frames[0],
            "how its H.264",
        ),
        (
            vec![video, (kind::AUDIO, odd_sound)],
            frames[0],
            "how its AAC",
        ),
        (
            vec![video, (kind::AUDIO, &AUDIO[..3])],
            frames[0],
            "how its AAC",
        ),
        (vec![video, audio], (kind::VIDEO, &PICTURE[..10]), "a frame"),
        (vec![video, audio], (kind::VIDEO, &PICTURE[..5]), "a frame"),
        (
            vec![video, audio],
            (kind::VIDEO, &[0x12, 1, 0, 0, 0, 0, 0, 0, 1, 1]),
            "a frame",
        ),
        (vec![video, audio], (kind::AUDIO, &[0x2f, 1]), "a frame"),
        (vec![video, audio], (kind::AUDIO, &long_sound), "a frame"),
        (vec![video, audio], (kind::AUDIO, &[0xaf, 1]), "a frame"),
    ] {
        let film = film(&setup, &[&frames[..], &[frame]].concat());
        let told = Announced::of(&film).unwrap_err();
        assert!(told.contains(why), "{told} for {why}");
    }
}

proptest! {
    /// Whatever a file says: no panic, and what is described can stand in a description.
    #[test]
    fn any_setup_is_read(
        video in prop::collection::vec(any::<u8>(), 0..40),
        head in prop_oneof![Just(VIDEO), Just(&VIDEO[..12]), Just(&VIDEO[..6])],
        audio in prop::collection::vec(any::<u8>(), 0..4),
        picture in prop::collection::vec(0u8..9, 0..30),
    ) {
        let video = [head, &video].concat();
        let audio = [&[0xaf, 0][..], &audio].concat();
        let picture = [&[0x27, 1][..], &picture].concat();
        let film = film(
            &[(kind::VIDEO, &video), (kind::AUDIO, &audio)],
            &[(kind::VIDEO, &picture), (kind::AUDIO, SOUND), (kind::VIDEO, PICTURE), (kind::VIDEO, PICTURE)],
        );
        if let Ok(announced) = Announced::of(&film) {
            prop_assert!(announced.description.is_ascii());
            prop_assert_eq!(announced.description.matches("\r\n").count(), 13);
        }
    }
}
