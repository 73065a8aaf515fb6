//! One who sends and one who receives, without a server between them, and with a time of the test's own.

use std::ops::Range;

use virtoll_generator::datagrams::Batch;
use virtoll_generator::sys;

use super::super::codec::Codec;
use super::super::film::{tests::ivf, Film};
use super::super::h264;
use super::super::sending::Sending;
use super::super::spec::{tests::spec, ConferSpec, Role};
use super::super::tally::Span;
use super::super::tests::shared;
use super::*;

const MS: i64 = 1_000_000;
const NEVER: Range<i64> = 0..0;

/// What comes of four seconds of a film of which the numbers `is_lost` picks are lost on their way, and what was sent.
fn received(is_lost: impl Fn(u64) -> bool) -> (Tally, Tally) {
    watched(is_lost, i64::MAX, MS, NEVER)
}

fn watched(
    is_lost: impl Fn(u64) -> bool,
    other_after_ns: i64,
    every_ns: i64,
    is_stopped_ns: Range<i64>,
) -> (Tally, Tally) {
    let film = Film::parsed(&ivf(50, 50)).unwrap();
    watched_of(film, is_lost, other_after_ns, every_ns, is_stopped_ns)
}

/// After so long somebody else's film comes in the place of the first. Who receives looks each `every_ns`, at timers and
/// at what has come since. Who sends looks at nothing while it is stopped; times are since the window's begin.
fn watched_of(
    film: Film,
    is_lost: impl Fn(u64) -> bool,
    other_after_ns: i64,
    every_ns: i64,
    is_stopped_ns: Range<i64>,
) -> (Tally, Tally) {
    let spec = ConferSpec {
        codec: film.codec,
        ..spec()
    };
    let role = |name: &str, film| Role {
        name: name.into(),
        film,
        watches: true,
    };
    let roles = [role("webcam", Some(film)), role("watcher", None)];
    let shared = shared(&spec, &roles);
    let mut now_ns = sys::now_ns();
    let peer = Peer::new(&shared.common, true, now_ns).unwrap();
    let film = roles[0].film.as_ref().unwrap();
    let (mut sending, offer) = Sending::new(peer, 0, film, 0).unwrap();
    let mut receiving = Receiving::new(Peer::new(&shared.common, false, now_ns).unwrap());
    let answer = receiving.peer.answer(&offer).unwrap();
    sending.peer.answered(&answer).unwrap();
    let (mut sent, mut tally) = (Tally::new(2), Tally::new(2));
    let mid = offer
        .lines()
        .find_map(|line| line.strip_prefix("a=mid:"))
        .unwrap();
    let feed = Feed {
        mid: mid.into(),
        sender: "1".into(),
        display: "virtoll 0 webcam".into(),
    };
    receiving
        .offered(vec![feed.clone()], now_ns, now_ns, &shared, &mut tally)
        .unwrap();
    let mut other = Some(Feed {
        sender: "2".into(),
        ..feed
    });
    let (mut batch, mut media, mut begun_ns) = (Batch::default(), 0, i64::MAX - 5000 * MS);
    let (mut waiting, mut looks_ns) = (Vec::new(), now_ns);
    let (mut came_there, mut came_back) = (0, 0);
    while now_ns < begun_ns + 5000 * MS {
        now_ns += MS;
        if sending.peer.is_connected() && receiving.peer.is_connected() && begun_ns > now_ns {
            begun_ns = now_ns;
            let span = Span {
                from_ns: now_ns,
                until_ns: now_ns + 4000 * MS,
            };
            (sent.span, tally.span) = (span, span);
        }
        if begun_ns <= now_ns && now_ns - begun_ns >= other_after_ns {
            let feeds: Vec<_> = other.take().into_iter().collect();
            if !feeds.is_empty() {
                receiving.gone("1", now_ns, &shared, &mut tally);
                receiving
                    .offered(feeds, now_ns, now_ns, &shared, &mut tally)
                    .unwrap();
            }
        }
        let at = shared.common.clock.at(now_ns);
        let is_stopped = is_stopped_ns.contains(&now_ns.saturating_sub(begun_ns));
        while !is_stopped && came_back < receiving.peer.sent {
            let count = came(&mut batch, &mut sending.peer, &mut came_back);
            for index in 0..count {
                let datagram = batch.get(index);
                let clock = &shared.common.clock;
                let taken = sending.peer.take(&datagram, now_ns, now_ns, clock);
                taken.unwrap();
                sending.drive(now_ns, &shared, &mut sent).unwrap();
            }
        }
        if !is_stopped && sending.wake_ns() <= now_ns {
            sent.woke(sending.wake_ns(), now_ns);
            if sending.peer.wake_ns <= now_ns {
                sending.peer.on_timer(at).unwrap();
            }
            sending.drive(now_ns, &shared, &mut sent).unwrap();
        }
        while came_there < sending.peer.sent {
            let count = came(&mut batch, &mut receiving.peer, &mut came_there);
            for index in 0..count {
                let datagram = batch.get(index);
                // Retransmissions come.
                let is_media = [Some(96), Some(108)].contains(&payload_type(datagram.bytes));
                media += u64::from(is_media);
                if !(is_media && is_lost(media)) {
                    let whole = (datagram.bytes.to_vec(), datagram.from, datagram.port);
                    waiting.push((whole, now_ns));
                }
            }
        }
        if now_ns < looks_ns {
            continue;
        }
        looks_ns = now_ns + every_ns;
        for ((bytes, from, port), came_ns) in waiting.drain(..) {
            let datagram = Datagram {
                bytes: &bytes,
                from,
                port,
                stamp_ns: 0,
                drops: None,
            };
            receiving
                .take(&datagram, came_ns, now_ns, &shared, &mut tally)
                .unwrap();
        }
        if receiving.peer.wake_ns <= now_ns {
            tally.woke(receiving.peer.wake_ns, now_ns);
            receiving.peer.on_timer(at).unwrap();
            receiving.drive(now_ns, &shared, &mut tally).unwrap();
        }
    }
    receiving.end_window(&shared, &mut tally);
    sending.end_window(&mut sent);
    (sent, tally)
}

