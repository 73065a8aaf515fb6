use proptest::prelude::*;

use super::schema::duration_ns;
use super::*;
use crate::view::playlist::{Segment, MOST_ENTRIES};

const SECOND: i64 = 1_000_000_000;

/// An MPD of 10 s, with this in its only period.
fn mpd(period: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" type=\"static\" minBufferTime=\"PT2S\" \
         profiles=\"urn:mpeg:dash:profile:full:2011\" mediaPresentationDuration=\"PT10S\"><Period>{period}</Period></MPD>"
    )
}

/// One of an adaptation set of one representation, with this in it.
fn one(inside: &str) -> String {
    mpd(&format!(
        "<AdaptationSet><Representation id=\"v\" bandwidth=\"800\">{inside}</Representation></AdaptationSet>"
    ))
}

fn read(text: &str) -> Vec<Representation> {
    match parse(text.as_bytes()) {
        Ok(Playlist::Presentation(all)) => all,
        other => panic!("{other:?} of {text}"),
    }
}

fn error(text: &str) -> &'static str {
    parse(text.as_bytes()).expect_err(text)
}

/// URIs and seconds.
fn segments(inside: &str) -> Vec<(String, f64)> {
    let all = read(&one(inside));
    let told = |segment: &Segment| (segment.uri.clone(), segment.duration_ns as f64 / 1e9);
    all[0].media.segments.iter().map(told).collect()
}

fn named(expected: &[(&str, f64)]) -> Vec<(String, f64)> {
    let own = expected
        .iter()
        .map(|(uri, seconds)| ((*uri).to_owned(), *seconds));
    own.collect()
}

#[test]
fn a_template_of_equal_segments_is_numbered_to_the_end_of_the_period() {
    let told = segments("<SegmentTemplate media=\"$RepresentationID$-$Number%03d$-$Bandwidth$$$.m4s\" duration=\"4\" startNumber=\"9\"/>");
    assert_eq!(
        told,
        named(&[
            ("v-009-800$.m4s", 4.0),
            ("v-010-800$.m4s", 4.0),
            ("v-011-800$.m4s", 2.0)
        ])
    );
    let told = segments("<SegmentTemplate media=\"$Number$\" duration=\"3000\" timescale=\"1000\" presentationTimeOffset=\"7\"/>");
    assert_eq!(
        told,
        named(&[("1", 3.0), ("2", 3.0), ("3", 3.0), ("4", 1.0)])
    );
}

#[test]
fn a_timeline_tells_durations_and_times() {
    let told = segments(
        "<SegmentTemplate media=\"$Time$/$Number$\" timescale=\"10\" presentationTimeOffset=\"50\">\
         <SegmentTimeline><S t=\"50\" d=\"20\" r=\"1\"/><S d=\"30\"/><S t=\"120\" d=\"10\" r=\"-1\"/></SegmentTimeline></SegmentTemplate>",
    );
    let expected = [
        ("50/1", 2.0),
        ("70/2", 2.0),
        ("90/3", 3.0),
        ("120/4", 1.0),
        ("130/5", 1.0),
        ("140/6", 1.0),
    ];
    assert_eq!(told, named(&expected));
    let told = segments(
        "<SegmentTemplate media=\"$Time$\"><SegmentTimeline><S d=\"3\" r=\"-1\"/><S t=\"8\" d=\"2\"/></SegmentTimeline></SegmentTemplate>",
    );
    let expected = [("0", 3.0), ("3", 3.0), ("6", 2.0), ("8", 2.0)];
    assert_eq!(
        told,
        named(&expected),
        "an entry that repeats ends where the next begins"
    );
}

#[test]
fn media_outside_the_period_do_not_count() {
    let told = segments(
        "<SegmentTemplate media=\"$Time$\" presentationTimeOffset=\"1\"><SegmentTimeline><S t=\"0\" d=\"6\" r=\"1\"/></SegmentTimeline></SegmentTemplate>",
    );
    assert_eq!(told, named(&[("0", 5.0), ("6", 5.0)]));
}

#[test]
fn a_list_names_each_segment() {
    let urls = "<SegmentURL media=\"/o/0-4\"/><SegmentURL media=\"b?x=1&amp;y=2\"/><SegmentURL media=\"c\"/>";
    let expected = named(&[("/o/0-4", 4.0), ("b?x=1&y=2", 4.0), ("c", 2.0)]);
    let even = format!("<SegmentList duration=\"4\">{urls}</SegmentList>");
    assert_eq!(segments(&even), expected);
    let timeline = "<SegmentTimeline><S d=\"4\" r=\"1\"/><S d=\"2\"/></SegmentTimeline>";
    assert_eq!(
        segments(&format!("<SegmentList>{timeline}{urls}</SegmentList>")),
        expected
    );
}

