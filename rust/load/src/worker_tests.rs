//! The worker's steps one by one, with a clock of their own and a server that answers when it is told.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use super::*;
use crate::dialogue::{Ask, Http};
use crate::schedule::{Arrivals, Budget};
use crate::spec::{Arrival, HttpSpec};

const MS: i64 = 1_000_000;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

thread_local! {
    /// What the clock says, reading by reading; the last stays.
    static READINGS: RefCell<VecDeque<i64>> = const { RefCell::new(VecDeque::new()) };
}

fn made_up_clock() -> i64 {
    READINGS.with_borrow_mut(|readings| match readings.len() {
        0 => 0,
        1 => readings[0],
        _ => readings.pop_front().unwrap_or_default(),
    })
}

fn the_clock_says(readings_ms: &[i64]) {
    READINGS.set(readings_ms.iter().map(|ms| ms * MS).collect());
}

/// One connection, a request due each millisecond from 0 on.
fn worker(listener: &TcpListener) -> Worker<'static, Http> {
    let address = listener.local_addr().unwrap();
    let spec = serde_json::json!({
        "target": {"address": address.to_string(), "url": format!("http://{address}/"), "proxy": false},
        "keep_alive": true,
        "threads": 1,
        "cpus": [],
        "loop": {"open": {"rate_per_s": 1000.0, "arrival": "constant", "duration_ns": 1000 * MS, "seed": 1,
            "max_connections": 1}},
        "timeout_ns": 60_000 * MS,
        "expect": {"status": 200, "length_bytes": 2},
        "request_log": null,
        "log_limit": 0,
    });
    let spec: HttpSpec = serde_json::from_value(spec).unwrap();
    let arrivals = || Arrivals::new(Arrival::Constant, 1000.0, 1000 * MS, 1, 0, 1);
    let first_ns = arrivals().next().unwrap();
    let supply = Supply::open(arrivals(), -first_ns, 0, 1000 * MS);
    let mut worker = Worker::new(
        spec.ask.dialogue(0).unwrap(),
        &spec.ask.place().unwrap(),
        supply,
        1,
        0,
        spec.timeout_ns,
        61_000 * MS,
    )
    .unwrap();
    worker.clock = made_up_clock;
    worker.seen_ns = 0;
    worker
}

/// Loopback may deliver a little later, what the server says and its end.
fn until_it_lies_ready(worker: &Worker<Http>, what: libc::c_short) {
    until_slot_has(worker, 0, what);
}

fn until_slot_has(worker: &Worker<Http>, slot: usize, what: libc::c_short) {
    let fd = worker.slots[slot].fd.as_ref().unwrap();
    assert!(sys::has_within(fd, what, 60_000 * MS));
}

/// What is due at 0 is sent.
fn send_what_is_due(worker: &mut Worker<Http>) {
    worker.dispatch(0).unwrap();
    until_all_is_sent(worker);
}

/// Over connections that are there at once, as loopback's mostly are, or a moment later.
fn until_all_is_sent(worker: &mut Worker<Http>) {
    for slot in 0..worker.slots.len() {
        if worker.slots[slot].phase == Phase::Unsent {
            until_slot_has(worker, slot, libc::POLLOUT);
            let tag = sys::tag(slot, worker.slots[slot].fd.as_ref().unwrap());
            worker.on_event(tag, EPOLLOUT as u32).unwrap();
        }
    }
}

/// The first request is sent, and its answer lies ready.
fn answered_once(worker: &mut Worker<Http>, listener: &TcpListener) -> TcpStream {
    send_what_is_due(worker);
    assert_eq!(worker.in_flight, 1);
    let (mut server, _) = listener.accept().unwrap();
    answer(worker, &mut server);
    until_it_lies_ready(worker, libc::POLLIN);
    server
}

