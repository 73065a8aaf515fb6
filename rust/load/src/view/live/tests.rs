use std::net::{Ipv4Addr, SocketAddrV4};

use proptest::prelude::*;

use super::*;
use crate::view::player::{Player, Rules, Watched};
use crate::view::protocol::Seen;
use crate::view::text::text;

const SECOND: i64 = 1_000_000_000;
const PART: i64 = SECOND / 2;
const RULES: Rules = Rules {
    paced: true,
    startup_ns: SECOND,
    resume_ns: SECOND,
    buffer_ns: 8 * SECOND,
    patience_ns: 20 * SECOND,
};

fn source(clock: Option<Clock>) -> Source {
    Source {
        site: Site {
            authority: "h:1".into(),
            proxy: false,
        },
        path: "/m.m3u8".into(),
        text: true,
        clock,
    }
}

/// What a server can do.
#[derive(Clone, Copy)]
struct Server {
    blocks: bool,
    hints: bool,
    parts: bool,
}

const ABLE: Server = Server {
    blocks: true,
    hints: true,
    parts: true,
};

impl Server {
    /// Its playlist when so many parts of half a second and 100 bytes, four to a segment, are there since 1970.
    fn playlist(self, parts: u64) -> String {
        let control = if self.blocks {
            "CAN-BLOCK-RELOAD=YES,"
        } else {
            ""
        };
        let inf = if self.parts {
            "#EXT-X-PART-INF:PART-TARGET=0.5\n"
        } else {
            ""
        };
        let first = (parts / 4).saturating_sub(3);
        let mut text = format!(
            "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-SERVER-CONTROL:{control}PART-HOLD-BACK=1.5\n{inf}\
             #EXT-X-MEDIA-SEQUENCE:{first}\n"
        );
        for sequence in first..=parts / 4 {
            text += &format!(
                "#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:00:{:02}Z\n",
                2 * sequence
            );
            for part in (4 * sequence..parts.min(4 * sequence + 4)).filter(|_| self.parts) {
                let uri = uri(part);
                text += &format!("#EXT-X-PART:DURATION=0.5,URI=\"{uri}\",INDEPENDENT=YES\n");
            }
            if sequence < parts / 4 {
                text += &format!(
                    "#EXTINF:2,\n/o/{}-{}\n",
                    sequence * 400,
                    sequence * 400 + 400
                );
            }
        }
        if self.hints {
            text += &format!("#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"{}\"\n", uri(parts));
        }
        text
    }
}

fn uri(part: u64) -> String {
    format!("/o/{}-{}?until=7", part * 100, part * 100 + 100)
}

fn body(part: u64) -> Vec<u8> {
    text(part * 100, part * 100 + 100)
}

/// A viewer, and what it wants and gets by hand.
struct Watching<'a> {
    viewer: LowLatency<'a>,
    player: Player,
    watched: Watched,
    seen: Seen,
}

impl<'a> Watching<'a> {
    fn new(source: &'a Source) -> Self {
        Watching {
            viewer: LowLatency::new(source, Rc::default()),
            player: Player::new(RULES, 0),
            watched: Watched::within(0, i64::MAX),
            seen: Seen::default(),
        }
    }

