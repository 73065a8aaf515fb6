use super::*;

#[test]
fn what_threads_count_is_added_up_and_told_by_role() {
    let roles = [("webcam", true), ("watcher", false)].map(|(name, sends)| Role {
        name: name.into(),
        film: sends.then(|| {
            super::super::film::Film::parsed(&super::super::film::tests::ivf(10, 20)).unwrap()
        }),
        watches: true,
    });
    let mut tallies = [Tally::new(2), Tally::new(2)];
    for (index, tally) in tallies.iter_mut().enumerate() {
        tally.span = Span {
            from_ns: 5,
            until_ns: 9,
        };
        tally.received[0].lost = 3;
        tally.received[0].repaired = 4;
        tally.received[2].streams = 1;
        tally.heard.gaps = 5;
        tally.heard.jitter.record(9);
        tally.sent[0].rtt.record(7);
        tally.not_joined.count(&Failure::RoomFull);
        tally
            .lost
            .count(&Failure::Janus(470 + index as u64, "x".repeat(1000)));
    }
    let [mut sum, other] = tallies;
    sum.add(&other);
    let told = serde_json::to_value(Report::new(&sum, &roles, 2)).unwrap();
    assert_eq!(told["received"]["webcam"]["lost_before"], 14);
    assert_eq!(told["received"]["other"]["streams"], 2);
    assert_eq!(
        told["received"].as_object().unwrap().len(),
        2,
        "watchers send nothing"
    );
    assert_eq!(
        told["sent"]["webcam"]["rtt"],
        serde_json::json!([[7, 8, 2]])
    );
    assert_eq!(
        told["joins"]["failures"],
        serde_json::json!({"room full": 2})
    );
    assert_eq!(told["leaves"]["failures"].as_object().unwrap().len(), 2);
    assert_eq!(told["window"]["start_ns"], 5);
    assert_eq!(told["audio"]["gaps"], 10);
    assert_eq!(told["audio"]["jitter"], serde_json::json!([[9, 10, 2]]));
}

#[test]
fn a_wake_that_is_late_counts_for_as_long_as_it_is_within_the_window() {
    const MS: i64 = 1_000_000;
    for (due_ms, woke_ms, wakes, late) in [
        (1100, 1100, 1, 0),
        (1100, 1110, 1, 0),
        (1100, 1111, 1, 1),
        (1100, 1350, 25, 25),
        (1999, 2250, 1, 1),
        (1750, 2250, 25, 25),
        (900, 1250, 25, 25),
        (900, 1009, 0, 0),
        (999, 1001, 0, 0),
        (900, 5000, 100, 100),
        (900, 950, 0, 0),
        (2000, 3000, 0, 0),
    ] {
        let mut tally = Tally::new(1);
        tally.woke(due_ms * MS, woke_ms * MS);
        assert_eq!(tally.wakes, 0, "there is no window");
        tally.span = Span {
            from_ns: 1000 * MS,
            until_ns: 2000 * MS,
        };
        tally.woke(due_ms * MS, woke_ms * MS);
        let told = format!("{due_ms} {woke_ms}");
        assert_eq!((tally.wakes, tally.wakes_late), (wakes, late), "{told}");
    }
}

#[test]
fn a_server_that_makes_up_errors_is_not_followed() {
    let mut failures = Failures::default();
    for code in 0..1000 {
        failures.count(&Failure::Janus(code, "no".into()));
    }
    assert_eq!(failures.0.len(), MOST_KINDS + 1);
    assert_eq!(failures.0["other"], 1000 - MOST_KINDS as u64);
}
