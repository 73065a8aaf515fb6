use super::*;
use proptest::prelude::*;

const SECOND: i64 = 1_000_000_000;

#[test]
fn a_media_playlist_is_read() {
    let text = "#EXTM3U\r\n#EXT-X-VERSION:3\r\n#EXT-X-TARGETDURATION:4\r\n#EXT-X-MEDIA-SEQUENCE:7\r\n\r\n# a comment\r\n\
                #EXTINF:4,\r\na.ts\r\n#EXT-X-DISCONTINUITY\r\n#EXTINF:3.5,a title, with a comma\r\n/b.ts?x=1\r\n#EXT-X-ENDLIST\r\n";
    let Ok(Playlist::Media(media)) = parse(text.as_bytes()) else {
        panic!("{:?}", parse(text.as_bytes()))
    };
    assert_eq!(
        (media.target_ns, media.sequence, media.ended),
        (4 * SECOND, 7, true)
    );
    assert_eq!(media.segment(7).unwrap().uri, "a.ts");
    let second = Segment {
        duration_ns: 3_500_000_000,
        uri: "/b.ts?x=1".into(),
    };
    assert_eq!(media.segment(8), Some(&second));
    assert_eq!((media.segment(6), media.segment(9)), (None, None));
    assert_eq!(media.begin(), 7);
}

#[test]
fn a_master_playlist_is_sorted_by_bit_rate() {
    let text = "#EXTM3U\n#EXT-X-STREAM-INF:CODECS=\"avc1,BANDWIDTH=5\",BANDWIDTH=2000\nhigh.m3u8\n\
                #EXT-X-STREAM-INF:BANDWIDTH=1000,RESOLUTION=1x1\nlow.m3u8\n";
    let Ok(Playlist::Master(variants)) = parse(text.as_bytes()) else {
        panic!("{:?}", parse(text.as_bytes()))
    };
    let found: Vec<_> = variants
        .iter()
        .map(|each| (each.bit_per_s, each.uri.as_str()))
        .collect();
    assert_eq!(found, [(1000, "low.m3u8"), (2000, "high.m3u8")]);
}

#[test]
fn live_begins_three_target_durations_from_the_end() {
    let live = |count: usize, ended| Media {
        target_ns: 4,
        sequence: 100,
        segments: vec![
            Segment {
                duration_ns: 4,
                uri: "x".into()
            };
            count
        ],
        ended,
    };
    assert_eq!(
        [
            live(6, false).begin(),
            live(3, false).begin(),
            live(2, false).begin()
        ],
        [103, 100, 100]
    );
    assert_eq!(live(6, true).begin(), 100);
    assert_eq!(live(0, false).begin(), 100);
}

#[test]
fn what_is_no_playlist_is_refused() {
    for wrong in [
        "",
        "<html>",
        "#EXTM3U8\n",
        "#EXTM3U\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:0\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:inf\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:NaN,\na\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:-4,\na\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\na.ts\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:-1\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:18446744073709551615\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\na b\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n#EXT-X-BYTERANGE:5@0\na\n",
        "#EXTM3U\n#EXT-X-STREAM-INF:RESOLUTION=1x1\na\n",
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\na\n#EXT-X-TARGETDURATION:4\n",
    ] {
        assert!(parse(wrong.as_bytes()).is_err(), "{wrong:?}");
    }
    assert!(parse(b"#EXTM3U\n#EXT-X-TARGETDURATION:4\n\xff").is_err());
    assert!(parse(&[b'#'; MOST_BYTES + 1]).is_err());
}

/// What stands there has no media (RFC 8216bis, 4.4.4.7): where a server answers for it, it counted as watched.
#[test]
fn a_gap_is_refused_and_no_media() {
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\na\n#EXT-X-GAP\n#EXTINF:4,\nb\n";
    for read in [parse, super::super::live::playlist::parse] {
        assert!(read(text.as_bytes()).is_err());
        assert!(read(text.replace("#EXT-X-GAP\n", "").as_bytes()).is_ok());
    }
}

/// They are never asked for here, and a view would begin sooner than any player's.
#[test]
fn what_no_player_plays_without_is_refused() {
    for (tag, is_known) in [
        ("#EXT-X-MAP:URI=\"init.mp4\"\n", false),
        ("#EXT-X-KEY:METHOD=AES-128,URI=\"k\"\n", false),
        ("#EXT-X-KEY:METHOD=NONE\n", true),
    ] {
        let text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n{tag}#EXTINF:4,\na\n");
        assert_eq!(parse(text.as_bytes()).is_ok(), is_known, "{tag}");
        let live = super::super::live::playlist::parse(text.as_bytes());
        assert_eq!(live.is_ok(), is_known, "{tag}");
    }
}

