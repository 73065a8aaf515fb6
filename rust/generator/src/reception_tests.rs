use proptest::prelude::*;

use super::*;
use crate::random::Random;

const MS: i64 = 1_000_000;
const TICKS: u32 = 3600; // 40 ms of a clock of 90 kHz

/// Numbers that come one after the other, without jitter; what is counted of them.
fn heard(numbers: impl IntoIterator<Item = u32>) -> (Received, Reception) {
    let (mut counts, mut reception) = (Received::default(), Reception::new(90_000));
    for number in numbers {
        let at_ns = i64::from(number) * 40 * MS;
        let timestamp = number.wrapping_mul(TICKS);
        reception
            .packet(number as u16, timestamp, at_ns, Some(&mut counts))
            .unwrap();
    }
    (counts, reception)
}

#[test]
fn numbers_count_on_beyond_their_end() {
    let (counts, reception) = heard(65_000..140_000);
    assert_eq!(
        (counts.packets, counts.expected, counts.lost),
        (75_000, 75_000, 0)
    );
    assert_eq!(reception.jitter_ns(), Some(0), "timestamps too");
    let told = reception.told().unwrap();
    assert_eq!(
        (told.highest, told.expected, told.lost),
        (139_999, 75_000, 0)
    );
}

#[test]
fn what_is_missing_twice_or_late_is_told_apart() {
    let (counts, _) = heard([10, 12, 11, 13, 13, 20, 15]);
    assert_eq!((counts.packets, counts.expected, counts.lost), (7, 11, 5));
    assert_eq!(
        (counts.duplicates, counts.reordered, counts.late),
        (1, 2, 0)
    );
    let (counts, _) = heard((0..50).chain(51..177).chain([50]));
    assert_eq!(
        (counts.expected, counts.lost, counts.late, counts.reordered),
        (177, 0, 0, 1)
    );
    let (counts, _) = heard((0..50).chain(51..179).chain([50]));
    assert_eq!(
        (counts.expected, counts.lost, counts.late, counts.reordered),
        (179, 1, 1, 1)
    );
}

#[test]
fn what_came_first_need_not_be_the_first() {
    let (counts, reception) = heard([5, 3, 6]);
    assert_eq!((counts.expected, counts.lost, counts.reordered), (4, 1, 1));
    assert_eq!(reception.told().unwrap().lost, 1);
}

#[test]
fn a_source_that_leaps_is_told_and_one_stray_packet_is_none() {
    let mut reception = Reception::new(90_000);
    let mut counts = Received::default();
    let mut packet = |number| reception.packet(number, 0, 0, Some(&mut counts));
    assert_eq!(packet(1), Ok(Place::First));
    assert_eq!(packet(30_000), Ok(Place::Useless));
    assert_eq!(packet(2), Ok(Place::Next(1)));
    assert_eq!(packet(30_001), Ok(Place::Useless));
    assert_eq!(packet(30_002), Err(Leaped));
    assert_eq!((counts.lost, counts.strays), (0, 3));
}

#[test]
fn after_an_outage_all_between_is_lost() {
    for (first, passed) in [(1, 5000), (65_000, 5000), (1, 40_000)] {
        let mut reception = Reception::new(90_000);
        let mut counts = Received::default();
        let packets = [
            first,
            first + passed,
            first + passed + 1,
            first + passed + 3,
        ];
        for number in packets {
            let short = number as u16;
            let place = reception.packet(short, number * TICKS, 0, Some(&mut counts));
            if place == Err(Leaped) {
                let counts = Some(&mut counts);
                let place = reception.after_outage(short, number * TICKS, 0, counts);
                assert_eq!(place, Ok(Place::Next(i64::from(passed) + 1)));
            }
        }
        let told = reception.told().unwrap();
        let (expected, lost) = (u64::from(passed) + 4, u64::from(passed) + 1);
        assert_eq!(
            (counts.packets, counts.strays),
            (3, 1),
            "the first behind it stays a stray"
        );
        assert_eq!((counts.expected, counts.lost), (expected, lost));
        assert_eq!((told.expected, told.lost), (expected as i64, lost as i64));
        assert_eq!(told.highest, first + passed + 3);
        assert_eq!(reception.timestamp(), i64::from(packets[3] * TICKS));
    }
}

/// Those of its own window alone: a stray of somebody else's was taken off where the first came before the window.
#[test]
fn of_an_outage_no_other_strays_are_taken_off() {
    let mut reception = Reception::new(90_000);
    let mut counts = Received {
        strays: 5,
        ..Received::default()
    };
    reception.packet(1, 0, 0, Some(&mut counts)).unwrap();
    reception.packet(5001, 0, 0, None).unwrap();
    let told = reception.packet(5002, 0, 0, Some(&mut counts));
    assert_eq!(told, Err(Leaped));
    reception
        .after_outage(5002, 0, 0, Some(&mut counts))
        .unwrap();
    assert_eq!((counts.strays, counts.lost, counts.packets), (5, 5000, 2));
}

