use proptest::prelude::*;

use super::*;

fn spec() -> JanusSpec {
    JanusSpec {
        address: "127.0.0.1:1".parse().unwrap(),
        path: "/".into(),
        room: 1234,
        pin: Some("1111".into()),
        token: None,
        api_secret: Some("secret".into()),
        audio: None,
    }
}

fn with_audio() -> JanusSpec {
    let audio = json!({"room": 5, "speakers": 1, "sound": "/x", "bitrate_bit_per_s": 24_000});
    JanusSpec {
        audio: Some(serde_json::from_value(audio).unwrap()),
        ..spec()
    }
}

/// One whose handle of audio is 10, and what it said there.
fn in_audio(spec: &JanusSpec, speaks: bool) -> (Janus<'_>, Vec<Value>) {
    let mut janus = Janus::new(spec, "virtoll 0 webcam".into(), false, speaks);
    janus.hear(&success("create", 7)).unwrap();
    let attached = said(&mut janus);
    assert_eq!(attached[2]["plugin"], "janus.plugin.audiobridge");
    janus.hear(&success("attach audio", 10)).unwrap();
    let joins = said(&mut janus);
    (janus, joins)
}

fn said(janus: &mut Janus) -> Vec<Value> {
    std::iter::from_fn(|| janus.say())
        .map(|words| {
            let Words::Text(text) = words else {
                panic!("{words:?}")
            };
            assert!(!text.ends_with('\n'));
            serde_json::from_str(&text).unwrap()
        })
        .collect()
}

fn all_told(janus: &mut Janus) -> Vec<Told> {
    std::iter::from_fn(|| janus.told()).collect()
}

fn event(transaction: &str, sender: u64, data: Value, jsep: Option<&str>) -> Words {
    let mut event = json!({"janus": "event", "session_id": 7, "transaction": transaction, "sender": sender,
        "plugindata": {"plugin": PLUGIN, "data": data}});
    if let Some(sdp) = jsep {
        event["jsep"] = json!({"type": "offer", "sdp": sdp});
    }
    Words::Text(event.to_string())
}

fn success(transaction: &str, id: u64) -> Words {
    let said = json!({"janus": "success", "transaction": transaction, "data": {"id": id}});
    Words::Text(said.to_string())
}

fn publisher(id: u64, display: &str) -> Value {
    json!({"id": id, "display": display, "streams": [{"type": "audio", "mindex": 0, "mid": "a"},
        {"type": "video", "mindex": 1, "mid": "v", "codec": "vp8"}]})
}

fn subscribed(id: u64, mid: &str) -> Value {
    json!({"type": "video", "active": true, "mindex": 0, "mid": mid, "feed_id": id, "feed_mid": "v"})
}

/// Of somebody's video, at its place (`mid`) of an offer, or "" where it was in none.
fn feed(sender: &str, display: &str, mid: &str) -> Feed {
    Feed {
        mid: mid.into(),
        sender: sender.into(),
        display: display.into(),
    }
}

/// One that is in the room, and what it said there.
fn joined<'a>(spec: &'a JanusSpec, publishers: Value) -> (Janus<'a>, Vec<Value>) {
    let mut janus = Janus::new(spec, "virtoll 3 watcher".into(), true, false);
    let create = said(&mut janus);
    assert_eq!(create[0]["janus"], "create");
    assert_eq!(create[0]["apisecret"], "secret");
    janus.hear(&success("create", 7)).unwrap();
    assert_eq!(said(&mut janus).len(), 2);
    janus.hear(&success("attach sending", 8)).unwrap();
    let join = said(&mut janus);
    assert_eq!(join[0]["body"]["display"], "virtoll 3 watcher");
    assert_eq!(join[0]["body"]["pin"], "1111");
    assert_eq!(
        (&join[0]["session_id"], &join[0]["handle_id"]),
        (&json!(7), &json!(8))
    );
    janus.hear(&success("attach receiving", 9)).unwrap();
    let data = json!({"videoroom": "joined", "room": 1234, "id": 5, "private_id": 77, "publishers": publishers});
    janus.hear(&event("join", 8, data, None)).unwrap();
    let said = said(&mut janus);
    (janus, said)
}

