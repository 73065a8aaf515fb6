use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use virtoll_generator::crew;

use super::*;
use crate::view::player::Watched;
use crate::view::tests::{asked, told};
use crate::view::ViewSpec;

const PLAYLIST: &str =
    "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n/o/1\n#EXTINF:2,\n/o/2\n#EXT-X-ENDLIST\n";

/// One viewer of HLS, who does not come again after a failure.
fn spec(address: SocketAddr) -> ViewSpec {
    let spec = serde_json::json!({
        "target": {"address": address, "url": format!("http://{address}/m.m3u8"), "proxy": false, "tls": null},
        "media": {"hls": {"quality": "lowest", "text": false}},
        "player": {
            "paced": true, "startup_ns": 1, "resume_ns": 1, "buffer_ns": 10_000_000_000i64,
            "patience_ns": 60_000_000_000i64
        },
        "threads": 1, "join": {"arrival": "constant", "every_ns": 0}, "stay_ns": null,
        "rest_ns": 3_600_000_000_000i64, "seed": 1, "receive_bytes": 0
    });
    serde_json::from_value::<ViewSpec>(spec)
        .unwrap()
        .checked()
        .unwrap()
}

/// Serve one request on each connection, and close it: the bodies, where there is one.
fn serve(listener: &TcpListener, bodies: &[Option<&str>]) {
    for body in bodies {
        let connection = asked(listener);
        if let Some(body) = body {
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            send_with_end(&connection, answer.as_bytes());
        }
    }
}

/// So that it leaves in one segment with the end of the connection that is dropped next: both are seen at once.
fn send_with_end(connection: &TcpStream, bytes: &[u8]) {
    let (fd, flags) = (connection.as_raw_fd(), libc::MSG_MORE);
    // SAFETY: the kernel reads at most `bytes.len()` bytes from `bytes`.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    assert_eq!(sent, bytes.len() as isize);
}

#[test]
fn a_request_over_a_new_connection_is_not_asked_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    // A server that closes after its answer, and says nothing of it; and then without one.
    thread::spawn(move || serve(&listener, &[Some(PLAYLIST), None]));
    let order = serde_json::json!({"viewers": 1, "anew": null, "settle_ns": 1_000_000_000i64, "duration_ns": 1_000_000_000i64,
        "start_ns": null});
    let report = told(&spec, [order]).remove(0);
    assert_eq!(
        report["joins"]["failures"],
        serde_json::json!({"reset": 1}),
        "{report}"
    );
    assert_eq!(report["connects"], 2);
}

/// A thread's worker, and who orders.
fn seated<'a>(
    spec: &'a ViewSpec,
    asked: &'a Asked,
    bell: &'a OwnedFd,
) -> (Worker<'a>, mpsc::Sender<Task>) {
    let ((sender, tasks), (reports, _)) = (mpsc::channel(), mpsc::channel());
    let seat = Seat {
        thread: 0,
        tasks,
        reports,
        bell,
    };
    (Worker::new(spec, asked, seat).unwrap(), sender)
}

/// One viewer joins at that time.
fn task(joins_ns: i64, window_ns: (i64, i64)) -> Task {
    Task {
        viewers: 1,
        stay: 0,
        first_ns: joins_ns,
        joins_ns: [joins_ns].into(),
        goes_on_every_ns: None,
        pauses: false,
        anew: 0,
        first_anew: 0,
        tells_after_ns: 0,
        gathered_ns: None,
        window_ns,
    }
}

/// It is given a task, and does what is due of it by then: who is to join connects, at once as mostly over loopback or a
/// moment later, and asks.
fn begins(worker: &mut Worker, sender: &mpsc::Sender<Task>, task: Task, now_ns: i64) {
    sender.send(task).unwrap();
    worker.heed();
    worker.begin_window(now_ns);
    worker.on_timers(now_ns).unwrap();
    let connection = &worker.places[0].connection;
    if connection.sent < connection.unsent.len() {
        until_it_has(worker, libc::POLLOUT);
        worker.turn(0).unwrap();
    }
}

fn until_it_has(worker: &Worker, what: libc::c_short) {
    let fd = worker.places[0].connection.fd.as_ref().unwrap();
    assert!(sys::has_within(fd, what, MINUTE_NS));
}

/// Have a worker do this at a server that takes connections and says nothing. What it is asked is as `changed` has it.
fn at_a_server<T>(
    changed: impl FnOnce(&mut ViewSpec),
    then: impl FnOnce(&mut Worker, &mpsc::Sender<Task>, &TcpListener, i64) -> T,
) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut spec = spec(listener.local_addr().unwrap());
    changed(&mut spec);
    let (asked, bell, now_ns) = (spec.asked().unwrap(), crew::bell().unwrap(), sys::now_ns());
    let (mut worker, sender) = seated(&spec, &asked, &bell);
    then(&mut worker, &sender, &listener, now_ns)
}

