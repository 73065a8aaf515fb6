use proptest::prelude::*;

use super::*;
use crate::rtmp::amf::Said;
use crate::rtmp::kind;
use crate::rtmp::media::marked;
use crate::rtmp::write::{self, Head};
use crate::view::player::{Player, Rules, Watched};
use crate::view::protocol::{looks_up_by_itself, Seen};

const SECOND: i64 = 1_000_000_000;
const MARK: &str = "0123456789abcdef";
const RULES: Rules = Rules {
    paced: true,
    startup_ns: SECOND,
    resume_ns: SECOND,
    buffer_ns: 4 * SECOND,
    patience_ns: 10 * SECOND,
};

fn played(is_live: bool, duration_ns: Option<i64>) -> Played {
    let play = Play {
        application: "vod".into(),
        stream: "film".into(),
        live: is_live,
        duration_ns,
        gap_ns: SECOND / 4,
        mark: Some(MARK.into()),
    };
    play.checked("rtmp://h:1/vod").unwrap()
}

/// A viewer, and what it wants and gets by hand.
struct Watching<'a> {
    viewer: Rtmp<'a>,
    player: Player,
    watched: Watched,
    seen: Seen,
}

impl<'a> Watching<'a> {
    fn new(played: &'a Played, rules: Rules) -> Self {
        Watching {
            viewer: Rtmp::new(played, 1),
            player: Player::new(rules, 0),
            watched: Watched::within(0, i64::MAX),
            seen: Seen::default(),
        }
    }