/// Losses before the window, or made good in it, are none of it.
#[test]
fn the_window_has_its_own_numbers() {
    let mut reception = Reception::new(90_000);
    let mut counts = Received::default();
    for (number, is_counted) in [
        (1, false),
        (5, false),
        (4, true),
        (7, true),
        (6, true),
        (9, true),
        (10, false),
    ] {
        let window = is_counted.then_some(&mut counts);
        reception.packet(number, 0, 0, window).unwrap();
    }
    assert_eq!(
        (
            counts.packets,
            counts.expected,
            counts.lost,
            counts.reordered
        ),
        (4, 4, 1, 2)
    );
}

/// RFC 3550, A.8, by hand: the estimate moves by a sixteenth of each change of the transit time.
#[test]
fn jitter_is_as_the_rfc_defines_it() {
    let mut reception = Reception::new(90_000);
    let mut counts = Received::default();
    let mut expected = 0.0;
    let mut random = Random(1);
    let mut before_ns = None;
    for number in 0..2000u16 {
        let delay_ns = random.below(20_000_000) as i64;
        let at_ns = i64::from(number) * 40 * MS + delay_ns;
        reception
            .packet(number, u32::from(number) * TICKS, at_ns, Some(&mut counts))
            .unwrap();
        if let Some(before_ns) = before_ns.replace(delay_ns) {
            expected += (((delay_ns - before_ns) as f64).abs() - expected) / 16.0;
        }
    }
    let told = reception.told().unwrap().jitter;
    assert!(
        (f64::from(told) - expected * 90e3 / 1e9).abs() <= 2.0,
        "{told} {expected}"
    );
    // Two independent delays of up to 20 ms differ by a third of that on average.
    let mean_ns = reception.jitter_ns().unwrap() as f64;
    assert!((mean_ns / (20e6 / 3.0) - 1.0).abs() < 0.05, "{mean_ns}");
}

/// A path that loses, doubles and delays at known rates; what it really did comes with what passed.
fn path(
    packets: u32,
    seed: u64,
    (lost, doubled, delayed): (u64, u64, u64),
    by: usize,
) -> (Vec<u32>, [u64; 3]) {
    let mut random = Random(seed);
    let (mut did, mut held): ([u64; 3], Vec<(usize, u32)>) = ([0; 3], Vec::new());
    let mut passed = Vec::new();
    for number in 0..packets {
        let is_edge = number < 300 || number + 300 >= packets; // all that is held back comes, and the ends are known
        let draw = if is_edge { 1000 } else { random.below(1000) };
        if draw < lost {
            did[0] += 1;
        } else if draw < lost + doubled {
            did[1] += 1;
            passed.extend([number, number]);
        } else if draw < lost + doubled + delayed {
            held.push((passed.len() + by, number));
        } else {
            passed.push(number);
        }
        while held.first().is_some_and(|(at, _)| *at <= passed.len()) {
            let (_, late) = held.remove(0);
            did[2] += u64::from(
                passed
                    .iter()
                    .rev()
                    .take(2 * by + 9)
                    .any(|other| *other > late),
            );
            passed.push(late);
        }
    }
    (passed, did)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// What a path does to a stream is given back exactly.
    #[test]
    fn a_path_of_known_loss_is_recovered(
        seed: u64, lost in 0u64..200, doubled in 0u64..100, delayed in 0u64..100, by in 1usize..30,
    ) {
        let (passed, did) = path(20_000, seed, (lost, doubled, delayed), by);
        let came = passed.len() as u64;
        let (counts, reception) = heard(passed);
        prop_assert_eq!([counts.lost, counts.duplicates, counts.reordered], did);
        prop_assert_eq!((counts.expected, counts.packets, counts.late), (20_000, came, 0));
        prop_assert_eq!(reception.told().unwrap().lost, did[0] as i64 - did[1] as i64);
    }

    /// Whatever comes, the sums hold.
    #[test]
    fn any_packets_add_up(
        packets in prop::collection::vec((prop_oneof![0u16..400, any::<u16>()], any::<u32>(), any::<i64>()), 0..600),
        from in 0usize..300,
        length in 0usize..600,
        clock_hz in 1u32..=1_000_000_000,
    ) {
        let (mut counts, mut reception) = (Received::default(), Reception::new(clock_hz));
        let mut heard = 0;
        for (index, (number, timestamp, came_ns)) in packets.into_iter().enumerate() {
            let window = (from..from + length).contains(&index).then_some(&mut counts);
            heard += u64::from(window.is_some());
            let _ = reception.packet(number, timestamp, came_ns, window);
            reception.told();
        }
        prop_assert_eq!(counts.packets + counts.strays, heard);
        prop_assert!(counts.lost <= counts.expected);
    }
}
