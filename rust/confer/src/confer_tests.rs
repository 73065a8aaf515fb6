//! Participants against a server within the test (`fake.rs`). Orders are given until what is waited for has happened,
//! however long that takes.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{json, Value};
use virtoll_generator::datagrams::Batch;

use super::fake::{accepted, Session, Whim};
use super::film::{tests::ivf, Film};
use super::sound::tests::opus;
use super::*;

const PATIENCE_NS: i64 = 3_600_000_000_000;

fn spec(address: SocketAddr, roles: Value) -> ConferSpec {
    let server = json!({"janus": {"address": address.to_string(), "path": "/", "room": 1234, "pin": null, "token": null,
        "api_secret": null}});
    let spec = json!({"server": server, "roles": roles, "threads": 1, "cpus": [], "patience_ns": PATIENCE_NS,
        "rest_ns": 1_000_000, "seed": 7});
    serde_json::from_value(spec).unwrap()
}

pub fn shared<'a>(spec: &'a ConferSpec, roles: &'a [Role]) -> Shared<'a> {
    let common = Common {
        clock: Clock::new(),
        crypto: crypto::provider(),
        certificate: crypto::certificate().unwrap(),
        local: Ipv4Addr::LOCALHOST,
        codec: spec.codec,
    };
    Shared {
        spec,
        roles,
        sound: None,
        common,
    }
}

fn role(name: &str, sends: bool, watches: bool) -> Role {
    let film = sends.then(|| Film::parsed(&ivf(20, 20)).unwrap());
    Role {
        name: name.into(),
        film,
        watches,
    }
}

/// The room for audio, of so many speakers; the file is never read.
fn audio(speakers: usize) -> Value {
    json!({"room": 1, "speakers": speakers, "sound": "/x", "bitrate_bit_per_s": 32_000})
}

fn sound() -> Sound {
    Sound::parsed(&opus(50)).unwrap()
}

/// Run with a server of this whim, in windows of so many milliseconds, until `is_done` by all that was told so far.
fn told_until(
    roles: &[Role],
    participants: usize,
    whim: Whim,
    window_ms: i64,
    is_done: impl Fn(&[Value]) -> bool + Sync,
) -> Vec<Value> {
    told_with(roles, None, participants, whim, window_ms, is_done)
}

/// The same, and so many of them speak where there is audio.
fn told_with(
    roles: &[Role],
    speakers: Option<usize>,
    participants: usize,
    whim: Whim,
    window_ms: i64,
    is_done: impl Fn(&[Value]) -> bool + Sync,
) -> Vec<Value> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let named =
        |role: &Role| json!({"name": role.name, "count": 1, "film": null, "watches": role.watches});
    let mut spec = spec(address, roles.iter().map(named).collect());
    if [Whim::Mute, Whim::Away].contains(&whim) {
        spec.patience_ns = 2_000_000_000; // it would be in vain
    }
    if let Server::Janus(janus) = &mut spec.server {
        janus.audio = speakers.map(|speakers| serde_json::from_value(audio(speakers)).unwrap());
    }
    let mut shared = self::shared(&spec, roles);
    let film = [role("film", true, false)];
    let mut served = self::shared(&spec, &film);
    (shared.sound, served.sound) = (Some(sound()), Some(sound()));
    let (mut reports, is_over) = (Vec::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        let (served, is_over) = (&served, &is_over);
        scope.spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let stream = stream.unwrap();
                scope.spawn(move || {
                    if let Some(socket) = accepted(stream) {
                        let session = Session {
                            shared: served,
                            socket,
                            whim,
                            taken: None,
                            sending: None,
                            audio: None,
                            tally: Tally::new(1),
                            batch: Batch::default(),
                        };
                        session.run();
                    }
                });
            }
        });
        let told = std::cell::RefCell::new(&mut reports);
        let orders = std::iter::from_fn(|| {
            let order = json!({"participants": participants, "every_ns": 0, "settle_ns": 0,
                "duration_ns": window_ms * 1_000_000, "start_ns": null});
            (!is_done(&told.borrow())).then(|| Ok(order.to_string()))
        });
        let outcome = carried_out(&shared, orders, &mut |report| {
            let report = serde_json::to_value(report).unwrap();
            told.borrow_mut().push(report);
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(address); // so that it notices
        outcome.unwrap();
    });
    reports
}

fn sum(reports: &[Value], of: impl Fn(&Value) -> &Value) -> u64 {
    reports
        .iter()
        .map(|report| of(report).as_u64().unwrap_or(0))
        .sum()
}

/// Those who had not by a window's end are told as under way.
fn joined(reports: &[Value]) -> u64 {
    sum(reports, |report| &report["joins"]["joined"])
        + sum(reports, |report| &report["joins"]["under_way"])
}

