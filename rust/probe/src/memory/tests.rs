//! Every sweep and kernel against plain arithmetic, and the verification against wrong results.

use super::bandwidth::Share;
use super::chase::Chain;
use super::first_touch::{report_checks, touch};
use super::isa::Isa;
use super::mapping::{Pages, SMALL_BYTES};
use super::stream::Arrays;
use super::stream_kernels::Kernel;
use super::sweeps::Unit;
use super::team;
use crate::report::Report;

/// The instruction sets of this machine.
fn sets() -> impl Iterator<Item = Isa> {
    [Isa::Sse2, Isa::Avx2, Isa::Avx512]
        .into_iter()
        .filter(|isa| *isa <= Isa::widest())
}

fn units() -> Vec<Unit> {
    let vectors = sets().map(Unit::Vector);
    [Unit::Integer, Unit::Float]
        .into_iter()
        .chain(vectors)
        .collect()
}

#[test]
fn every_unit_reads_all_of_its_block_as_often_as_told() {
    for unit in units() {
        for (bytes, passes) in [(1024, 1), (1024, 7), (5 * 1024, 3), (64 * 1024, 2)] {
            let mut share = Share::new(bytes, Pages::Small, unit).expect("a small block");
            share.sweep(unit.reading(), bytes, passes);
            assert!(share.was_read(passes), "{unit:?} {bytes} x {passes}");
            assert!(
                !share.was_read(passes + 1),
                "{unit:?}: one pass too few is seen"
            );
        }
    }
}

#[test]
fn reading_too_little_or_other_words_is_seen() {
    for unit in units() {
        let mut share = Share::new(4096, Pages::Small, unit).expect("a small block");
        share.sweep(unit.reading(), 3072, 1);
        assert!(!share.was_read(1), "{unit:?}: a part that was not read");
        share.words(4096)[100] = 0;
        share.sweep(unit.reading(), 4096, 1);
        assert!(!share.was_read(1), "{unit:?}: a word that changed");
    }
}

#[test]
fn every_unit_writes_all_of_its_block_and_what_is_missing_is_seen() {
    for unit in units() {
        let mut share = Share::new(8192, Pages::Small, unit).expect("a small block");
        for passes in [1, 5] {
            share.sweep(unit.writing(), 8192, passes);
            assert!(share.was_written(8192, passes), "{unit:?} x {passes}");
        }
        share.sweep(unit.writing(), 8192, 4);
        assert!(!share.was_written(8192, 5), "{unit:?}: one pass too few");
        share.sweep(unit.writing(), 8192 - 1024, 1);
        assert!(
            !share.was_written(8192, 1),
            "{unit:?}: an end that was not written"
        );
    }
}

#[test]
fn every_kernel_computes_exactly_what_it_is_named_for() {
    for isa in sets() {
        for kernel in [Kernel::Copy, Kernel::Scale, Kernel::Add, Kernel::Triad] {
            for non_temporal in [false, true] {
                for threads in [1, 3] {
                    let mut arrays =
                        Arrays::new(7 * 4096, threads, Pages::Small, kernel).expect("small arrays");
                    assert_eq!(
                        arrays.wrong().expect("threads"),
                        7 * 512,
                        "nothing is computed yet"
                    );
                    arrays
                        .compute(kernel.pass(isa, non_temporal), 2)
                        .expect("threads");
                    assert_eq!(
                        arrays.wrong().expect("threads"),
                        0,
                        "{isa:?} {kernel:?} {non_temporal} {threads}"
                    );
                }
            }
        }
    }
}

#[test]
fn another_kernel_or_a_spoilt_array_is_seen() {
    let mut arrays = Arrays::new(4096, 1, Pages::Small, Kernel::Triad).expect("small arrays");
    arrays
        .compute(Kernel::Add.pass(Isa::Sse2, false), 1)
        .expect("threads");
    assert!(arrays.wrong().expect("threads") > 500);
    arrays
        .compute(Kernel::Triad.pass(Isa::Sse2, false), 1)
        .expect("threads");
    assert_eq!(
        arrays.spoil().expect("threads"),
        0,
        "the sources are as they were"
    );
    assert_eq!(arrays.wrong().expect("threads"), 512);
}

#[test]
fn the_chain_visits_every_line_and_ends_where_it_should() {
    for lines in [2, 3, 64, 1000] {
        let mut chain = Chain::new(lines * 64, Pages::Small, 1).expect("a small block");
        assert!(chain.is_whole(), "{lines} lines");
        chain.chase(lines as u64);
        assert_eq!(chain.place(), 0);
        chain.chase(3);
        assert_eq!(chain.place(), 3 % lines);
    }
}

#[test]
fn a_broken_chain_is_seen() {
    let mut chain = Chain::new(64 * 64, Pages::Small, 1).expect("a small block");
    chain.cross(5, 9); // one cycle becomes two
    assert!(!chain.is_whole());
}

#[test]
fn first_touches_are_counted_and_proved() {
    let bytes = 64 * SMALL_BYTES;
    let touched = touch(bytes, Pages::Small, 3).expect("a small block");
    assert!(touched.faults >= 3 * 64, "{touched:?}");
    assert_eq!(touched.stale, 0);
    let mut report = Report::default();
    report_checks(&mut report, &[touched], bytes, Pages::Small);
    assert!(
        report.checks.iter().all(|check| check.passed),
        "{:?}",
        report.checks
    );
    report_checks(&mut report, &[touched], 2 * bytes, Pages::Small); // as if there had been twice as many pages
    assert!(report.checks.iter().any(|check| !check.passed));
}

#[test]
fn all_shares_are_worked_on_at_once_by_threads_of_their_own() {
    let mut shares = vec![None; 4];
    let span = team::together(&mut shares, |share| {
        *share = Some(std::thread::current().id())
    })
    .expect("threads");
    let own: std::collections::HashSet<_> = shares.iter().flatten().collect();
    assert_eq!(own.len(), 4);
    assert!(span.end_ns >= span.start_ns);
}