    fn with<R>(&mut self, ns: i64, act: impl FnOnce(&mut LowLatency<'a>, &mut Now) -> R) -> R {
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

    /// The path that is asked for.
    fn asks(&mut self, ns: i64) -> String {
        let mut want = self.want(ns);
        if want == Want::Connect {
            want = self.want(ns);
        }
        let Want::Send(request) = want else {
            panic!("{want:?}")
        };
        let request = String::from_utf8(request).unwrap();
        request.split(' ').nth(1).unwrap().to_owned()
    }

    fn gets(&mut self, ns: i64, body: &[u8]) -> Result<(), Failure> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let whole = [head.as_bytes(), body].concat();
        self.with(ns, |viewer, now| viewer.take(&whole, now))
    }

    fn gets_playlist(&mut self, ns: i64, playlist: &str) {
        self.gets(ns, playlist.as_bytes()).unwrap();
    }

    /// Join where 21 parts are there, and fetch those that it begins with.
    fn joins(&mut self, server: Server, ns: i64) {
        assert_eq!(self.asks(ns), "/m.m3u8");
        self.gets_playlist(ns, &server.playlist(21));
        for part in 18..21 {
            assert_eq!(self.asks(ns), uri(part), "PART-HOLD-BACK from the end");
            self.gets(ns, &body(part)).unwrap();
        }
    }
}

#[test]
fn at_the_edge_a_part_is_asked_for_before_it_is_there_and_counts_when_it_is_listed() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    assert!(watching.player.has_started());
    for part in 21..30 {
        let at_ns = (part as i64 - 20) * PART;
        assert_eq!(watching.asks(at_ns - PART), uri(part), "what is hinted at");
        watching.gets(at_ns, &body(part)).unwrap();
        let got_ns = watching.player.got_ns();
        assert_eq!(
            watching.asks(at_ns),
            format!("/m.m3u8?_HLS_msn={}&_HLS_part={}", part / 4, part % 4)
        );
        watching.gets_playlist(at_ns, &ABLE.playlist(part + 1));
        assert_eq!(watching.player.got_ns(), got_ns);
        watching.want(at_ns); // now it looks for what is next, and finds that it has it
        assert_eq!(watching.player.got_ns(), got_ns + PART);
        // What it wanted is to be seen again by the next turn.
        let request = watching.viewer.asking.request.as_ref().unwrap();
        watching.viewer.asking.unsent = Some(request.bytes.clone());
    }
    assert_eq!(watching.watched.stalls, 0);
    assert_eq!(
        (
            watching.seen.live.hinted,
            watching.seen.segments,
            watching.seen.skipped
        ),
        (9, 12, 0)
    );
    assert_eq!(watching.seen.live.reloads, 10);
}

#[test]
fn without_hints_a_playlist_is_held_back_until_it_has_the_part_that_is_next() {
    let source = source(None);
    let server = Server {
        hints: false,
        ..ABLE
    };
    let mut watching = Watching::new(&source);
    watching.joins(server, 0);
    for (parts, asked) in [
        (22, "_HLS_msn=5&_HLS_part=1"),
        (23, "_HLS_msn=5&_HLS_part=2"),
        (25, "_HLS_msn=5&_HLS_part=3"), // later than was asked for
        (26, "_HLS_msn=6&_HLS_part=1"),
    ] {
        assert_eq!(watching.asks(PART), format!("/m.m3u8?{asked}"));
        watching.gets_playlist(PART, &server.playlist(parts));
        let next = watching.viewer.last.as_ref().unwrap().at;
        let first = next.sequence * 4 + u64::from(next.part) + 1;
        for part in first..parts {
            assert_eq!(watching.asks(PART), uri(part));
            watching.gets(PART, &body(part)).unwrap();
        }
    }
    assert_eq!(watching.seen.live.hinted, 0);
}

#[test]
fn a_server_that_does_not_hold_back_is_asked_again_as_rarely_as_it_should() {
    let source = source(None);
    let polls = Server {
        blocks: false,
        hints: false,
        parts: true,
    };
    let mut watching = Watching::new(&source);
    watching.joins(polls, 0);
    assert_eq!(watching.want(0), Want::Idle(PART), "a part target");
    assert_eq!(watching.asks(PART), "/m.m3u8");
    watching.gets_playlist(PART, &polls.playlist(21));
    assert_eq!(
        watching.want(PART),
        Want::Idle(PART + PART / 2),
        "half of one"
    );
    assert_eq!(watching.asks(2 * PART), "/m.m3u8");
    watching.gets_playlist(2 * PART, &polls.playlist(22));
    assert_eq!(watching.asks(2 * PART), uri(21));
}

#[test]
fn a_server_that_says_it_holds_back_and_does_not_is_not_asked_without_end() {
    let source = source(None);
    let server = Server {
        hints: false,
        ..ABLE
    };
    let mut watching = Watching::new(&source);
    watching.joins(server, 0);
    watching.asks(0);
    watching.gets_playlist(0, &server.playlist(21));
    assert_eq!(watching.want(0), Want::Idle(LEAST_RELOAD_NS));
}

#[test]
fn a_server_that_says_something_else_each_time_and_nothing_new_is_not_asked_without_end() {
    let source = source(None);
    let server = Server {
        hints: false,
        ..ABLE
    };
    let mut watching = Watching::new(&source);
    watching.joins(server, 0);
    watching.asks(0);
    let other = server.playlist(21).replace(&uri(9), "/o/7");
    watching.gets_playlist(0, &other);
    assert_eq!(watching.want(0), Want::Idle(LEAST_RELOAD_NS));
}

