//! The clock itself: what reading it costs, how fine it is, and how much of the time was stolen meanwhile.

use std::cell::RefCell;
use std::fs;

use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, resolution_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "clock",
    summary: "reading CLOCK_MONOTONIC: what it costs and how fine it is; time stolen meanwhile",
    usage: "",
    run,
};

const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let mut report = Report::of(&[("read_ns", "ns"), ("steal_percent", "%")]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let counter = Counter::read();
    let mut last_ns = now_ns();
    let mut steps_back = 0_u64;
    let stolen = RefCell::new(None);
    report.windows = windows.measure(
        &mut report.notes,
        |reads| {
            let before = Ticks::read();
            let span = Span::of(|| {
                for _ in 0..reads {
                    let now = now_ns();
                    steps_back += u64::from(now < last_ns);
                    last_ns = now;
                }
            });
            stolen.replace(
                Ticks::read()
                    .zip(before)
                    .and_then(|(after, before)| after.stolen_percent(before)),
            );
            Ok(span)
        },
        |reads, span| {
            let read = ("read_ns", span.duration_ns() as f64 / reads as f64);
            let steal = stolen.borrow().map(|percent| ("steal_percent", percent));
            std::iter::once(read).chain(steal).collect()
        },
    )?;
    report.check(
        "the clock never went back",
        steps_back == 0,
        format!("{steps_back} steps back"),
    );
    report.fact("resolution_ns", resolution_ns());
    if let Some(khz) = Counter::read()
        .zip(counter)
        .and_then(|(now, then)| now.khz_since(then))
    {
        report.fact("tsc_khz", khz);
    }
    if let Ok(source) = fs::read_to_string(SOURCE) {
        report.fact("clocksource", source.trim());
    }
    Ok(report)
}

/// The CPU's time stamp counter, and when it was read.
#[derive(Clone, Copy, Debug)]
struct Counter {
    ticks: u64,
    at_ns: u64,
}

impl Counter {
    /// The reading that took least time of several, for this thread may be stopped within one. None where a CPU is of
    /// another kind.
    #[cfg(target_arch = "x86_64")]
    fn read() -> Option<Counter> {
        let readings = (0..16).map(|_| {
            let before_ns = now_ns();
            // SAFETY: Linux lets every thread read it (prctl(PR_SET_TSC) has not been asked to forbid it).
            let ticks = unsafe { std::arch::x86_64::_rdtsc() };
            let took_ns = now_ns() - before_ns;
            let at_ns = before_ns + took_ns / 2;
            (took_ns, Counter { ticks, at_ns })
        });
        let (_, best) = readings.min_by_key(|&(took_ns, _)| took_ns)?;
        Some(best)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn read() -> Option<Counter> {
        None
    }

    /// The counter's pace; None when it has not counted.
    fn khz_since(self, then: Counter) -> Option<u64> {
        let ticks = self.ticks.checked_sub(then.ticks)?;
        let length_ns = self.at_ns.checked_sub(then.at_ns)?;
        let khz = u128::from(ticks) * 1_000_000 / u128::from(length_ns.max(1));
        u64::try_from(khz).ok().filter(|&khz| khz > 0)
    }
}

/// What /proc/stat says of all CPUs together, in its ticks (mostly 10 ms of one CPU).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    /// None where there is no /proc/stat, or no steal in it.
    fn read() -> Option<Ticks> {
        Ticks::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Of its first line: user, nice, system, idle, iowait, irq, softirq, steal. What follows is part of user and nice.
    fn of(text: &str) -> Option<Ticks> {
        let counts: Vec<u64> = text
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .take(8)
            .collect();
        Some(Ticks {
            all: counts.iter().sum(),
            stolen: *counts.get(7)?,
        })
    }

    /// The share that was stolen since; None when no tick has passed.
    fn stolen_percent(self, before: Ticks) -> Option<f64> {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        (all > 0).then(|| 100.0 * stolen as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_a_share_of_all_ticks() {
        let before = Ticks::of("cpu  10 0 10 60 5 1 2 12 7 0\ncpu0 1\n").unwrap();
        assert_eq!(
            before,
            Ticks {
                all: 100,
                stolen: 12
            }
        );
        let after = Ticks::of("cpu  110 0 10 110 5 1 2 62 107 0\n").unwrap();
        assert_eq!(after.stolen_percent(before), Some(25.0));
        assert_eq!(before.stolen_percent(before), None);
    }

    #[test]
    fn the_counters_pace_is_ticks_a_millisecond() {
        let counter = |ticks, at_ns| Counter { ticks, at_ns };
        let then = counter(5_000, 1_000);
        assert_eq!(
            counter(2_405_000, 1_001_000).khz_since(then),
            Some(2_400_000)
        );
        assert_eq!(counter(5_000, 1_001_000).khz_since(then), None); // it stands still
        assert_eq!(counter(4_000, 1_001_000).khz_since(then), None); // another machine's
    }

    #[test]
    fn where_steal_is_not_given_there_is_none() {
        assert_eq!(Ticks::of("cpu  10 0 10 60\n"), None);
        assert_eq!(Ticks::of("intr 5\n"), None);
        assert_eq!(Ticks::of(""), None);
    }
}
