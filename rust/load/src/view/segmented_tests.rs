use proptest::prelude::*;

use super::*;
use crate::view::player::{Player, Rules, Status, Watched};
use crate::view::protocol::{looks_up_by_itself, Seen};
use crate::view::text::text;

const SECOND: i64 = 1_000_000_000;
const RULES: Rules = Rules {
    paced: true,
    startup_ns: 2 * SECOND,
    resume_ns: 2 * SECOND,
    buffer_ns: 8 * SECOND,
    patience_ns: 20 * SECOND,
};

fn stream(quality: Quality) -> Stream {
    let site = Site {
        authority: "h:1".into(),
        proxy: false,
    };
    let path = "/m/index.m3u8".into();
    Stream {
        site,
        path,
        format: Format::Hls,
        quality,
        text: true,
    }
}

/// A viewer, and what it wants and gets by hand.
struct Watching<'a> {
    viewer: Segmented<'a>,
    player: Player,
    watched: Watched,
    seen: Seen,
}

impl<'a> Watching<'a> {
    fn new(stream: &'a Stream) -> Self {
        Watching {
            viewer: Segmented::new(stream, Rc::default(), 1),
            player: Player::new(RULES, 0),
            watched: Watched::within(0, i64::MAX),
            seen: Seen::default(),
        }
    }

    fn with<R>(&mut self, ns: i64, act: impl FnOnce(&mut Segmented<'a>, &mut Now) -> R) -> R {
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
        assert!(matches!(self.want(ns), Want::Read(_)));
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
}

/// Segments of 2 s and 1000 bytes, from number `first` on.
fn playlist(first: u64, count: u64, ended: bool) -> String {
    let segments: String = (first..first + count)
        .map(|number| {
            format!(
                "#EXTINF:2,\n/o/{}-{}\n",
                number * 1000,
                number * 1000 + 1000
            )
        })
        .collect();
    let end = if ended { "#EXT-X-ENDLIST\n" } else { "" };
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:{first}\n{segments}{end}")
}

fn segment(number: u64) -> Vec<u8> {
    text(number * 1000, number * 1000 + 1000)
}

/// A viewer that a slow server keeps waiting is held up by a generator that looks late, too: that is to be known.
#[test]
fn while_an_answer_is_to_come_it_looks_up_by_itself_several_times_a_second() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    let now_ns = looks_up_by_itself(|now_ns| {
        assert!(matches!(watching.want(now_ns), Want::Read(_)));
        watching.viewer.wakes_ns()
    });
    watching.gets_playlist(now_ns, &playlist(0, 6, true));
    for number in 0..4 {
        watching.asks(now_ns);
        watching.gets(now_ns, &segment(number)).unwrap();
    }
    assert!(matches!(watching.want(now_ns), Want::Idle(_)));
    assert_eq!(watching.viewer.wakes_ns(), i64::MAX, "it has its times");
}

#[test]
fn on_demand_segments_come_as_they_fit_into_the_buffer_to_the_end() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    assert_eq!(watching.want(0), Want::Connect);
    assert_eq!(watching.asks(0), "/m/index.m3u8");
    watching.gets_playlist(0, &playlist(0, 6, true));
    for number in 0..4 {
        assert_eq!(
            watching.asks(0),
            format!("/o/{}-{}", number * 1000, number * 1000 + 1000)
        );
        watching.gets(0, &segment(number)).unwrap();
    }
    assert_eq!(watching.want(0), Want::Idle(2 * SECOND));
    for number in 4..6 {
        let at_ns = (number as i64 - 3) * 2 * SECOND;
        watching.asks(at_ns);
        watching.gets(at_ns, &segment(number)).unwrap();
    }
    assert_eq!(watching.want(4 * SECOND), Want::Nothing);
    watching.want(100 * SECOND);
    assert_eq!(
        (watching.watched.media_ns, watching.watched.stalls),
        (12 * SECOND, 0)
    );
    assert_eq!(
        (
            watching.seen.segments,
            watching.seen.answers,
            watching.seen.media_bytes
        ),
        (6, 7, 6000)
    );
}

