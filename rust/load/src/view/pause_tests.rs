//! A crowd that pauses between windows, at a server within the test that makes a part of a live stream each 20 ms.

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::*;
use crate::view::tests::told;

const WINDOW_NS: i64 = 200_000_000;
const PART: Duration = Duration::from_millis(20);

fn order(viewers: usize) -> Value {
    json!({"viewers": viewers, "anew": null, "settle_ns": WINDOW_NS, "duration_ns": WINDOW_NS, "start_ns": null,
        "pauses_over_ns": PART.as_nanos() as u64})
}

/// By two threads; who fails is followed by another at once.
fn spec(address: SocketAddr, patience_ns: i64) -> ViewSpec {
    let spec = json!({
        "target": {"address": address, "url": format!("http://{address}/m.m3u8"), "proxy": false, "tls": null},
        "media": {"live": {"text": false, "clock": null}},
        "player": {
            "paced": true, "startup_ns": 20_000_000, "resume_ns": 20_000_000, "buffer_ns": 1_000_000_000,
            "patience_ns": patience_ns
        },
        "threads": 2, "join": {"arrival": "constant", "every_ns": 1000}, "stay_ns": null, "rest_ns": 0, "seed": 1,
        "receive_bytes": 0
    });
    serde_json::from_value::<ViewSpec>(spec)
        .unwrap()
        .checked()
        .unwrap()
}

struct Server {
    began: Instant,
    /// Its connections, and when requests came.
    connections: Mutex<Vec<TcpStream>>,
    asked_ns: Mutex<Vec<i64>>,
    /// Nothing more is answered.
    is_stuck: AtomicBool,
    is_over: AtomicBool,
}

impl Server {
    fn parts(&self) -> u64 {
        100 + (self.began.elapsed().as_micros() / PART.as_micros()) as u64
    }

    fn playlist(&self) -> String {
        let (parts, first) = (self.parts(), self.parts() - 8);
        let mut text = format!(
            "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK=0.06\n\
             #EXT-X-PART-INF:PART-TARGET=0.02\n#EXT-X-MEDIA-SEQUENCE:{first}\n"
        );
        for part in first..parts {
            text += &format!(
                "#EXT-X-PART:DURATION=0.02,URI=\"/p/{part}\",INDEPENDENT=YES\n#EXTINF:0.02,\n/s/{part}\n"
            );
        }
        text + &format!("#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"/p/{parts}\"\n")
    }

    /// Whether it is there in the end.
    fn awaits(&self, part: u64) -> bool {
        while self.parts() <= part || self.is_stuck.load(SeqCst) {
            if self.is_over.load(SeqCst) {
                return false;
            }
            thread::sleep(PART / 10);
        }
        true
    }

    /// Answer one request after another.
    fn serve(&self, mut connection: TcpStream) {
        loop {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if !matches!(connection.read(&mut byte), Ok(1)) {
                    return;
                }
                request.push(byte[0]);
            }
            self.asked_ns.lock().unwrap().push(sys::now_ns());
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap();
            let wanted = path.strip_prefix("/p/").or(path.split('=').nth(1));
            let wanted = wanted.and_then(|wanted| wanted.split('&').next()?.parse::<u64>().ok());
            if !self.awaits(wanted.unwrap_or(0)) {
                return;
            }
            let body = match path.starts_with("/p/") {
                true => "media".to_owned(),
                false => self.playlist(),
            };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            if std::io::Write::write_all(&mut connection, (head + &body).as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// What is said of so many orders, each of which `before` sees first.
fn watched(
    patience_ns: i64,
    viewers: &[usize],
    mut before: impl FnMut(usize, &Server),
) -> (Vec<Value>, Server) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server {
        began: Instant::now(),
        connections: Mutex::default(),
        asked_ns: Mutex::default(),
        is_stuck: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    };
    let reports = thread::scope(|scope| {
        let (server, listener) = (&server, &listener);
        scope.spawn(move || {
            for connection in listener.incoming() {
                if server.is_over.load(SeqCst) {
                    return;
                }
                let connection = connection.unwrap();
                let known = connection.try_clone().unwrap();
                server.connections.lock().unwrap().push(known);
                scope.spawn(move || server.serve(connection));
            }
        });
        let orders = viewers.iter().enumerate().map(|(number, viewers)| {
            before(number, server);
            order(*viewers)
        });
        let reports = told(&spec(address, patience_ns), orders);
        server.is_over.store(true, SeqCst);
        drop(TcpStream::connect(address)); // so that it notices
        for connection in server.connections.lock().unwrap().iter() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        reports
    });
    (reports, server)
}

const HOUR_NS: i64 = 3_600_000_000_000;

fn all_of<'a>(reports: &'a [Value], section: &str, key: &str) -> Vec<&'a Value> {
    reports.iter().map(|told| &told[section][key]).collect()
}