#[test]
fn whatever_target_duration_is_told_media_are_asked_for_too() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.asks(0);
    let playlist = ABLE.playlist(21);
    let line = "#EXT-X-TARGETDURATION:2\n";
    assert!(playlist.contains(line));
    let playlist = playlist.replace(line, "#EXT-X-TARGETDURATION:0.001\n");
    watching.gets_playlist(0, &playlist);
    assert_eq!(watching.asks(SECOND / 100), uri(18));
}

#[test]
fn without_parts_segments_are_watched() {
    let source = source(None);
    let server = Server {
        blocks: true,
        hints: false,
        parts: false,
    };
    let mut watching = Watching::new(&source);
    watching.asks(0);
    watching.gets_playlist(0, &server.playlist(21));
    for sequence in 2..5 {
        assert_eq!(
            watching.asks(0),
            format!("/o/{}-{}", sequence * 400, sequence * 400 + 400)
        );
        let segment = text(sequence * 400, sequence * 400 + 400);
        watching.gets(0, &segment).unwrap();
    }
    assert_eq!(watching.asks(0), "/m.m3u8?_HLS_msn=5");
}

#[test]
fn what_a_hint_brought_is_thrown_away_where_another_part_is_listed() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    watching.asks(0);
    watching.gets(PART, &body(21)).unwrap();
    watching.asks(PART);
    let other = ABLE.playlist(22).replace(&uri(21), "/o/5-105?until=7");
    watching.gets_playlist(PART, &other);
    assert_eq!(watching.asks(PART), "/o/5-105?until=7");
}

/// The answer of a server that has no such thing, whose body comes by itself.
fn lacks(watching: &mut Watching, ns: i64) -> Result<(), Failure> {
    let head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot ";
    watching.with(ns, |viewer, now| viewer.take(head, now))?;
    watching.with(ns, |viewer, now| viewer.take(b"there", now))
}

#[test]
fn a_hint_need_not_be_kept_the_playlist_tells_what_came_instead() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    let media_bytes = watching.seen.media_bytes;
    assert_eq!(watching.asks(0), uri(21), "what is hinted at");
    assert_eq!(lacks(&mut watching, 0), Ok(()));
    assert_eq!(watching.asks(0), "/m.m3u8?_HLS_msn=5&_HLS_part=1");
    watching.gets_playlist(PART, &ABLE.playlist(21));
    assert_eq!(
        watching.want(PART),
        Want::Idle(PART + LEAST_RELOAD_NS),
        "the same hint is not asked for again"
    );
    assert_eq!(watching.asks(2 * PART), "/m.m3u8?_HLS_msn=5&_HLS_part=1");
    watching.gets_playlist(2 * PART, &ABLE.playlist(22));
    assert_eq!(watching.asks(2 * PART), uri(21), "it is listed at last");
    watching.gets(2 * PART, &body(21)).unwrap();
    assert_eq!(watching.asks(2 * PART), uri(22), "another hint");
    let live = &watching.seen.live;
    assert_eq!((live.unkept, live.hinted, watching.seen.skipped), (1, 0, 0));
    assert_eq!(watching.seen.media_bytes, media_bytes + 100);
}

#[test]
fn what_is_listed_must_be_there_and_a_hint_is_right_or_missing() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.asks(0);
    watching.gets_playlist(0, &ABLE.playlist(21));
    assert_eq!(watching.asks(0), uri(18));
    assert_eq!(lacks(&mut watching, 0), Err(Failure::Status));
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    watching.asks(0);
    let gone = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let told = watching.with(0, |viewer, now| viewer.take(gone, now));
    assert_eq!(told, Err(Failure::Status));
}

#[test]
fn a_part_of_nothing_is_no_media_whether_it_was_listed_or_hinted_at() {
    let source = Source {
        text: false,
        ..source(None)
    };
    let mut watching = Watching::new(&source);
    watching.asks(0);
    watching.gets_playlist(0, &ABLE.playlist(21));
    assert_eq!(watching.asks(0), uri(18));
    assert_eq!(watching.gets(0, b""), Err(Failure::Length));
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    assert_eq!(watching.asks(0), uri(21), "what is hinted at");
    assert_eq!(watching.gets(0, b""), Err(Failure::Length));
}

