use super::*;
use proptest::prelude::*;

const RULES: Rules = Rules {
    paced: true,
    startup_ns: 20,
    resume_ns: 10,
    buffer_ns: 100,
    patience_ns: 1000,
};

fn begun() -> (Player, Watched) {
    (Player::new(RULES, 0), Watched::within(0, i64::MAX))
}

#[test]
fn play_begins_when_enough_is_there() {
    let (mut player, mut watched) = begun();
    player.media(7, 19, false, &mut watched);
    assert!(!player.has_started());
    player.media(9, 1, false, &mut watched);
    assert!(player.is_playing());
    assert_eq!((watched.starting_ns, watched.playing_ns), (9, 0));
    assert_eq!(player.ahead_ns(), 20);
}

#[test]
fn a_stall_begins_where_the_media_end_however_late_that_is_noticed() {
    for looks in [vec![], vec![30, 35, 41], vec![45, 46]] {
        let (mut player, mut watched) = begun();
        player.media(10, 30, false, &mut watched);
        for now_ns in looks {
            player.advance(now_ns, &mut watched);
        }
        player.media(50, 9, false, &mut watched);
        assert!(!player.is_playing(), "less than what it resumes with");
        player.media(60, 1, false, &mut watched);
        assert!(player.is_playing());
        player.advance(65, &mut watched);
        assert_eq!(watched.playing_ns, 35);
        assert_eq!(watched.media_ns, 35);
        assert_eq!((watched.stalls, watched.stalled_ns), (1, 20));
        assert_eq!(player.ahead_ns(), 5);
    }
}

#[test]
fn a_buffer_falls_long_before_it_is_dry() {
    let (mut player, mut watched) = begun();
    player.media(0, 100, false, &mut watched);
    player.advance(50, &mut watched);
    assert_eq!(player.peak_ns(), 100);
    for now_ns in (60..100).step_by(10) {
        player.media(now_ns, 5, false, &mut watched); // half of what is played
    }
    assert_eq!(
        player.fallen_ns(100),
        Some(50),
        "it was 50 when last asked for, and less since"
    );
    assert_eq!((watched.stalls, watched.most_ns), (0, 100));
    player.media(110, 70, false, &mut watched);
    assert_eq!((player.ahead_ns(), player.fallen_ns(100)), (80, Some(20)));
    player.media(120, 1, true, &mut watched);
    assert_eq!(player.fallen_ns(100), None, "it may empty");
}

#[test]
fn a_buffer_that_is_refilled_does_not_fall() {
    let (mut player, mut watched) = begun();
    player.media(0, 100, false, &mut watched);
    for now_ns in (25..1000).step_by(25) {
        player.media(now_ns, 25, false, &mut watched);
        let before_ns = player.peak_ns();
        player.media(now_ns, 0, false, &mut watched);
        assert_eq!(player.fallen_ns(before_ns), Some(0));
    }
}

#[test]
fn media_that_come_in_time_leave_no_stall() {
    let (mut player, mut watched) = begun();
    for now_ns in (0..1000).step_by(20) {
        player.media(now_ns, 20, false, &mut watched);
    }
    player.advance(1000, &mut watched);
    assert_eq!(
        (watched.stalls, watched.stalled_ns, watched.playing_ns),
        (0, 0, 1000)
    );
}

#[test]
fn a_short_clip_plays_to_its_end() {
    let (mut player, mut watched) = begun();
    player.media(5, 3, true, &mut watched);
    assert!(player.is_playing());
    assert_eq!(player.changes_ns(), 8);
    player.advance(7, &mut watched);
    assert_eq!(player.status(), Status::Watching);
    player.advance(20, &mut watched);
    assert_eq!(player.status(), Status::Finished);
    assert_eq!(
        (watched.media_ns, watched.stalls, watched.stalled_ns),
        (3, 0, 0)
    );
}

#[test]
fn running_dry_at_what_may_be_the_end_is_a_stall_only_if_more_comes_or_patience_ends() {
    for (more, told) in [((0, true), (0, 0)), ((10, false), (1, 30))] {
        let (mut player, mut watched) = begun();
        player.media(10, 30, false, &mut watched);
        player.may_be_whole(true);
        player.advance(60, &mut watched);
        assert_eq!((watched.stalls, watched.playing_ns), (0, 30));
        player.media(70, more.0, more.1, &mut watched);
        assert_eq!((watched.stalls, watched.stalled_ns), told);
        assert_eq!(player.status() == Status::Finished, more.1);
    }
    let (mut player, mut watched) = begun();
    player.media(10, 30, false, &mut watched);
    player.may_be_whole(true);
    player.advance(60, &mut watched);
    assert_eq!(player.changes_ns(), 1040);
    player.advance(1040, &mut watched);
    assert_eq!(player.status(), Status::GaveUp);
    assert_eq!((watched.stalls, watched.stalled_ns), (1, 1000));
}

