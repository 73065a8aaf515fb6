use proptest::prelude::*;

use super::*;
use crate::publish::announced::tests::usual;

const SECOND: i64 = 1_000_000_000;
const URL: &str = "rtsp://h:8554/publish/film";

/// As GStreamer's RTSP server 1.22 answers (dates left out), one answer after the other.
const ANSWERS: [&str; 4] = [
    "RTSP/1.0 200 OK\r\nCSeq: 1\r\nServer: GStreamer RTSP server\r\n\r\n",
    "RTSP/1.0 200 OK\r\nCSeq: 2\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1;mode=\"RECORD\"\r\n\
Session: 6AZb_VLuI5-KemvW;timeout=10\r\n\r\n",
    "RTSP/1.0 200 OK\r\nCSeq: 3\r\nTransport: RTP/AVP/TCP;unicast;interleaved=6-7;mode=\"RECORD\"\r\n\
Session: 6AZb_VLuI5-KemvW\r\n\r\n",
    "RTSP/1.0 200 OK\r\nCSeq: 4\r\nSession: 6AZb_VLuI5-KemvW\r\n\r\n",
];

fn announced() -> Announced {
    Announced::of(&usual()).unwrap()
}

fn text(publisher: &mut Rtsp) -> String {
    String::from_utf8_lossy(&publisher.said().unwrap_or_default()).into_owned()
}

/// A publisher that these answers have come to.
fn answered<'a>(announced: &Announced, answers: &[&str]) -> Rtsp<'a> {
    let mut publisher = Rtsp::new(announced, URL, 1);
    for answer in answers {
        publisher.hear(answer.as_bytes()).unwrap();
    }
    publisher
}

#[test]
fn a_film_is_announced_set_up_and_recorded() {
    let announced = announced();
    let mut publisher = Rtsp::new(&announced, URL, 1);
    let said = text(&mut publisher);
    let head = format!(
        "ANNOUNCE {URL} RTSP/1.0\r\nCSeq: 1\r\nUser-Agent: virtoll-load\r\nContent-Type: application/sdp\r\n\
Content-Length: {}\r\n\r\n",
        announced.description.len()
    );
    assert_eq!(said, head + &announced.description);
    for (answer, asked) in ANSWERS.iter().zip([
        "SETUP rtsp://h:8554/publish/film/streamid=0 RTSP/1.0\r\nCSeq: 2\r\nUser-Agent: virtoll-load\r\n\
Transport: RTP/AVP/TCP;unicast;interleaved=0-1;mode=record\r\n\r\n",
        "SETUP rtsp://h:8554/publish/film/streamid=1 RTSP/1.0\r\nCSeq: 3\r\nUser-Agent: virtoll-load\r\n\
Session: 6AZb_VLuI5-KemvW\r\nTransport: RTP/AVP/TCP;unicast;interleaved=2-3;mode=record\r\n\r\n",
        "RECORD rtsp://h:8554/publish/film RTSP/1.0\r\nCSeq: 4\r\nUser-Agent: virtoll-load\r\n\
Session: 6AZb_VLuI5-KemvW\r\nRange: npt=0.000-\r\n\r\n",
        "",
    ]) {
        assert_eq!(publisher.hear(answer.as_bytes()), Ok(asked.is_empty()));
        assert_eq!(text(&mut publisher), asked);
    }
    publisher.leave();
    assert!(text(&mut publisher)
        .starts_with("TEARDOWN rtsp://h:8554/publish/film RTSP/1.0\r\nCSeq: 5\r\n"));
    publisher.leave();
    assert_eq!(publisher.said(), None, "it has said so");
}

#[test]
fn media_go_by_the_channels_that_the_server_says_and_each_is_reported() {
    let film = usual();
    let mut publisher = answered(&announced(), &ANSWERS);
    publisher.said();
    publisher.begin(&film, 0);
    for frame in &film.frames[..2] {
        publisher.frame(frame, 0, film.bytes(frame));
    }
    let next_ns = publisher.attend(0);
    let said = publisher.said().unwrap();
    let (mut framer, mut channels) = (Framer::default(), Vec::new());
    framer
        .feed(&said, |item| {
            let Item::Frame { channel, .. } = item else {
                panic!("media expected")
            };
            channels.push(channel);
            Ok(())
        })
        .unwrap();
    assert_eq!(channels, [0, 6, 1, 7]);
    assert!((SECOND..5 * SECOND).contains(&next_ns), "the next report");
}