#[test]
fn who_has_paused_goes_on_at_the_live_edge() {
    let source = source(Some(Clock::known(10 * SECOND + PART)));
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    watching.asks(0);
    assert!(!watching.viewer.is_idle());
    watching.gets(PART, &body(21)).unwrap();
    assert!(watching.viewer.is_idle());
    watching.viewer.resume();
    let later_ns = 20 * PART;
    assert_eq!(watching.asks(later_ns), "/m.m3u8");
    watching.gets_playlist(later_ns, &ABLE.playlist(41));
    for part in 38..41 {
        assert_eq!(watching.asks(later_ns), uri(part));
        watching.gets(later_ns, &body(part)).unwrap();
    }
    assert_eq!(watching.asks(later_ns), uri(41), "what is hinted at");
    assert_eq!((watching.seen.skipped, watching.seen.ages), (0, 0));
}

#[test]
fn ages_are_told_of_parts_that_were_waited_for_by_the_servers_clock() {
    // It is 10.5 s after 1970 there when it is 0 here: the end of the last of the first 21 parts.
    let clock = Clock::known(10 * SECOND + PART);
    let source = source(Some(clock));
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, SECOND / 10);
    let seen = &watching.seen;
    assert_eq!(
        seen.ages, 0,
        "what was there before it came was not waited for"
    );
    // Play began with the second part; at 0.1 s the play head is 1.5 s before the end of the parts, which is 0.1 s ago.
    let told: Vec<_> = seen.live.latencies.buckets().collect();
    assert!(
        matches!(told[..], [(lower, upper, 2)] if (lower..upper).contains(&1_600_000_000)),
        "{told:?}"
    );
    watching.asks(SECOND / 10);
    watching.gets(PART + SECOND / 5, &body(21)).unwrap();
    watching.asks(PART + SECOND / 5);
    watching.gets_playlist(PART + SECOND / 4, &ABLE.playlist(22));
    watching.want(PART + SECOND / 4);
    assert_eq!(
        (watching.seen.ages, watching.seen.age_ns),
        (1, SECOND / 4),
        "when it is listed"
    );
    let (lower, upper, _) = watching.seen.live.ages.buckets().next().unwrap();
    assert!((lower..upper).contains(&(SECOND as u64 / 4)));
}

#[test]
fn live_latency_is_the_age_of_what_is_played() {
    let source = source(Some(Clock::known(10 * SECOND + PART)));
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, SECOND / 10);
    for part in 21..25 {
        let at_ns = (part as i64 - 20) * PART + SECOND / 5;
        watching.asks(at_ns - 1);
        watching.gets(at_ns, &body(part)).unwrap();
        watching.asks(at_ns);
        watching.seen.live.latencies.clear();
        watching.gets_playlist(at_ns, &ABLE.playlist(part + 1));
        watching.want(at_ns);
        let told: Vec<_> = watching.seen.live.latencies.buckets().collect();
        // It began to play at 0.1 s, 1.5 s before the edge, and nothing has stalled.
        assert!(
            matches!(told[..], [(lower, upper, 1)] if (lower..upper).contains(&1_600_000_000)),
            "{told:?}"
        );
        let request = watching.viewer.asking.request.as_ref().unwrap();
        watching.viewer.asking.unsent = Some(request.bytes.clone());
    }
}

#[test]
fn a_viewer_looks_up_once_in_a_part_target_whatever_comes() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    watching.asks(PART);
    for at_ns in [PART, 2 * PART - 1, 2 * PART, 7 * PART] {
        assert!(matches!(watching.want(at_ns), Want::Read(_)));
        let due_ns = watching.viewer.wakes_ns();
        assert!(at_ns < due_ns && due_ns <= at_ns + PART);
    }
}

#[test]
fn without_a_clock_no_age_is_told() {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    for clock in [None, Some(Clock::new(address, Vec::new(), 1))] {
        let source = source(clock);
        let mut watching = Watching::new(&source);
        watching.joins(ABLE, 0);
        assert_eq!(watching.seen.live.latencies.total(), 0);
    }
}

#[test]
fn of_what_is_there_before_it_was_made_no_age_is_told() {
    // It is 8 s after 1970 there, when what ends at 10.5 s is listed: its dates are another clock's.
    let source = source(Some(Clock::known(8 * SECOND)));
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    watching.asks(0);
    watching.gets(PART, &body(21)).unwrap();
    watching.asks(PART);
    watching.gets_playlist(PART, &ABLE.playlist(22));
    watching.want(PART);
    assert_eq!((watching.seen.segments, watching.seen.ages), (4, 0));
    assert_eq!(watching.seen.live.ages.total(), 0);
    assert_eq!(watching.seen.live.latencies.total(), 0);
}

