//! What is no MPD, or none that is understood; and what a server can make up.

use super::*;

#[test]
fn what_is_not_understood_is_refused() {
    let template = |attributes: &str| one(&format!("<SegmentTemplate {attributes}/>"));
    let timeline = |entries: &str| {
        one(&format!(
            "<SegmentTemplate media=\"$Time$\"><SegmentTimeline>{entries}</SegmentTimeline></SegmentTemplate>"
        ))
    };
    let within = |other: &str| one(LIST).replace("<Period>", other);
    for (text, words) in [
        (String::new(), "well-formed"),
        ("<html/>".into(), "no MPD"),
        ("<MPD/>".into(), "no MPD"),
        (within("<Period"), "well-formed"),
        (
            within("<Period><Period>").replace("</MPD>", "</Period></MPD>"),
            "where it does not belong",
        ),
        (
            within("<Period><SegmentURL media=\"a\"/>"),
            "where it does not belong",
        ),
        (within("<Period start=\"PT1S\">"), "start at 0"),
        (
            within("<Period xmlns:l=\"http://www.w3.org/1999/xlink\" l:href=\"x\">"),
            "elsewhere",
        ),
        (
            within("<Period><EssentialProperty schemeIdUri=\"x\"/>"),
            "an element that is not",
        ),
        (
            within("<Period duration=\"P1Y\">"),
            "a duration that is none",
        ),
        (within("<Period/><Period>"), "not one period"),
        (one(LIST).replace("\"static\"", "\"dynamic\""), "not static"),
        (
            one(LIST).replace(" bandwidth=\"800\"", ""),
            "without a bandwidth",
        ),
        (one(LIST).replace("\"800\"", "\"0\""), "too small"),
        (
            one(LIST).replace("id=\"v\"", "dependencyId=\"u\""),
            "an attribute that is not",
        ),
        (mpd(""), "no adaptation set"),
        (mpd("<AdaptationSet/>"), "without a representation"),
        (one(""), "neither a segment template nor a list"),
        (
            one("<SegmentBase indexRange=\"0-9\"/>"),
            "an element that is not",
        ),
        (
            one(&format!("{LIST}<SegmentTemplate/>")),
            "a segment template and a list",
        ),
        (one(&format!("{LIST}{LIST}")), "two segment templates"),
        (one(&format!("<BaseURL>a b</BaseURL>{LIST}")), "BaseURL"),
        (
            one(&format!("<BaseURL>a<!-- or -->b</BaseURL>{LIST}")),
            "BaseURL",
        ),
        (
            one(&format!("<BaseURL byteRange=\"x\">a</BaseURL>{LIST}")),
            "an attribute",
        ),
        (
            one(&LIST.replace("media=", "mediaRange=\"0-9\" media=")),
            "an attribute",
        ),
        (one(&LIST.replace("media=\"a\"", "")), "without a URI"),
        (
            one(&LIST.replace(" duration=\"10\"", "")),
            "no known durations",
        ),
        (
            one(&LIST.replace("<SegmentURL media=\"a\"/>", "")),
            "without segments",
        ),
        (
            one(&LIST.replace("\"10\"", "\"5\"").replace(
                "<SegmentURL media=\"a\"/>",
                &"<SegmentURL media=\"a\"/>".repeat(3),
            )),
            "beyond",
        ),
        (template("media=\"$Number$\""), "no known durations"),
        (template("duration=\"5\""), "without media"),
        (template("duration=\"5\" media=\"$Time$\""), "no value"),
        (
            template("duration=\"5\" media=\"$SubNumber$\""),
            "not known here",
        ),
        (
            template("duration=\"5\" media=\"$Number%5d$\""),
            "wrong width",
        ),
        (
            template("duration=\"5\" media=\"$Number%099d$\""),
            "wrong width",
        ),
        (
            template("duration=\"5\" media=\"$Number\""),
            "half an identifier",
        ),
        (
            template("duration=\"5\" media=\"a\""),
            "tell segments apart",
        ),
        (
            template("duration=\"5\" media=\"$Number$ \""),
            "should be a URI",
        ),
        (template("duration=\"0\" media=\"$Number$\""), "too small"),
        (
            template("duration=\"5\" media=\"$Number$\" timescale=\"0\""),
            "too small",
        ),
        (
            template("duration=\"5\" media=\"$Number$\" endNumber=\"1\""),
            "an attribute",
        ),
        (
            template("duration=\"5\" media=\"$Number$\"")
                .replace(" mediaPresentationDuration=\"PT10S\"", ""),
            "no known length",
        ),
        (timeline(""), "without segments"),
        (timeline("<S/>"), "without a duration"),
        (timeline("<S d=\"2\"/><S t=\"3\" d=\"2\"/>"), "a gap"),
        (timeline("<S d=\"2\"/><S t=\"1\" d=\"2\"/>"), "a gap"),
        (timeline("<S t=\"1\" d=\"2\"/>"), "a gap"),
        (timeline("<S d=\"2\" r=\"-2\"/>"), "a number that is none"),
        (
            timeline("<S d=\"2\" r=\"-1\"/><S d=\"2\"/>"),
            "no known end",
        ),
        (timeline("<S d=\"9007199254740992\" r=\"1\"/>"), "too large"),
        (timeline("<S d=\"5\" r=\"2\"/>"), "no duration within"),
        (timeline("<S k=\"2\" d=\"5\"/>"), "an attribute"),
    ] {
        let told = error(&text);
        assert!(told.contains(words), "{told:?} of {text}");
    }
}