#[test]
fn a_stream_that_is_never_offered_stands_still() {
    let roles = [role("watcher", false, true), role("film", true, false)];
    let film = |reports: &[Value], what: &str| sum(reports, |it| &it["received"]["film"][what]);
    let reports = told_until(&roles, 1, Whim::Silent, 50, |reports| {
        film(reports, "waiting_ns") > 100_000_000
    });
    assert_eq!(film(&reports, "watched_ns"), 0);
    let last = reports.last().unwrap();
    assert_eq!(last["received"]["film"]["streams"], 1);
    assert_eq!(last["window"]["joined_at_end"], 0, "it waits to join, too");
    assert_eq!(last["joins"]["failures"], json!({}));
}

#[test]
fn who_sends_and_who_watches_join_and_the_film_is_shown() {
    let roles = [
        role("webcam", true, false),
        role("watcher", false, true),
        role("film", true, false),
    ];
    let reports = told_until(&roles, 2, Whim::None, 50, |reports| {
        sum(reports, |report| &report["received"]["film"]["frames"]) > 20
            && sum(reports, |report| &report["sent"]["webcam"]["frames"]) > 20
    });
    let last = reports.last().unwrap();
    let failures = |report: &Value| {
        format!(
            "{} {}",
            report["joins"]["failures"], report["leaves"]["failures"]
        )
    };
    let failures: Vec<String> = reports.iter().map(failures).collect();
    assert_eq!(
        sum(&reports, |report| &report["joins"]["offered"]),
        2,
        "{failures:?}"
    );
    assert_eq!(joined(&reports), 2);
    assert!(
        reports
            .iter()
            .all(|report| report["leaves"]["failures"] == json!({})),
        "{last}"
    );
    assert_eq!(last["window"]["joined_at_end"], 2);
    let received = &last["received"]["film"];
    assert_eq!(received["streams"], 1);
    let keys: u64 = sum(&reports, |report| {
        &report["received"]["film"]["first_key_frame"][0][2]
    });
    assert_eq!(keys, 1);
    assert_eq!(
        sum(&reports, |report| &report["received"]["webcam"]["packets"]),
        0,
        "it is another who sends"
    );
    assert!(sum(&reports, |report| &report["sent"]["webcam"]["packets"]) > 20);
    assert!(
        sum(&reports, |report| &report["received"]["film"]
            ["media_bytes"])
            > 20 * 700
    );
}

#[test]
fn who_speaks_is_heard_and_all_hear() {
    let roles = [
        role("webcam", true, false),
        role("watcher", false, true),
        role("film", true, false),
    ];
    // The server says something to who speaks once it has heard that.
    let firsts = |reports: &[Value]| -> u64 {
        let buckets = |report: &Value| report["audio"]["first_packet"].as_array().unwrap().clone();
        let firsts = reports.iter().flat_map(buckets);
        firsts.map(|bucket| bucket[2].as_u64().unwrap()).sum()
    };
    let reports = told_with(&roles, Some(1), 2, Whim::None, 50, |reports| {
        firsts(reports) == 2 && sum(reports, |report| &report["audio"]["packets"]) > 30
    });
    let of_all = |name: &str| sum(&reports, |report| &report["audio"][name]);
    assert_eq!(joined(&reports), 2);
    assert_eq!(reports.last().unwrap()["audio"]["listeners"], 2);
    assert!(of_all("said") > 0);
    assert_eq!(of_all("bytes"), of_all("packets") * 80);
    assert!(of_all("expected") > 0 && of_all("there_ns") > of_all("waiting_ns"));
    assert_eq!(of_all("unheard"), 0);
}

#[test]
fn where_nobody_is_to_speak_there_is_no_audio() {
    let roles = [role("webcam", true, false)];
    let reports = told_until(&roles, 1, Whim::None, 50, |reports| {
        sum(reports, |report| &report["sent"]["webcam"]["frames"]) > 5
    });
    let of_all = |name: &str| sum(&reports, |report| &report["audio"][name]);
    assert_eq!((of_all("there_ns"), of_all("said")), (0, 0));
}

#[test]
fn who_finds_no_room_for_audio_has_not_joined() {
    let roles = [role("webcam", true, false)];
    let none = |report: &Value| report["joins"]["failures"]["no room"].as_u64().unwrap_or(0);
    let reports = told_with(&roles, Some(1), 1, Whim::Deaf, 500, |reports| {
        reports.iter().map(none).sum::<u64>() > 1
    });
    assert_eq!(sum(&reports, |report| &report["joins"]["joined"]), 0);
}

