//! Participants against a server within the test: it speaks as Janus does, takes what is sent, and sends a film of its
//! own to those who watch. Orders are given until what is waited for has happened, however long that takes.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{json, Value};
use tungstenite::handshake::server::{Request, Response};
use tungstenite::{Message, WebSocket};

use super::film::{tests::ivf, Film};
use super::peer::Peer;
use super::sending::Sending;
use super::*;
use crate::view::datagrams::Batch;

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
    };
    Shared {
        spec,
        roles,
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

/// What the server does out of the ordinary.
#[derive(Clone, Copy, PartialEq)]
enum Whim {
    None,
    /// Nobody may publish.
    Full,
    /// Who publishes is hung up on, once it is connected.
    HangsUp,
}

/// One participant's session.
struct Session<'a> {
    shared: &'a Shared<'a>,
    socket: WebSocket<TcpStream>,
    whim: Whim,
    /// What it takes of the participant, and sends to it.
    taken: Option<Peer>,
    sending: Option<Sending<'a>>,
    tally: Tally,
    batch: Batch,
}

impl Session<'_> {
    fn say(&mut self, mut answer: Value, request: &Value) {
        answer["transaction"] = request["transaction"].clone();
        let _ = self.socket.send(Message::text(answer.to_string())); // it may have gone
    }

    fn event(&mut self, request: &Value, data: Value, jsep: Option<Value>) {
        let mut event =
            json!({"janus": "event", "sender": request["handle_id"], "plugindata": {"data": data}});
        if let Some(jsep) = jsep {
            event["jsep"] = jsep;
        }
        self.say(event, request);
    }

    fn hear(&mut self, request: &Value) {
        let id = if request["janus"] == "create" {
            7
        } else {
            8 + i64::from(request["transaction"] == "attach receiving")
        };
        let now_ns = sys::now_ns();
        let sdp = request["jsep"]["sdp"].as_str().unwrap_or_default();
        match (
            request["janus"].as_str().unwrap(),
            request["body"]["request"].as_str().unwrap_or_default(),
        ) {
            ("create" | "attach", _) => {
                self.say(json!({"janus": "success", "data": {"id": id}}), request)
            }
            (_, "join") if request["body"]["ptype"] == "publisher" => {
                let stream = json!({"type": "video", "mid": "v"});
                let film = json!([{"id": 99, "display": "virtoll 9 film", "streams": [stream]}]);
                self.event(
                    request,
                    json!({"videoroom": "joined", "private_id": 3, "publishers": film}),
                    None,
                );
            }
            (_, "join") => {
                let peer = Peer::new(&self.shared.common, true, now_ns).unwrap();
                let film = self.shared.roles[0].film.as_ref().unwrap();
                let (sending, offer) = Sending::new(peer, 0, film, 0).unwrap();
                let mid = offer
                    .lines()
                    .find_map(|line| line.strip_prefix("a=mid:"))
                    .unwrap();
                let stream = json!({"type": "video", "active": true, "mid": mid, "feed_id": 99});
                self.sending = Some(sending);
                let jsep = json!({"type": "offer", "sdp": offer});
                self.event(
                    request,
                    json!({"videoroom": "attached", "streams": [stream]}),
                    Some(jsep),
                );
            }
            (_, "publish") if self.whim == Whim::Full => {
                self.event(
                    request,
                    json!({"videoroom": "event", "error_code": 432, "error": "full"}),
                    None,
                );
            }
            (_, "publish") => {
                let mut peer = Peer::new(&self.shared.common, false, now_ns).unwrap();
                let answer = peer.answer(sdp).unwrap();
                self.taken = Some(peer);
                let jsep = json!({"type": "answer", "sdp": answer});
                self.event(
                    request,
                    json!({"videoroom": "event", "configured": "ok"}),
                    Some(jsep),
                );
            }
            (_, "start") => {
                self.sending.as_mut().unwrap().peer.answered(sdp).unwrap();
                self.event(
                    request,
                    json!({"videoroom": "event", "started": "ok"}),
                    None,
                );
            }
            _ => {}
        }
    }

    /// Take what has come over a connection of media; whether it is there still.
    fn media(&mut self) -> bool {
        let now_ns = sys::now_ns();
        let clock = self.shared.common.clock;
        let sending = self.sending.as_mut().map(|sending| &mut sending.peer);
        for peer in sending.into_iter().chain(&mut self.taken) {
            let count = self.batch.receive(&peer.sockets().all()[0]).unwrap_or(0);
            for index in 0..count {
                let datagram = self.batch.get(index);
                let from = SocketAddrV4::new(datagram.from, datagram.port);
                if peer.take(datagram.bytes, from, clock.at(now_ns)).is_err() {
                    return false;
                }
                while let Ok(Some(_)) = peer.next(&clock) {}
            }
            if peer.wake_ns <= now_ns && peer.on_timer(clock.at(now_ns)).is_err() {
                return false;
            }
            while let Ok(Some(_)) = peer.next(&clock) {}
        }
        let sending = self.sending.as_mut();
        sending.is_none_or(|sending| sending.drive(now_ns, self.shared, &mut self.tally).is_ok())
    }

    /// Until the participant goes.
    fn run(mut self) {
        self.socket.get_mut().set_nonblocking(true).unwrap();
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) => {
                    assert!(!text.ends_with('\n'));
                    self.hear(&serde_json::from_str(&text).unwrap());
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return,
            }
            let is_taken = self.taken.as_ref().is_some_and(Peer::is_connected);
            if !self.media() || self.whim == Whim::HangsUp && is_taken {
                let hangup = json!({"janus": "hangup", "sender": 8, "reason": "Close PC"});
                let _ = self.socket.send(Message::text(hangup.to_string()));
                self.taken = None;
            }
        }
    }
}

