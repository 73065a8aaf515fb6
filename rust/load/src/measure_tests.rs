//! Whole measurements, against a server on loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use virtoll_generator::time::TIME_MAX_NS;

use super::*;
use crate::spec::HttpSpec;

const S: i64 = 1_000_000_000;
/// So long whatever is to happen is waited for: on a busy machine it may be minutes until a thread can begin.
const HOUR_NS: i64 = 3600 * S;

/// Two threads with a connection each, for as many requests; or an open loop that has as many due.
fn spec(address: SocketAddr, open: bool, start_ns: Option<i64>) -> HttpSpec {
    let loop_ = match open {
        true => {
            serde_json::json!({"open": {"rate_per_s": 1000.0, "arrival": "constant", "duration_ns": 2_000_000,
            "seed": 1, "max_connections": 2}})
        }
        false => {
            serde_json::json!({"closed": {"connections": 2, "requests": 2, "time_limit_ns": HOUR_NS}})
        }
    };
    let spec = serde_json::json!({
        "target": {"address": address.to_string(), "url": format!("http://{address}/")},
        "keep_alive": false,
        "threads": 2,
        "loop": loop_,
        "start_ns": start_ns,
        "timeout_ns": HOUR_NS,
        "expect": {"status": 200, "length_bytes": 2},
    });
    serde_json::from_value(spec).unwrap()
}

/// When each of two connections came, and what the generator reports; begun ever later until there was time for it.
fn began_together(open: bool) -> (i64, Report, Vec<i64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let serve = |_| {
            let (mut stream, _) = listener.accept().unwrap();
            let came_ns = sys::now_ns();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            stream.write_all(answer).unwrap();
            came_ns
        };
        (0..2).map(serve).collect()
    });
    let mut ahead_ns = 10_000_000;
    loop {
        let start_ns = sys::now_ns() + ahead_ns;
        match run(&spec(address, open, Some(start_ns))) {
            Ok(report) => return (start_ns, report, server.join().unwrap()),
            Err(Failed(why)) => assert!(why.contains("had passed"), "{why}"),
        }
        ahead_ns *= 2;
    }
}

#[test]
fn a_window_begins_at_the_start_that_was_asked_for_and_nothing_before() {
    for open in [false, true] {
        let (start_ns, report, came_ns) = began_together(open);
        assert_eq!((report.completed, report.censored), (2, 0));
        assert_eq!(report.window.start_ns, start_ns);
        assert!(came_ns.iter().all(|came_ns| *came_ns >= start_ns));
        assert!(report.begun_ns.unwrap() >= start_ns);
        if open {
            assert_eq!(report.window.end_ns, start_ns + 2_000_000);
        }
    }
}

#[test]
fn a_start_that_has_passed_or_never_comes_is_refused() {
    let at = |start_ns| spec("127.0.0.1:1".parse().unwrap(), false, Some(start_ns));
    assert_eq!(start_ns(&at(101), 100).unwrap(), 101);
    for passed in [100, 99, -1, i64::MIN] {
        let Failed(why) = start_ns(&at(passed), 100).unwrap_err();
        assert!(why.starts_with(&format!("start_ns {passed} ")), "{why}");
        assert!(why.contains("(100 now)"), "{why}");
    }
    let Failed(why) = start_ns(&at(50 * S), 51 * S).unwrap_err();
    assert!(
        why.contains("had passed by 1000.000 ms when it was read"),
        "{why}"
    );
    for far in [100 + TIME_MAX_NS + 1, i64::MAX] {
        let Failed(why) = start_ns(&at(far), 100).unwrap_err();
        assert!(why.contains("more than 30 days off"), "{why}");
    }
}

/// Answers on each connection, one request after another, until nobody asks any more.
fn answering() -> SocketAddr {
    answering_the_second_after(0)
}

/// The same; the second connection has no answer before so many were given to the others.
fn answering_the_second_after(answers: usize) -> SocketAddr {
    let given = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let given = given.clone();
            thread::spawn(move || {
                while number == 1 && given.load(Ordering::Relaxed) < answers {
                    thread::sleep(Duration::from_millis(1));
                }
                while stream.read(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if stream.write_all(answer).is_err() {
                        break;
                    }
                    given.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    address
}

#[test]
fn a_window_waits_until_all_users_are_there_or_tells_for_how_long_they_were_not() {
    let mut told = Vec::new();
    for most_ns in [0, HOUR_NS] {
        let address = answering_the_second_after(300); // more than a millisecond holds
        let mut spec = spec(address, false, None);
        spec.ask.keep_alive = true;
        (spec.lead_in_ns, spec.lead_in_most_ns) = (1_000_000, most_ns);
        if let Loop::Closed { requests, .. } = &mut spec.loop_ {
            *requests = Some(500);
        }
        let report = run(&spec).unwrap();
        let lead_in = report.lead_in.unwrap();
        let window_ns = report.window.end_ns - report.window.start_ns;
        assert_eq!((report.offered, report.completed), (500, 500));
        let users = report.users.unwrap();
        assert_eq!(users.there_ns, 2 * window_ns);
        told.push((
            report.window.start_ns - lead_in.start_ns,
            users.beginning_ns,
            lead_in.completed,
        ));
        assert!(users.beginning_ns <= window_ns, "the second's alone");
    }
    assert_eq!(told[0].0, 1_000_000);
    // From when the first had been answered six times.
    assert!(told[0].1 > 0);
    assert!(told[1].0 > 1_000_000 && told[1].2 >= 300, "{:?}", told[1]);
    assert_eq!(told[1].1, 0);
}

/// A counter that each answer of the server's adds a microsecond to, and its address.
fn booking(path: &std::path::Path) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let book = std::fs::File::create(path).unwrap();
    let write = move |answers: u64| {
        let line = format!("usage_usec {answers:012}\n");
        std::os::unix::fs::FileExt::write_all_at(&book, line.as_bytes(), 0).unwrap();
    };
    write(0);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut answers = 0;
        while stream.read(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0) {
            answers += 1;
            write(answers);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer).unwrap();
        }
    });
    address
}

