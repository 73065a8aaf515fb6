use proptest::prelude::*;

use super::*;

const MS: i64 = 1_000_000;

/// The packets of frames, each of so many; `key`: which are key frames.
fn parts(lengths: &[u64], key: impl Fn(usize) -> bool) -> Vec<Part> {
    let frame = |(index, length): (usize, &u64)| {
        let is_key = key(index);
        let length = *length;
        (0..length).map(move |at| Part {
            ends: at + 1 == length,
            key: if is_key && at == 0 { KEY } else { 0 },
        })
    };
    lengths.iter().enumerate().flat_map(frame).collect()
}

fn given(frames: &mut Frames, parts: &[Part], numbers: impl IntoIterator<Item = u64>) -> Shown {
    let mut sum = Shown::default();
    for number in numbers {
        let shown = frames.packet(1000 + number, parts[number as usize], number as i64 * MS);
        sum.frames += shown.frames;
        sum.keys += shown.keys;
    }
    sum
}

#[test]
fn what_is_whole_since_a_key_frame_is_shown() {
    let parts = parts(&[2, 3, 2, 1], |index| index == 1);
    let mut frames = Frames::default();
    assert_eq!(
        given(&mut frames, &parts, 0..4),
        Shown::default(),
        "no key frame is whole"
    );
    assert_eq!(frames.stuck_ns(), Some(0));
    assert_eq!(
        given(&mut frames, &parts, 4..5),
        Shown { frames: 1, keys: 1 }
    );
    assert_eq!(frames.stuck_ns(), None);
    assert_eq!(
        given(&mut frames, &parts, 5..8),
        Shown { frames: 2, keys: 0 }
    );
}

#[test]
fn a_hole_stops_what_is_shown_until_it_is_mended() {
    let parts = parts(&[2, 2, 2, 2], |index| index == 0);
    let mut frames = Frames::default();
    assert_eq!(given(&mut frames, &parts, [0, 1, 3, 4, 5]).frames, 1);
    assert_eq!(frames.stuck_ns(), Some(3 * MS));
    assert_eq!(given(&mut frames, &parts, [2]).frames, 2);
    assert_eq!(frames.stuck_ns(), None);
    assert_eq!(
        given(&mut frames, &parts, [2, 6, 7]).frames,
        1,
        "one comes twice"
    );
}

#[test]
fn a_whole_key_frame_behind_a_hole_is_shown_and_what_was_between_never() {
    let parts = parts(&[2, 2, 2, 3, 1], |index| index == 0 || index == 3);
    let mut frames = Frames::default();
    assert_eq!(given(&mut frames, &parts, [0, 1, 3, 4, 5, 6, 8]).frames, 1);
    assert_eq!(
        given(&mut frames, &parts, [7]),
        Shown { frames: 1, keys: 1 }
    );
    assert_eq!(given(&mut frames, &parts, [2, 9]).frames, 1);
}

#[test]
fn of_two_key_frames_behind_a_hole_whichever_is_whole_first_is_shown() {
    let parts = parts(&[2, 2, 3, 1, 3, 1], |index| [0, 2, 4].contains(&index));
    for (mended, last, then) in [([9], [5], 0), ([5], [9], 2), ([4], [9], 2)] {
        let mut frames = Frames::default();
        let others = (3..12).filter(|number| !mended.contains(number) && !last.contains(number));
        assert_eq!(given(&mut frames, &parts, (0..2).chain(others)).frames, 1);
        let first = given(&mut frames, &parts, mended);
        assert_eq!(first, Shown { frames: 2, keys: 1 });
        assert_eq!(given(&mut frames, &parts, last).frames, then);
    }
}

#[test]
fn a_hole_that_is_too_wide_is_given_up() {
    let count = KEPT as usize + 20;
    let parts = parts(&vec![1; count], |index| index == 0 || index == count - 2);
    let mut frames = Frames::default();
    assert_eq!(given(&mut frames, &parts, [0]).frames, 1);
    assert_eq!(given(&mut frames, &parts, [count as u64 - 3]).frames, 0);
    assert_eq!(
        given(&mut frames, &parts, [count as u64 - 2, count as u64 - 1]).frames,
        2
    );
}

