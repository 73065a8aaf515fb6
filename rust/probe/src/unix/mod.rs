//! The tests of UnixBench (BYTE magazine, 1983 to today): what a process, a call, a pipe and a small file cost.
//!
//! Each is a probe of its own, `unix-pipe`, `unix-context` and so on. All run as one copy or as several at once, each
//! copy a process that stamps its own start and end ([`copies`]); the rates of the copies are summed, as UnixBench does.

mod arithmetic;
mod calls;
mod context;
mod copies;
mod dhrystone;
mod execl;
mod files;
mod process;
mod shell;
mod spawn;
mod whetstone;

use std::cell::RefCell;

use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{Span, Windows};
use crate::Probe;

pub use execl::EXECL;
pub use files::FILE;
pub use shell::SHELL;

use copies::{Copies, Work};

const COPIES: &str = "[--copies 1]";
const NS_PER_S: f64 = 1e9;
const LEAST_OVERLAP_PERCENT: f64 = 90.0;

pub const ARITHMETIC: Probe = Probe {
    name: "unix-arithmetic",
    summary: "UnixBench's double arithmetic: divisions and additions",
    usage: COPIES,
    run: |arguments| measure(arguments, &arithmetic::QUANTITY, |_| arithmetic::prepare()),
};

pub const CONTEXT: Probe = Probe {
    name: "unix-context",
    summary: "two processes that hand a number to and fro over two pipes",
    usage: COPIES,
    run: |arguments| measure(arguments, &context::QUANTITY, |_| context::prepare()),
};

pub const DHRYSTONE: Probe = Probe {
    name: "unix-dhrystone",
    summary: "Dhrystone 2.1: integers, records and strings",
    usage: COPIES,
    run: |arguments| measure(arguments, &dhrystone::QUANTITY, |_| dhrystone::prepare()),
};

pub const PIPE: Probe = Probe {
    name: "unix-pipe",
    summary: "512 bytes through a pipe and back, in one process",
    usage: COPIES,
    run: |arguments| measure(arguments, &calls::PIPE, |_| calls::pipe_loops()),
};

pub const SPAWN: Probe = Probe {
    name: "unix-spawn",
    summary: "processes made by fork, ended and waited for",
    usage: COPIES,
    run: |arguments| measure(arguments, &spawn::QUANTITY, |_| spawn::prepare()),
};

pub const SYSCALL: Probe = Probe {
    name: "unix-syscall",
    summary: "five cheap system calls: dup, close, getppid, getuid, umask",
    usage: COPIES,
    run: |arguments| measure(arguments, &calls::SYSCALL, |_| calls::syscall()),
};

pub const WHETSTONE: Probe = Probe {
    name: "unix-whetstone",
    summary: "Whetstone in double precision: floating point and its functions",
    usage: COPIES,
    run: |arguments| measure(arguments, &whetstone::QUANTITY, |_| whetstone::prepare()),
};

/// What a test measures.
struct Quantity {
    key: &'static str,
    unit: &'static str,
    /// How many of the key's amount a unit of work is, in a second.
    per_unit: f64,
    /// The name of the check of its work.
    proof: &'static str,
}

/// Run the copies of a test window by window. `prepare` makes a copy's work, in that copy's process.
fn measure(
    arguments: &mut Arguments,
    quantity: &Quantity,
    prepare: impl Fn(u64) -> Result<Work, Failed>,
) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let count = arguments.at_least("copies", 1, 1);
    let mut report = Report::of(&[(quantity.key, quantity.unit)]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let mut copies = Copies::start(count, prepare)?;
    let spans = RefCell::new(Vec::new());
    let mut overlap_percent = 100.0_f64;
    let mut wrong = Vec::new();
    report.windows = windows.measure(
        &mut report.notes,
        |units| {
            let laps = copies.run(units)?;
            wrong.extend(laps.iter().filter_map(|lap| lap.wrong.clone()));
            let stamps: Vec<Span> = laps.iter().map(|lap| lap.span).collect();
            let whole = Span::over(&stamps);
            spans.replace(stamps);
            Ok(whole)
        },
        |units, _| {
            let spans = spans.borrow();
            overlap_percent = overlap_percent.min(overlap(&spans));
            vec![(quantity.key, rate(quantity, units, &spans))]
        },
    )?;
    report.check(
        quantity.proof,
        wrong.is_empty(),
        wrong
            .first()
            .cloned()
            .unwrap_or_else(|| format!("in each of {count} copies, after every go")),
    );
    if count > 1 {
        check_overlap(&mut report, overlap_percent);
    }
    Ok(report)
}

/// A copy that runs while others have not begun, or have ended, has what should be theirs: of copies that do not run at
/// the same time the sum of the rates is no rate.
fn check_overlap(report: &mut Report, overlap_percent: f64) {
    report.fact("least_overlap_percent", overlap_percent.round());
    report.check(
        "all copies ran at once",
        overlap_percent >= LEAST_OVERLAP_PERCENT,
        format!(
            "during {overlap_percent:.0} % of the window in which they did least, and {LEAST_OVERLAP_PERCENT} % are to \
             be: longer windows have more"
        ),
    );
}

/// The sum of the copies' rates, each over its own time.
fn rate(quantity: &Quantity, units: u64, spans: &[Span]) -> f64 {
    spans
        .iter()
        .map(|span| units as f64 * quantity.per_unit * NS_PER_S / span.duration_ns() as f64)
        .sum()
}

/// How much of the time from first start to last end all copies were running, in percent.
fn overlap(spans: &[Span]) -> f64 {
    let last_start_ns = spans.iter().map(|span| span.start_ns).max().unwrap_or(0);
    let first_end_ns = spans.iter().map(|span| span.end_ns).min().unwrap_or(0);
    let together_ns = first_end_ns.saturating_sub(last_start_ns);
    100.0 * together_ns as f64 / Span::over(spans).duration_ns() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Quantity = Quantity {
        key: "loops_per_s",
        unit: "/s",
        per_unit: 2.0,
        proof: "nothing",
    };

    fn span(start_ns: u64, end_ns: u64) -> Span {
        Span { start_ns, end_ns }
    }

    #[test]
    fn rates_of_copies_are_summed_over_their_own_times() {
        let spans = [span(0, 1_000_000_000), span(500_000_000, 1_000_000_000)];
        assert_eq!(rate(&TEST, 10, &spans), 20.0 + 40.0);
    }

    #[test]
    fn copies_overlap_where_all_of_them_ran() {
        assert_eq!(overlap(&[span(0, 100)]), 100.0);
        assert_eq!(overlap(&[span(0, 80), span(20, 100)]), 60.0);
        assert_eq!(overlap(&[span(0, 40), span(50, 100)]), 0.0);
    }

    #[test]
    fn copies_that_ran_one_after_the_other_make_no_sum() {
        let passed = |percent| {
            let mut report = Report::default();
            check_overlap(&mut report, percent);
            assert_eq!(report.checks.len(), 1);
            report.checks[0].passed
        };
        assert!(passed(100.0) && passed(90.0));
        assert!(!passed(89.9) && !passed(0.0));
    }

    #[test]
    fn one_copy_has_nobody_to_run_with() {
        let words = ["--windows", "1", "--time-ns", "1000000"].map(str::to_owned);
        let report = (ARITHMETIC.run)(&mut Arguments::parse(&words).unwrap()).unwrap();
        assert_eq!(report.checks.len(), 1);
        assert!(!report.facts.contains_key("least_overlap_percent"));
    }
}
