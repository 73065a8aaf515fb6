//! A crowd that stays from order to order, at a server within the test that sends a film without an end.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::{json, Value};

use super::*;

const HOUR_NS: i64 = 3_600_000_000_000;
const WINDOW_NS: i64 = 50_000_000;

/// What is said of these orders.
pub fn told(spec: &ViewSpec, orders: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut orders = orders.into_iter();
    told_while(spec, |_| orders.next())
}

/// What is said of orders that may depend on what was said so far.
fn told_while(spec: &ViewSpec, mut next: impl FnMut(&[Value]) -> Option<Value>) -> Vec<Value> {
    let reports = RefCell::new(Vec::new());
    let orders = std::iter::from_fn(|| next(&reports.borrow()).map(|order| Ok(order.to_string())));
    carried_out(spec, orders, &mut |report| {
        let report = serde_json::to_value(report).unwrap();
        reports.borrow_mut().push(report);
        Ok(())
    })
    .unwrap();
    reports.into_inner()
}

fn order(viewers: usize, anew: Option<usize>) -> Value {
    json!({"viewers": viewers, "anew": anew, "settle_ns": 0, "duration_ns": WINDOW_NS, "start_ns": null})
}

/// 1 kB/s, of which a tenth of a second is read ahead, by two threads. Nobody gives up.
fn spec(address: SocketAddr) -> ViewSpec {
    let spec = json!({
        "target": {"address": address, "url": format!("http://{address}/film"), "proxy": false, "tls": null},
        "media": {"file": {"bit_per_s": 8000, "length_bytes": null, "text": false}},
        "player": {
            "paced": true, "startup_ns": 10_000_000, "resume_ns": 10_000_000, "buffer_ns": 100_000_000,
            "patience_ns": HOUR_NS
        },
        "threads": 2, "join": {"arrival": "constant", "every_ns": 1000}, "stay_ns": null, "rest_ns": 0, "seed": 1,
        "receive_bytes": 0
    });
    serde_json::from_value::<ViewSpec>(spec)
        .unwrap()
        .checked()
        .unwrap()
}

#[test]
fn less_memory_for_what_comes_than_was_asked_for_is_told() {
    for (receive_bytes, granted_bytes) in [(0, 87_380), (65_537, 65_536), (2, 2304)] {
        assert!(is_enough(receive_bytes, granted_bytes).is_ok());
    }
    let Failed(why) = is_enough(8_388_608, 425_984).unwrap_err();
    assert!(
        why.contains("allows 425984") && why.contains("rmem_max=4194304"),
        "{why}"
    );
}

/// Whom it has served.
#[derive(Default)]
struct Server {
    came: AtomicUsize,
    went: AtomicUsize,
    /// So many are hung up on.
    refuses: AtomicUsize,
    is_over: AtomicBool,
}

impl Server {
    fn serve(&self, mut connection: TcpStream) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if connection.read_exact(&mut byte).is_err() {
                return;
            }
            request.push(byte[0]);
        }
        let one_less = |left: usize| left.checked_sub(1);
        if self.refuses.fetch_update(SeqCst, SeqCst, one_less).is_ok() {
            // All at once: else who comes in the place of the first may be the second.
            while self.refuses.load(SeqCst) > 0 && !self.is_over.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            return;
        }
        self.came.fetch_add(1, SeqCst);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
        let mut alive = connection.write_all(head).is_ok();
        while alive {
            alive = connection.write_all(&[0; 4096]).is_ok(); // waits where the viewer does
        }
        self.went.fetch_add(1, SeqCst);
    }
}

/// What is said of these orders at a server that hangs up on the first so many; and the server, when all have gone.
fn watched(refuses: usize, orders: impl IntoIterator<Item = Value>) -> (Vec<Value>, Server) {
    let mut orders = orders.into_iter();
    watched_while(refuses, |_| orders.next())
}

fn watched_while(
    refuses: usize,
    next: impl FnMut(&[Value]) -> Option<Value>,
) -> (Vec<Value>, Server) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::default();
    server.refuses.store(refuses, SeqCst);
    let reports = thread::scope(|scope| {
        let (server, listener) = (&server, &listener);
        scope.spawn(move || {
            for connection in listener.incoming() {
                if server.is_over.load(SeqCst) {
                    return;
                }
                let connection = connection.unwrap();
                scope.spawn(move || server.serve(connection));
            }
        });
        let reports = told_while(&spec(address), next);
        server.is_over.store(true, SeqCst);
        drop(TcpStream::connect(address)); // so that it notices
        reports
    });
    (reports, server)
}