#[test]
fn a_segment_counts_when_it_is_whole_and_must_be_the_right_one() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &playlist(0, 6, true));
    watching.asks(0);
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
    let part = [head, segment(0)[..999].to_vec()].concat();
    watching
        .with(0, |viewer, now| viewer.take(&part, now))
        .unwrap();
    assert!(!watching.player.has_started());
    watching
        .with(1, |viewer, now| viewer.take(&segment(0)[999..], now))
        .unwrap();
    assert!(watching.player.has_started());
    watching.asks(1);
    assert_eq!(watching.gets(1, &segment(2)), Err(Failure::Content));
    assert_eq!(
        Watching::new(&stream).with(0, |viewer, now| viewer.take(b"x", now)),
        Err(Failure::Parse)
    );
}

/// It played for as long as the playlist said, and nobody saw anything.
#[test]
fn a_segment_of_nothing_is_no_media() {
    let mut stream = stream(Quality::Lowest);
    stream.text = false;
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &playlist(0, 6, true));
    watching.asks(0);
    assert_eq!(watching.gets(0, b""), Err(Failure::Length));
    assert_eq!(watching.player.got_ns(), 0);
}

#[test]
fn live_slides_is_asked_for_anew_and_skips_what_is_gone() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &playlist(10, 4, false));
    for number in 11..14 {
        assert!(
            watching
                .asks(0)
                .starts_with(&format!("/o/{}-", number * 1000)),
            "three from the end"
        );
        watching.gets(0, &segment(number)).unwrap();
    }
    assert_eq!(
        watching.want(0),
        Want::Idle(2 * SECOND),
        "a target duration"
    );
    assert_eq!(watching.asks(2 * SECOND), "/m/index.m3u8");
    watching.gets_playlist(2 * SECOND, &playlist(10, 4, false));
    assert_eq!(
        watching.want(2 * SECOND),
        Want::Idle(3 * SECOND),
        "half of one: it did not change"
    );
    watching.asks(3 * SECOND);
    watching.gets_playlist(3 * SECOND, &playlist(16, 4, false));
    assert!(watching.asks(3 * SECOND).starts_with("/o/17000-"));
    assert_eq!(watching.seen.skipped, 3);
}

#[test]
fn a_clip_that_is_shorter_than_the_start_begins_with_its_last_segment() {
    let stream = stream(Quality::Adaptive);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, MASTER);
    watching.asks(0);
    let short = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/o/0-1000\n#EXT-X-ENDLIST\n";
    watching.gets_playlist(0, short);
    watching.asks(0);
    watching.gets(1, &segment(0)).unwrap();
    assert!(watching.player.has_started());
    assert_eq!(watching.player.changes_ns(), SECOND + 1);
    assert_eq!(watching.want(1), Want::Nothing, "no other quality either");
}

#[test]
fn a_segment_that_fills_the_buffer_is_asked_for_before_it_is_empty() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    let long =
        "#EXTM3U\n#EXT-X-TARGETDURATION:8\n#EXTINF:8,\n/o/0-1000\n#EXTINF:8,\n/o/1000-2000\n";
    watching.gets_playlist(0, &format!("{long}#EXT-X-ENDLIST\n"));
    watching.asks(0);
    watching.gets(0, &segment(0)).unwrap();
    assert_eq!(watching.want(0), Want::Idle(6 * SECOND));
    assert_eq!(watching.asks(6 * SECOND), "/o/1000-2000");
}

#[test]
fn live_is_asked_for_anew_before_an_old_playlist_is_read_on() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &playlist(10, 5, false));
    watching.asks(0);
    // So long a wait for a segment that the others are gone.
    watching.gets(9 * SECOND, &segment(12)).unwrap();
    assert_eq!(watching.asks(9 * SECOND), "/m/index.m3u8");
    watching.gets_playlist(9 * SECOND, &playlist(15, 5, false));
    assert!(watching.asks(9 * SECOND).starts_with("/o/17000-"));
    assert_eq!(watching.seen.skipped, 4);
}