/// The other end of each slot's connection, in the slots' order: those of several CPUs may come in another.
fn accepted(worker: &Worker<Http>, listener: &TcpListener) -> Vec<TcpStream> {
    let port_of = |slot: &Slot<_>| {
        let twin = slot.fd.as_ref().unwrap().try_clone().unwrap();
        TcpStream::from(twin).local_addr().unwrap().port()
    };
    let ports: Vec<_> = worker.slots.iter().map(port_of).collect();
    let mut servers: Vec<_> = ports.iter().map(|_| listener.accept().unwrap()).collect();
    servers.sort_by_key(|(_, from)| ports.iter().position(|port| *port == from.port()));
    servers.into_iter().map(|(server, _)| server).collect()
}

/// What it is asked; it waits for that.
fn answer(worker: &mut Worker<Http>, server: &mut TcpStream) {
    until_all_is_sent(worker);
    let mut request = [0; 4096];
    assert!(server.read(&mut request).unwrap() > 0);
    server.write_all(ANSWER).unwrap();
}

fn listener() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(matches!(listener.local_addr().unwrap(), SocketAddr::V4(_)));
    listener
}

/// The lowest bounds of what was recorded, one a request.
fn lateness_ms(worker: &Worker<Http>) -> Vec<u64> {
    let rows = worker.tally.lateness.buckets();
    rows.flat_map(|(_, upper_ns, count)| vec![upper_ns / MS as u64; count as usize])
        .collect()
}

#[test]
fn a_stop_is_noted_before_what_waited_for_it_is_sent() {
    let listener = listener();
    let mut worker = worker(&listener);
    let mut server = answered_once(&mut worker, &listener);
    // It waits from 1 ms on, and has its CPU again at 300 ms: with the answer, and with no signal that says so.
    the_clock_says(&[1, 300]);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    worker.seen_ns = MS;
    let wake_ns = worker.wake_ns(50 * MS);
    assert!(wake_ns <= 6 * MS, "it looks before the next tick");
    worker.serve(&mut events, wake_ns).unwrap();
    assert_eq!((worker.tally.completed, worker.tally.queued), (1, 1));
    let late_ms = lateness_ms(&worker);
    assert_eq!(late_ms.len(), 2);
    assert!((290..=300).contains(&late_ms[1]), "{late_ms:?}");
    answer(&mut worker, &mut server);
}

#[test]
fn a_stop_amid_a_turn_is_noted_too() {
    let listener = listener();
    let mut worker = worker(&listener);
    let _server = answered_once(&mut worker, &listener);
    // It waits at 1 ms, looks at 2 ms, and handles the answer it found at 300 ms.
    the_clock_says(&[1, 2, 300]);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    worker.serve(&mut events, 6 * MS).unwrap();
    let late_ms = lateness_ms(&worker);
    assert!((290..=300).contains(&late_ms[1]), "{late_ms:?}");
}

#[test]
fn a_service_that_stalls_is_no_stop() {
    let listener = listener();
    let mut worker = worker(&listener);
    send_what_is_due(&mut worker);
    let (mut server, _) = listener.accept().unwrap();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    for ms in (1..300).step_by(5) {
        the_clock_says(&[ms, ms + 5]);
        worker.serve(&mut events, (ms + 5) * MS).unwrap();
    }
    answer(&mut worker, &mut server);
    until_it_lies_ready(&worker, libc::POLLIN);
    the_clock_says(&[301]);
    worker.serve(&mut events, 306 * MS).unwrap();
    assert_eq!(worker.tally.queued, 1);
    assert!(
        lateness_ms(&worker).iter().all(|late_ms| *late_ms == 0),
        "the service's own"
    );
}

/// The events that epoll tells of a descriptor, as the kernel has them.
fn interest(worker: &Worker<Http>, number: i32) -> u32 {
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", worker.epoll.as_raw_fd()));
    let told = told.unwrap();
    let mut lines = told.lines().map(str::split_whitespace);
    lines
        .find_map(|mut words| {
            let known = words.next() == Some("tfd:") && words.next()?.parse::<i32>() == Ok(number);
            known.then(|| {
                words
                    .nth(1)
                    .map(|events| u32::from_str_radix(events, 16).unwrap())
            })?
        })
        .unwrap()
}