fn all_of<'a>(reports: &'a [Value], section: &str, key: &str) -> Vec<&'a Value> {
    reports.iter().map(|told| &told[section][key]).collect()
}

#[test]
fn a_crowd_grows_stays_and_shrinks() {
    let (reports, server) = watched(0, [3, 3, 5, 5, 2, 4].map(|viewers| order(viewers, None)));
    assert_eq!(all_of(&reports, "joins", "offered"), [3, 0, 2, 0, 0, 2]);
    assert_eq!(all_of(&reports, "joins", "started"), [3, 0, 2, 0, 0, 2]);
    // Who stays goes on over the connection that it has.
    let connects: Vec<_> = reports.iter().map(|told| &told["connects"]).collect();
    assert_eq!(connects, [3, 0, 2, 0, 0, 2]);
    for report in &reports {
        let counts = report["histogram"].as_array().unwrap().iter();
        let delays: u64 = counts.map(|bucket| bucket[2].as_u64().unwrap()).sum();
        assert_eq!(report["joins"]["started"], delays);
        assert_eq!(report["views"]["failures"], json!({}));
    }
    // Those who are ordered away before the window are no part of it.
    let stayed = |viewers: usize| json!({"begun": viewers, "left": 0, "absent": 0, "failures": {}});
    assert_eq!(
        (&reports[1]["views"], &reports[4]["views"]),
        (&stayed(3), &stayed(2))
    );
    let (came, went) = (server.came.into_inner(), server.went.into_inner());
    assert_eq!((came, went), (7, 7), "and at the end of the orders all go");
}

#[test]
fn of_those_who_come_anew_alone_start_ups_are_told_where_any_do() {
    let orders = [(4, 1), (4, 2), (6, 3), (6, 0), (2, 9)];
    let orders = orders.map(|(viewers, anew)| order(viewers, Some(anew)));
    let (reports, server) = watched(0, orders);
    assert_eq!(all_of(&reports, "joins", "offered"), [1, 2, 3, 0, 2]);
    assert_eq!(all_of(&reports, "joins", "started"), [1, 2, 3, 0, 2]);
    assert_eq!(all_of(&reports, "joins", "failures"), [&json!({}); 5]);
    for report in &reports {
        assert_eq!(report["views"]["failures"], json!({}));
    }
    assert_eq!(reports[3]["views"]["left"], 0);
    // How many of the first four had come to watch when one of them left is the machine's affair.
    assert!(server.came.into_inner() <= 4 + 2 + 8);
}

#[test]
fn nothing_counts_that_lies_between_windows() {
    let sum_ns = |report: &Value, keys: &[&str]| {
        keys.iter()
            .map(|key| report["window"][key].as_i64().unwrap())
            .sum::<i64>()
    };
    let watched_ns = |report: &Value| sum_ns(report, &["playing_ns", "stalled_ns"]);
    // A failure instead of a hang, after some minutes.
    const MOST: usize = 1000;
    // Less than all of a window, or nothing, where the machine let a thread read its order after the window's begin.
    let next = |told: &[Value]| {
        let has_watched = told.iter().skip(1).any(|report| watched_ns(report) > 0);
        if !told.is_empty() {
            thread::sleep(Duration::from_nanos(4 * WINDOW_NS as u64)); // they watch on
        }
        (told.len() < 3 || (!has_watched && told.len() < MOST)).then(|| order(3, None))
    };
    let (reports, _) = watched_while(0, next);
    let is_watched = |report: &Value| watched_ns(report) > 0;
    assert!(reports[1..].iter().any(is_watched), "nobody ever watched");
    for report in &reports[1..] {
        let sum_ns = |keys: &[&str]| sum_ns(report, keys);
        let watched_ns = watched_ns(report);
        assert!((0..=3 * WINDOW_NS).contains(&watched_ns), "{watched_ns}");
        assert_eq!(sum_ns(&["starting_ns", "gone_ns"]), 0);
        assert_eq!(sum_ns(&["end_ns"]) - sum_ns(&["start_ns"]), WINDOW_NS);
        assert_eq!(report["lateness"], json!([]), "nobody joined");
    }
    let starts_ns = all_of(&reports, "window", "start_ns");
    let ends_ns = all_of(&reports, "window", "end_ns");
    for (end_ns, start_ns) in ends_ns.iter().zip(&starts_ns[1..]) {
        assert!(start_ns.as_i64() >= end_ns.as_i64());
    }
}