#[test]
fn who_waits_too_long_gives_up_at_the_start_and_in_a_stall() {
    let (mut player, mut watched) = begun();
    player.media(900, 19, false, &mut watched);
    assert_eq!(player.changes_ns(), 1000);
    player.advance(999, &mut watched);
    assert_eq!(player.status(), Status::Watching);
    player.advance(1000, &mut watched);
    assert_eq!(player.status(), Status::GaveUp);

    let (mut player, mut watched) = begun();
    player.media(0, 40, false, &mut watched);
    assert_eq!(player.changes_ns(), 1040);
    player.advance(500, &mut watched);
    player.media(600, 1, false, &mut watched);
    assert_eq!(player.changes_ns(), 1040, "a byte now and then is no media");
    player.advance(1040, &mut watched);
    assert_eq!(player.status(), Status::GaveUp);
}

#[test]
fn only_what_lies_in_the_window_counts() {
    let (mut player, mut watched) = (Player::new(RULES, 0), Watched::within(30, 60));
    player.media(10, 40, false, &mut watched);
    player.advance(100, &mut watched);
    let expected = Watched {
        playing_ns: 20,
        media_ns: 20,
        stalls: 1,
        stalled_ns: 10,
        ..Watched::within(30, 60)
    };
    assert_eq!(watched, expected);
}

#[test]
fn unpaced_all_is_watched_when_it_comes() {
    let rules = Rules {
        paced: false,
        ..RULES
    };
    let (mut player, mut watched) = (Player::new(rules, 0), Watched::within(0, 1000));
    player.media(3, 15, false, &mut watched);
    assert!(!player.has_started());
    player.media(4, 500, false, &mut watched);
    assert!(player.has_started());
    assert_eq!(player.at_most_ahead_ns(0), Some(4));
    player.advance(900, &mut watched);
    assert_eq!((watched.media_ns, watched.stalls), (515, 0));
    assert_eq!(player.changes_ns(), 1004);
    player.media(901, 0, true, &mut watched);
    assert_eq!(player.status(), Status::Finished);
    assert_eq!(
        player.changes_ns(),
        901,
        "at once, and not after its patience"
    );
}

#[test]
fn unpaced_too_who_waits_for_the_first_picture_gives_up() {
    let rules = Rules {
        paced: false,
        ..RULES
    };
    let (mut player, mut watched) = (Player::new(rules, 0), Watched::within(0, i64::MAX));
    player.media(900, 19, false, &mut watched);
    assert_eq!(player.changes_ns(), 1000, "a byte now and then is no media");
    player.advance(1000, &mut watched);
    assert_eq!(player.status(), Status::GaveUp);
}

#[test]
fn durations_that_a_server_makes_up_overflow_nothing() {
    let rules = Rules {
        paced: false,
        ..RULES
    };
    let (mut player, mut watched) = (Player::new(rules, 0), Watched::within(0, i64::MAX));
    for _ in 0..3 {
        player.media(1, i64::MAX / 2, false, &mut watched);
    }
    watched.add(&watched.clone());
    assert_eq!(watched.media_ns, i64::MAX);
}

proptest! {
    /// Each moment of a viewer's time is told once, and no more is played than came, whenever one looks.
    #[test]
    fn time_and_media_add_up(steps in prop::collection::vec((0i64..40, 0i64..40, any::<bool>()), 0..60),
                             paced in any::<bool>()) {
        let rules = Rules { paced, ..RULES };
        let (mut player, mut watched) = (Player::new(rules, 0), Watched::within(0, i64::MAX));
        let mut now_ns = 0;
        for (later_ns, media_ns, comes) in steps {
            now_ns += later_ns;
            match comes {
                true => player.media(now_ns, media_ns, false, &mut watched),
                false => player.advance(now_ns, &mut watched),
            }
            prop_assert!(player.ahead_ns() >= 0);
            prop_assert!(watched.media_ns <= player.got_ns());
        }
        let told_ns = watched.starting_ns + watched.playing_ns + watched.stalled_ns;
        prop_assert_eq!(told_ns, now_ns);
        if paced {
            prop_assert_eq!(watched.media_ns, watched.playing_ns);
            prop_assert_eq!(watched.media_ns + player.ahead_ns(), player.got_ns());
        }
    }
}
