use std::net::{Ipv4Addr, TcpListener};

use super::super::film::{tests::ivf, Film};
use super::super::peer::Peer;
use super::super::receiving::Receiving;
use super::super::room::{Failure, Feed};
use super::super::sending::Sending;
use super::super::spec::{tests::spec, Role, Server};
use super::super::tests::shared;
use super::*;

const SECOND: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
const ALWAYS: Span = Span {
    from_ns: 0,
    until_ns: i64::MAX,
};

/// Let a test have a worker of nobody yet, and what tells and asks it.
fn with_worker<T>(
    test: impl for<'a> FnOnce(&mut Worker<'a>, &'a Shared<'a>, &Sender<Task>, &Receiver<Tally>) -> T,
) -> T {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut spec = spec();
    let Server::Janus(janus) = &mut spec.server else {
        unreachable!()
    };
    janus.address = match listener.local_addr().unwrap() {
        std::net::SocketAddr::V4(address) => address,
        std::net::SocketAddr::V6(_) => unreachable!(),
    };
    spec.patience_ns = 3600 * SECOND;
    let roles = spec.roles().unwrap();
    let shared = shared(&spec, &roles);
    let (orders, tasks) = std::sync::mpsc::channel();
    let (reports, told) = std::sync::mpsc::channel();
    let bell = &virtoll_generator::crew::bell().unwrap();
    let seat = Seat {
        thread: 0,
        tasks,
        reports,
        bell,
    };
    let mut worker = Worker::new(&shared, seat).unwrap();
    test(&mut worker, &shared, &orders, &told)
}

/// What a worker, whose times a test has set, says after one turn.
fn worked(prepare: impl FnOnce(&mut Worker), turns: bool) -> Tally {
    with_worker(|worker, _, _, told| {
        prepare(worker);
        if turns {
            worker.turn().unwrap();
            return told.try_recv().unwrap();
        }
        worker.tally.clone()
    })
}

#[test]
fn a_worker_that_slept_through_the_windows_end_was_late() {
    let slept = |worker: &mut Worker| {
        let now_ns = sys::now_ns();
        let span = Span {
            from_ns: now_ns - 3 * SECOND,
            until_ns: now_ns - SECOND,
        };
        worker.tally.span = span;
        worker.cpu = Some(CpuTime::of_thread());
        let due_ns = now_ns - 2 * SECOND;
        worker.places.push(Place {
            number: 0,
            participant: None,
            due_ns: i64::MAX,
            began_ns: 0,
            away_ns: 0,
            has_failed: false,
            armed_ns: due_ns,
        });
        worker.timers.push(Reverse((due_ns, 0)));
    };
    let tally = worked(slept, true);
    let told = "for the second of it that lies within the window";
    assert_eq!((tally.wakes, tally.wakes_late), (100, 100), "{told}");
}

#[test]
fn who_goes_by_order_before_it_has_joined_is_told_as_under_way_alone() {
    let tally = worked(
        |worker| {
            for number in 0..2 {
                worker.places.push(Place {
                    number,
                    participant: None,
                    due_ns: sys::now_ns(),
                    began_ns: 0,
                    away_ns: 0,
                    has_failed: false,
                    armed_ns: i64::MAX,
                });
                worker.join(number, sys::now_ns()).unwrap();
            }
            worker.leave(0, None);
            worker.leave(1, Some(Failure::Signalling));
        },
        false,
    );
    assert_eq!((tally.offered, tally.ordered_away), (2, 0));
    assert_eq!(tally.not_joined, {
        let mut failures = super::super::tally::Failures::default();
        failures.count(&Failure::Signalling);
        failures
    });
}

