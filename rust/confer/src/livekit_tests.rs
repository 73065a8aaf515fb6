use proptest::prelude::*;

use super::*;
use crate::livekit_said::{JoinResponse, RequestResponse, Trickle, Update};

const OFFER: &str = "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n\
    m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:0\r\na=sendrecv\r\n\
    m=video 9 UDP/TLS/RTP/SAVPF 96\r\na=mid:1\r\na=msid:PA_a|camera TR_a\r\na=sendonly\r\n\
    m=video 9 UDP/TLS/RTP/SAVPF 96\r\na=mid:2\r\na=msid:PA_b|camera TR_b\r\na=inactive\r\n\
    m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:3\r\na=msid:PA_a|camera TR_c\r\na=sendonly\r\n";

fn spec() -> LiveKitSpec {
    LiveKitSpec {
        address: "127.0.0.1:1".parse().unwrap(),
        room: "virtoll".into(),
        key: "key".into(),
        secret: "secret".into(),
    }
}

fn watcher(spec: &LiveKitSpec) -> LiveKit<'_> {
    LiveKit::new(spec, "virtoll 3 watcher".into(), true)
}

fn words(response: Response) -> Words {
    let message = SignalResponse {
        message: Some(response),
    };
    Words::Bytes(message.encode_to_vec())
}

fn someone(sid: &str, display: &str, tracks: &[&str]) -> Participant {
    let track = |sid: &&str| Track {
        sid: (*sid).into(),
        kind: VIDEO,
        muted: false,
    };
    Participant {
        sid: sid.into(),
        identity: display.into(),
        state: 2,
        tracks: tracks.iter().map(track).collect(),
        version: 1,
    }
}

/// Of a track of theirs, at its place (`mid`) of an offer, or "" where it was in none.
fn feed(sid: &str, display: &str, mid: &str) -> Feed {
    Feed {
        mid: mid.into(),
        sender: sid.into(),
        display: display.into(),
    }
}

fn offer(sdp: &str, id: u32) -> Words {
    words(Response::Offer(SessionDescription {
        kind: "offer".into(),
        sdp: sdp.into(),
        id,
    }))
}

fn joins(livekit: &mut LiveKit, others: Vec<Participant>) -> Vec<Told> {
    livekit
        .hear(&words(Response::Join(JoinResponse { others })))
        .unwrap();
    all_told(livekit)
}

fn update(livekit: &mut LiveKit, participant: Participant) -> Vec<Told> {
    let participants = vec![participant];
    livekit
        .hear(&words(Response::Update(Update { participants })))
        .unwrap();
    all_told(livekit)
}

fn all_told(livekit: &mut LiveKit) -> Vec<Told> {
    std::iter::from_fn(|| livekit.told()).collect()
}

fn said(livekit: &mut LiveKit) -> Vec<Request> {
    std::iter::from_fn(|| livekit.say())
        .map(|words| match words {
            Words::Bytes(bytes) => SignalRequest::decode(&bytes[..]).unwrap().message.unwrap(),
            Words::Text(text) => panic!("{text}"),
        })
        .collect()
}

/// RFC 7519, 7.2; what it should be by another implementation (Python's hmac).
#[test]
fn the_token_is_signed_by_the_keys_secret() {
    let spec = spec();
    let path = watcher(&spec).path();
    let query = path.strip_prefix("/rtc?access_token=").unwrap();
    let (token, rest) = query.split_once('&').unwrap();
    assert_eq!(rest, "auto_subscribe=1&protocol=15&sdk=rust&version=1");
    let parts: Vec<&str> = token.split('.').collect();
    let decoded = |part: &str| -> Value {
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    };
    assert_eq!(decoded(parts[0]), json!({"alg": "HS256", "typ": "JWT"}));
    let claims = decoded(parts[1]);
    assert_eq!(claims["iss"], "key");
    assert_eq!(claims["sub"], "virtoll 3 watcher");
    assert_eq!(claims["video"]["room"], "virtoll");
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
    let signature = BASE64_URL_SAFE_NO_PAD.decode(parts[2]).unwrap();
    let signed = format!("{}.{}", parts[0], parts[1]);
    hmac::verify(&key, signed.as_bytes(), &signature).unwrap();
}

