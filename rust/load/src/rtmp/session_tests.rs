use proptest::prelude::*;

use super::*;
use crate::rtmp::media::Media;

fn application() -> Application {
    Application::checked("vod", "rtmp://h:1/vod").unwrap()
}

/// What a server says first.
fn hellos() -> Vec<u8> {
    let hello: Vec<u8> = (0..HELLO_BYTES).map(|at| at as u8).collect();
    [&[VERSION][..], &hello, &[0; HELLO_BYTES]].concat()
}

fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let head = Head {
        chunks: 5,
        kind,
        stream: 1,
        timestamp: 40,
    };
    write::message(&mut out, head, payload, CHUNK_BYTES);
    out
}

fn status(level: &str, code: &str) -> Vec<u8> {
    let said = Said::command("onStatus", 0.0).null();
    message(
        kind::COMMAND,
        &said.object(&[("level", level), ("code", code)]).0,
    )
}

fn connected() -> Vec<u8> {
    let said = Said::command("_result", CONNECT).object(&[("fmsVer", "FMS/3")]);
    let code = [("code", "NetConnection.Connect.Success")];
    message(kind::COMMAND, &said.object(&code).0)
}

fn created() -> Vec<u8> {
    let said = Said::command("_result", CREATE).null().number(1.0);
    message(kind::COMMAND, &said.0)
}

fn heard(session: &mut Session, mut input: &[u8]) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    while let Some(event) = session.next(&mut input)? {
        events.push(event);
    }
    Ok(events)
}

/// One that has a stream, and has said all.
fn begun(application: &Application) -> Session<'_> {
    let mut session = Session::new(application);
    let said = [hellos(), connected(), created()].concat();
    assert_eq!(heard(&mut session, &said), Ok(vec![Event::Created]));
    session.said();
    session
}

#[test]
fn it_says_what_the_specification_has_step_by_step() {
    let application = application();
    let mut session = Session::new(&application);
    let hello = session.said().unwrap();
    assert_eq!((hello[0], hello.len(), session.said()), (3, 1537, None));
    let hellos = hellos();
    heard(&mut session, &hellos[..1000]).unwrap();
    heard(&mut session, &hellos[1000..]).unwrap();
    let said = session.said().unwrap();
    assert_eq!(said[..HELLO_BYTES], hellos[1..1537], "its hello comes back");
    let connect = [
        &[3, 0, 0, 0, 0, 0, 103, 20, 0, 0, 0, 0][..],
        b"\x02\0\x07connect\0\x3f\xf0\0\0\0\0\0\0\x03",
        b"\0\x03app\x02\0\x03vod\0\x04type\x02\0\x0anonprivate",
        b"\0\x08flashVer\x02\0\x0dLNX 9,0,124,2\0\x05tcUrl\x02\0\x0ertmp://h:1/vod\0\0\x09",
    ]
    .concat();
    assert_eq!(said[HELLO_BYTES..], connect);
    assert_eq!(heard(&mut session, &connected()), Ok(vec![]));
    let create = b"\x02\0\x0ccreateStream\0\x40\0\0\0\0\0\0\0\x05";
    assert_eq!(session.said().unwrap()[12..], create[..]);
    assert_eq!(heard(&mut session, &created()), Ok(vec![Event::Created]));
    assert!(session.is_created());
    session.play("film", false, 10_000);
    let buffer = [
        2, 0, 0, 0, 0, 0, 10, 4, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0x27, 0x10,
    ];
    let play = b"\x02\0\x04play\0\0\0\0\0\0\0\0\0\x05\x02\0\x04film\0\0\0\0\0\0\0\0\0";
    let head = [3, 0, 0, 0, 0, 0, play.len() as u8, 20, 1, 0, 0, 0];
    assert_eq!(session.said().unwrap(), [&buffer[..], &head, play].concat());
}

#[test]
fn a_publisher_says_its_chunks_and_what_it_publishes() {
    let application = application();
    let mut session = begun(&application);
    session.publish("film", 4096);
    let said = session.said().unwrap();
    assert_eq!(
        said[..16],
        [2, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0, 0, 0, 0x10, 0]
    );
    assert!(said.ends_with(b"\x02\0\x07publish\0\0\0\0\0\0\0\0\0\x05\x02\0\x04film\x02\0\x04live"));
    let events = heard(&mut session, &status("status", "NetStream.Publish.Start"));
    assert_eq!(events, Ok(vec![Event::Published]));
    session.send(kind::AUDIO, 7, &[0xaf; 4097]);
    assert_eq!(session.said().unwrap().len(), 12 + 4097 + 1);
}

#[test]
fn what_the_server_wants_to_hear_is_said() {
    let application = application();
    let mut session = begun(&application);
    let mut input = Vec::new();
    write::control(&mut input, kind::WINDOW_SIZE, &[1000]);
    heard(&mut session, &input).unwrap();
    assert_eq!(session.said(), None, "less than a window has come");
    heard(&mut session, &message(kind::AUDIO, &[0xaf; 1000])).unwrap();
    let said = session.said().unwrap();
    let came = connected().len() + created().len() + 16 + 12 + 1000 + 7;
    assert_eq!(said[..12], [2, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0]);
    assert_eq!(said[12..], (came as u32).to_be_bytes());
    // A ping, and a bandwidth: told once.
    let ping = message(kind::USER_CONTROL, &[0, 6, 1, 2, 3, 4]);
    let bandwidth = message(kind::PEER_BANDWIDTH, &[0, 0, 0x20, 0, 2]);
    heard(&mut session, &[&ping[..], &bandwidth, &bandwidth].concat()).unwrap();
    let pong = [2, 0, 0, 0, 0, 0, 6, 4, 0, 0, 0, 0, 0, 7, 1, 2, 3, 4];
    let window = [2, 0, 0, 0, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0x20, 0];
    assert_eq!(session.said().unwrap(), [&pong[..], &window].concat());
}