/// Let a worker's only participant get a film, for as long as a test has who sends it driven.
fn with_film(
    test: impl for<'a> FnOnce(&mut Worker<'a>, &mut dyn FnMut() -> u64, &Sender<Task>, &Receiver<Tally>),
) {
    let film = [Role {
        name: "webcam".into(),
        film: Some(Film::parsed(&ivf(50, 50)).unwrap()),
        watches: false,
    }];
    let sends = spec();
    let sends = shared(&sends, &film);
    with_worker(|worker, shared, orders, told| {
        let now_ns = sys::now_ns();
        let peer = Peer::new(&sends.common, true, now_ns).unwrap();
        let (mut sending, offer) =
            Sending::new(peer, 0, film[0].film.as_ref().unwrap(), 0).unwrap();
        let mut receiving = Receiving::new(Peer::new(&shared.common, false, now_ns).unwrap());
        let answer = receiving.peer.answer(&offer).unwrap();
        sending.peer.answered(&answer).unwrap();
        let mid = offer.lines().find_map(|line| line.strip_prefix("a=mid:"));
        let feed = Feed {
            mid: mid.unwrap().into(),
            sender: "1".into(),
            display: "virtoll 0 webcam".into(),
        };
        receiving
            .offered(vec![feed], now_ns, now_ns, shared, &mut worker.tally)
            .unwrap();
        worker.places.push(Place {
            number: 0,
            participant: None,
            due_ns: now_ns,
            began_ns: 0,
            away_ns: 0,
            has_failed: false,
            armed_ns: i64::MAX,
        });
        worker.join(0, now_ns).unwrap();
        let participant = worker.places[0].participant.as_mut().unwrap();
        participant.watches(receiving);
        worker.settle(0, Ok(())).unwrap();
        let (mut batch, mut sent) = (Batch::default(), Tally::new(1));
        sent.span = ALWAYS;
        let mut send = || {
            let now_ns = sys::now_ns();
            let (peer, clock) = (&mut sending.peer, &sends.common.clock);
            let count = batch.receive(&peer.sockets().all()[0]).unwrap_or(0);
            for datagram in (0..count).map(|index| batch.get(index)) {
                let taken = peer.take(&datagram, now_ns, now_ns, clock);
                taken.unwrap();
                while peer.next(clock, now_ns).unwrap().is_some() {}
            }
            if peer.wake_ns <= now_ns {
                peer.on_timer(clock.at(now_ns)).unwrap();
            }
            sending.drive(now_ns, &sends, &mut sent).unwrap();
            sent.sent[0].packets
        };
        test(worker, &mut send, orders, told);
    });
}

#[test]
fn a_film_that_had_not_come_when_who_watches_gave_up_joining_never_came() {
    let told = |failure: Option<Failure>| {
        let mut told = (0, 0);
        with_film(|worker, _, _, _| {
            worker.leave(0, failure);
            let counts = &worker.tally.received[0];
            told = (counts.no_first_packet, counts.no_first_key_frame);
        });
        told
    };
    assert_eq!(told(Some(Failure::Timeout)), (1, 1));
    assert_eq!(told(None), (0, 0), "it was ordered away");
}

/// A look of the worker's, and no long one.
fn look(worker: &mut Worker) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
    worker
        .timers
        .push(Reverse((sys::now_ns() + MS, usize::MAX)));
    assert!(worker.look(&mut events).unwrap());
}