#[test]
fn who_joins_is_told_of_what_is_sent_and_answers_what_is_offered() {
    let spec = spec();
    let mut livekit = watcher(&spec);
    let told = joins(
        &mut livekit,
        vec![someone("PA_a", "virtoll 0 desktop", &["TR_a"])],
    );
    let desktop = "virtoll 0 desktop";
    let heard = Told::Heard(vec![feed("PA_a", desktop, "")]);
    assert_eq!(told, [heard, Told::Joined { others: true }]);
    livekit.hear(&offer(OFFER, 5)).unwrap();
    let sdp = OFFER.to_owned();
    let feeds = vec![feed("PA_a", desktop, "1")];
    assert_eq!(all_told(&mut livekit), [Told::Offer { sdp, feeds }]);
    livekit.answer("the answer".into());
    let Request::Answer(answer) = &said(&mut livekit)[0] else {
        panic!("no answer")
    };
    assert_eq!((answer.sdp.as_str(), answer.id), ("the answer", 5));
}

#[test]
fn who_publishes_names_its_track_before_it_offers() {
    let spec = spec();
    let mut livekit = LiveKit::new(&spec, "virtoll 0 desktop".into(), true);
    assert_eq!(
        joins(&mut livekit, Vec::new()),
        [Told::Alone, Told::Joined { others: false }]
    );
    let sdp = "v=0\r\nm=video 9 X 96\r\na=mid:x\r\na=msid:stream track7\r\na=sendonly\r\n";
    livekit.publish(sdp.into());
    let said = said(&mut livekit);
    let [Request::AddTrack(track), Request::Offer(offer)] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!((track.cid.as_str(), track.source), ("track7", SCREEN_SHARE));
    assert_eq!((track.kind, offer.sdp.as_str()), (VIDEO, sdp));
}

#[test]
fn who_ceases_to_send_or_goes_is_told_once() {
    let spec = spec();
    let mut livekit = watcher(&spec);
    joins(&mut livekit, Vec::new());
    let camera = "virtoll 1 webcam";
    let heard = Told::Heard(vec![feed("PA_a", camera, "")]);
    assert_eq!(
        update(&mut livekit, someone("PA_a", camera, &["TR_a"])),
        [heard]
    );
    assert_eq!(update(&mut livekit, someone("PA_a", camera, &["TR_a"])), []);
    let gone = Told::Gone {
        sender: "PA_a".into(),
    };
    let mut left = someone("PA_a", camera, &["TR_a"]);
    left.state = DISCONNECTED;
    assert_eq!(update(&mut livekit, left.clone()), [gone, Told::Alone]);
    assert_eq!(update(&mut livekit, left), [Told::Alone]);
    let own = someone("PA_me", "virtoll 3 watcher", &["TR_me"]);
    assert_eq!(update(&mut livekit, own), [Told::Alone]);
}

#[test]
fn a_track_that_was_offered_before_its_sender_was_known_has_its_place() {
    let spec = spec();
    let mut livekit = watcher(&spec);
    joins(&mut livekit, Vec::new());
    livekit.hear(&offer(OFFER, 1)).unwrap();
    let (sdp, feeds) = (OFFER.to_owned(), Vec::new());
    assert_eq!(all_told(&mut livekit), [Told::Offer { sdp, feeds }]);
    let camera = "virtoll 1 webcam";
    let heard = Told::Heard(vec![feed("PA_a", camera, "1")]);
    assert_eq!(
        update(&mut livekit, someone("PA_a", camera, &["TR_a"])),
        [heard]
    );
}

#[test]
fn what_was_said_before_it_and_comes_after_it_changes_nothing() {
    let spec = spec();
    let mut livekit = watcher(&spec);
    joins(&mut livekit, Vec::new());
    let mut sends = someone("PA_a", "virtoll 1 webcam", &["TR_a"]);
    sends.version = 4;
    update(&mut livekit, sends);
    let mut before = someone("PA_a", "virtoll 1 webcam", &[]);
    before.version = 3;
    assert_eq!(update(&mut livekit, before), []);
}