#[test]
fn what_others_used_in_the_window_holds_nothing_of_its_lead_in() {
    let path = std::env::temp_dir().join(format!("virtoll-booking-{}", std::process::id()));
    let mut spec = spec(booking(&path), false, None);
    spec.ask.keep_alive = true;
    spec.threads = 1;
    // Until the one user has been answered, however long that takes.
    (spec.lead_in_ns, spec.lead_in_most_ns) = (20_000_000, HOUR_NS);
    spec.books = [("instance".into(), path.clone())].into();
    spec.loop_ = Loop::Closed {
        connections: 1,
        requests: Some(200),
        time_limit_ns: HOUR_NS,
    };
    let report = run(&spec).unwrap();
    let used = serde_json::to_value(report.window.booked.unwrap()).unwrap();
    let used_us = used["cpu_ns"]["instance"].as_u64().unwrap() / 1000;
    let early = report.lead_in.unwrap().completed;
    assert!(early > 0);
    // Of the one connection's requests one may be under way at each look.
    assert!(
        (198..=201).contains(&used_us),
        "{used_us} of 200, after {early}"
    );
    let at_ns = |name: &str| used[name].as_i64().unwrap();
    assert!(at_ns("from_ns") >= report.window.start_ns);
    assert!(at_ns("to_ns") >= report.window.end_ns);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn whoever_looks_is_there_at_the_windows_end_however_little_it_has_to_ask() {
    let path = std::env::temp_dir().join(format!("virtoll-idle-{}", std::process::id()));
    std::fs::write(&path, "1000\n").unwrap();
    for rate_per_s in [1.0, 100.0] {
        let mut spec = spec(answering(), true, None);
        spec.ask.keep_alive = true;
        spec.lead_in_ns = 20_000_000;
        spec.books = [("instance".into(), path.clone())].into();
        if let Loop::Open {
            rate_per_s: rate,
            duration_ns,
            ..
        } = &mut spec.loop_
        {
            (*rate, *duration_ns) = (rate_per_s, 50_000_000);
        }
        let window = run(&spec).unwrap().window;
        let used = serde_json::to_value(window.booked.unwrap()).unwrap();
        assert!(used["from_ns"].as_i64().unwrap() >= window.start_ns);
        assert!(used["to_ns"].as_i64().unwrap() >= window.end_ns);
        assert_eq!(used["cpu_ns"]["instance"], 0);
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_window_begins_after_its_lead_in_and_counts_nothing_of_it_as_an_event() {
    let address = answering();
    for open in [false, true] {
        let mut spec = spec(address, open, None);
        spec.ask.keep_alive = true;
        if let Loop::Closed { requests, .. } = &mut spec.loop_ {
            *requests = Some(200);
        }
        // Ever longer, until a busy machine had the time for some of it.
        let with_lead_in = |lead_in_ns| {
            spec.lead_in_ns = lead_in_ns;
            let report = run(&spec).unwrap();
            let lead_in = report.lead_in.as_ref().unwrap();
            assert_eq!(report.window.start_ns - lead_in.start_ns, lead_in_ns);
            (lead_in.completed > 0).then_some(report)
        };
        let report = (0..12)
            .map(|doubled| 60_000_000 << doubled)
            .find_map(with_lead_in)
            .unwrap();
        let lead_in = report.lead_in.unwrap();
        assert!(lead_in.end_ns >= report.window.end_ns);
        let window_ns = report.window.end_ns - report.window.start_ns;
        let users = report.users;
        assert_eq!(users.is_none(), open);
        if let Some(users) = users {
            assert_eq!(users.there_ns, 2 * window_ns);
        }
        if open {
            assert_eq!(report.intended, 2, "those due within it");
            assert_eq!(report.window.end_ns - report.window.start_ns, 2_000_000);
        } else {
            assert_eq!((report.intended, report.offered), (200, 200));
        }
        assert_eq!(report.completed, report.intended);
        assert_eq!(report.censored, 0);
        let recorded: u64 = report.histogram.iter().map(|(_, _, count)| count).sum();
        assert_eq!(recorded, report.completed);
    }
}
