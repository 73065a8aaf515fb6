use std::net::{Ipv4Addr, TcpListener};

use super::super::room::Failure;
use super::super::spec::{tests::spec, Server};
use super::super::tests::shared;
use super::*;

const SECOND: i64 = 1_000_000_000;

/// What a worker of three participants, whose times a test has set, says after one turn.
fn worked(prepare: impl FnOnce(&mut Worker), turns: bool) -> Tally {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut spec = spec();
    let Server::Janus(janus) = &mut spec.server;
    janus.address = match listener.local_addr().unwrap() {
        std::net::SocketAddr::V4(address) => address,
        std::net::SocketAddr::V6(_) => unreachable!(),
    };
    spec.patience_ns = 3600 * SECOND;
    let roles = spec.roles().unwrap();
    let shared = shared(&spec, &roles);
    let (_tasks, tasks) = std::sync::mpsc::channel();
    let (reports, told) = std::sync::mpsc::channel();
    let bell = &virtoll_generator::crew::bell().unwrap();
    let seat = Seat {
        thread: 0,
        tasks,
        reports,
        bell,
    };
    let mut worker = Worker::new(&shared, seat).unwrap();
    prepare(&mut worker);
    if turns {
        worker.turn().unwrap();
        return told.try_recv().unwrap();
    }
    worker.tally
}

#[test]
fn a_worker_that_slept_through_the_windows_end_was_late() {
    let slept = |worker: &mut Worker| {
        let now_ns = sys::now_ns();
        let span = Span {
            from_ns: now_ns - 3 * SECOND,
            until_ns: now_ns - SECOND,
        };
        (worker.span, worker.tally.span) = (span, span);
        worker.cpu = Some(CpuTime::of_thread());
        let due_ns = now_ns - 2 * SECOND;
        worker.places.push(Place {
            number: 0,
            participant: None,
            due_ns: i64::MAX,
            has_failed: false,
            armed_ns: due_ns,
        });
        worker.timers.push(Reverse((due_ns, 0)));
    };
    let tally = worked(slept, true);
    assert_eq!((tally.wakes, tally.wakes_late), (1, 1));
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
