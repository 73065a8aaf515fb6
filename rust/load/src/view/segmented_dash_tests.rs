//! Viewers of DASH, by hand as those of HLS; and of both, whatever a server says.

use super::*;

fn stream_of(quality: Quality, text: bool) -> Stream {
    Stream {
        path: "/m/index.mpd".into(),
        format: Format::Dash,
        text,
        ..stream(quality)
    }
}

fn mpd(sets: &str) -> String {
    format!("<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" mediaPresentationDuration=\"PT12S\"><Period>{sets}</Period></MPD>")
}

fn template(id: &str, bit_per_s: u64, attributes: &str) -> String {
    format!(
        "<Representation id=\"{id}\" bandwidth=\"{bit_per_s}\"><SegmentTemplate media=\"$RepresentationID$/$Number$\" {attributes}/></Representation>"
    )
}

/// Our own clip: six segments of 2 s and 1000 bytes, in two qualities (of the same bytes).
fn clip() -> String {
    let urls: String = (0..6)
        .map(|number| {
            format!(
                "<SegmentURL media=\"/o/{}-{}\"/>",
                number * 1000,
                number * 1000 + 1000
            )
        })
        .collect();
    let list = format!(
        "<SegmentList><SegmentTimeline><S d=\"2\" r=\"5\"/></SegmentTimeline>{urls}</SegmentList>"
    );
    let each = |rate: u64| {
        format!("<Representation id=\"{rate}\" bandwidth=\"{rate}\">{list}</Representation>")
    };
    mpd(&format!(
        "<AdaptationSet>{}{}</AdaptationSet>",
        each(8000),
        each(4000)
    ))
}

#[test]
fn one_mpd_tells_all_and_segments_come_as_they_fit_into_the_buffer() {
    for quality in [Quality::Lowest, Quality::Highest] {
        let stream = stream_of(quality, true);
        let mut watching = Watching::new(&stream);
        assert_eq!(watching.asks(0), "/m/index.mpd");
        watching.gets_playlist(0, &clip());
        assert_eq!(
            watching.viewer.tracks[0].level,
            usize::from(quality == Quality::Highest)
        );
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
        let seen = &watching.seen;
        assert_eq!(
            (seen.segments, seen.answers, seen.media_bytes),
            (6, 7, 6000)
        );
    }
}

#[test]
fn the_quality_is_chosen_by_the_same_rule_and_nothing_is_asked_for_again() {
    let stream = stream_of(Quality::Adaptive, true);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    watching.gets_playlist(0, &clip());
    watching.asks(0);
    // 10,000 bit/s, of which 0.8 are no more than the 8000 of the higher one; then more.
    watching.gets(8 * SECOND / 10, &segment(0)).unwrap();
    assert_eq!(
        (watching.viewer.tracks[0].level, watching.seen.switches),
        (0, 0)
    );
    assert_eq!(watching.asks(SECOND), "/o/1000-2000");
    watching.gets(SECOND + SECOND / 10, &segment(1)).unwrap();
    assert_eq!(
        (watching.viewer.tracks[0].level, watching.seen.switches),
        (1, 1)
    );
    assert_eq!(watching.asks(SECOND + SECOND / 10), "/o/2000-3000");
}

#[test]
fn an_initialization_segment_comes_before_the_first_of_its_quality_and_is_no_media() {
    let stream = stream_of(Quality::Adaptive, false);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    let of = |id, rate| {
        template(
            id,
            rate,
            "duration=\"2\" initialization=\"$RepresentationID$/i\"",
        )
    };
    let text = mpd(&format!(
        "<AdaptationSet>{}{}</AdaptationSet>",
        of("low", 4000),
        of("high", 8000)
    ));
    watching.gets_playlist(0, &text);
    // Paths, how long each takes, and how many bytes of media have come before it.
    for (path, took_ns, before_bytes) in [
        ("/m/low/i", 1, 0),
        ("/m/low/1", 1, 0),
        ("/m/high/i", 1, 1000),
        ("/m/high/2", SECOND, 1000),
        ("/m/low/3", 1, 2000), // it has its own already
        ("/m/high/4", 1, 3000),
    ] {
        assert_eq!(watching.asks(0), path);
        assert_eq!(watching.seen.media_bytes, before_bytes);
        let asked_ns = watching.viewer.asking.request.as_ref().unwrap().sent_ns;
        watching.viewer.asking.request.as_mut().unwrap().sent_ns = asked_ns - took_ns;
        watching.gets(0, &segment(0)).unwrap();
    }
    assert_eq!(
        (
            watching.seen.segments,
            watching.seen.answers,
            watching.seen.switches
        ),
        (4, 7, 3)
    );
    assert_eq!(watching.player.got_ns(), 8 * SECOND);
}