#[test]
fn that_more_may_be_sent_is_of_interest_only_while_something_is_unsent() {
    let listener = listener();
    let mut worker = worker(&listener);
    // As after a `send` that would have blocked.
    let fd = sys::connect(&worker.address).unwrap();
    let tag = sys::tag(0, &fd);
    let number = fd.as_raw_fd();
    worker.epoll.add(&fd, READ_OR_WRITE, tag).unwrap();
    worker.slots[0].fd = Some(fd);
    worker.slots[0].phase = Phase::Unsent;
    worker.slots[0].unsent = worker.dialogue.request().to_vec();
    worker.in_flight = 1;
    worker.tally.offered = 1;
    worker.idle.clear();
    until_it_lies_ready(&worker, libc::POLLOUT);
    assert_ne!(interest(&worker, number) & EPOLLOUT as u32, 0);
    worker.on_event(tag, EPOLLOUT as u32).unwrap();
    assert_eq!(worker.slots[0].phase, Phase::Sent { once: false });
    assert_eq!(interest(&worker, number) & EPOLLOUT as u32, 0);
    assert_ne!(interest(&worker, number) & EPOLLIN as u32, 0);
}

#[test]
fn a_quiet_connection_is_kept_and_one_that_was_closed_is_not() {
    let listener = listener();
    let mut worker = worker(&listener);
    let fd = sys::connect(&worker.address).unwrap();
    let tag = sys::tag(0, &fd);
    worker.slots[0].fd = Some(fd);
    let (server, _) = listener.accept().unwrap();
    // An event that tells of room to send, and one that is out of date.
    for flags in [EPOLLOUT, EPOLLIN] {
        worker.on_event(tag, flags as u32).unwrap();
        assert!(worker.slots[0].fd.is_some(), "{flags}");
    }
    drop(server);
    until_it_lies_ready(&worker, libc::POLLRDHUP);
    worker.on_event(tag, (EPOLLIN | EPOLLRDHUP) as u32).unwrap();
    assert!(worker.slots[0].fd.is_none());
}

#[test]
fn a_kept_connection_that_ended_with_its_answer_is_not_used_again() {
    let listener = listener();
    let mut worker = worker(&listener);
    let mut server = answered_once(&mut worker, &listener);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    for ms in 1..4 {
        drop(server);
        until_it_lies_ready(&worker, libc::POLLRDHUP);
        the_clock_says(&[ms]);
        worker.serve(&mut events, 60_000 * MS).unwrap();
        assert_eq!((worker.tally.completed, worker.in_flight), (ms as u64, 1));
        assert_eq!(worker.tally.connects, ms as u64 + 1);
        server = listener.accept().unwrap().0;
        answer(&mut worker, &mut server);
    }
    assert_eq!(worker.tally.failures, [0; Failure::ALL.len()]);
    assert!(worker.slots[0].lingering.is_none(), "the server was first");
}

#[test]
fn who_is_alone_does_not_sleep_beyond_a_look() {
    let listener = listener();
    let budget: &'static Budget = Box::leak(Box::new(Budget::new(None, 0, 100 * MS)));
    let mut worker = worker(&listener);
    worker.supply = Supply::closed(budget);
    worker.alone = true;
    worker.tick_ns = 86_400_000 * MS;
    send_what_is_due(&mut worker);
    let (mut server, _) = listener.accept().unwrap();
    for look_ns in [5 * MS, 0, -MS] {
        worker.look_ns = look_ns;
        worker.wait_alone().unwrap();
        assert_eq!(worker.in_flight, 1, "nothing has come");
    }
    answer(&mut worker, &mut server);
    worker.look_ns = 86_000_000 * MS;
    the_clock_says(&[200]);
    worker.wait_alone().unwrap();
    assert_eq!((worker.in_flight, worker.tally.completed), (0, 1));
}