#[test]
fn who_joins_subscribes_to_all_video_and_answers_what_is_offered() {
    let spec = spec();
    let (mut janus, asked) = joined(
        &spec,
        json!([publisher(1, "virtoll 0 webcam"), publisher(2, "Ann")]),
    );
    assert_eq!(
        asked[0]["body"]["streams"],
        json!([{"feed": 1, "mid": "v"}, {"feed": 2, "mid": "v"}])
    );
    assert_eq!(
        (&asked[0]["body"]["private_id"], &asked[0]["handle_id"]),
        (&json!(77), &json!(9))
    );
    assert_eq!(
        all_told(&mut janus),
        [
            Told::Heard(vec![
                feed("1", "virtoll 0 webcam", ""),
                feed("2", "Ann", "")
            ]),
            Told::Joined { others: true }
        ]
    );
    let data =
        json!({"videoroom": "attached", "streams": [subscribed(1, "0"), subscribed(2, "1")]});
    janus
        .hear(&event("subscribe first", 9, data, Some("the offer")))
        .unwrap();
    let feeds = vec![feed("1", "virtoll 0 webcam", "0"), feed("2", "Ann", "1")];
    assert_eq!(
        all_told(&mut janus),
        [Told::Offer {
            sdp: "the offer".into(),
            feeds
        }]
    );
    janus.answer("the answer".into());
    let answer = said(&mut janus);
    assert_eq!(answer[0]["body"]["request"], "start");
    assert_eq!(
        answer[0]["jsep"],
        json!({"type": "answer", "sdp": "the answer"})
    );
}

#[test]
fn who_publishes_later_is_subscribed_to_when_nothing_is_under_way() {
    let spec = spec();
    let (mut janus, _) = joined(&spec, json!([publisher(1, "")]));
    let more = json!({"videoroom": "event", "publishers": [publisher(2, "")]});
    janus.hear(&event("", 8, more, None)).unwrap();
    let more = json!({"videoroom": "event", "publishers": [publisher(3, "")]});
    janus.hear(&event("", 8, more, None)).unwrap();
    assert_eq!(said(&mut janus).len(), 0);
    janus
        .hear(&event(
            "started",
            9,
            json!({"videoroom": "event", "started": "ok"}),
            None,
        ))
        .unwrap();
    let asked = said(&mut janus);
    assert_eq!(
        asked[0]["body"],
        json!({"request": "subscribe", "streams": [{"feed": 2, "mid": "v"}, {"feed": 3, "mid": "v"}]})
    );
}

/// A server that has too much to do answers nothing, and all that waits for it stands still.
#[test]
fn who_publishes_is_heard_of_at_once_whether_or_not_it_is_ever_offered() {
    let spec = spec();
    let (mut janus, _) = joined(&spec, json!([publisher(1, "")]));
    all_told(&mut janus);
    let data = |publishers: Value| json!({"videoroom": "event", "publishers": publishers});
    let more = data(json!([publisher(1, ""), publisher(2, "Ann")]));
    janus.hear(&event("", 8, more.clone(), None)).unwrap();
    let heard = Told::Heard(vec![feed("2", "Ann", "")]);
    assert_eq!(all_told(&mut janus), [heard]);
    janus.hear(&event("", 8, more, None)).unwrap();
    assert_eq!(all_told(&mut janus), [], "nobody new");
    assert_eq!(said(&mut janus).len(), 0, "the first is unanswered");
    let (mut sender, _) = joined(&spec, json!([]));
    sender.watches = false;
    all_told(&mut sender);
    let one = data(json!([publisher(2, "Ann")]));
    sender.hear(&event("", 8, one, None)).unwrap();
    assert_eq!(all_told(&mut sender), [], "it watches nobody");
}

/// Their number was bounded, and each could be as long as a message.
#[test]
fn what_is_kept_of_who_publishes_is_short() {
    let spec = spec();
    let hear = |id: Value, display: String, mid: String| {
        let (mut janus, _) = joined(&spec, json!([]));
        let stream = json!({"type": "video", "mid": mid});
        let publishers = json!([{"id": id, "display": display, "streams": [stream]}]);
        let data = json!({"videoroom": "event", "publishers": publishers});
        janus.hear(&event("", 8, data, None))
    };
    let (whole, long) = (|| "x".repeat(256), || "x".repeat(257));
    assert_eq!(hear(whole().into(), whole(), whole()), Ok(()));
    let refused = Err(Failure::Signalling);
    assert_eq!(hear(long().into(), whole(), whole()), refused);
    assert_eq!(hear(json!([whole()]), whole(), whole()), refused);
    assert_eq!(hear(whole().into(), long(), whole()), refused);
    assert_eq!(hear(whole().into(), whole(), long()), refused);
}