/// No decoder shows anything without: all of it was told as watched.
#[test]
fn an_initialization_segment_of_nothing_is_none() {
    let stream = stream_of(Quality::Highest, false);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    let asked = "duration=\"2\" initialization=\"i\"";
    let set = template("x", 4000, asked);
    watching.gets_playlist(0, &mpd(&format!("<AdaptationSet>{set}</AdaptationSet>")));
    watching.asks(0);
    assert_eq!(watching.gets(0, b""), Err(Failure::Length));
}

#[test]
fn audio_and_video_come_in_turn_and_play_goes_on_as_far_as_both_have() {
    let stream = stream_of(Quality::Highest, false);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    let set = |kind: &str, seconds: u32| {
        let all = [template("x", 1000, ""), template(kind, 4000, "")].concat();
        let all = all.replace("/>", &format!("duration=\"{seconds}\"/>"));
        format!("<AdaptationSet contentType=\"{kind}\">{all}</AdaptationSet>")
    };
    watching.gets_playlist(0, &mpd(&[set("video", 4), set("audio", 3)].concat()));
    let mut told = Vec::new();
    for second in 0..100 {
        match watching.want(second * SECOND) {
            Want::Nothing => break,
            Want::Idle(_) => continue,
            _ => {}
        }
        let path = String::from_utf8(
            watching
                .viewer
                .asking
                .request
                .as_ref()
                .unwrap()
                .bytes
                .clone(),
        )
        .unwrap();
        watching.want(second * SECOND);
        watching.gets(second * SECOND, &segment(0)).unwrap();
        told.push((
            path.split(' ').nth(1).unwrap().to_owned(),
            watching.player.got_ns() / SECOND,
        ));
    }
    let expected = [
        ("/m/video/1", 0),
        ("/m/audio/1", 3),
        ("/m/audio/2", 4),
        ("/m/video/2", 6),
        ("/m/audio/3", 8),
        ("/m/video/3", 9),
        ("/m/audio/4", 12),
    ];
    let told: Vec<_> = told
        .iter()
        .map(|(path, got_s)| (path.as_str(), *got_s))
        .collect();
    assert_eq!(told, expected);
    watching.want(100 * SECOND);
    assert_eq!(
        (watching.watched.media_ns, watching.player.status()),
        (12 * SECOND, Status::Finished)
    );
}

#[test]
fn the_other_track_needs_its_share_of_the_throughput() {
    let stream = stream_of(Quality::Adaptive, false);
    // 10,000 bit/s of a segment of 1000 bytes.
    for (audio, switched) in [(3900, true), (4000, false)] {
        let mut watching = Watching::new(&stream);
        watching.asks(0);
        let levels = [
            template("low", 1000, "duration=\"2\""),
            template("high", 4000, "duration=\"2\""),
        ]
        .concat();
        let video = format!("<AdaptationSet contentType=\"video\">{levels}</AdaptationSet>");
        let audio = template("audio", audio, "duration=\"2\"");
        let audio = format!("<AdaptationSet contentType=\"audio\">{audio}</AdaptationSet>");
        watching.gets_playlist(0, &mpd(&[video, audio].concat()));
        assert_eq!(watching.asks(0), "/m/low/1");
        watching.gets(8 * SECOND / 10, &segment(0)).unwrap();
        assert_eq!(watching.viewer.tracks[0].level == 1, switched);
    }
}

#[test]
fn of_our_own_clip_nothing_but_pieces_of_the_text_is_media() {
    let other = mpd(&format!(
        "<AdaptationSet>{}</AdaptationSet>",
        template("p", 1, "duration=\"2\"")
    ));
    let with_other = clip().replace(
        "<SegmentList>",
        "<SegmentList><Initialization sourceURL=\"/i\"/>",
    );
    for text in [&other, &with_other] {
        for (is_text, told) in [(true, Err(Failure::Content)), (false, Ok(()))] {
            let stream = stream_of(Quality::Lowest, is_text);
            let mut watching = Watching::new(&stream);
            watching.asks(0);
            assert_eq!(watching.gets(0, text.as_bytes()), told, "{text}");
        }
    }
}