#[test]
fn a_server_can_make_up_only_so_much() {
    let most = MOST_ENTRIES as u64 - 1;
    let timeline = |again: u64, name: &str| {
        one(&format!("<SegmentTemplate media=\"$Time${name}\" timescale=\"10000\"><SegmentTimeline><S d=\"1\" r=\"{again}\"/></SegmentTimeline></SegmentTemplate>"))
    };
    assert_eq!(
        read(&timeline(most, ""))[0].media.segments.len(),
        MOST_ENTRIES
    );
    assert_eq!(error(&timeline(most + 1, "")), "too many segments");
    assert_eq!(
        error(&timeline(most, &"x".repeat(1000))),
        "too many segments"
    );
    assert_eq!(
        error(&timeline(u64::MAX, "")),
        "a number that is too small, or too large"
    );
    let wide = one(LIST).replace("<Period>", &format!("<Period {}>", "a=\"\" ".repeat(2000)));
    assert_eq!(error(&wide), "a tag, or what follows it, is too long");
    let deep = one(LIST).replace("<Period>", &format!("<Period>{}", "<a>".repeat(100_000)));
    assert!(error(&deep).contains("well-formed"));
    let base = format!("<BaseURL>{}/</BaseURL>", "b".repeat(2000));
    let many = "<Representation bandwidth=\"1\"/>".repeat(100);
    let long = mpd(&format!(
        "{base}<SegmentTemplate media=\"$Number$\" duration=\"10\"/><AdaptationSet>{many}</AdaptationSet>"
    ));
    assert_eq!(error(&long), "too long addresses of too many qualities");
    let spaces: String = (0..40)
        .map(|number| format!("<a xmlns:n{number}=\"u\"/>"))
        .collect();
    assert_eq!(
        error(&one(LIST).replace("<Period>", &format!("<Period>{spaces}"))),
        "too many namespaces"
    );
    let entities = one(LIST).replace("<MPD", "<!DOCTYPE a [<!ENTITY b \"c\">]><MPD");
    assert!(error(&entities).contains("well-formed"));
    assert_eq!(parse(&[b' '; MOST_BYTES + 1]), Err("too long"));
}

fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "<SegmentTemplate media=\"$Number$-$Time$\" duration=\"1\"/>",
        "<SegmentTemplate media=\"$Time$\">",
        "</SegmentTemplate>",
        "<SegmentTimeline>",
        "</SegmentTimeline>",
        "<S d=\"1\" r=\"9\"/>",
        "<S t=\"18446744073709551615\" d=\"18446744073709551615\" r=\"-1\"/>",
        "<S t=\"0\" d=\"9007199254740992\" r=\"-1\"/>",
        "<SegmentList duration=\"9\">",
        "</SegmentList>",
        "<SegmentURL media=\"a\"/>",
        "<Initialization sourceURL=\"i\"/>",
        "<BaseURL>b</BaseURL>",
        "<AdaptationSet>",
        "</AdaptationSet>",
        "<Representation id=\"r\" bandwidth=\"1\">",
        "</Representation>",
        "<",
        ">",
        "\u{e9}",
        "$",
        "&amp;",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..12)
        .prop_map(|words| words.concat())
}

proptest! {
    /// And where a byte of a right one is another: read to what a viewer can go through, or refused.
    #[test]
    fn whatever_comes_is_read_or_refused(
        noise in prop::collection::vec(any::<u8>(), 0..300), pieces in pieces(), is_within in any::<bool>(),
        at in any::<prop::sample::Index>(), byte in any::<u8>()
    ) {
        let whole = if is_within { one(&pieces) } else { mpd(&pieces) };
        let mut other = one("<SegmentTemplate media=\"$Time$\" timescale=\"10\"><SegmentTimeline><S d=\"20\" r=\"4\"/></SegmentTimeline></SegmentTemplate>").into_bytes();
        let at = at.index(other.len());
        other[at] = byte;
        for text in [noise, whole.into_bytes(), other] {
            if let Ok(playlist) = parse(&text) {
                let Playlist::Presentation(all) = playlist else {
                    panic!("{playlist:?}")
                };
                prop_assert!(!all.is_empty());
                for each in all {
                    prop_assert!(!each.media.segments.is_empty() && each.media.segments.len() <= MOST_ENTRIES);
                    prop_assert!(each.media.segments.iter().all(|segment| segment.duration_ns > 0 && !segment.uri.is_empty()));
                    let told_ns: i64 = each.media.segments.iter().map(|segment| segment.duration_ns).sum();
                    prop_assert!(told_ns <= 30 * 86_400 * SECOND);
                }
            }
        }
    }
}
