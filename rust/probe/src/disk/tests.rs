use super::settings::OPERATIONS;
use super::*;
use crate::windows::Length;

fn settings(operation: &'static str) -> Settings {
    Settings {
        operation,
        record_bytes: 4096,
        file_bytes: 64 << 10,
        uring: false,
        depth: 1,
        direct: false,
        sync_at_end: true,
        directory: std::env::temp_dir().display().to_string(), // the file has no name
    }
}

fn measured(settings: &Settings, records: u64) -> Report {
    let mut passes = Passes::new(settings).unwrap();
    passes.prepare().unwrap();
    for _ in 0..3 {
        passes.visit(records, settings.syncs()).unwrap();
    }
    let mut report = Report::of(&[]);
    passes.conclude(&mut report).unwrap();
    report
}

/// A file in memory (tmpfs) has no pages but its own, which are not forgotten.
fn passed(report: &Report) -> bool {
    let directory = std::env::temp_dir().display().to_string();
    let is_kept = TestFile::create(&directory, false).unwrap().file_system() == "tmpfs";
    let is_its_nature = |name: &str| is_kept && name == "the page cache had forgotten the file";
    report
        .checks
        .iter()
        .all(|check| check.passed || is_its_nature(check.name))
}

#[test]
fn each_operation_moves_and_verifies_its_records() {
    for operation in OPERATIONS {
        // Less than a pass, a pass, and several passes.
        for records in [5, 16, 40] {
            let report = measured(&settings(operation), records);
            assert!(
                passed(&report),
                "{operation} {records}: {:?}",
                report.checks
            );
        }
    }
}

#[test]
fn io_uring_moves_and_verifies_the_same() {
    // Where the kernel has none, or forbids it, this fails and says so: transfer/tests.rs has what can be known without.
    Queue::new(4)
        .map(drop)
        .unwrap_or_else(|refused| panic!("{}", refused.printed(false)));
    for operation in OPERATIONS {
        let settings = Settings {
            uring: true,
            depth: 4,
            ..settings(operation)
        };
        let report = measured(&settings, 40);
        assert!(passed(&report), "{operation}: {:?}", report.checks);
    }
}

#[test]
fn the_pace_is_that_of_several_records_and_not_of_a_flush() {
    for operation in OPERATIONS {
        let settings = settings(operation);
        let mut passes = Passes::new(&settings).unwrap();
        passes.prepare().unwrap();
        passes.find_pace().unwrap();
        let timed: u64 = passes.records.latencies.in_window();
        assert!(timed >= PACE_RECORDS, "{operation}: {timed}");
    }
}

#[test]
fn reading_the_clock_takes_no_more_than_its_share() {
    for (look_ns, record_ns, expected) in [
        (20.0, 4000.0, 1),
        (20.0, 1000.0, 5), // 4, and odd
        (20.0, 100.0, 41),
        (20.0, 1e9, 1),
        (20.0, 0.0, 4001),
    ] {
        assert_eq!(timed_one_in(look_ns, record_ns), expected, "{record_ns}");
    }
}

#[test]
fn a_record_that_was_changed_is_found_by_reading_it_and_by_reading_back() {
    let settings = settings("reread");
    let mut passes = Passes::new(&settings).unwrap();
    passes.prepare().unwrap();
    passes.records.file.prepare(&[0xee; 8], 8192).unwrap();
    passes.visit(16, settings.syncs()).unwrap();
    let mut report = Report::of(&[]);
    passes.conclude(&mut report).unwrap();
    let failed: Vec<_> = report.checks.iter().filter(|check| !check.passed).collect();
    assert_eq!(failed.len(), 2, "{:?}", report.checks);
    assert!(failed[1].detail.starts_with("1 of 16"));
}

#[test]
fn a_write_that_was_lost_is_found() {
    let settings = settings("rewrite");
    let mut passes = Passes::new(&settings).unwrap();
    passes.prepare().unwrap();
    passes.visit(16, settings.syncs()).unwrap();
    // As if the second record of the last pass had never come to the disk: it holds what it held before.
    let before = passes.records.pattern.record(0, 4096).to_vec();
    passes.records.file.prepare(&before, 4096).unwrap();
    let mut report = Report::of(&[]);
    passes.conclude(&mut report).unwrap();
    assert!(!passed(&report));
}

#[test]
fn a_file_that_was_cut_is_found() {
    let settings = settings("write");
    let mut passes = Passes::new(&settings).unwrap();
    passes.visit(16, settings.syncs()).unwrap();
    passes.records.file.empty().unwrap();
    assert_eq!(passes.read_back().unwrap(), (16, 16));
}

#[test]
fn wrong_settings_are_told() {
    let told = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut arguments = Arguments::parse(&words).unwrap();
        run(&mut arguments).unwrap();
        arguments.complaint().unwrap_or_default()
    };
    assert!(told(&["--depth", "2"]).contains("--engine sync"));
    assert!(told(&["--record-bytes", "3000"]).contains("power of two"));
    assert!(told(&["--file-bytes", "100000"]).contains("multiple"));
    assert!(told(&["--direct", "yes", "--record-bytes", "512"]).contains("4096"));
    assert!(told(&["--engine", "uring", "--depth", "2000"]).contains("than the file has records"));
    assert!(told(&["--operation", "scribble"]).contains("scribble"));
}

#[test]
fn a_window_is_whole_passes_and_of_random_reading_records() {
    for operation in OPERATIONS {
        let settings = settings(operation);
        let passes = RefCell::new(Passes::new(&settings).unwrap());
        passes.borrow_mut().prepare().unwrap();
        passes.borrow_mut().find_pace().unwrap(); // ends anywhere in the file
        let windows = Windows {
            count: 2,
            length: Length::Time(1_000_000),
        };
        let measured = windows
            .measure(
                &mut Vec::new(),
                |units| {
                    let before = passes.borrow().asked_bytes;
                    let span = passes.borrow_mut().window(units)?;
                    let passes = passes.borrow();
                    let moved = passes.asked_bytes - before;
                    let unit_bytes = if operation == "random-read" {
                        4096
                    } else {
                        assert_eq!(passes.visits, units * 16, "{operation}: from its head on");
                        64 << 10
                    };
                    assert_eq!(moved, units * unit_bytes, "{operation}");
                    Ok(span)
                },
                |units, span| passes.borrow_mut().values(units, span),
            )
            .unwrap();
        for window in measured {
            let bytes = (window.work * settings.unit_records() * 4096) as f64;
            let expected = bytes / window.duration_ns as f64 * 1e3;
            assert!((window.values["throughput_mb_per_s"] / expected - 1.0).abs() < 1e-9);
        }
    }
}