#[test]
fn what_failed_in_one_window_is_not_told_of_the_next() {
    let (reports, _) = watched(2, [order(2, None), order(2, None)]);
    assert_eq!(reports[0]["joins"]["failures"], json!({"reset": 2}));
    let next = &reports[1];
    assert_eq!(
        next["joins"],
        json!({"offered": 0, "started": 0, "failures": {}, "drain": null})
    );
    assert_eq!(
        (&next["histogram"], &next["lateness"]),
        (&json!([]), &json!([]))
    );
    assert_eq!(next["views"]["failures"], json!({}));
}

/// A connection whose request was read.
pub fn asked(listener: &TcpListener) -> TcpStream {
    let (mut connection, _) = listener.accept().unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
    connection
}

/// Send the first of a film, enough for play to begin, and no more.
fn begin(connection: &mut TcpStream) {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n01234567890123456789";
    connection.write_all(answer).unwrap();
}

/// A server that keeps sending less than is played is seen by what is ahead, long before anybody stalls.
#[test]
fn a_buffer_that_empties_is_told_of_who_plays_all_through_the_window() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut spec = spec(listener.local_addr().unwrap());
    (spec.threads, spec.player.buffer_ns) = (1, HOUR_NS);
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let serve = move || {
        let mut connection = asked(&listener);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
        connection.write_all(answer).unwrap();
        connection.write_all(&[0; 1_000_000]).unwrap(); // a quarter of an hour, and no more
        let _ = is_over.recv();
    };
    let has_all =
        |report: &Value| report["views"]["begun"] == 1 && report["window"]["media_bytes"] == 0;
    let reports = thread::scope(|scope| {
        scope.spawn(serve);
        let again = |told: &[Value]| told.len() < 2 || !told.iter().rev().take(2).all(has_all);
        let reports = told_while(&spec, |told| again(told).then(|| order(1, Some(0))));
        drop(over);
        reports
    });
    let window = &reports.last().unwrap()["window"];
    assert_eq!(
        (&window["standing"], &window["most_ns"]),
        (&json!(1), &json!(0)),
        "{window}"
    );
    assert!(window["fallen_ns"].as_i64().unwrap() > 0, "{window}");
}

/// Its place was counted among those who played, as long as others had begun anew.
#[test]
fn who_gathered_and_never_began_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let serve = move || {
        let (mut plays, _waits) = (asked(&listener), asked(&listener));
        begin(&mut plays);
        let _ = is_over.recv();
    };
    let plays = |report: &Value| report["views"]["begun"] == 1;
    let reports = thread::scope(|scope| {
        scope.spawn(serve);
        let again = |told: &[Value]| !told.last().is_some_and(plays);
        let reports = told_while(&spec, |told| again(told).then(|| order(2, Some(0))));
        drop(over);
        reports
    });
    for report in &reports {
        let absent = if plays(report) { 1 } else { 2 };
        assert_eq!(report["views"]["absent"], absent, "{report}");
    }
}

#[test]
fn who_is_gone_at_the_windows_end_is_told_once_though_another_comes_while_others_are_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut spec = spec(listener.local_addr().unwrap());
    (spec.threads, spec.rest_ns) = (1, 2 * WINDOW_NS);
    let serve = move || {
        drop(asked(&listener)); // another comes in its place, after the window
        let mut waits = asked(&listener);
        let mut again = asked(&listener);
        begin(&mut waits);
        begin(&mut again);
    };
    let reports = thread::scope(|scope| {
        scope.spawn(serve);
        told(&spec, [order(2, None)])
    });
    let window = &reports[0]["window"];
    let states = ["starting_ns", "playing_ns", "stalled_ns", "gone_ns"];
    let there_ns: i64 = states.map(|key| window[key].as_i64().unwrap()).iter().sum();
    assert!(there_ns <= 2 * WINDOW_NS, "{window}");
}