#[test]
fn ends_and_media_are_told_and_whatever_else_comes_is_passed_over() {
    let complete = Said::default().text("onPlayStatus");
    let complete = complete.object(&[("code", "NetStream.Play.Complete")]).0;
    let later = Said::command("onPlayStatus", 0.0).null();
    let later = later.object(&[("code", "NetStream.Play.Complete")]).0;
    let amf3 = [&[0][..], &complete].concat();
    let media = Media {
        is_video: true,
        is_key: true,
        plays: true,
        timestamp: 40,
    };
    for (input, events) in [
        (
            message(kind::USER_CONTROL, &[0, 1, 0, 0, 0, 1]),
            vec![Event::Ended],
        ),
        (status("status", "NetStream.Play.Stop"), vec![Event::Ended]),
        (
            status("status", "NetStream.Play.UnpublishNotify"),
            vec![Event::Ended],
        ),
        (message(kind::DATA, &complete), vec![Event::Ended]),
        (message(kind::DATA, &later), vec![Event::Ended]),
        (message(kind::DATA_AMF3, &amf3), vec![Event::Ended]),
        (
            message(kind::VIDEO, &[0x17, 1, 0, 0, 0]),
            vec![Event::Media(media, 5)],
        ),
        (message(kind::USER_CONTROL, &[0, 0, 0, 0, 0, 1]), vec![]),
        (status("status", "NetStream.Play.Start"), vec![]),
        (message(kind::DATA, b"\x02\0\x0aonMetaData\x08"), vec![]),
        (
            message(kind::COMMAND, &Said::command("onBWDone", 0.0).null().0),
            vec![],
        ),
        (
            message(kind::COMMAND, &Said::command("_result", 9.0).null().0),
            vec![],
        ),
        (message(99, b"?"), vec![]),
    ] {
        let application = application();
        assert_eq!(
            heard(&mut begun(&application), &input),
            Ok(events),
            "{input:?}"
        );
    }
}

#[test]
fn a_reject_is_told_from_what_is_no_rtmp() {
    for (input, failure) in [
        (
            status("error", "NetStream.Play.StreamNotFound"),
            Failure::Status,
        ),
        (status("status", "NetStream.Play.Failed"), Failure::Status),
        (
            message(kind::COMMAND, &Said::command("_error", 1.0).null().0),
            Failure::Status,
        ),
        (
            message(kind::COMMAND, &Said::command("close", 0.0).null().0),
            Failure::Status,
        ),
        (message(kind::COMMAND, b"GET / HTTP/1.1"), Failure::Parse),
        (
            message(kind::COMMAND, &Said::command("onStatus", 0.0).null().0),
            Failure::Parse,
        ),
        (message(kind::USER_CONTROL, &[0]), Failure::Parse),
        (message(kind::USER_CONTROL, &[0, 6, 1]), Failure::Parse),
        (message(kind::WINDOW_SIZE, &[0]), Failure::Parse),
    ] {
        let application = application();
        assert_eq!(
            heard(&mut begun(&application), &input),
            Err(failure),
            "{input:?}"
        );
    }
    let application = application();
    let mut session = Session::new(&application);
    assert_eq!(heard(&mut session, b"HTTP/1.1 400"), Err(Failure::Parse));
    assert!(Application::checked("", "rtmp://h/").is_err());
    assert!(checked_name(&"x".repeat(1001)).is_err());
}

proptest! {
    #[test]
    fn whatever_the_cuts_the_same_is_heard_and_said(cuts in prop::collection::vec(1usize..900, 1..20)) {
        let media = message(kind::VIDEO, &[0x27; 700]);
        let ping = message(kind::USER_CONTROL, &[0, 6, 1, 2, 3, 4]);
        let input = [hellos(), connected(), created(), media, ping, status("status", "NetStream.Play.Stop")].concat();
        let application = application();
        let mut whole = Session::new(&application);
        let right = (heard(&mut whole, &input), whole.said());
        let (mut session, mut events, mut rest) = (Session::new(&application), Vec::new(), &input[..]);
        for cut in cuts.iter().cycle() {
            let (part, more) = rest.split_at((*cut).min(rest.len()));
            events.extend(heard(&mut session, part).unwrap());
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!((Ok(events), session.said()), right);
    }

    #[test]
    fn whatever_comes_it_does_not_panic_and_says_no_more_than_it_hears(
        input in prop::collection::vec(any::<u8>(), 0..3000), cut in 1usize..500
    ) {
        let application = application();
        let mut session = begun(&application);
        for part in input.chunks(cut) {
            if heard(&mut session, part).is_err() {
                break;
            }
        }
        let said = session.said().map_or(0, |said| said.len());
        prop_assert!(said <= 2 * input.len() + 16 * input.len().div_ceil(cut), "{} bytes", said);
    }
}