    fn with<R>(&mut self, ns: i64, act: impl FnOnce(&mut Rtmp<'a>, &mut Now) -> R) -> R {
        self.player.advance(ns, &mut self.watched);
        let (player, watched, seen) = (&mut self.player, &mut self.watched, &mut self.seen);
        let mut now = Now {
            ns,
            player,
            watched,
            seen,
        };
        act(&mut self.viewer, &mut now)
    }

    fn want(&mut self, ns: i64) -> Want {
        self.with(ns, |viewer, now| viewer.want(now))
    }

    fn take(&mut self, ns: i64, input: &[u8]) -> Result<(), Failure> {
        self.with(ns, |viewer, now| viewer.take(input, now))
    }

    /// One that has asked for its stream.
    fn begun(played: &'a Played, rules: Rules) -> Self {
        let mut watching = Watching::new(played, rules);
        assert_eq!(watching.want(0), Want::Connect);
        assert!(matches!(watching.want(0), Want::Say(_)));
        assert_eq!(watching.want(0), Want::Read(READ_BYTES));
        watching.take(0, &begin()).unwrap();
        let Want::Say(said) = watching.want(0) else {
            panic!("it asks")
        };
        assert!(said.windows(4).any(|bytes| bytes == b"film"));
        watching
    }
}

/// A server's handshake, and its answers until the stream is there.
fn begin() -> Vec<u8> {
    let connected = Said::command("_result", 1.0).null().null();
    let created = Said::command("_result", 2.0).null().number(1.0);
    let mut said = vec![3; 1 + 2 * 1536];
    said.extend(message(kind::COMMAND, 0, &connected.0));
    said.extend(message(kind::COMMAND, 0, &created.0));
    said
}

fn message(kind: u8, timestamp: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let head = Head {
        chunks: kind.min(20),
        kind,
        stream: 1,
        timestamp,
    };
    write::message(&mut out, head, payload, 128);
    out
}

fn video(timestamp: u32) -> Vec<u8> {
    let first = if timestamp.is_multiple_of(1000) {
        0x17
    } else {
        0x27
    };
    message(
        kind::VIDEO,
        timestamp,
        &[&[first, 1, 0, 0, 0][..], &[7; 495]].concat(),
    )
}

/// Ten frames a second, from a time to another.
fn film(from_ms: u32, until_ms: u32) -> Vec<u8> {
    (from_ms..until_ms).step_by(100).flat_map(video).collect()
}

fn end() -> Vec<u8> {
    message(kind::USER_CONTROL, 0, &[0, 1, 0, 0, 0, 1])
}

#[test]
fn paced_it_reads_its_buffer_full_and_then_as_it_plays() {
    let played = played(false, Some(10 * SECOND));
    let mut watching = Watching::begun(&played, RULES);
    watching.take(0, &film(0, 3000)).unwrap();
    assert_eq!(watching.want(0), Want::Read(READ_BYTES), "2.9 s are there");
    watching.take(0, &film(3000, 4100)).unwrap();
    assert_eq!(watching.want(0), Want::Pause(SECOND / 2));
    assert_eq!(watching.want(SECOND / 4), Want::Pause(SECOND / 2));
    assert_eq!(watching.want(SECOND / 2), Want::Read(READ_BYTES));
    watching.take(SECOND / 2, &film(4100, 4400)).unwrap();
    assert_eq!(
        watching.want(SECOND / 2),
        Want::Read(READ_BYTES),
        "until it is full again"
    );
    watching.take(SECOND / 2, &film(4400, 10_000)).unwrap();
    watching.take(SECOND / 2, &end()).unwrap();
    assert_eq!(watching.want(SECOND / 2), Want::Nothing);
    watching.want(20 * SECOND);
    assert_eq!(watching.watched.media_ns, 99 * SECOND / 10);
    assert_eq!((watching.watched.stalls, watching.seen.answers), (0, 1));
    assert_eq!(
        (watching.seen.messages, watching.seen.media_bytes),
        (100, 50_000)
    );
}

#[test]
fn unpaced_or_live_it_reads_on() {
    let (vod, live) = (played(false, None), played(true, None));
    let unpaced = Rules {
        paced: false,
        ..RULES
    };
    for mut watching in [
        Watching::begun(&vod, unpaced),
        Watching::begun(&live, RULES),
    ] {
        watching.take(0, &film(0, 20_000)).unwrap();
        assert_eq!(watching.want(0), Want::Read(READ_BYTES));
    }
}

#[test]
fn a_stream_that_is_cut_is_a_failure() {
    for (duration, until_ms, told) in [
        (Some(10), 10_000, Ok(())),
        (Some(10), 9900, Ok(())), // less than a gap is missing
        (Some(10), 9700, Err(Failure::Length)),
        (None, 9700, Ok(())), // nobody knows
        (None, 0, Err(Failure::Length)),
    ] {
        let played = played(false, duration.map(|seconds| seconds * SECOND));
        let mut watching = Watching::begun(&played, RULES);
        watching.take(0, &film(0, until_ms)).unwrap();
        assert_eq!(watching.take(0, &end()), told, "{duration:?} {until_ms}");
        // It may say so more than once.
        assert_eq!(watching.take(0, &end()), told);
    }
    let live = played(true, None);
    let mut watching = Watching::begun(&live, RULES);
    watching.take(0, &film(0, 5000)).unwrap();
    assert_eq!(
        watching.take(0, &end()),
        Err(Failure::Length),
        "what is live does not end"
    );
}

#[test]
fn who_closes_before_the_end_cuts_the_stream() {
    let played = played(false, Some(SECOND));
    let closed = |watching: &mut Watching| watching.with(0, |viewer, now| viewer.closed(now));
    assert_eq!(
        closed(&mut Watching::new(&played, RULES)),
        Err(Failure::Reset)
    );
    let mut watching = Watching::begun(&played, RULES);
    watching.take(0, &film(0, 1000)).unwrap();
    assert_eq!(closed(&mut watching), Err(Failure::Length));
}

#[test]
fn timestamps_that_go_back_or_leave_a_gap_are_failures() {
    let played = played(false, None);
    for wrong in [800, 1260] {
        let mut watching = Watching::begun(&played, RULES);
        watching.take(0, &film(0, 1100)).unwrap();
        assert_eq!(
            watching.take(0, &video(wrong)),
            Err(Failure::Timestamps),
            "{wrong} ms"
        );
    }
}

#[test]
fn who_joins_a_live_stream_plays_from_a_key_frame_on() {
    let played = played(true, None);
    let mut watching = Watching::begun(&played, RULES);
    watching.take(0, &film(500, 2000)).unwrap();
    assert_eq!(watching.player.got_ns(), 9 * SECOND / 10);
    watching.take(0, &film(2000, 2200)).unwrap();
    assert!(watching.player.has_started());
}

#[test]
fn the_age_of_live_media_is_that_of_its_publishers_marks() {
    let played = played(true, None);
    let mut watching = Watching::begun(&played, RULES);
    let mark = mark_of(MARK).unwrap();
    let key = [
        &[0x17, 1, 0, 0, 0][..],
        &marked(&mark, 3 * SECOND),
        b"slice",
    ]
    .concat();
    watching
        .take(5 * SECOND, &message(kind::VIDEO, 0, &key))
        .unwrap();
    watching.take(6 * SECOND, &film(100, 200)).unwrap();
    let seen = &watching.seen;
    assert_eq!((seen.ages, seen.age_ns), (1, 2 * SECOND));
    assert!(mark_of("too short").is_err());
    assert!(mark_of("no plain letter!").is_err());
}

#[test]
fn who_waits_for_what_comes_looks_up_by_itself_several_times_a_second() {
    for is_live in [true, false] {
        let played = played(is_live, None);
        let mut watching = Watching::begun(&played, RULES);
        looks_up_by_itself(|now_ns| {
            assert_eq!(watching.want(now_ns), Want::Read(READ_BYTES));
            watching.viewer.wakes_ns()
        });
    }
    let film_of_all = played(false, None);
    let mut watching = Watching::begun(&film_of_all, RULES);
    watching.take(0, &film(0, 5000)).unwrap();
    assert!(matches!(watching.want(0), Want::Pause(_)));
    assert_eq!(watching.viewer.wakes_ns(), i64::MAX, "it has its times");
    watching.take(0, &end()).unwrap();
    assert_eq!(watching.want(0), Want::Nothing);
    assert_eq!(watching.viewer.wakes_ns(), i64::MAX, "nothing more comes");
}

proptest! {
    #[test]
    fn whatever_the_cuts_the_same_media_come(cuts in prop::collection::vec(1usize..3000, 1..20)) {
        let played = played(false, Some(3 * SECOND));
        let input = [film(0, 3000), end()].concat();
        let mut whole = Watching::begun(&played, RULES);
        whole.take(0, &input).unwrap();
        let (mut watching, mut rest) = (Watching::begun(&played, RULES), &input[..]);
        for cut in cuts.iter().cycle() {
            let (part, more) = rest.split_at((*cut).min(rest.len()));
            watching.take(0, part).unwrap();
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(watching.seen, whole.seen);
        prop_assert_eq!(watching.player.got_ns(), whole.player.got_ns());
    }

    #[test]
    fn whatever_comes_it_goes_on_or_fails(input in prop::collection::vec(any::<u8>(), 0..3000), cut in 1usize..500) {
        let played = played(true, None);
        let mut watching = Watching::begun(&played, RULES);
        for part in input.chunks(cut) {
            if watching.take(0, part).is_err() {
                break;
            }
            watching.want(0);
        }
        prop_assert!(watching.player.got_ns() >= 0);
    }
}