/// What the generator cannot hold is no failure of the server's.
#[test]
fn a_playlist_that_is_too_much_for_the_generator_ends_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    thread::spawn(move || serve(&listener, &[Some(PLAYLIST)]));
    let (asked, bell) = (spec.asked().unwrap(), crew::bell().unwrap());
    let (mut worker, sender) = seated(&spec, &asked, &bell);
    worker.library = Rc::new(RefCell::new(Library::with_room(PLAYLIST.len() - 1)));
    let now_ns = sys::now_ns();
    sender.send(task(now_ns, (now_ns, i64::MAX / 2))).unwrap();
    worker.heed();
    let Err(Failed(why)) = worker.run() else {
        panic!("it went on")
    };
    assert!(
        why.starts_with("the generator holds no more playlists"),
        "{why}"
    );
}

/// A viewer that has asked, of a thread that was not there for the minute before that.
fn stopped_for_a_minute<T>(then: impl FnOnce(&mut Worker) -> T) -> (T, i64) {
    at_a_server(
        |_| (),
        |worker, sender, _, now_ns| {
            begins(worker, sender, task(now_ns, (now_ns, i64::MAX / 2)), now_ns);
            let view = worker.places[0].view.as_mut().unwrap();
            (view.late_ns, view.held_at_ns) = (0, now_ns - MINUTE_NS);
            worker.away.looked(now_ns - MINUTE_NS); // as if all that had been then
            let told = then(worker);
            let view = worker.places[0].view.as_ref();
            let late_ns = view.map_or_else(
                || {
                    worker
                        .tally
                        .lateness
                        .buckets()
                        .map(|(_, upper_ns, _)| upper_ns as i64)
                        .max()
                        .unwrap()
                },
                |view| view.late_ns,
            );
            (told, late_ns)
        },
    )
}

const MINUTE_NS: i64 = 60_000_000_000;

/// It has gone by time alone: nothing that it said or read tells that nobody looked.
#[test]
fn who_gave_up_while_nobody_looked_waited_for_the_generator() {
    let (_, late_ns) = stopped_for_a_minute(|worker| {
        worker
            .leave(0, sys::now_ns(), Some(Failure::Timeout))
            .unwrap()
    });
    assert!(late_ns >= MINUTE_NS);
}

/// It stopped between the request and the reading of its answer, within one turn.
#[test]
fn who_has_said_something_may_still_wait_for_the_generator_in_the_same_look() {
    let (at_ns, late_ns) = stopped_for_a_minute(|worker| {
        worker.held(0);
        // The same look, and the next one, which knows of the same minute.
        worker.held(0);
        worker.away.leaves(true);
        worker.away.asks(sys::now_ns());
        worker.away.looks(i64::MAX, sys::now_ns());
        worker.held(0);
        sys::now_ns()
    });
    let view_ns = MINUTE_NS..2 * MINUTE_NS; // what it really takes is in it
    assert!(view_ns.contains(&late_ns), "{late_ns} at {at_ns}: once");
}

/// It stayed longer than that by as long as it had paused, and nobody came in its place.
#[test]
fn who_has_paused_and_is_to_come_anew_leaves_when_the_order_says() {
    at_a_server(
        |_| (),
        |worker, sender, _, now_ns| {
            let pauses = Task {
                pauses: true,
                ..task(now_ns, (now_ns, now_ns + 1))
            };
            begins(worker, sender, pauses, now_ns);
            worker.places[0].view.as_mut().unwrap().began_ns = Some(now_ns);
            worker.end_window(now_ns + 1);
            let view = worker.places[0].view.as_mut().unwrap();
            view.pause.as_mut().unwrap().since_ns = now_ns - MINUTE_NS;
            let goes_on = Task {
                stay: 1,
                goes_on_every_ns: Some(0),
                anew: 1,
                ..task(now_ns, (now_ns, now_ns + MINUTE_NS))
            };
            sender.send(goes_on).unwrap();
            worker.heed();
            assert!(worker.rest(0, now_ns).is_none());
            let view = worker.places[0].view.as_ref().unwrap();
            assert!(view.pause.is_none());
            assert_eq!(view.leaves_ns, now_ns + MINUTE_NS / 2);
        },
    );
}