#[test]
fn who_pauses_asks_for_nothing_and_goes_on_over_the_same_connection_without_a_join() {
    let mut given_ns = Vec::new();
    let (reports, server) = watched(HOUR_NS, &[3, 3, 5, 2, 2], |number, _| {
        if number > 0 {
            thread::sleep(5 * PART); // others would be measured
        }
        given_ns.push(sys::now_ns());
    });
    assert_eq!(all_of(&reports, "joins", "offered"), [3, 0, 2, 0, 0]);
    assert_eq!(all_of(&reports, "joins", "started"), [3, 0, 2, 0, 0]);
    // Who begins after the window, on a machine that stood still for all of it, was waited for.
    let begun = reports.iter().map(|told| {
        let late = &told["joins"]["drain"]["started"];
        told["views"]["begun"].as_u64().unwrap() + late.as_u64().unwrap_or(0)
    });
    assert_eq!(begun.collect::<Vec<_>>(), [3, 3, 5, 2, 2]);
    assert_eq!(all_of(&reports, "views", "failures"), [&json!({}); 5]);
    let connects: Vec<_> = reports.iter().map(|told| &told["connects"]).collect();
    assert_eq!(connects, [3, 0, 2, 0, 0]);
    for report in &reports {
        assert!(report["window"]["media_ns"].as_i64().unwrap() >= 0);
        assert!(report["rests_ns"].as_i64() >= report["window"]["end_ns"].as_i64());
    }
    let asked_ns = server.asked_ns.into_inner().unwrap();
    for (report, given_ns) in reports.iter().zip(&given_ns[1..]) {
        let rests_ns = report["rests_ns"].as_i64().unwrap();
        let meanwhile = asked_ns
            .iter()
            .filter(|at_ns| (rests_ns..*given_ns).contains(at_ns));
        assert_eq!(meanwhile.count(), 0);
    }
    // Each order has the crowd ask anew, be it after the window of a machine that stood still for all of it.
    for (report, given_ns) in reports.iter().zip(&given_ns).skip(1) {
        let rests_ns = report["rests_ns"].as_i64().unwrap();
        let asked = asked_ns
            .iter()
            .filter(|at_ns| (*given_ns..rests_ns).contains(at_ns));
        assert!(asked.count() > 0);
    }
}

#[test]
fn who_is_hung_up_on_while_it_pauses_goes_on_over_another_connection() {
    let (reports, _) = watched(HOUR_NS, &[3, 3], |_, server| {
        for connection in server.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    });
    assert_eq!(all_of(&reports, "joins", "offered"), [3, 0]);
    assert_eq!(all_of(&reports, "views", "failures"), [&json!({}); 2]);
    assert_eq!(reports[1]["connects"], 3);
}

#[test]
fn who_gets_no_answer_while_it_pauses_gives_up_and_another_comes_with_the_next_order() {
    let (reports, _) = watched(5_000_000_000, &[2, 2, 2], |number, server| {
        server.is_stuck.store(number == 1, SeqCst);
    });
    assert_eq!(all_of(&reports, "joins", "offered"), [2, 0, 2]);
    let waited_ns = |report: &Value| {
        let at_ns = |value: &Value| value.as_i64().unwrap();
        at_ns(&report["rests_ns"]) - at_ns(&report["window"]["end_ns"])
    };
    assert!(waited_ns(&reports[1]) >= 5_000_000_000);
    let failures = all_of(&reports, "views", "failures");
    assert_eq!(failures, [&json!({}), &json!({"timeout": 2}), &json!({})]);
}

#[test]
fn they_go_on_at_each_moment_of_a_part_and_begin_at_any() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap(), HOUR_NS);
    let mut crowd = crate::view::Crowd {
        viewers: 0,
        pauses_over_ns: None,
        next: 0,
        random: Random(1),
    };
    let mut begun_ns = Vec::new();
    let mut going_on_ns = |viewers: usize| -> Vec<i64> {
        let order = serde_json::from_value(order(viewers)).unwrap();
        let task = crowd.task(&spec, &order, 0).unwrap();
        let before_ns = task.window_ns.0 - task.first_ns;
        let joined = task
            .joins_ns
            .last()
            .map_or(0, |at_ns| at_ns - task.first_ns);
        assert_eq!(before_ns, joined + WINDOW_NS);
        let going_on = (0..viewers).filter_map(|number| task.goes_on_ns(number));
        begun_ns.push(task.first_ns);
        going_on.map(|at_ns| at_ns - task.first_ns).collect()
    };
    assert!(going_on_ns(2).is_empty());
    assert_eq!(going_on_ns(4), [0, 10_000_000]);
    assert_eq!(
        going_on_ns(4),
        [0, 1, 2, 3].map(|number| number * 5_000_000)
    );
    for _ in 0..100 {
        going_on_ns(4);
    }
    let mut drawn_ns: Vec<i64> = begun_ns[1..]
        .iter()
        .map(|at_ns| at_ns - crate::view::STANDING_DELAY_NS)
        .collect();
    drawn_ns.sort_unstable();
    let part_ns = PART.as_nanos() as i64;
    assert!(0 <= drawn_ns[0] && drawn_ns[0] < part_ns / 10);
    assert!(part_ns - part_ns / 10 < drawn_ns[101] && drawn_ns[101] < part_ns);
}