const MASTER: &str = "#EXT-X-STREAM-INF:BANDWIDTH=1,AUDIO=\"a\"\nvideo.m3u8\n";

#[test]
fn audio_or_video_that_comes_apart_is_refused_and_not_left_out() {
    for read in [parse, super::super::live::playlist::parse] {
        for (media, is_known) in [
            (r#"TYPE=AUDIO,GROUP-ID="a",NAME="A,URI=x""#, true),
            (r#"TYPE=SUBTITLES,GROUP-ID="s",URI="s.m3u8""#, true),
            (r#"TYPE=AUDIO,GROUP-ID="a",URI="a.m3u8""#, false),
            (r#"URI="v.m3u8",TYPE=VIDEO,GROUP-ID="v""#, false),
        ] {
            let before = format!("#EXTM3U\n#EXT-X-MEDIA:{media}\n{MASTER}");
            let behind = format!("#EXTM3U\n{MASTER}#EXT-X-MEDIA:{media}\n");
            for text in [before, behind] {
                assert_eq!(read(text.as_bytes()).is_ok(), is_known, "{text}");
            }
        }
    }
}

#[test]
fn uris_are_resolved_against_the_playlist_and_never_lead_elsewhere() {
    let path = |uri| resolved("h:80", "/a/b/c.m3u8?q=/z/", uri);
    for (uri, expected) in [
        ("d.ts", "/a/b/d.ts"),
        ("./d.ts", "/a/b/d.ts"),
        ("../d.ts?x=../y", "/a/d.ts?x=../y"),
        ("../../../d.ts", "/d.ts"),
        ("..", "/a/"),
        ("/d/./e//f", "/d/e//f"),
        ("http://h:80/d.ts", "/d.ts"),
        ("d/e:f", "/a/b/d/e:f"),
        ("?x=1", "/a/b/c.m3u8?x=1"),
        ("d.ts?x=1#t=7", "/a/b/d.ts?x=1"),
        ("#t=7", "/a/b/c.m3u8?q=/z/"),
        ("", "/a/b/c.m3u8?q=/z/"),
    ] {
        assert_eq!(path(uri).as_deref(), Some(expected), "{uri}");
    }
    for elsewhere in [
        "http://h:8080/d",
        "http://h:80",
        "http://other/d",
        "https://h:80/d",
        "//other/d",
        "data:x",
    ] {
        assert_eq!(path(elsewhere), None, "{elsewhere}");
    }
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![
        Just("#EXTM3U\n"),
        Just("#EXT-X-TARGETDURATION:"),
        Just("#EXTINF:"),
        Just("4"),
        Just("1e999"),
        Just("-"),
        Just(","),
        Just("\n"),
        Just("#EXT-X-STREAM-INF:"),
        Just("BANDWIDTH="),
        Just("\""),
        Just("a.ts\n"),
        Just("#EXT-X-ENDLIST\n"),
        Just("#EXT-X-MEDIA-SEQUENCE:"),
        Just("18446744073709551615"),
        Just("\u{e9}"),
        Just(".."),
        Just("/"),
    ];
    prop::collection::vec(words, 0..60).prop_map(|words| words.concat().into_bytes())
}

#[test]
fn there_are_not_more_variants_than_each_viewer_can_keep() {
    let of = |count: usize| {
        let variants = "#EXT-X-STREAM-INF:BANDWIDTH=1\nx\n".repeat(count);
        parse(format!("#EXTM3U\n{variants}").as_bytes())
    };
    assert!(of(100).is_ok());
    assert_eq!(of(101), Err("too many entries"));
}

proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(text in prop_oneof![prop::collection::vec(any::<u8>(), 0..400), pieces()]) {
        let whole = [b"#EXTM3U\n".as_slice(), &text].concat();
        for text in [text, whole] {
            match parse(&text) {
                Ok(Playlist::Master(variants)) => prop_assert!(!variants.is_empty()),
                Ok(Playlist::Media(media)) => {
                    prop_assert!(media.target_ns > 0);
                    prop_assert!(media.segments.iter().all(|segment| segment.duration_ns > 0));
                    let index = media.begin() - media.sequence;
                    prop_assert!(index == 0 || (index as usize) < media.segments.len());
                }
                Ok(other) => panic!("{other:?} of HLS"),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn a_resolved_path_is_one_of_the_server(base in "/[a-c./?:]{0,12}", uri in "[a-c./?:h]{0,20}") {
        if let Some(path) = resolved("h:80", &base, &uri) {
            prop_assert!(path.starts_with('/'));
            prop_assert!(!path.split('?').next().unwrap().split('/').any(|name| name == ".."));
        }
    }
}