#[test]
fn who_left_before_it_was_asked_for_does_not_keep_the_others_away() {
    let spec = spec();
    let (mut janus, _) = joined(&spec, json!([publisher(1, ""), publisher(2, "")]));
    let gone = json!({"videoroom": "event", "error_code": 428, "error": "No such feed"});
    janus
        .hear(&event("subscribe first", 9, gone.clone(), None))
        .unwrap();
    let feeds = |said: Vec<Value>| said[0]["body"]["streams"].clone();
    assert_eq!(feeds(said(&mut janus)), json!([{"feed": 1, "mid": "v"}]));
    let is_gone = |told: &Told| matches!(told, Told::Gone { .. });
    assert!(!all_told(&mut janus).iter().any(is_gone), "one of them is");
    janus
        .hear(&event("subscribe first", 9, gone, None))
        .unwrap();
    let first = Told::Gone { sender: "1".into() };
    assert_eq!(all_told(&mut janus), [first]);
    let asked = said(&mut janus);
    assert_eq!(asked[0]["body"]["ptype"], "subscriber");
    assert_eq!(feeds(asked), json!([{"feed": 2, "mid": "v"}]));
    janus
        .hear(&event(
            "",
            8,
            json!({"videoroom": "event", "leaving": 2}),
            None,
        ))
        .unwrap();
    assert_eq!(
        all_told(&mut janus).last(),
        Some(&Told::Gone { sender: "2".into() })
    );
}

#[test]
fn who_would_watch_those_who_have_all_left_waits_for_nobody() {
    let spec = spec();
    let (mut janus, _) = joined(&spec, json!([publisher(1, "")]));
    let told = all_told(&mut janus);
    assert!(told.contains(&Told::Joined { others: true }));
    assert!(!told.contains(&Told::Alone));
    let left = json!({"videoroom": "event", "leaving": 1});
    janus.hear(&event("", 8, left, None)).unwrap();
    assert!(
        !all_told(&mut janus).contains(&Told::Alone),
        "it was asked for"
    );
    let gone = json!({"videoroom": "event", "error_code": 428, "error": "No such feed"});
    janus
        .hear(&event("subscribe first", 9, gone, None))
        .unwrap();
    let first = Told::Gone { sender: "1".into() };
    assert_eq!(all_told(&mut janus), [first, Told::Alone]);
}

#[test]
fn who_sends_is_answered() {
    let spec = spec();
    let (mut janus, _) = joined(&spec, json!([]));
    assert_eq!(all_told(&mut janus), [Told::Joined { others: false }]);
    janus.publish("offer".into());
    let published = said(&mut janus);
    assert_eq!(
        (&published[0]["body"]["request"], &published[0]["handle_id"]),
        (&json!("publish"), &json!(8))
    );
    janus
        .hear(&event(
            "publish",
            8,
            json!({"videoroom": "event", "configured": "ok"}),
            Some("answer"),
        ))
        .unwrap();
    assert_eq!(all_told(&mut janus), [Told::Answer("answer".into())]);
    janus.keep_alive();
    janus.leave();
    let last: Vec<Value> = said(&mut janus);
    assert_eq!(
        (&last[0]["janus"], &last[1]["janus"]),
        (&json!("keepalive"), &json!("destroy"))
    );
}