/// A closed loop of so many users, all of whom have yet to ask.
fn closed(listener: &TcpListener, budget: Budget, users: usize) -> Worker<'static, Http> {
    let mut worker = worker(listener);
    worker.supply = Supply::closed(Box::leak(Box::new(budget)));
    worker.slots = (0..users)
        .map(|_| Slot::new(worker.dialogue.reply()))
        .collect();
    worker.idle = (0..users).rev().collect();
    worker
}

/// Ten milliseconds a connection.
#[test]
fn the_time_in_which_others_connect_is_no_requests_own() {
    let listener = listener();
    let mut worker = closed(&listener, Budget::new(None, 0, 1000 * MS), 3);
    the_clock_says(&[10, 20, 30, 40]);
    worker.dispatch(0).unwrap();
    let sent_ms = |worker: &Worker<Http>| {
        let slots = worker.slots.iter();
        slots
            .map(|slot| (slot.intended_ns / MS, slot.started_ns / MS))
            .collect::<Vec<_>>()
    };
    assert_eq!(sent_ms(&worker), [(0, 0), (10, 10), (20, 20)]);
    // Over connections that are open the clock is not read again.
    the_clock_says(&[70, 80]);
    worker.idle = vec![1, 0];
    worker.dispatch(60 * MS).unwrap();
    assert_eq!(sent_ms(&worker), [(60, 60), (60, 60), (20, 20)]);
    assert_eq!(READINGS.take().len(), 2);
}

#[test]
fn nor_is_that_in_which_others_try_again() {
    let listener = listener();
    let mut worker = closed(&listener, Budget::new(None, 0, 1000 * MS), 3);
    (worker.idle, worker.resting) = (Vec::new(), vec![0, 1, 2]);
    the_clock_says(&[10, 20, 30]);
    worker.tick(0).unwrap();
    let sent_ms = worker.slots.iter().map(|slot| slot.started_ns / MS);
    assert_eq!(sent_ms.collect::<Vec<_>>(), [10, 20, 30]);
}

/// After a stop as long as the time-out: there is room for one event, and two answers.
#[test]
fn an_answer_that_is_yet_to_be_looked_at_is_not_timed_out() {
    let listener = listener();
    let mut worker = closed(&listener, Budget::new(None, 0, 1000 * MS), 2);
    worker.timeout_ns = 100 * MS;
    the_clock_says(&[0]);
    send_what_is_due(&mut worker);
    for _ in 0..2 {
        answer(&mut worker, &mut listener.accept().unwrap().0);
    }
    for slot in 0..2 {
        until_slot_has(&worker, slot, libc::POLLIN);
    }
    the_clock_says(&[2000]); // the window is over, and nothing more is asked for
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1];
    while worker.tally.ended_in_all() < 2 {
        worker.serve(&mut events, 60_000 * MS).unwrap();
        worker.tick(2000 * MS).unwrap();
    }
    assert_eq!(worker.tally.failures[Failure::Timeout as usize], 0);
}

/// The service paused until 100 ms, and then all was there; each answer takes a millisecond to take up.
#[test]
fn what_waits_until_others_are_taken_up_waits_for_the_generator() {
    let listener = listener();
    let mut worker = worker(&listener);
    worker.slots = (0..8).map(|_| Slot::new(worker.dialogue.reply())).collect();
    worker.idle = (0..8).rev().collect();
    the_clock_says(&[8]);
    worker.dispatch(8 * MS).unwrap();
    assert_eq!(worker.in_flight, 8);
    let mut servers = accepted(&worker, &listener);
    for (slot, server) in servers.iter_mut().enumerate() {
        answer(&mut worker, server);
        until_slot_has(&worker, slot, libc::POLLIN);
    }
    let half_ms = [200, 200].into_iter().chain(201..400);
    READINGS.set(half_ms.map(|halves| halves * MS / 2).collect());
    worker.seen_ns = 100 * MS;
    let sent_before_ms: u64 = lateness_ms(&worker).iter().sum();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    worker.serve(&mut events, 100 * MS).unwrap();
    assert_eq!((worker.tally.completed, worker.tally.queued), (8, 8));
    let late_ms = lateness_ms(&worker).iter().sum::<u64>() - sent_before_ms;
    assert!(late_ms >= 2 + 3 + 4 + 5 + 6, "{late_ms}");
}