#[test]
fn the_server_hears_of_a_session_within_half_of_its_timeout() {
    let film = usual();
    let mut publisher = answered(&announced(), &ANSWERS);
    publisher.said();
    publisher.begin(&film, 0);
    assert_eq!(
        publisher.attend(0),
        5 * SECOND,
        "nothing is to be reported of"
    );
    assert_eq!(
        publisher.attend(5 * SECOND),
        i64::MAX,
        "it has not been answered"
    );
    let said = text(&mut publisher);
    assert!(
        said.starts_with("OPTIONS rtsp://h:8554/publish/film RTSP/1.0\r\nCSeq: 5\r\n"),
        "{said}"
    );
    assert_eq!(publisher.attend(30 * SECOND), i64::MAX);
    assert_eq!(
        publisher.hear(b"RTSP/1.0 200 OK\r\nCSeq: 5\r\n\r\n"),
        Ok(true)
    );
    assert_eq!(publisher.attend(9 * SECOND), 10 * SECOND);
    assert_eq!(publisher.said(), None);
}

#[test]
fn refusals_and_nonsense_are_told_by_kind() {
    let announced = announced();
    for before in 0..4 {
        let mut publisher = answered(&announced, &ANSWERS[..before]);
        let refusal = format!("RTSP/1.0 405 No\r\nCSeq: {}\r\n\r\n", before + 1);
        assert_eq!(publisher.hear(refusal.as_bytes()), Err(Failure::Status));
    }
    let setup = ANSWERS[1];
    for wrong in [
        setup.replace("CSeq: 2", "CSeq: 3"),
        setup.replace("Session: 6AZb_VLuI5-KemvW;timeout=10\r\n", ""),
        setup.replace("RTP/AVP/TCP", "RTP/AVP"),
        setup.replace("0-1", "256-257"),
        setup.replace("interleaved", "x"),
        "REDIRECT rtsp://h/ RTSP/1.0\r\nCSeq: 1\r\n\r\n".into(),
        "HTTP/1.1 200 OK\r\n\r\n".into(),
    ] {
        let mut publisher = answered(&announced, &ANSWERS[..1]);
        assert_eq!(
            publisher.hear(wrong.as_bytes()),
            Err(Failure::Parse),
            "{wrong}"
        );
    }
    let mut publisher = answered(&announced, &ANSWERS);
    publisher.said();
    let asked = b"GET_PARAMETER rtsp://h/ RTSP/1.0\r\nCSeq: 77\r\n\r\n$\x01\0\x02ab";
    assert_eq!(publisher.hear(asked), Ok(true));
    assert_eq!(
        text(&mut publisher),
        "RTSP/1.0 501 Not Implemented\r\nCSeq: 77\r\n\r\n"
    );
}

proptest! {
    /// Whatever a server says, in whatever pieces: no panic, and what is said stays short.
    #[test]
    fn any_server_is_borne(
        before in 0usize..=4,
        parts in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            (200u16..500, 1u32..8).prop_map(|(status, number)| format!("RTSP/1.0 {status} x\r\nCSeq: {number}\r\n\r\n").into_bytes()),
            (1u32..8, "[a-z=;0-9/-]{0,20}", "[a-z=;0-9-]{0,20}").prop_map(|(number, transport, session)| format!(
                "RTSP/1.0 200 OK\r\nCSeq: {number}\r\nTransport: RTP/AVP/TCP;{transport}\r\nSession: {session}\r\n\r\n").into_bytes()),
            prop::sample::select(ANSWERS.to_vec()).prop_map(|answer| answer.as_bytes().to_vec()),
        ], 0..20),
        steps in prop::collection::vec(0i64..60 * SECOND, 20),
    ) {
        let film = usual();
        let mut publisher = answered(&announced(), &ANSWERS[..before]);
        let (mut now_ns, mut is_begun) = (0, false);
        for (part, step_ns) in parts.iter().zip(steps) {
            now_ns += step_ns;
            let Ok(is_taken) = publisher.hear(part) else {
                break;
            };
            prop_assert!(is_taken || !is_begun, "it does not end again");
            if is_taken {
                if !is_begun {
                    publisher.begin(&film, now_ns);
                    is_begun = true;
                }
                publisher.frame(&film.frames[0], 0, film.bytes(&film.frames[0]));
                prop_assert!(publisher.attend(now_ns) > now_ns);
            }
            prop_assert!(publisher.said().is_none_or(|said| said.len() < 4096));
        }
        publisher.leave();
    }
}