#[test]
fn what_goes_wrong_has_its_kind() {
    let spec = spec();
    let wrong = |code: u64| {
        let data = json!({"videoroom": "event", "error_code": code, "error": "Maximum number\nof"});
        joined(&spec, json!([]))
            .0
            .hear(&event("publish", 8, data, None))
            .unwrap_err()
    };
    assert_eq!(wrong(432), Failure::RoomFull);
    assert_eq!(wrong(426), Failure::NoRoom);
    assert_eq!(wrong(433), Failure::Refused);
    assert_eq!(wrong(499).kind(), "janus 499 Maximum numberof");
    let heard = |words: &Words| joined(&spec, json!([])).0.hear(words).unwrap_err();
    let hear = |text: &str| heard(&Words::Text(text.into()));
    assert_eq!(
        hear(r#"{"janus": "error", "error": {"code": 458, "reason": "No such session"}}"#).kind(),
        "janus 458 No such session"
    );
    assert_eq!(
        hear(r#"{"janus": "error", "error": {"code": 403, "reason": "Unauthorized"}}"#),
        Failure::Refused
    );
    assert_eq!(
        hear(r#"{"janus": "hangup", "sender": 8, "reason": "ICE failed"}"#),
        Failure::Lost
    );
    assert_eq!(
        hear(r#"{"janus": "timeout", "session_id": 7}"#),
        Failure::Lost
    );
    assert_eq!(
        heard(&event("", 8, json!({"videoroom": "destroyed"}), None)),
        Failure::Destroyed
    );
    assert_eq!(hear("no JSON"), Failure::Signalling);
    assert_eq!(heard(&success("create", 0)), Failure::Signalling);
    assert_eq!(heard(&Words::Bytes(vec![123, 125])), Failure::Signalling);
}

#[test]
fn where_there_is_audio_it_is_joined_and_heard() {
    for speaks in [true, false] {
        let spec = with_audio();
        let (mut janus, join) = in_audio(&spec, speaks);
        assert_eq!(join[0]["handle_id"], 10);
        assert_eq!(
            join[0]["body"],
            json!({"request": "join", "room": 5, "display": "virtoll 0 webcam", "muted": !speaks,
                "bitrate": 24_000})
        );
        let others = json!({"audiobridge": "joined", "room": 5, "participants": [{"id": 8}]});
        janus.hear(&event("", 10, others.clone(), None)).unwrap();
        assert_eq!(all_told(&mut janus), [], "another came");
        janus.hear(&event("join audio", 10, others, None)).unwrap();
        assert_eq!(all_told(&mut janus), [Told::InAudio]);
        janus.offer_audio("offer".into());
        let offered = said(&mut janus);
        assert_eq!(
            (&offered[0]["body"], &offered[0]["jsep"]["sdp"]),
            (
                &json!({"request": "configure", "muted": !speaks}),
                &json!("offer")
            )
        );
        let ok = json!({"audiobridge": "event", "result": "ok"});
        janus
            .hear(&event("offer audio", 10, ok, Some("answer")))
            .unwrap();
        assert_eq!(all_told(&mut janus), [Told::AudioAnswer("answer".into())]);
        let trickle = r#"{"janus": "trickle", "sender": 10, "candidate": {"candidate": "c"}}"#;
        janus.hear(&Words::Text(trickle.into())).unwrap();
        let candidate = Told::Candidate {
            way: Way::Audio,
            candidate: "c".into(),
        };
        assert_eq!(all_told(&mut janus), [candidate]);
    }
}

#[test]
fn what_goes_wrong_with_audio_has_its_kind() {
    let spec = with_audio();
    let wrong = |transaction: &str, data: Value| {
        let mut janus = in_audio(&spec, true).0;
        janus.hear(&event(transaction, 10, data, None)).unwrap_err()
    };
    let code = |code: u64| {
        let data = json!({"audiobridge": "event", "error_code": code, "error": "so"});
        wrong("join audio", data)
    };
    assert_eq!(code(485), Failure::NoRoom);
    assert_eq!(code(489), Failure::Refused);
    assert_eq!(code(488).kind(), "janus 488 so");
    let no_words = json!({"audiobridge": "event", "error_code": 493});
    assert_eq!(wrong("offer audio", no_words).kind(), "janus 493 ");
    let destroyed = json!({"audiobridge": "destroyed", "room": 5});
    assert_eq!(wrong("", destroyed), Failure::Destroyed);
    let heard = |text: &str| {
        let mut janus = in_audio(&spec, false).0;
        janus.hear(&Words::Text(text.into())).unwrap_err()
    };
    let no_plugin = r#"{"janus": "error", "transaction": "attach audio",
        "error": {"code": 460, "reason": "No such plugin"}}"#;
    assert_eq!(heard(no_plugin).kind(), "janus 460 No such plugin");
    let none = r#"{"janus": "success", "transaction": "attach audio", "data": {"id": 0}}"#;
    assert_eq!(heard(none), Failure::Signalling);
}

/// Any value that might stand in a message.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop_oneof![
            Just("event"),
            Just("ok"),
            Just("joined"),
            Just("video"),
            Just("subscribe")
        ]
        .prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("janus"),
        Just("transaction"),
        Just("sender"),
        Just("data"),
        Just("id"),
        Just("plugindata"),
        Just("jsep"),
        Just("sdp"),
        Just("videoroom"),
        Just("audiobridge"),
        Just("error"),
        Just("publishers"),
        Just("streams"),
        Just("feed_id"),
        Just("leaving"),
        Just("error_code"),
        Just("type"),
        Just("mid"),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6).prop_map(|pairs| pairs
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_comes_is_heard_or_refused(values in prop::collection::vec(any_value(), 1..8), cut in 0usize..200) {
        let spec = spec();
        let (mut janus, _) = joined(&spec, json!([publisher(1, "")]));
        for value in values {
            let mut text = value.to_string();
            let _ = janus.hear(&Words::Text(text.clone()));
            text.truncate(cut);
            let _ = janus.hear(&Words::Text(text));
            let data = event("subscribe", 9, value, Some("x"));
            let _ = janus.hear(&data);
        }
        prop_assert!(janus.say.len() < 100);
    }

    #[test]
    fn whatever_comes_of_audio_is_heard_or_refused(
        values in prop::collection::vec((any_value(), 0usize..3), 1..8), with_sdp in any::<bool>()
    ) {
        let spec = with_audio();
        let (mut janus, _) = in_audio(&spec, true);
        for (value, index) in values {
            let transaction = ["join audio", "offer audio", ""][index];
            let _ = janus.hear(&Words::Text(value.to_string()));
            let _ = janus.hear(&event(transaction, 10, value, with_sdp.then_some("x")));
        }
        let told = all_told(&mut janus).into_iter();
        let of_video = told.filter(|told| matches!(told, Told::Answer(_) | Told::Offer { .. }));
        prop_assert_eq!(of_video.count(), 0);
    }
}
