//! What it costs to touch a page for the first time: fresh memory is mapped, each page written once, and all unmapped.

use std::cell::RefCell;

use crate::arguments::Arguments;
use crate::memory::mapping::{report_achieved, Mapping, Pages, SMALL_BYTES};
use crate::memory::room;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "first-touch",
    summary: "page faults: what the first touch of fresh memory costs",
    usage: "[--block-bytes 67108864] [--pages small|huge]; a unit of work: mapping, touching and unmapping one block",
    run,
};

/// What was found when some blocks were touched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touched {
    blocks: u64,
    pub(super) touch_ns: u64,
    unmap_ns: u64,
    /// Minor faults that the system counted meanwhile.
    pub(super) faults: u64,
    /// Pages that did not hold what was written in them, and zero beside it.
    pub(super) stale: u64,
    /// Of the last block; None where the system does not tell.
    in_huge_pages: Option<u64>,
}

/// Map, touch and unmap `blocks` blocks of `bytes`, one after the other.
pub(super) fn touch(bytes: usize, pages: Pages, blocks: u64) -> Result<Touched, Failed> {
    let mut touched = Touched {
        blocks,
        ..Touched::default()
    };
    for block in 1..=blocks {
        let mapping = Mapping::new(bytes, pages)?;
        let faults = minor_faults();
        let begin_ns = now_ns();
        write_pages(&mapping, block);
        touched.touch_ns += now_ns() - begin_ns;
        touched.faults += minor_faults() - faults;
        touched.stale += stale_pages(&mapping, block);
        if block == blocks {
            touched.in_huge_pages = mapping.in_huge_pages();
        }
        let begin_ns = now_ns();
        drop(mapping);
        touched.unmap_ns += now_ns() - begin_ns;
    }
    Ok(touched)
}

/// Write one word in every page of 4 KiB, in ascending order.
fn write_pages(mapping: &Mapping, stamp: u64) {
    for offset in (0..mapping.bytes()).step_by(SMALL_BYTES) {
        // SAFETY: within the mapping, and aligned.
        unsafe {
            mapping
                .start()
                .add(offset)
                .cast::<u64>()
                .write_volatile(stamp)
        };
    }
}

/// Pages that do not begin with the stamp and then zero, as fresh ones do.
fn stale_pages(mapping: &Mapping, stamp: u64) -> u64 {
    let fresh = |offset: &usize| {
        let word = mapping.start().wrapping_add(*offset).cast::<u64>();
        // SAFETY: two words within a page of the mapping.
        unsafe { word.read_volatile() == stamp && word.add(1).read_volatile() == 0 }
    };
    let pages = (0..mapping.bytes()).step_by(SMALL_BYTES);
    pages.filter(|offset| !fresh(offset)).count() as u64
}

/// Minor faults of this thread so far.
fn minor_faults() -> u64 {
    // SAFETY: all zero is a valid rusage, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_minflt as u64
}

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let bytes = arguments.at_least("block-bytes", SMALL_BYTES as u64, 64 << 20) as usize;
    let pages = Pages::from(arguments);
    let mut report = Report::of(&[("fault_ns", "ns/4 KiB"), ("unmap_ns", "ns/4 KiB")]);
    let page = pages.bytes();
    if bytes % page != 0 {
        arguments.complain(format!("--block-bytes {bytes} is no multiple of {page}"));
    }
    if !arguments.are_right() {
        return Ok(report);
    }
    room::demand("--block-bytes", bytes as u64, 1, page as u64)?;
    let log = RefCell::new(Vec::new());
    report.windows = windows.measure(
        &mut report.notes,
        |blocks| {
            let start_ns = now_ns();
            let touched = touch(bytes, pages, blocks)?;
            let end_ns = now_ns();
            log.borrow_mut().push(touched);
            Ok(Span { start_ns, end_ns })
        },
        |blocks, _| {
            let touches = (blocks * (bytes / SMALL_BYTES) as u64) as f64;
            let last = *log.borrow().last().expect("the window before this");
            vec![
                ("fault_ns", last.touch_ns as f64 / touches),
                ("unmap_ns", last.unmap_ns as f64 / touches),
            ]
        },
    )?;
    report_checks(&mut report, &log.into_inner(), bytes, pages);
    Ok(report)
}

/// Prove that all memory was fresh, by what stood in it and by the faults that the system counted.
pub(super) fn report_checks(report: &mut Report, log: &[Touched], bytes: usize, pages: Pages) {
    let stale: u64 = log.iter().map(|touched| touched.stale).sum();
    report.check(
        "every page was fresh",
        stale == 0,
        format!("{stale} were not"),
    );
    let blocks: u64 = log.iter().map(|touched| touched.blocks).sum();
    let faults: u64 = log.iter().map(|touched| touched.faults).sum();
    let expected = blocks * (bytes / pages.bytes()) as u64;
    report.fact("minor_faults", faults);
    if faults == 0 {
        let note = "the system counts no page faults (getrusage): only the pages' contents prove that they were fresh";
        report.notes.push(note.to_owned());
    } else {
        report.check(
            "page faults",
            faults >= expected,
            format!("{faults} counted, at least {expected} expected"),
        );
    }
    let least_in_huge = log
        .iter()
        .map(|touched| touched.in_huge_pages)
        .min()
        .flatten();
    report_achieved(report, pages, least_in_huge, bytes as u64);
}