#[test]
fn mpds_that_lead_elsewhere_or_nowhere_are_refused() {
    let based =
        |base: &str| clip().replace("<Period>", &format!("<BaseURL>{base}</BaseURL><Period>"));
    for (text, told) in [
        (based("http://h:1/x/"), Ok(())),
        (based("http://other/"), Err(Failure::Parse)),
        (based("https://h:1/"), Err(Failure::Parse)),
        (
            clip().replacen("/o/0-1000", "//other/o/0-1000", 1),
            Err(Failure::Parse),
        ),
        (playlist(0, 3, true), Err(Failure::Parse)),
        ("<html/>".into(), Err(Failure::Parse)),
    ] {
        let stream = stream_of(Quality::Lowest, true);
        let mut watching = Watching::new(&stream);
        watching.asks(0);
        assert_eq!(watching.gets(0, text.as_bytes()), told, "{text}");
    }
}

#[test]
fn paths_are_relative_to_the_nearest_base() {
    let stream = stream_of(Quality::Lowest, false);
    let mut watching = Watching::new(&stream);
    watching.asks(0);
    let set = format!(
        "<BaseURL>../a/</BaseURL><AdaptationSet><BaseURL>b/c</BaseURL>{}</AdaptationSet>",
        template("r", 1, "duration=\"2\"")
    );
    watching.gets_playlist(0, &mpd(&set));
    assert_eq!(watching.asks(0), "/a/b/r/1");
}

/// Whatever a server answers to a viewer, to the end of either.
fn survives(stream: &Stream, answers: Vec<Vec<u8>>, framed: bool) -> Result<(), TestCaseError> {
    let mut watching = Watching::new(stream);
    let mut answers = answers.into_iter();
    let mut now_ns = 0;
    for _ in 0..300 {
        let told = match watching.want(now_ns) {
            Want::Connect | Want::Send(_) | Want::Say(_) => Ok(()),
            Want::Read(_) => match answers.next() {
                Some(body) if framed => watching.gets(now_ns + 1, &body),
                Some(input) => watching.with(now_ns + 1, |viewer, now| viewer.take(&input, now)),
                None => watching.with(now_ns + 1, |viewer, now| viewer.closed(now)),
            },
            Want::Pause(at_ns) | Want::Idle(at_ns) => {
                prop_assert!(at_ns > now_ns);
                now_ns = at_ns;
                Ok(())
            }
            Want::Nothing => break,
            other => panic!("{other:?} of HTTP"),
        };
        now_ns += 1;
        if told.is_err() {
            break;
        }
    }
    Ok(())
}

proptest! {
    /// Whatever a server says: no panic, and never a loop without an end.
    #[test]
    fn any_server_of_hls_is_survived(answers in prop::collection::vec(
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            (0u64..3, 0u64..5, any::<bool>()).prop_map(|(first, count, ended)| playlist(first, count, ended).into_bytes()),
            (0u64..4).prop_map(segment),
            Just(MASTER.as_bytes().to_vec()),
        ], 0..30), framed in any::<bool>()) {
        let stream = stream(Quality::Adaptive);
        survives(&stream, answers, framed)?;
    }

    #[test]
    fn any_server_of_dash_is_survived(answers in prop::collection::vec(
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            (0u64..4).prop_map(segment),
            Just(clip().into_bytes()),
            (1u32..20, any::<bool>()).prop_map(|(seconds, apart)| {
                let set = |kind: &str, seconds| format!("<AdaptationSet contentType=\"{kind}\">{}</AdaptationSet>",
                    template(kind, 1, &format!("duration=\"{seconds}\" initialization=\"i\"")));
                mpd(&[set("audio", seconds), if apart { set("video", 5) } else { String::new() }].concat()).into_bytes()
            }),
        ], 0..30), framed in any::<bool>(), text in any::<bool>()) {
        let stream = stream_of(Quality::Adaptive, text);
        survives(&stream, answers, framed)?;
    }
}
