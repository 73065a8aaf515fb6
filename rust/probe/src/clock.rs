//! The clock itself: what reading it costs, and how fine it is.

use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, resolution_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "clock",
    summary: "reading CLOCK_MONOTONIC: what it costs and how fine it is",
    usage: "",
    run,
};

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let mut report = Report::of(&[("read_ns", "ns")]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let mut last_ns = now_ns();
    let mut steps_back = 0_u64;
    report.windows = windows.measure(
        &mut report.notes,
        |reads| {
            Ok(Span::of(|| {
                for _ in 0..reads {
                    let now = now_ns();
                    steps_back += u64::from(now < last_ns);
                    last_ns = now;
                }
            }))
        },
        |reads, span| vec![("read_ns", span.duration_ns() as f64 / reads as f64)],
    )?;
    report.check(
        "the clock never went back",
        steps_back == 0,
        format!("{steps_back} steps back"),
    );
    report.fact("resolution_ns", resolution_ns());
    Ok(report)
}