/// A WebSocket; None where it is no participant that comes.
#[allow(clippy::result_large_err)] // tungstenite's own
fn accepted(stream: TcpStream) -> Option<WebSocket<TcpStream>> {
    let answer = |_: &Request, mut response: Response| {
        let protocol = "janus-protocol".parse().unwrap();
        let headers = response.headers_mut();
        headers.insert("sec-websocket-protocol", protocol);
        Ok(response)
    };
    tungstenite::accept_hdr(stream, answer).ok()
}

/// Run with a server of this whim until `is_done` by all that was told so far.
fn told_until(
    roles: &[Role],
    participants: usize,
    whim: Whim,
    is_done: impl Fn(&[Value]) -> bool + Sync,
) -> Vec<Value> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let named =
        |role: &Role| json!({"name": role.name, "count": 1, "film": null, "watches": role.watches});
    let spec = spec(address, roles.iter().map(named).collect());
    let shared = self::shared(&spec, roles);
    let film = [role("film", true, false)];
    let served = self::shared(&spec, &film);
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
                            tally: Tally::new(1),
                            batch: Batch::new(),
                        };
                        session.run();
                    }
                });
            }
        });
        let told = std::cell::RefCell::new(&mut reports);
        let orders = std::iter::from_fn(|| {
            let order = json!({"participants": participants, "every_ns": 0, "settle_ns": 0, "duration_ns": 50_000_000,
                "start_ns": null});
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
fn who_sends_and_who_watches_join_and_the_film_is_shown() {
    let roles = [
        role("webcam", true, false),
        role("watcher", false, true),
        role("film", true, false),
    ];
    let reports = told_until(&roles, 2, Whim::None, |reports| {
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
fn a_room_that_is_full_is_told_and_tried_again() {
    let roles = [role("webcam", true, false)];
    let full = |report: &Value| {
        report["joins"]["failures"]["room full"]
            .as_u64()
            .unwrap_or(0)
    };
    let reports = told_until(&roles, 1, Whim::Full, |reports| {
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
    let reports = told_until(&roles, 1, Whim::HangsUp, |reports| {
        reports.iter().map(lost).sum::<u64>() > 1
    });
    assert!(joined(&reports) > 1);
}

#[test]
fn where_nobody_listens_there_is_no_connection() {
    let refusing = crate::wait::tests::bound();
    let address = refusing.local_addr().unwrap();
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