#[test]
fn what_an_inner_element_does_not_say_is_as_an_outer_one_says() {
    let text = mpd(
        "<BaseURL>film/</BaseURL><SegmentTemplate timescale=\"1000\" duration=\"5000\" initialization=\"$RepresentationID$/init\"/>\
         <AdaptationSet mimeType=\"video/mp4\"><SegmentTemplate media=\"$Number$\"/>\
         <Representation id=\"high\" bandwidth=\"900\"><BaseURL> high/ </BaseURL><BaseURL>other/</BaseURL></Representation>\
         <Representation id=\"low\" bandwidth=\"300\"><SegmentTemplate startNumber=\"0\"/></Representation></AdaptationSet>",
    );
    let all = read(&text);
    let told: Vec<_> = all
        .iter()
        .map(|each| {
            let uris: Vec<_> = each
                .media
                .segments
                .iter()
                .map(|segment| segment.uri.as_str())
                .collect();
            (
                each.bit_per_s,
                each.bases.join(" "),
                each.initialization.as_deref().unwrap(),
                uris,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (300, "film/".to_owned(), "low/init", vec!["0", "1"]),
            (900, "film/ high/".to_owned(), "high/init", vec!["1", "2"]),
        ]
    );
    assert!(all
        .iter()
        .all(|each| each.media.ended && each.media.target_ns == 5 * SECOND));
}

#[test]
fn an_initialization_segment_may_be_an_element() {
    let all = read(&one(
        "<SegmentList duration=\"10\"><Initialization sourceURL=\"i\"/><SegmentURL media=\"a\"/></SegmentList>",
    ));
    assert_eq!(all[0].initialization.as_deref(), Some("i"));
}

const LIST: &str = "<SegmentList duration=\"10\"><SegmentURL media=\"a\"/></SegmentList>";

#[test]
fn audio_and_video_are_tracks() {
    let set = |mime: &str| {
        format!("<AdaptationSet><Representation id=\"r\" mimeType=\"{mime}\" bandwidth=\"5\">{LIST}</Representation></AdaptationSet>")
    };
    let all = read(&mpd(&[set("video/mp4"), set("audio/mp4")].concat()));
    assert_eq!(
        all.iter().map(|each| each.track).collect::<Vec<_>>(),
        [0, 1]
    );
    for others in [
        vec!["video/mp4", "video/mp4"],
        vec!["video/mp4", "text/vtt"],
        vec!["video/mp4", "audio/mp4", "audio/mp4"],
    ] {
        let sets: String = others.into_iter().map(set).collect();
        assert!(error(&mpd(&sets)).contains("adaptation sets"));
    }
}

#[test]
fn descriptions_and_extensions_are_passed_over() {
    let text = one(&format!("<SupplementalProperty schemeIdUri=\"x\" anything=\"1\"><Unknown/></SupplementalProperty>{LIST}"))
        .replace(
            "<Period>",
            "<!-- made by hand --><ProgramInformation lang=\"en\"><Title>T</Title></ProgramInformation><Period>\
             <x:extra xmlns:x=\"urn:x\" x:y=\"1\" z=\"2\"/>",
        );
    assert_eq!(read(&text).len(), 1);
}

#[test]
fn representations_must_begin_their_segments_together() {
    let each = |id: &str, seconds: u32| {
        format!("<Representation id=\"{id}\" bandwidth=\"5\"><SegmentTemplate media=\"$Number$\" duration=\"{seconds}\"/></Representation>")
    };
    let set = |one: &str, other: &str| mpd(&format!("<AdaptationSet>{one}{other}</AdaptationSet>"));
    assert_eq!(read(&set(&each("a", 5), &each("b", 5))).len(), 2);
    assert!(error(&set(&each("a", 5), &each("b", 2))).contains("together"));
}

#[test]
fn durations_are_of_days_and_less() {
    for (text, expected_ns) in [
        ("PT0S", 0),
        ("PT10.5S", 10_500_000_000),
        ("PT5.0000000019S", 5_000_000_001),
        ("P1DT1H1M1S", (86_400 + 3661) * SECOND),
        ("P30D", 30 * 86_400 * SECOND),
        ("PT90M", 5400 * SECOND),
    ] {
        assert_eq!(duration_ns(text), Ok(expected_ns), "{text}");
    }
    for wrong in [
        "",
        "P",
        "PT",
        "P1DT",
        "1S",
        "P1S",
        "PT1D",
        "PT1S1M",
        "PT1.5M",
        "PT.5S",
        "PT1.S",
        "PT-1S",
        "-PT1S",
        "P1M",
        "P1Y",
        "P31D",
        "PT1e3S",
        "PTS",
        "PT1",
        "PT99999999999999999999S",
    ] {
        assert!(duration_ns(wrong).is_err(), "{wrong}");
    }
}

#[path = "refusal_tests.rs"]
mod refusals;