/// Nothing of it would be told, were it only of those who are in.
#[test]
fn who_is_not_let_into_the_audio_waits_to_hear() {
    let roles = [role("watcher", false, false)];
    let of = |reports: &[Value], name: &str| sum(reports, |report| &report["audio"][name]);
    let reports = told_with(&roles, Some(0), 1, Whim::Aloof, 500, |reports| {
        of(reports, "there_ns") > 0
    });
    assert_eq!(of(&reports, "waiting_ns"), of(&reports, "there_ns"));
    assert_eq!(of(&reports, "packets"), 0);
}

#[test]
fn who_waits_for_audio_in_vain_gives_up_and_says_for_what() {
    for (whim, kind) in [(Whim::Mute, "timeout"), (Whim::Away, "ice failed")] {
        let roles = [role("watcher", false, false)];
        let failed = |report: &Value| report["joins"]["failures"][kind].as_u64().unwrap_or(0);
        // Where the machine is too busy for an offer within its patience, it gives up for something else, and tries again.
        let reports = told_with(&roles, Some(0), 1, whim, 3000, |reports| {
            reports.iter().map(failed).sum::<u64>() > 0
        });
        assert_eq!(sum(&reports, |report| &report["joins"]["joined"]), 0);
    }
}

#[test]
fn a_room_that_is_full_is_told_and_tried_again() {
    let roles = [role("webcam", true, false)];
    let full = |report: &Value| {
        report["joins"]["failures"]["room full"]
            .as_u64()
            .unwrap_or(0)
    };
    // Who is still on its way in when a window ends is told as that, and as nothing else: a window of 50 ms was too short
    // for most where the machine was busy, and the test took two minutes.
    let reports = told_until(&roles, 1, Whim::Full, 500, |reports| {
        reports.iter().map(full).sum::<u64>() > 2
    });
    assert_eq!(sum(&reports, |report| &report["joins"]["joined"]), 0);
    assert!(sum(&reports, |report| &report["joins"]["again"]) > 1);
}

#[test]
fn who_is_hung_up_on_is_lost_and_comes_again() {
    let roles = [role("webcam", true, false)];
    let lost = |report: &Value| {
        report["leaves"]["failures"]["connection lost"]
            .as_u64()
            .unwrap_or(0)
    };
    let reports = told_until(&roles, 1, Whim::HangsUp, 50, |reports| {
        reports.iter().map(lost).sum::<u64>() > 1
    });
    assert!(joined(&reports) > 1);
}

#[test]
fn where_nobody_listens_there_is_no_connection() {
    // The near end of a connection: its port is taken, and refuses.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let address = near.local_addr().unwrap();
    let spec = spec(
        address,
        json!([{"name": "watcher", "count": null, "film": null, "watches": true}]),
    );
    let roles = [role("watcher", false, true)];
    let shared = shared(&spec, &roles);
    let failed = std::cell::Cell::new(0);
    let order = r#"{"participants": 2, "every_ns": 0, "settle_ns": 0, "duration_ns": 20000000, "start_ns": null}"#;
    let orders = std::iter::from_fn(|| (failed.get() == 0).then(|| Ok(order.to_owned())));
    carried_out(&shared, orders, &mut |report| {
        let report = serde_json::to_value(report).unwrap();
        failed.set(report["joins"]["failures"]["connect"].as_u64().unwrap_or(0));
        Ok(())
    })
    .unwrap();
}

#[test]
fn senders_are_known_by_their_names() {
    let (spec, roles) = (
        spec::tests::spec(),
        [role("webcam", true, true), role("watcher", false, true)],
    );
    let shared = shared(&spec, &roles);
    for (display, role) in [
        ("virtoll 3 webcam", 0),
        ("virtoll 12 watcher", 1),
        ("virtoll 1 x", 2),
        ("Ann", 2),
        ("", 2),
    ] {
        assert_eq!(shared.role_named(display), role, "{display}");
    }
}

#[test]
fn windows_follow_the_last_join() {
    let order = Order {
        participants: 5,
        every_ns: 10,
        settle_ns: 100,
        duration_ns: 1000,
        start_ns: None,
    };
    let early = task(&order, 2, 7).unwrap();
    assert_eq!(early.first_ns, 7 + START_DELAY_NS);
    assert_eq!(
        early.span,
        Span {
            from_ns: early.first_ns + 120,
            until_ns: early.first_ns + 1120
        }
    );
    let fixed = Order {
        start_ns: Some(5000),
        ..order
    };
    assert_eq!(task(&fixed, 2, 7).unwrap().first_ns, 4880);
    assert!(task(&fixed, 2, 4881).is_err());
    assert_eq!(task(&fixed, 9, 7).unwrap().first_ns, 4900, "nobody comes");
}
