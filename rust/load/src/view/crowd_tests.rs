//! A crowd that stays from order to order, at a server within the test that sends a film without an end.

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
    let mut reports = Vec::new();
    let orders = orders.into_iter().map(|order| Ok(order.to_string()));
    carried_out(spec, orders, &mut |report| {
        reports.push(serde_json::to_value(report).unwrap());
        Ok(())
    })
    .unwrap();
    reports
}

fn order(viewers: usize, anew: usize) -> Value {
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
        let reports = told(&spec(address), orders);
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
fn a_crowd_grows_stays_shrinks_and_comes_anew() {
    let sizes = [(3, 0), (3, 0), (5, 1), (5, 2), (2, 0), (4, 0), (4, 9)];
    let orders = sizes.map(|(viewers, anew)| order(viewers, anew));
    let (reports, server) = watched(0, orders);
    assert_eq!(all_of(&reports, "joins", "offered"), [3, 0, 3, 2, 0, 2, 4]);
    assert_eq!(all_of(&reports, "joins", "started"), [3, 0, 3, 2, 0, 2, 4]);
    // Who stays goes on over the connection that it has.
    assert_eq!(
        reports
            .iter()
            .map(|told| &told["connects"])
            .collect::<Vec<_>>(),
        [3, 0, 3, 2, 0, 2, 4]
    );
    for report in &reports {
        let counts = report["histogram"].as_array().unwrap().iter();
        let delays: u64 = counts.map(|bucket| bucket[2].as_u64().unwrap()).sum();
        assert_eq!(report["joins"]["started"], delays);
        assert_eq!(report["views"]["failures"], json!({}));
    }
    // Those who are ordered away before the window are no part of it.
    assert_eq!(
        reports[1]["views"],
        json!({"begun": 3, "left": 0, "failures": {}})
    );
    assert_eq!(
        reports[4]["views"],
        json!({"begun": 2, "left": 0, "failures": {}})
    );
    assert_eq!(reports[3]["views"]["left"], 2);
    let (came, went) = (server.came.into_inner(), server.went.into_inner());
    assert_eq!(
        (came, went),
        (14, 14),
        "and at the end of the orders all go"
    );
}

#[test]
fn nothing_counts_that_lies_between_windows() {
    let orders = (0..3).map(|number| {
        if number > 0 {
            thread::sleep(Duration::from_nanos(4 * WINDOW_NS as u64)); // they watch on
        }
        order(3, 0)
    });
    let (reports, _) = watched(0, orders);
    for report in &reports[1..] {
        let window = &report["window"];
        let sum_ns = |keys: &[&str]| {
            keys.iter()
                .map(|key| window[key].as_i64().unwrap())
                .sum::<i64>()
        };
        assert_eq!(sum_ns(&["playing_ns", "stalled_ns"]), 3 * WINDOW_NS);
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
    let (reports, _) = watched(2, [order(2, 0), order(2, 0)]);
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

#[test]
fn an_order_that_cannot_be_carried_out_says_why() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    let mut late = order(1, 0);
    late["start_ns"] = json!(1);
    for (line, why) in [
        (order(0, 0).to_string(), "there must be a viewer"),
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
fn all_come_anew_in_turn_and_before_those_who_come_besides() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    let mut crowd = Crowd {
        viewers: 0,
        next: 0,
        random: Random(1),
    };
    let mut joins = |viewers, anew| {
        let order: Order = serde_json::from_value(order(viewers, anew)).unwrap();
        let task = crowd.task(&spec, &order, 1_000_000).unwrap();
        let due = (0..viewers).filter_map(|number| Some((task.join_ns(number)?, number)));
        let mut due: Vec<_> = due.collect();
        due.sort();
        assert!(due.windows(2).all(|two| two[1].0 - two[0].0 == 1000));
        assert!(task.window_ns.0 >= due.last().map_or(0, |last| last.0));
        due.into_iter()
            .map(|(_, number)| number)
            .collect::<Vec<_>>()
    };
    assert_eq!(joins(4, 0), [0, 1, 2, 3]);
    assert_eq!(joins(4, 3), [0, 1, 2]);
    assert_eq!(joins(6, 2), [3, 0, 4, 5]);
    assert_eq!(joins(3, 1), [1]);
    assert_eq!(joins(3, 2), [2, 0]);
    assert_eq!(joins(3, 0), [0; 0]);
}