/// It began when the window was over and nobody had looked at the clock yet, asked for more, and paused.
#[test]
fn who_began_after_the_window_and_breaks_off_in_its_pause_is_of_no_window() {
    let live = |spec: &mut ViewSpec| {
        let live = serde_json::json!({"live": {"text": false, "clock": null}});
        spec.media = serde_json::from_value(live).unwrap();
    };
    at_a_server(live, |worker, sender, _, now_ns| {
        let pauses = Task {
            pauses: true,
            ..task(now_ns, (now_ns, now_ns + 1))
        };
        begins(worker, sender, pauses, now_ns);
        let view = worker.places[0].view.as_mut().unwrap();
        let second_ns = 1_000_000_000;
        view.player
            .media(now_ns, second_ns, false, &mut Watched::default());
        let began_ns = sys::now_ns();
        assert!(began_ns > now_ns);
        worker.step(0, began_ns, &mut 0).unwrap();
        worker.end_window(began_ns);
        assert_eq!(worker.busy, 1);
        worker.leave(0, began_ns, Some(Failure::Timeout)).unwrap();
        assert_eq!(worker.tally.started_late, 1);
        let (begun, broken) = (worker.tally.begun, worker.tally.broken.by_kind());
        assert!(begun == 0 && broken.is_empty(), "{begun} {broken:?}");
    });
}

/// One at whose end, or amid which, its server closes by a reset; it has something to say then, or not.
#[derive(Clone, Copy)]
struct Closing {
    may_close: bool,
    speaks: bool,
    is_closed: bool,
}

impl Protocol for Closing {
    fn want(&mut self, now: &mut Now) -> Want {
        match self.is_closed {
            false if std::mem::take(&mut self.speaks) => Want::Say(b"farewell".to_vec()),
            false => Want::Read(9),
            true => {
                now.media(1, true);
                Want::Nothing
            }
        }
    }

    fn take(&mut self, _: &[u8], _: &mut Now) -> Result<(), Failure> {
        unreachable!("nothing came")
    }

    fn closed(&mut self, _: &mut Now) -> Result<(), Failure> {
        self.is_closed = true;
        Ok(())
    }

    fn may_close(&self) -> bool {
        self.may_close
    }
}

/// A connection's turn when its server has closed it with something unread.
fn reset_amid(protocol: Closing) -> Tally {
    at_a_server(
        |_| (),
        |worker, sender, listener, now_ns| {
            begins(worker, sender, task(now_ns, (now_ns, i64::MAX / 2)), now_ns);
            let (connection, _) = listener.accept().unwrap();
            connection.peek(&mut [0]).unwrap();
            drop(connection);
            until_it_has(worker, libc::POLLRDHUP);
            worker.places[0].connection.is_drained = false;
            worker.places[0].view.as_mut().unwrap().protocol = Box::new(protocol);
            worker.turn(0).unwrap();
            std::mem::take(&mut worker.tally)
        },
    )
}

/// A server that closes by a reset when it has said all had films that were whole told as broken.
#[test]
fn where_a_server_may_close_a_reset_is_the_close_that_it_is() {
    for speaks in [false, true] {
        for (may_close, failures) in [(true, 0), (false, 1)] {
            let tally = reset_amid(Closing {
                may_close,
                speaks,
                is_closed: false,
            });
            let told: u64 = tally.not_started.by_kind().values().sum();
            assert_eq!((told, tally.started), (failures, 1 - failures), "{speaks}");
        }
    }
}

const SECOND_NS: i64 = 1_000_000_000;

/// What became of it was told when the window was, and so in none: it ran dry within the window, where its film may have
/// been whole, and more came, or not, after it.
#[test]
fn whether_who_ran_dry_at_a_windows_end_stalled_is_waited_for() {
    for (is_whole, stalls) in [(true, 0), (false, 1)] {
        at_a_server(
            |_| (),
            |worker, sender, _, now_ns| {
                let window_ns = (now_ns - 8 * SECOND_NS, now_ns - SECOND_NS);
                begins(worker, sender, task(window_ns.0, window_ns), now_ns);
                worker.starting = 0;
                let (view, watched) = (&mut worker.places[0].view, &mut worker.tally.watched);
                let player = &mut view.as_mut().unwrap().player;
                *player = Player::new(worker.spec.rules(), window_ns.0);
                player.media(window_ns.0, 5 * SECOND_NS, false, watched);
                player.may_be_whole(true);
                worker.end_window(now_ns);
                worker.tell();
                assert!(matches!(worker.phase, Phase::Drains));
                let (view, watched) = (&mut worker.places[0].view, &mut worker.tally.watched);
                let player = &mut view.as_mut().unwrap().player;
                player.media(now_ns, 1, is_whole, watched);
                assert_eq!(watched.playing_ns, 5 * SECOND_NS);
                assert_eq!(watched.stalls, stalls);
                assert_eq!(watched.stalled_ns, 2 * SECOND_NS * stalls as i64);
                worker.tell();
                assert!(matches!(worker.phase, Phase::Between));
            },
        );
    }
}

