//! Warm-up and windows, the same for every probe.
//!
//! The rule: before anything is timed, buffers are allocated and touched. Then the work is done untimed, from one unit
//! on and twice as much each time, until one go takes [`CALIBRATION`]: that is the warm-up, and gives the pace. With
//! `--time-ns` each window does as many units as take about that long at that pace; with `--work` exactly so many,
//! unless that is too fast for the clock, which is noted and enlarged.

use std::time::Duration;

use crate::arguments::Arguments;
use crate::report::{Failed, Window};

pub const USAGE: &str =
    "  every probe: [--windows 3] [--time-ns 500000000 | --work UNITS] [--json]";

/// The warm-up goes on until a go takes this long.
const CALIBRATION: Duration = Duration::from_millis(20);
/// A window must be at least this many times longer than the clock's resolution, and never shorter than a millisecond.
const TICKS: u64 = 10_000;
const SHORTEST_NS: u64 = 1_000_000;

/// How many windows, and how long or how much each.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub count: u64,
    pub length: Length,
}

/// A window's length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// About so many nanoseconds of work.
    Time(u64),
    /// Exactly so many units of work.
    Work(u64),
}

/// When a piece of work ran, by its workers' own stamps: first start to last end.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Span {
    /// Its length, at least 1.
    pub fn duration_ns(self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns).max(1)
    }

    /// Time `body` from this thread.
    pub fn of(body: impl FnOnce()) -> Span {
        let start_ns = now_ns();
        body();
        Span {
            start_ns,
            end_ns: now_ns(),
        }
    }

    /// From the first start to the last end of several workers.
    pub fn over(spans: &[Span]) -> Span {
        Span {
            start_ns: spans.iter().map(|span| span.start_ns).min().unwrap_or(0),
            end_ns: spans.iter().map(|span| span.end_ns).max().unwrap_or(0),
        }
    }
}

impl Windows {
    /// From the command line.
    pub fn from(arguments: &mut Arguments) -> Windows {
        let count = arguments.at_least("windows", 1, 3);
        if arguments.gives("work") && arguments.gives("time-ns") {
            arguments.complain(
                "--work and --time-ns are both given: a window ends by one of them".into(),
            );
        }
        let work = arguments.get("work", 0_u64);
        let time_ns = arguments.at_least("time-ns", SHORTEST_NS, 500_000_000);
        let length = if work > 0 {
            Length::Work(work)
        } else {
            Length::Time(time_ns)
        };
        Windows { count, length }
    }

    /// Warm up, then run `body(units)` once a window; each window's values come from `values(units, span)`.
    ///
    /// What a reader must know is added to `notes`.
    pub fn measure(
        &self,
        notes: &mut Vec<String>,
        mut body: impl FnMut(u64) -> Result<Span, Failed>,
        mut values: impl FnMut(u64, Span) -> Vec<(&'static str, f64)>,
    ) -> Result<Vec<Window>, Failed> {
        let units = self.units(notes, &mut body)?;
        let mut windows = Vec::new();
        for _ in 0..self.count {
            let span = body(units)?;
            windows.push(Window {
                start_ns: span.start_ns,
                duration_ns: span.duration_ns(),
                work: units,
                values: values(units, span).into_iter().collect(),
            });
        }
        Ok(windows)
    }

    /// Warm up and find how many units a window holds.
    fn units(
        &self,
        notes: &mut Vec<String>,
        body: &mut impl FnMut(u64) -> Result<Span, Failed>,
    ) -> Result<u64, Failed> {
        let enough_ns = CALIBRATION.as_nanos() as u64;
        let mut units = match self.length {
            Length::Work(work) => work,
            Length::Time(_) => 1,
        };
        let mut took_ns = body(units)?.duration_ns();
        let asked = units;
        let least_ns = match self.length {
            Length::Time(time_ns) => enough_ns.min(time_ns),
            Length::Work(_) => SHORTEST_NS.max(TICKS * resolution_ns()),
        };
        while took_ns < least_ns {
            units *= 2;
            took_ns = body(units)?.duration_ns();
        }
        match self.length {
            Length::Work(_) if units != asked => notes.push(format!(
                "the work was enlarged from {asked} to {units} units: less was too fast for the clock"
            )),
            Length::Work(_) => {}
            Length::Time(time_ns) => {
                units = (units as f64 * time_ns as f64 / took_ns as f64).ceil().max(1.0) as u64;
            }
        }
        Ok(units)
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// A clock in nanoseconds.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on every Linux, and `time` is valid for writing.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The smallest step of CLOCK_MONOTONIC that was seen, in nanoseconds: its resolution and the cost of reading it.
pub fn resolution_ns() -> u64 {
    (0..100)
        .map(|_| {
            let begin = now_ns();
            loop {
                let later = now_ns();
                if later > begin {
                    return later - begin;
                }
            }
        })
        .min()
        .expect("a hundred steps")
}