/// Send until the worker has got some of it; and then what it is yet to look at, of more than one batch.
fn fill(worker: &mut Worker, send: &mut dyn FnMut() -> u64) {
    worker.tally.span = ALWAYS;
    worker.cpu = Some(CpuTime::of_thread());
    while worker.tally.received[0].packets == 0 {
        send();
        look(worker);
        worker.turn().unwrap();
    }
    let most = send() + 60;
    while send() < most {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    (worker.tally, worker.cpu) = (Tally::new(worker.shared.roles.len()), None);
}

#[test]
fn what_comes_to_who_watches_gathers_once_that_is_connected() {
    with_film(|worker, send, _, _| {
        let gathers = |worker: &mut Worker| {
            let participant = worker.places[0].participant.as_mut().unwrap();
            let peer = participant.peer(Way::Receiving).unwrap();
            (peer.is_connected(), peer.gathers)
        };
        assert_eq!(gathers(worker), (false, false));
        fill(worker, send);
        assert_eq!(gathers(worker), (true, true));
        // And more of it than a batch holds is taken without another wait.
        worker.tally.span = ALWAYS;
        look(worker);
        assert!(worker.tally.received[0].packets > 0);
        assert!(worker.lookout.is_in_a_hurry());
    });
}

#[test]
fn what_came_before_the_windows_end_is_of_it_though_nobody_has_looked_yet() {
    with_film(|worker, send, _, told| {
        fill(worker, send);
        worker.cpu = Some(CpuTime::of_thread());
        worker.tally.span = Span {
            from_ns: 0,
            until_ns: sys::now_ns(),
        };
        worker.turn().unwrap();
        let tally = told.try_recv().unwrap();
        let packets = tally.received[0].packets;
        assert!(packets > 32, "more than a batch: {packets}");
    });
}

#[test]
fn what_came_since_the_windows_begin_is_of_it_though_its_order_is_found_with_it() {
    with_film(|worker, send, orders, _| {
        fill(worker, send);
        let task = Task {
            participants: 1,
            first_ns: 0,
            every_ns: 0,
            span: ALWAYS,
            before: 1,
        };
        orders.send(task).unwrap();
        look(worker);
        assert!(worker.tally.received[0].packets > 0);
        assert!(worker.cpu.is_some(), "the window has begun");
    });
}

#[test]
fn what_came_before_the_windows_begin_is_not_of_it() {
    with_film(|worker, send, _, _| {
        fill(worker, send);
        worker.tally.span = Span {
            from_ns: sys::now_ns() + 3600 * SECOND,
            until_ns: i64::MAX,
        };
        look(worker);
        assert_eq!(worker.tally.received[0].packets, 0);
    });
}

#[test]
fn a_join_was_late_for_as_long_as_its_thread_was_away_and_no_longer_than_it_took() {
    let joins = |began_ago_ns: i64, away_ago_ns: i64| {
        let tally = worked(
            |worker| {
                let now_ns = sys::now_ns();
                worker.places.push(Place {
                    number: 0,
                    participant: None,
                    due_ns: now_ns - began_ago_ns,
                    began_ns: 0,
                    away_ns: 0,
                    has_failed: false,
                    armed_ns: i64::MAX,
                });
                worker.join(0, now_ns - began_ago_ns).unwrap();
                worker.looked_ns = now_ns - away_ago_ns; // as if that had been when it was to look
                worker.leave(0, Some(Failure::Signalling));
                assert_eq!(worker.joining, 0);
            },
            false,
        );
        assert_eq!(tally.lateness.total(), 1);
        let (lower, upper, _) = tally.lateness.buckets().next().unwrap();
        (lower as i64, upper as i64)
    };
    let hour = 3600 * SECOND;
    let (lower, upper) = joins(10 * hour, hour);
    assert!(lower < 2 * hour && upper >= hour, "{lower} {upper}");
    let (lower, upper) = joins(hour, 10 * hour);
    assert!(lower < 2 * hour && upper >= hour, "{lower} {upper}");
}

#[test]
fn a_thread_that_looks_late_or_is_long_busy_was_away() {
    with_worker(|worker, _, _, _| {
        let at_ns = worker.looked_ns;
        assert_eq!(worker.away_by(at_ns + AWAY_NS), 0);
        assert_eq!(worker.away_by(at_ns + 70 * MS), 70 * MS);
        worker.looked_ns = sys::now_ns() - SECOND;
        worker.joining = 1;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        assert!(
            worker.look(&mut events).unwrap(),
            "it does not wait for ever"
        );
        assert!(worker.away_ns >= SECOND);
        let asked_ns = sys::now_ns();
        let hour = 3600 * SECOND;
        worker.timers.push(Reverse((asked_ns - hour, usize::MAX)));
        let away_ns = worker.away_ns;
        worker.looked_ns = asked_ns;
        assert!(worker.look(&mut events).unwrap());
        assert!(worker.away_ns - away_ns < hour, "to ask is to look");
    });
}