/// What is told of a viewer that joined at the window's begin, 8 s ago, and has its turn a second after its end. It played
/// for a second, or not at all, and then nothing came for longer than its 5 s of patience.
fn looked_at_after_the_window(has_begun: bool, for_a_datagram: bool) -> Tally {
    let patient = |spec: &mut ViewSpec| spec.player.patience_ns = 5 * SECOND_NS;
    at_a_server(patient, |worker, sender, _, now_ns| {
        let window_ns = (now_ns - 8 * SECOND_NS, now_ns - SECOND_NS);
        begins(worker, sender, task(window_ns.0, window_ns), now_ns);
        let view = worker.places[0].view.as_mut().unwrap();
        view.player = Player::new(worker.spec.rules(), window_ns.0);
        if has_begun {
            let watched = &mut worker.tally.watched;
            view.player.media(window_ns.0, SECOND_NS, false, watched);
            view.began_ns = Some(window_ns.0);
        }
        match for_a_datagram {
            true => worker.on_datagrams(0, -1).unwrap(),
            false => worker.turn(0).unwrap(),
        }
        worker.end_window(now_ns);
        std::mem::take(&mut worker.tally)
    })
}

/// Its turn was told as its failure's time: it had waited for all of the window, and failed in none.
#[test]
fn who_gave_up_within_the_window_failed_in_it_however_late_that_is_noticed() {
    for (has_begun, gone_ns, for_a_datagram) in [
        (true, SECOND_NS, false),
        (false, 2 * SECOND_NS, false),
        (true, SECOND_NS, true),
        (false, 2 * SECOND_NS, true),
    ] {
        let tally = looked_at_after_the_window(has_begun, for_a_datagram);
        let failures = match has_begun {
            true => &tally.broken,
            false => &tally.not_started,
        };
        assert_eq!(failures.by_kind(), [("timeout".to_owned(), 1)].into());
        assert_eq!(tally.under_way, 0, "nobody waited for it any more");
        assert_eq!(tally.gone_ns, gone_ns);
        let watched = &tally.watched;
        let waited_ns = watched.starting_ns + watched.stalled_ns;
        assert_eq!(waited_ns, 5 * SECOND_NS);
    }
}

#[test]
fn events_of_two_looks_are_one_to_a_connection() {
    let event = |events, u64| libc::epoll_event { events, u64 };
    let mut events = [
        event(1, 7),
        event(1, 8),
        event(4, 8),
        event(1, 9),
        event(2, 7),
        event(0, 0),
    ];
    assert_eq!(merged(&mut events, 2, 3), 3);
    let told = events[..3].iter().map(|event| (event.u64, event.events));
    assert_eq!(told.collect::<Vec<_>>(), [(7, 3), (8, 5), (9, 1)]);
    assert_eq!(merged(&mut events, 2, 0), 2);
}

#[test]
fn an_order_is_read_between_any_two_turns() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = spec(listener.local_addr().unwrap());
    let (asked, bell, far_ns) = (spec.asked().unwrap(), crew::bell().unwrap(), i64::MAX / 2);
    let (mut worker, sender) = seated(&spec, &asked, &bell);
    let task = Task {
        first_ns: 0, // it is begun at once
        ..task(far_ns, (far_ns, far_ns + 1))
    };
    sender.send(task.clone()).unwrap();
    worker.timers.push(Reverse((0, 0)));
    worker.on_timers(1).unwrap();
    assert_eq!(worker.order, 1);
    sender.send(task).unwrap();
    worker.unread.push(7); // who has gone by that order
    worker.on_time().unwrap();
    assert_eq!(worker.order, 2);
    drop(sender);
    worker.heed();
    assert!(worker.is_over);
}

/// A listener whose queue is full drops who would connect: their requests wait, and there is nothing to ask of them.
#[test]
fn who_waits_for_a_connection_has_no_turns_meanwhile() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: the kernel only reads these two numbers.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let wait = Duration::from_millis(200);
    let _full: Vec<_> = (0..8)
        .map_while(|_| TcpStream::connect_timeout(&address, wait).ok())
        .collect();
    let mut spec = spec(address);
    spec.media =
        serde_json::from_value(serde_json::json!({"live": {"text": false, "clock": null}}))
            .unwrap();
    spec.player.patience_ns = 500_000_000;
    let order = serde_json::json!({"viewers": 1, "anew": null, "settle_ns": 0, "duration_ns": 1_000_000_000i64,
        "start_ns": null});
    let report = told(&spec, [order]).remove(0);
    assert_eq!(
        report["joins"]["failures"],
        serde_json::json!({"timeout": 1}),
        "{report}"
    );
    // One that is late counts as often as it would have been due meanwhile.
    let in_time = report["wakes"].as_u64().unwrap() - report["wakes_late"].as_u64().unwrap();
    assert!(in_time < 10, "{report}");
}