#[test]
fn who_comes_again_under_his_name_takes_the_place_of_the_other() {
    let spec = spec();
    let mut livekit = watcher(&spec);
    joins(&mut livekit, Vec::new());
    let camera = "virtoll 1 webcam";
    update(&mut livekit, someone("PA_a", camera, &["TR_a"]));
    let gone = Told::Gone {
        sender: "PA_a".into(),
    };
    let heard = Told::Heard(vec![feed("PA_b", camera, "")]);
    assert_eq!(
        update(&mut livekit, someone("PA_b", camera, &["TR_b"])),
        [gone, heard]
    );
}

/// Their number was bounded, and each could be as long as a message.
#[test]
fn what_is_kept_of_who_is_there_is_short() {
    let spec = spec();
    let hear = |sid: &str, identity: &str, track: &str| {
        let others = vec![someone(sid, identity, &[track])];
        let join = Response::Join(JoinResponse { others });
        watcher(&spec).hear(&words(join))
    };
    let (whole, long) = ("x".repeat(256), "x".repeat(257));
    assert_eq!(hear(&whole, &whole, &whole), Ok(()));
    for (sid, identity, track) in [
        (&long, &whole, &whole),
        (&whole, &long, &whole),
        (&whole, &whole, &long),
    ] {
        assert_eq!(hear(sid, identity, track), Err(Failure::Signalling));
    }
}

#[test]
fn candidates_are_of_the_connection_that_they_are_for() {
    let spec = spec();
    let mut livekit = watcher(&spec);
    for (target, way) in [(0, Way::Sending), (SUBSCRIBER, Way::Receiving)] {
        let candidate = r#"{"candidate": "candidate:1 1 udp 1 1.2.3.4 5 typ host", "sdpMid": "0"}"#;
        let trickle = Trickle {
            candidate: candidate.into(),
            target,
        };
        livekit.hear(&words(Response::Trickle(trickle))).unwrap();
        let candidate = "candidate:1 1 udp 1 1.2.3.4 5 typ host".into();
        assert_eq!(all_told(&mut livekit), [Told::Candidate { way, candidate }]);
    }
}

#[test]
fn what_goes_wrong_has_its_kind() {
    let spec = spec();
    let hear = |response: Response| watcher(&spec).hear(&words(response)).unwrap_err();
    let leave = |reason| hear(Response::Leave(Leave { reason }));
    assert_eq!(leave(ROOM_CLOSED), Failure::Destroyed);
    assert_eq!(leave(2).kind(), "livekit leave 2");
    let refused = RequestResponse {
        reason: 2,
        message: "not\nallowed".into(),
    };
    assert_eq!(
        hear(Response::RequestResponse(refused)).kind(),
        "livekit notallowed"
    );
    let text = Words::Text("{}".into());
    assert_eq!(watcher(&spec).hear(&text), Err(Failure::Signalling));
    let garbage = Words::Bytes(vec![255; 9]);
    assert_eq!(watcher(&spec).hear(&garbage), Err(Failure::Signalling));
}

#[test]
fn it_is_heard_of_before_it_is_forgotten() {
    let spec = spec();
    let mut livekit = watcher(&spec);
    assert_eq!(livekit.alive_every_ns(), 5_000_000_000);
    livekit.keep_alive();
    livekit.leave();
    let said = said(&mut livekit);
    assert!(matches!(said[..], [Request::Ping(_), Request::Leave(_)]));
}

proptest! {
    #[test]
    fn whatever_comes_is_heard_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        sdp in "(\r\nm=(video|audio) |a=(mid|msid):|[ -~]{0,9}|\r\n){0,30}",
    ) {
        let spec = spec();
        let mut livekit = watcher(&spec);
        let _ = livekit.hear(&Words::Bytes(bytes));
        prop_assert!(livekit.hear(&offer(&sdp, 1)).is_ok());
        livekit.publish(sdp);
    }
}