/// Of three users' time what is told as missing, where so many requests of others were answered by 40 ms.
fn missing_ms(answers: u64) -> [i64; 2] {
    let listener = listener();
    let budget = Budget::new(None, 100 * MS, 200 * MS).waiting(3, 100 * MS);
    (0..answers).for_each(|_| budget.answered(40 * MS, false));
    let mut worker = closed(&listener, budget, 3);
    worker.dispatch(1).unwrap();
    let mut servers = accepted(&worker, &listener);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // The first in the lead-in and, again, in the window; the second in the window alone, the third never.
    for (user, ms) in [(0, 50), (0, 140), (1, 130)] {
        answer(&mut worker, &mut servers[user]);
        until_slot_has(&worker, user, libc::POLLIN);
        the_clock_says(&[ms]);
        worker.serve(&mut events, 60_000 * MS).unwrap();
    }
    let before_ns = worker.tally.window.beginning_ns;
    // It fails, and was not there all the same.
    the_clock_says(&[190]);
    worker.fail(2, Failure::Timeout).unwrap();
    assert_eq!(worker.tally.window.beginning_ns, before_ns);
    worker.give_up(250 * MS);
    let all = Tally::sum(vec![worker.tally, Tally::new(0)]);
    [before_ns / MS, all.window.beginning_ns / MS]
}

#[test]
fn who_is_not_answered_while_others_are_again_and_again_is_not_there() {
    assert_eq!(missing_ms(9), [30, 130]);
    // Else all wait in turn. With its own three answers, the last at 130 ms, the third is missed from then on.
    assert_eq!(missing_ms(5), [0, 0]);
    assert_eq!(missing_ms(6), [0, 70]);
}

thread_local! {
    static DOZED: RefCell<Vec<i64>> = const { RefCell::new(Vec::new()) };
}

/// Loopback may deliver a little later.
fn until_an_event_lies_ready(worker: &Worker<Http>) {
    let mut asked = libc::pollfd {
        fd: worker.epoll.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `asked` is one valid pollfd to read and write.
    assert_eq!(unsafe { libc::poll(&mut asked, 1, -1) }, 1);
}

/// A closed loop in which so many are under way and answers came every ten microseconds.
fn hurried(listener: &TcpListener, in_flight: usize) -> Worker<'static, Http> {
    let budget: &'static Budget = Box::leak(Box::new(Budget::new(None, 0, 1000 * MS)));
    let mut worker = worker(listener);
    worker.supply = Supply::closed(budget);
    worker.doze = |time_ns| DOZED.with_borrow_mut(|dozed| dozed.push(time_ns));
    worker.pace = Pace::new(0);
    worker.pace.tick(MS, 100);
    worker.in_flight = in_flight;
    worker
}

#[test]
fn it_dozes_where_nothing_has_come_and_not_where_something_lies_ready() {
    let listener = listener();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let mut worker = hurried(&listener, 32);
    assert_eq!(worker.wait(&mut events, 0, MS).unwrap(), 0);
    assert_eq!(DOZED.take(), [20_000]);
    send_what_is_due(&mut worker);
    let (mut server, _) = listener.accept().unwrap();
    answer(&mut worker, &mut server);
    until_an_event_lies_ready(&worker);
    assert_eq!(worker.wait(&mut events, 0, 60_000 * MS).unwrap(), 1);
    assert_eq!(DOZED.take(), [0; 0]);
}

#[test]
fn an_open_loop_and_a_few_requests_are_never_dozed_over() {
    let listener = listener();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let few = hurried(&listener, 15);
    let mut open = hurried(&listener, 32);
    open.supply = worker(&listener).supply;
    for worker in [few, open] {
        assert_eq!(worker.wait(&mut events, 0, MS).unwrap(), 0);
        assert_eq!(DOZED.take(), [0; 0]);
    }
}
