use proptest::prelude::*;

use super::*;

const SECOND: i64 = 1_000_000_000;

fn live(text: &str) -> Live {
    match parse(text.as_bytes()) {
        Ok(Playlist::Live(live)) => live,
        other => panic!("{other:?}"),
    }
}

fn at(sequence: u64, part: u32) -> Position {
    Position { sequence, part }
}

pub const TEXT: &str = "\
#EXTM3U
#EXT-X-TARGETDURATION:2
#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,HOLD-BACK=6,PART-HOLD-BACK=1.5
#EXT-X-PART-INF:PART-TARGET=0.5
#EXT-X-MEDIA-SEQUENCE:10
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:00:20Z
#EXTINF:2,
/o/0-400
#EXT-X-PART:DURATION=1,URI=\"/o/400-600\",INDEPENDENT=YES
#EXT-X-PART:DURATION=1,URI=\"/o/600-800\"
#EXTINF:2,
/o/400-800
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:00:24Z
#EXT-X-PART:DURATION=0.5,URI=\"/o/800-900\",INDEPENDENT=YES
#EXT-X-PRELOAD-HINT:TYPE=MAP,URI=\"/init\"
#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"/o/900-1000\"
";

#[test]
fn segments_are_their_parts_where_those_are_listed() {
    let live = live(TEXT);
    assert_eq!(
        (live.target_ns, live.part_target_ns),
        (2 * SECOND, Some(SECOND / 2))
    );
    assert_eq!(
        (live.can_block, live.hold_back_ns, live.ended),
        (true, 3 * SECOND / 2, false)
    );
    let told: Vec<_> = live
        .pieces
        .iter()
        .map(|piece| {
            (
                piece.at,
                &piece.uri[..],
                piece.made_ns.map(|ns| ns / SECOND),
                piece.is_independent,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (at(10, 0), "/o/0-400", Some(20), true),
            (at(11, 0), "/o/400-600", Some(22), true),
            (at(11, 1), "/o/600-800", Some(23), false),
            (at(12, 0), "/o/800-900", Some(24), true),
        ]
    );
    assert_eq!(live.next, at(12, 1));
    assert_eq!(live.hint.as_deref(), Some("/o/900-1000"));
}

#[test]
fn play_begins_as_far_from_the_end_as_it_must_where_it_can() {
    let mut live = live(TEXT);
    for (hold_back_ns, begin) in [
        (SECOND / 2, at(12, 0)),
        (SECOND, at(11, 0)), // the second part cannot be begun with
        (5 * SECOND / 2, at(11, 0)),
        (3 * SECOND, at(10, 0)),
        (99 * SECOND, at(10, 0)),
    ] {
        live.hold_back_ns = hold_back_ns;
        assert_eq!(live.begin().unwrap().at, begin, "{hold_back_ns}");
    }
    live.ended = true;
    live.hold_back_ns = 1;
    assert_eq!(live.begin().unwrap().at, at(10, 0));
}

#[test]
fn what_comes_after_a_piece_is_the_first_that_is_there() {
    let live = live(TEXT);
    for (last, next) in [
        (at(9, 7), Some(at(10, 0))),
        (at(10, 0), Some(at(11, 0))),
        (at(10, 3), Some(at(11, 0))),
        (at(11, 0), Some(at(11, 1))),
        (at(11, 1), Some(at(12, 0))),
        (at(12, 0), None),
    ] {
        assert_eq!(live.after(last).map(|piece| piece.at), next);
    }
}

#[test]
fn without_parts_it_is_segments_and_what_is_not_told_is_as_the_draft_has_it() {
    let plain = live(
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\na\n#EXT-X-DISCONTINUITY\n#EXTINF:2,\nb\n",
    );
    assert_eq!((plain.hold_back_ns, plain.can_block), (6 * SECOND, false));
    assert_eq!((plain.next, plain.pieces[1].made_ns), (at(2, 0), None));
    let parts = live("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-PART-INF:PART-TARGET=0.2\n");
    assert_eq!(
        (parts.hold_back_ns, parts.next),
        (6 * SECOND / 10, at(0, 0))
    );
    assert_eq!(parts.begin(), None);
    let ended = live(&TEXT.replace("#EXT-X-PRELOAD-HINT:TYPE=MAP", "#EXT-X-ENDLIST\n#"));
    assert_eq!((ended.ended, ended.hint), (true, None));
}

#[test]
fn times_of_a_discontinuity_are_not_guessed() {
    let text = TEXT.replace(
        "#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:00:24Z",
        "#EXT-X-DISCONTINUITY",
    );
    let live = live(&text);
    assert_eq!(live.pieces[2].made_until_ns(), Some(24 * SECOND));
    assert_eq!(live.pieces[3].made_until_ns(), None);
}

/// Of what was dated first no age was told.
#[test]
fn a_date_is_that_of_a_discontinuity_before_or_behind_it() {
    let (date, other) = (
        "#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:00:24Z\n",
        "#EXT-X-DISCONTINUITY\n",
    );
    for both in [[date, other].concat(), [other, date].concat()] {
        let live = live(&TEXT.replace(date, &both));
        assert_eq!(live.pieces[3].made_ns, Some(24 * SECOND), "{both}");
    }
    // It is none of the segment's behind that.
    let ends = "#EXTINF:2,\n/o/0-400\n";
    let live = live(&TEXT.replace(ends, &[ends, other].concat()));
    assert_eq!(live.pieces[1].made_ns, None);
}

#[test]
fn a_hint_that_nothing_can_be_made_of_is_none() {
    for other in [
        "TYPE=PART,URI=\"/o/1\",BYTERANGE-START=7",
        "TYPE=PART",
        "TYPE=PART,URI=\"\"",
        "TYPE=PART,URI=/o/1",
    ] {
        let text = TEXT.replace("TYPE=PART,URI=\"/o/900-1000\"", other);
        assert_eq!(live(&text).hint, None, "{other}");
    }
}

#[test]
fn what_is_none_or_not_known_is_refused() {
    for (from, to) in [
        ("#EXTM3U", "<html>"),
        ("#EXT-X-TARGETDURATION:2\n", ""),
        ("#EXT-X-TARGETDURATION:2", "#EXT-X-TARGETDURATION:0"),
        ("PART-TARGET=0.5", "PART-TARGET=x"),
        ("MEDIA-SEQUENCE:10", "MEDIA-SEQUENCE:99999999999999999999"),
        ("#EXT-X-PART:DURATION=1,", "#EXT-X-PART:"),
        ("URI=\"/o/400-600\"", "URI=\"/o/400 600\""),
        ("INDEPENDENT=YES", "BYTERANGE=\"100@0\""),
        ("INDEPENDENT=YES", "GAP=YES"),
        ("#EXTINF:2,\n", ""),
        ("/o/0-400\n", "/o/0 400\n"),
        ("/o/400-800\n", "/o/400-800\n#EXT-X-MEDIA-SEQUENCE:3\n"),
        (
            "#EXTINF:2,\n/o/0-400",
            "#EXT-X-BYTERANGE:7\n#EXTINF:2,\n/o/0-400",
        ),
        ("#EXTINF:2,\n/o/0-400", "#EXT-X-SKIP:SKIPPED-SEGMENTS=3"),
    ] {
        assert!(TEXT.contains(from));
        assert!(parse(TEXT.replace(from, to).as_bytes()).is_err(), "{to}");
    }
    assert!(parse(format!("{TEXT}#EXTINF:2,\n").as_bytes()).is_err());
    assert!(parse(b"#EXTM3U\n\xff").is_err());
}

#[test]
fn a_hint_at_something_else_besides_takes_none_away() {
    let map = "#EXT-X-PRELOAD-HINT:TYPE=MAP,URI=\"init\"\n";
    let part = "#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"next\"\n";
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n";
    for text in [format!("{text}{map}{part}"), format!("{text}{part}{map}")] {
        let Ok(Playlist::Live(live)) = parse(text.as_bytes()) else {
            panic!("{text}")
        };
        assert_eq!(live.hint.as_deref(), Some("next"), "{text}");
    }
}

#[test]
fn a_playlist_that_does_not_stop_is_not_kept() {
    let part = "#EXT-X-PART:DURATION=1,URI=\"a\"\n";
    assert!(parse((TEXT.to_owned() + &part.repeat(50_000)).as_bytes()).is_err());
    let text = [TEXT.as_bytes(), &vec![b'#'; playlist::MOST_BYTES]].concat();
    assert!(parse(&text).is_err());
}

#[test]
fn one_of_variants_is_told_as_such() {
    let text = b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=8\nx.m3u8\n";
    assert!(matches!(parse(text), Ok(Playlist::Master(_))));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(lines in prop::collection::vec(prop_oneof![
        "\\PC{0,60}",
        "#EXT-X-(PART|PART-INF|SERVER-CONTROL|PRELOAD-HINT):[A-Z-]{0,12}=[\"0-9.,a-z/]{0,20}",
        "#EXT-X-PART:DURATION=[0-9]{1,20}(\\.[0-9]{1,3})?,URI=\"[a-z]{1,4}\"",
        "#EXT-X-PROGRAM-DATE-TIME:[0-9TZ:.+-]{0,30}",
        "#EXT-X-MEDIA-SEQUENCE:[0-9]{1,20}",
        "#EXTINF:[0-9]{1,6},",
        Just("#EXT-X-TARGETDURATION:86400".to_owned()),
        Just("#EXT-X-PROGRAM-DATE-TIME:2199-12-31T00:00:00Z".to_owned()),
        "[a-z]{1,5}",
    ], 0..60)) {
        let text = format!("#EXTM3U\n{}", lines.join("\n"));
        if let Ok(Playlist::Live(live)) = parse(text.as_bytes()) {
            prop_assert!(live.pieces.windows(2).all(|two| two[0].at < two[1].at));
            prop_assert!(live.pieces.iter().all(|piece| piece.at < live.next));
            live.begin();
            live.after(live.next);
            live.pieces.iter().for_each(|piece| { piece.made_until_ns(); });
        }
    }

    #[test]
    fn any_cut_of_one_is_read_or_refused(cut in 0..TEXT.len()) {
        let _ = parse(&TEXT.as_bytes()[..cut]);
    }
}