#[test]
fn of_our_own_clip_nothing_but_pieces_of_the_text_is_media() {
    let mut stream = stream(Quality::Lowest);
    let other = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/p/0-1000\n#EXT-X-ENDLIST\n";
    for (text, told) in [(true, Err(Failure::Content)), (false, Ok(()))] {
        stream.text = text;
        let mut watching = Watching::new(&stream);
        watching.asks(0);
        assert_eq!(watching.gets(0, other.as_bytes()), told);
    }
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_made_anew() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &playlist(0, 2, true));
    watching.with(0, |viewer, now| viewer.closed(now)).unwrap();
    assert_eq!(watching.want(0), Want::Connect);
    assert_eq!(watching.asks(0), "/o/0-1000");
    assert_eq!(
        watching.with(0, |viewer, now| viewer.closed(now)),
        Err(Failure::Reset)
    );
}

const MASTER: &str = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=4000\nlow/x.m3u8\n#EXT-X-STREAM-INF:BANDWIDTH=8000\nhigh/x.m3u8\n";

#[test]
fn what_a_kept_connection_takes_away_unanswered_is_asked_anew_once() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    assert_eq!(watching.asks(0), "/m/index.m3u8");
    assert!(
        !watching.viewer.reset(),
        "a new connection that breaks is a failure"
    );
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &playlist(0, 3, true));
    let first = watching.asks(0);
    watching.with(0, |viewer, now| viewer.closed(now)).unwrap();
    assert_eq!(watching.want(0), Want::Connect);
    assert_eq!(watching.asks(0), first);
    assert_eq!(
        watching.with(0, |viewer, now| viewer.closed(now)),
        Err(Failure::Reset)
    );
}

#[test]
fn an_answer_that_breaks_off_is_never_asked_anew() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &playlist(0, 3, true));
    watching.asks(0);
    let begun = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n1";
    watching
        .with(0, |viewer, now| viewer.take(begun, now))
        .unwrap();
    assert!(!watching.viewer.reset());
}

#[test]
fn the_quality_is_chosen_by_its_rule() {
    for (quality, first) in [
        (Quality::Lowest, "/m/low/x.m3u8"),
        (Quality::Highest, "/m/high/x.m3u8"),
        (Quality::Adaptive, "/m/low/x.m3u8"),
    ] {
        let stream = stream(quality);
        let mut watching = Watching::new(&stream);
        watching.asks(0);
        watching.gets_playlist(0, MASTER);
        assert_eq!(watching.asks(0), first);
        watching.gets_playlist(0, &playlist(0, 6, true));
        watching.asks(0);
        // 1000 bytes within 0.8 s: 10,000 bit/s, of which 0.8 are no more than the 8000 of the higher one.
        watching.gets(8 * SECOND / 10, &segment(0)).unwrap();
        assert_eq!(watching.asks(SECOND), "/o/1000-2000");
        watching.gets(SECOND + SECOND / 10, &segment(1)).unwrap();
        let next = watching.asks(2 * SECOND);
        let switched = quality == Quality::Adaptive;
        assert_eq!(next == "/m/high/x.m3u8", switched, "{next}");
        assert_eq!(watching.seen.switches, u64::from(switched));
    }
}

#[test]
fn playlists_that_lead_elsewhere_or_nowhere_are_refused() {
    for text in [
        "<html>",
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nhttp://other/x\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nhttps://h:1/x\n",
    ] {
        let stream = stream(Quality::Lowest);
        let mut watching = Watching::new(&stream);
        watching.asks(0);
        assert_eq!(watching.gets(0, text.as_bytes()), Err(Failure::Parse));
    }
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, MASTER);
    watching.asks(0);
    assert_eq!(
        watching.gets(0, MASTER.as_bytes()),
        Err(Failure::Parse),
        "variants of variants"
    );
}

#[test]
fn a_playlist_that_does_not_end_is_refused_and_not_kept() {
    let stream = stream(Quality::Lowest);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    let head = b"HTTP/1.1 200 OK\r\n\r\n#EXTM3U\n";
    watching
        .with(0, |viewer, now| viewer.take(head, now))
        .unwrap();
    let piece = [b'#'; 64 * 1024];
    let end = (0..100).find_map(|_| {
        watching
            .with(0, |viewer, now| viewer.take(&piece, now))
            .err()
    });
    assert_eq!(end, Some(Failure::Parse));
}

#[path = "segmented_dash_tests.rs"]
mod dash;