/// What the other sent comes over loopback at once, or a moment later: no time of the test's own passes meanwhile.
fn came(batch: &mut Batch, peer: &mut Peer, in_all: &mut u64) -> usize {
    let fd = &peer.sockets().all()[0];
    assert!(sys::has_within(fd, libc::POLLIN, 60_000 * MS));
    let count = batch.receive(fd).unwrap();
    *in_all += count as u64;
    count
}

#[test]
fn all_that_is_sent_comes() {
    let (sent, tally) = received(|_| false);
    let (sent, counts) = (&sent.sent[0], &tally.received[0]);
    assert_eq!((counts.lost, counts.repaired, counts.freezes), (0, 0, 0));
    assert_eq!((sent.frames, sent.streams, counts.streams), (200, 1, 1));
    assert!(counts.expected.abs_diff(sent.packets) <= 4, "{counts:?}"); // a frame is on its way where the window ends
    assert!(counts.frames.abs_diff(200) <= 2, "{}", counts.frames);
    assert_eq!(counts.first_packet.total(), 1);
    assert!(tally.ice_rtt.total() > 0 && sent.rtt.total() > 0);
}

#[test]
fn frames_that_a_stop_kept_back_are_of_the_window_in_which_they_were_due() {
    let (sent, tally) = watched(|_| false, i64::MAX, MS, 3750 * MS..4100 * MS);
    let (sent, counts) = (&sent.sent[0], &tally.received[0]);
    assert!(counts.frozen_ns > 200 * MS, "{}", counts.frozen_ns);
    assert_eq!(sent.frames, 200, "each once");
    assert!(sent.late_frames.abs_diff(12) <= 1, "{}", sent.late_frames);
}

#[test]
fn who_is_woken_each_millisecond_is_never_woken_late() {
    let (sent, tally) = received(|_| false);
    for tally in [sent, tally] {
        assert!(tally.wakes > 4, "{}", tally.wakes);
        assert_eq!(tally.wakes_late, 0, "of {}", tally.wakes);
    }
}

#[test]
fn a_round_trip_does_not_hold_the_time_for_which_its_answer_or_another_datagram_waited_to_be_read()
{
    let (_, tally) = watched(|_| false, i64::MAX, 40 * MS, NEVER);
    assert!(tally.ice_rtt.total() > 0);
    let longest_ns = tally
        .ice_rtt
        .buckets()
        .map(|(_, upper_ns, _)| upper_ns)
        .max();
    assert!(longest_ns.unwrap() < 3 * MS as u64, "{longest_ns:?}");
}

#[test]
fn what_is_lost_is_asked_for_and_comes_again() {
    let (sent, tally) = received(|number| number % 20 == 0);
    let (sent, counts) = (&sent.sent[0], &tally.received[0]);
    assert!(
        counts.repaired > 5 && counts.nacks > 0 && sent.nacks > 0,
        "{}",
        counts.repaired
    );
    assert!(counts.lost <= 1, "{}", counts.lost);
    assert!(counts.frames.abs_diff(200) <= 20, "{}", counts.frames);
}

#[test]
fn all_that_is_asked_for_comes_again_however_much_it_is() {
    let (_, tally) = received(|number| number % 3 == 0);
    let counts = &tally.received[0];
    assert!(counts.repaired > 50, "{}", counts.repaired);
    assert!(counts.lost <= 2, "{} of {}", counts.lost, counts.expected);
}