#[test]
fn who_is_to_come_anew_comes_though_who_was_there_has_failed_before() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut spec = spec(address);
    spec.rest_ns = HOUR_NS;
    let (sender, second) = std::sync::mpsc::channel();
    let serve = move || {
        let mut first = asked(&listener);
        begin(&mut first);
        second.recv().unwrap();
        thread::sleep(Duration::from_nanos(2 * WINDOW_NS as u64));
        drop(first);
        begin(&mut asked(&listener));
    };
    let reports = thread::scope(|scope| {
        scope.spawn(serve);
        let orders = (0..2).map(|number| {
            if number == 0 {
                return order(1, None);
            }
            sender.send(()).unwrap();
            let mut order = order(1, Some(1));
            order["duration_ns"] = json!(20 * WINDOW_NS);
            order
        });
        let reports = told(&spec, orders);
        if let Ok(mut nobody) = TcpStream::connect(address) {
            nobody.write_all(b"\r\n\r\n").unwrap(); // else it waits for ever for who did not come
        }
        reports
    });
    assert_eq!(reports[1]["joins"]["offered"], 1, "{}", reports[1]);
}

#[test]
fn an_order_that_cannot_be_carried_out_says_why() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    let mut late = order(1, None);
    late["start_ns"] = json!(1);
    let mut paused = order(1, None);
    paused["pauses_over_ns"] = json!(1);
    for (line, why) in [
        (paused.to_string(), "viewers of a live playlist pause"),
        (order(0, None).to_string(), "there must be a viewer"),
        (late.to_string(), "had passed by"),
        ("{}".into(), "an order: missing field"),
    ] {
        let outcome = carried_out(&spec, [Ok(line)].into_iter(), &mut |_| unreachable!());
        let Err(Failed(said)) = outcome else {
            panic!("{why}")
        };
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn all_come_anew_in_turn_at_equal_distances_within_the_window() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    let mut crowd = Crowd::new(1);
    let mut due = |viewers, anew| {
        let order: Order = serde_json::from_value(order(viewers, anew)).unwrap();
        let task = crowd.task(&spec, &order, 1_000_000).unwrap();
        let joins: Vec<_> = (0..viewers)
            .filter(|number| task.join_ns(*number).is_some())
            .collect();
        let due = (0..viewers).filter_map(|number| Some((task.anew_ns(number)?, number)));
        let mut due: Vec<_> = due.collect();
        due.sort();
        let every_ns = WINDOW_NS / due.len().max(1) as i64;
        let (from_ns, _) = task.window_ns;
        for (place, (at_ns, _)) in due.iter().enumerate() {
            let expected_ns = from_ns + every_ns * place as i64 + every_ns / 2;
            assert!((at_ns - expected_ns).abs() <= 1 + due.len() as i64);
        }
        assert_eq!(
            task.tells_after_ns,
            if anew.is_some() { from_ns } else { i64::MIN }
        );
        (
            joins,
            due.into_iter()
                .map(|(_, number)| number)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(due(4, None), (vec![0, 1, 2, 3], vec![]));
    assert_eq!(due(4, Some(3)), (vec![], vec![0, 1, 2]));
    assert_eq!(due(6, Some(2)), (vec![4, 5], vec![3, 4]));
    assert_eq!(due(3, Some(1)), (vec![], vec![2]));
    assert_eq!(due(3, Some(9)), (vec![], vec![0, 1, 2]));
}

/// What was ahead of the first of them, while they were few, was held against what was ahead of each among all.
#[test]
fn another_crowd_is_gathered_when_its_last_has_joined() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    let mut crowd = Crowd::new(1);
    for (viewers, is_another) in [(4, true), (4, false), (6, true), (2, true), (2, false)] {
        let mut order = order(viewers, Some(1));
        order["settle_ns"] = json!(7000);
        let order: Order = serde_json::from_value(order).unwrap();
        let task = crowd.task(&spec, &order, 1_000_000).unwrap();
        let gathered_ns = is_another.then_some(task.window_ns.0 - 7000);
        assert_eq!(task.gathered_ns, gathered_ns, "{viewers}");
        let last_ns = task.joins_ns.last().copied().unwrap_or(task.first_ns);
        assert!(gathered_ns.is_none_or(|at_ns| at_ns == last_ns));
    }
}

#[test]
fn more_viewers_than_files_may_be_open_are_refused_before_the_first_of_them_joins() {
    assert!(are_enough(1000, 1072, 1072).is_ok());
    let Failed(why) = are_enough(1000, 1072, 1071).unwrap_err();
    assert!(
        why.starts_with(
            "1000 viewers take 1072 open files, and the generator's machine allows 1071"
        ),
        "{why}"
    );
    assert!(why.contains("ulimit -Hn 1072") && why.contains("ask for fewer viewers"));
}