#[test]
fn who_is_late_begins_anew_where_the_playlist_does_and_what_is_missing_is_counted() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.joins(ABLE, 0);
    watching.asks(0);
    watching.gets(30 * SECOND, &body(21)).unwrap();
    assert_eq!(
        watching.asks(30 * SECOND),
        "/m.m3u8",
        "what an old one lists may be gone"
    );
    watching.gets_playlist(30 * SECOND, &ABLE.playlist(81));
    assert_eq!(watching.asks(30 * SECOND), uri(68));
    watching.gets(30 * SECOND, &body(68)).unwrap();
    assert_eq!(watching.seen.skipped, 12);
}

#[test]
fn what_is_wrong_is_told_by_kind() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.asks(0);
    watching.gets_playlist(0, &ABLE.playlist(21));
    watching.asks(0);
    assert_eq!(watching.gets(0, &body(17)), Err(Failure::Content));
    for (playlist, failure) in [
        ("<html>".to_owned(), Failure::Parse),
        (
            "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-ENDLIST\n".to_owned(),
            Failure::Parse,
        ),
        (
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=8\nhttp://other/x\n".to_owned(),
            Failure::Parse,
        ),
        (
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=8\nm.m3u8\n".to_owned(),
            Failure::Parse,
        ),
    ] {
        let mut watching = Watching::new(&source);
        watching.asks(0);
        assert_eq!(watching.gets(0, playlist.as_bytes()), Err(failure));
    }
    for (uri, failure) in [
        ("/p/1", Failure::Content),
        ("http://other/o/1", Failure::Parse),
    ] {
        let mut watching = Watching::new(&source);
        watching.asks(0);
        let playlist = ABLE.playlist(21).replace(&super::tests::uri(18), uri);
        watching.gets_playlist(0, &playlist);
        assert_eq!(watching.want(0), Want::Fail(failure));
    }
}

#[test]
fn a_master_leads_to_its_best_quality_and_an_end_ends() {
    let source = source(None);
    let mut watching = Watching::new(&source);
    watching.asks(0);
    let master =
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=8\na/x\n#EXT-X-STREAM-INF:BANDWIDTH=9\nb/x?q=1\n";
    watching.gets_playlist(0, master);
    assert_eq!(watching.asks(0), "/b/x?q=1");
    let server = Server {
        hints: false,
        ..ABLE
    };
    watching.gets_playlist(0, &server.playlist(21));
    for part in 18..21 {
        watching.asks(0);
        watching.gets(0, &body(part)).unwrap();
    }
    assert_eq!(watching.asks(0), "/b/x?q=1&_HLS_msn=5&_HLS_part=1");
    let ended = server.playlist(21) + "#EXT-X-ENDLIST\n";
    watching.gets_playlist(0, &ended);
    assert_eq!(watching.want(0), Want::Nothing);
    watching.want(9 * SECOND);
    assert_eq!(
        (watching.watched.media_ns, watching.watched.stalls),
        (3 * PART, 0)
    );
}

proptest! {
    /// Playlists that jump about, parts that are cut, answers that are none: a viewer goes on, waits or fails.
    #[test]
    fn whatever_a_server_says_a_viewer_goes_on_waits_or_fails(
        blocks: bool, hints: bool, parts: bool,
        answers in prop::collection::vec((0u64..60, 0i64..3 * SECOND, prop_oneof![
            8 => Just(Vec::new()), 1 => prop::collection::vec(any::<u8>(), 1..40)
        ]), 1..40),
    ) {
        let source = Source { text: false, ..source(Some(Clock::known(10 * SECOND))) };
        let server = Server { blocks, hints, parts };
        let (mut watching, mut ns) = (Watching::new(&source), 0);
        for (edge, later_ns, junk) in answers {
            ns += later_ns;
            match watching.want(ns) {
                Want::Connect | Want::Send(_) | Want::Idle(_) => continue,
                Want::Read(_) => {}
                other => {
                    prop_assert_eq!(other, Want::Fail(Failure::Parse));
                    break;
                }
            }
            let request = &watching.viewer.asking.request.as_ref().unwrap().bytes;
            let told = match request.starts_with(b"GET /m.m3u8") {
                _ if !junk.is_empty() => watching.with(ns, |viewer, now| viewer.take(&junk, now)),
                true => watching.gets(ns, server.playlist(edge).as_bytes()),
                false => watching.gets(ns, b"media"),
            };
            if told.is_err() {
                break;
            }
        }
    }
}