#[test]
fn what_was_asked_for_of_who_sent_before_is_not_told_again() {
    let (sent, tally) = watched(|number| number % 20 == 0, 2000 * MS, MS, NEVER);
    let (sent, counts) = (&sent.sent[0], &tally.received[0]);
    assert!(
        counts.nacks > 0 && counts.nacks <= sent.nacks + 2,
        "{} {}",
        counts.nacks,
        sent.nacks
    );
    assert_eq!(counts.first_packet.total(), 2, "two streams");
}

#[test]
fn where_nothing_comes_for_a_while_a_key_frame_is_asked_for_and_the_film_goes_on() {
    let (sent, tally) = received(|number| (60..200).contains(&number));
    let (sent, counts) = (&sent.sent[0], &tally.received[0]);
    assert!(counts.freezes > 0 && counts.frozen_ns > 0);
    assert!(
        counts.lost > 0 && counts.frames > 50,
        "{} {}",
        counts.lost,
        counts.frames
    );
    assert!(sent.key_frames > 0);
}

#[test]
fn of_h264_too_what_is_lost_comes_again() {
    let film = Film::parsed(&h264::tests::ivf(50, 50, 5)).unwrap();
    assert_eq!(film.codec, Codec::H264);
    let (sent, tally) = watched_of(film, |number| number % 20 == 0, i64::MAX, MS, NEVER);
    let (sent, counts) = (&sent.sent[0], &tally.received[0]);
    assert!(counts.repaired > 5, "{}", counts.repaired);
    assert!(counts.lost <= 1, "{}", counts.lost);
    assert_eq!((sent.frames, sent.key_frames), (200, 40));
    assert!(counts.frames.abs_diff(200) <= 20, "{}", counts.frames);
    assert!(counts.key_frames.abs_diff(40) <= 5, "{}", counts.key_frames);
}

#[test]
fn of_h264_too_a_key_frame_comes_when_it_is_asked_for() {
    let film = Film::parsed(&h264::tests::ivf(50, 250, 250)).unwrap();
    // Of some two seconds nothing comes, and the first of it is too far back to come again; the film has one key frame.
    let is_lost = |number| (20..130).contains(&number);
    let (sent, tally) = watched_of(film, is_lost, i64::MAX, MS, NEVER);
    let (sent, counts) = (&sent.sent[0], &tally.received[0]);
    assert!(counts.key_frames_asked > 0, "{}", counts.lost);
    assert!(sent.key_frames_asked > 0);
    assert!(sent.key_frames > 0 && counts.key_frames > 0);
    assert!(counts.freezes > 0 && counts.lost > 0);
    assert!(counts.frames.abs_diff(66) <= 10, "{}", counts.frames);
}

#[test]
fn a_stream_that_is_yet_to_be_offered_is_waited_for_and_is_one_when_it_is() {
    let spec = spec();
    let role = Role {
        name: "webcam".into(),
        film: None,
        watches: true,
    };
    let roles = [role];
    let shared = shared(&spec, &roles);
    let begun_ns = sys::now_ns();
    let peer = Peer::new(&shared.common, false, begun_ns).unwrap();
    let mut receiving = Receiving::new(peer);
    let feed = |mid: &str| Feed {
        mid: mid.into(),
        sender: "1".into(),
        display: "virtoll 0 webcam".into(),
    };
    let mut tally = Tally::new(1);
    tally.span = Span {
        from_ns: begun_ns,
        until_ns: begun_ns + 1000 * MS,
    };
    receiving.heard(vec![feed("")], begun_ns, &shared).unwrap();
    receiving
        .heard(vec![feed("")], begun_ns + MS, &shared)
        .unwrap();
    assert!(!receiving.has_been_offered());
    // What is offered is somebody else's, and then it.
    let other = Feed {
        sender: "2".into(),
        ..feed("3")
    };
    let at_ns = begun_ns + 500 * MS;
    receiving
        .offered(vec![other.clone()], at_ns, at_ns, &shared, &mut tally)
        .unwrap();
    assert!(receiving.has_been_offered());
    receiving
        .offered(vec![other, feed("4")], at_ns, at_ns, &shared, &mut tally)
        .unwrap();
    receiving.end_window(&shared, &mut tally);
    let counts = &tally.received[0];
    assert_eq!((counts.streams, counts.watched_ns), (2, 0));
    assert_eq!(counts.waiting_ns, (1000 + 500) * MS);
    // A server that goes on telling of others would have all memory.
    let many = (0..MOST_FEEDS).map(|number| Feed {
        sender: format!("many {number}"),
        ..feed("")
    });
    let told = receiving.heard(many.collect(), at_ns, &shared);
    assert_eq!(told, Err(Failure::Signalling));
}