#[test]
fn a_key_frame_of_a_second_of_20_mbit_is_shown() {
    let parts = parts(&[2300, 1], |index| index == 0);
    let mut frames = Frames::default();
    assert_eq!(given(&mut frames, &parts, 0..2299), Shown::default());
    let shown = given(&mut frames, &parts, 2299..2301);
    assert_eq!(shown, Shown { frames: 2, keys: 1 });
}

#[test]
fn a_gap_is_a_freeze_where_it_is_thrice_the_mean_and_150_ms_longer() {
    let shown_at = |gap_ms: i64, last_ms: i64| {
        let mut showing = Showing::default();
        let mut now_ns = 0;
        for _ in 0..40 {
            assert_eq!(showing.shown(1, now_ns), None);
            now_ns += gap_ms * MS;
        }
        showing.shown(1, showing.last_ns + last_ms * MS)
    };
    assert_eq!(shown_at(40, 189), None);
    assert_eq!(
        shown_at(40, 190),
        Some((39 * 40 * MS, (39 * 40 + 190) * MS))
    );
    assert_eq!(shown_at(200, 599), None);
    assert!(shown_at(200, 600).is_some());
}

#[test]
fn of_few_frames_no_short_gap_is_told_and_frames_shown_at_once_have_no_gap() {
    let mut showing = Showing::default();
    for number in 0..5 {
        assert_eq!(showing.shown(1, number * 1000 * MS), None);
    }
    assert_eq!(showing.frozen(6999 * MS), None);
    assert_eq!(showing.shown(40, 5000 * MS), None);
    assert_eq!(showing.last_ns, 5000 * MS);
    assert!(showing.shown(1, 5200 * MS).is_some(), "the mean is 0 then");
}

/// It was told as moving for as long as it was watched.
#[test]
fn a_stream_that_shows_a_picture_or_two_and_stops_is_frozen() {
    for frames in 1..=5 {
        let mut showing = Showing::default();
        for number in 0..frames {
            assert_eq!(showing.shown(1, number * 66 * MS), None);
        }
        let last_ns = showing.last_ns;
        assert_eq!(showing.frozen(last_ns + 2999 * MS), None, "{frames}");
        let until_ns = last_ns + 3000 * MS;
        assert_eq!(showing.frozen(until_ns), Some((last_ns, until_ns)));
        assert_eq!(showing.shown(1, until_ns), Some((last_ns, until_ns)));
    }
}

#[test]
fn a_number_that_no_source_counts_to_changes_nothing() {
    let part = Part {
        ends: true,
        key: KEY,
    };
    for number in [NUMBERS, u64::MAX - 2, u64::MAX] {
        let mut frames = Frames::default();
        assert_eq!(frames.packet(0, part, 0).frames, 1);
        assert_eq!(frames.packet(number, part, 0), Shown::default());
        assert_eq!(frames.packet(1, part, 0).frames, 1);
    }
}

proptest! {
    #[test]
    fn in_any_order_no_frame_is_shown_twice_and_all_are_where_nothing_is_missing(
        lengths in prop::collection::vec(1u64..5, 1..60), swaps in prop::collection::vec((0usize..200, 1usize..20), 0..40)
    ) {
        let parts = parts(&lengths, |index| index == 0);
        let mut numbers: Vec<u64> = (0..parts.len() as u64).collect();
        for (at, by) in swaps {
            if at + by < numbers.len() {
                numbers.swap(at, at + by);
            }
        }
        let shown = given(&mut Frames::default(), &parts, numbers);
        prop_assert_eq!(shown, Shown { frames: lengths.len() as u64, keys: 1 });
    }

    #[test]
    fn any_packets_show_no_more_frames_than_end(
        given in prop::collection::vec((0..4 * KEPT, any::<bool>(), any::<u8>()), 0..300)
    ) {
        let mut frames = Frames::default();
        let mut shown = 0;
        let ends = given.iter().filter(|(_, ends, _)| *ends).count();
        for (number, ends, key) in given {
            let part = Part { ends, key: key & KEY };
            shown += frames.packet(number, part, 0).frames;
        }
        prop_assert!(shown <= ends as u64);
    }
}
