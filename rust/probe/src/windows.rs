//! Warm-up and windows, the same for every probe.
//!
//! The rule: before anything is timed, buffers are allocated and touched. Then the work is done untimed, from one unit
//! on and twice as much each time, until a go takes [`CALIBRATION`]: that is the warm-up, and gives the pace. With
//! `--time-ns` each window does as many units as take about that long at that pace; with `--work` exactly so many,
//! unless that is too fast for the clock, which is noted and enlarged.
//!
//! A single go is no pace: it may have been stopped, starved or cold for all of its time. So one that took long enough
//! is done once more, and again as long as the last was faster than all before by a quarter. The fastest of them tells
//! the pace; where it took less than [`CALIBRATION`], twice as much is done, and so on. At last half a window's work is
//! done in one go, and where that takes less than half of the time that it should, again twice as much, until it does
//! not; the faster of both paces holds. A unit that takes longer than a window is mostly done twice.

use std::time::Duration;

use crate::arguments::Arguments;
use crate::report::{Failed, Window};

pub const USAGE: &str =
    "  every probe: [--windows 3] [--time-ns 500000000 | --work UNITS] [--json]";

/// The warm-up goes on until a go takes this long.
const CALIBRATION: Duration = Duration::from_millis(20);
/// A go that takes less than this share of the fastest before it is one of several that get faster and faster.
const WARMING_SHARE: f64 = 0.75;
/// Half a window's work that takes less than this share of its time shows that the pace was none.
const PACE_SHARE: f64 = 0.5;
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

    /// The same windows for work that keeps its own time, a unit each `unit_ns`: there is no pace to be found, and a
    /// machine that is busy during the warm-up makes no window shorter.
    pub fn of_units_that_take(self, unit_ns: u64) -> Windows {
        let length = match self.length {
            Length::Time(time_ns) => Length::Work(time_ns.div_ceil(unit_ns)),
            work => work,
        };
        Windows { length, ..self }
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
        match self.length {
            Length::Time(time_ns) => units_of_time(time_ns, body),
            Length::Work(asked) => {
                let units = units_of_work(asked, body)?;
                if units != asked {
                    notes.push(format!(
                        "the work was enlarged from {asked} to {units} units: less was too fast for the clock"
                    ));
                }
                Ok(units)
            }
        }
    }
}

/// As many units as take about so long at the pace of the fastest go.
fn units_of_time(
    time_ns: u64,
    body: &mut impl FnMut(u64) -> Result<Span, Failed>,
) -> Result<u64, Failed> {
    let least_ns = time_ns.min(CALIBRATION.as_nanos() as u64);
    let mut units = 1;
    let mut took_ns = fastest_ns(units, least_ns, body)?;
    while took_ns < least_ns {
        units *= 2;
        took_ns = fastest_ns(units, least_ns, body)?;
    }
    let unit_ns = took_ns as f64 / units as f64;
    let unit_ns = rehearsed_ns(time_ns as f64 / 2.0, units, unit_ns, body)?;
    Ok((time_ns as f64 / unit_ns).ceil() as u64)
}

/// How long the fastest go with so many units took: the first, where it took less than `least_ns`, or of as many as get
/// faster and one more.
fn fastest_ns(
    units: u64,
    least_ns: u64,
    body: &mut impl FnMut(u64) -> Result<Span, Failed>,
) -> Result<u64, Failed> {
    let mut fastest_ns = body(units)?.duration_ns();
    while fastest_ns >= least_ns {
        let before_ns = fastest_ns;
        fastest_ns = before_ns.min(body(units)?.duration_ns());
        if fastest_ns as f64 >= WARMING_SHARE * before_ns as f64 {
            break;
        }
    }
    Ok(fastest_ns)
}

/// How long a unit takes at the least: as was seen of so many `units`, or in a go of about `time_ns` with more of them.
fn rehearsed_ns(
    time_ns: f64,
    units: u64,
    unit_ns: f64,
    body: &mut impl FnMut(u64) -> Result<Span, Failed>,
) -> Result<f64, Failed> {
    let mut more = (time_ns / unit_ns).ceil() as u64;
    if more <= units {
        return Ok(unit_ns);
    }
    let mut took_ns = body(more)?.duration_ns() as f64;
    while took_ns < PACE_SHARE * time_ns {
        more *= 2; // and no more at once: a flood that is lost may seem to take no time at all
        took_ns = body(more)?.duration_ns() as f64;
    }
    Ok(unit_ns.min(took_ns / more as f64))
}

/// So many units, or as many times twice as many as are not too fast for the clock.
fn units_of_work(
    asked: u64,
    body: &mut impl FnMut(u64) -> Result<Span, Failed>,
) -> Result<u64, Failed> {
    let least_ns = SHORTEST_NS.max(TICKS * resolution_ns());
    let mut units = asked;
    while body(units)?.duration_ns() < least_ns {
        units *= 2;
    }
    Ok(units)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// How many units a window of `time_ns` holds where a go with `units` takes `took_ns(go, units)`, and the goes that
    /// told it. Nothing really takes time.
    fn found(time_ns: u64, took_ns: impl Fn(usize, u64) -> u64) -> (u64, Vec<u64>) {
        let mut goes = Vec::new();
        let windows = Windows {
            count: 1,
            length: Length::Time(time_ns),
        };
        let mut body = |units| {
            goes.push(units);
            assert!(goes.len() < 100, "it does not end: {goes:?}");
            Ok(Span {
                start_ns: 0,
                end_ns: took_ns(goes.len() - 1, units),
            })
        };
        let units = windows.units(&mut Vec::new(), &mut body).unwrap();
        (units, goes)
    }

    #[test]
    fn a_steady_service_is_told_by_its_pace() {
        let (units, goes) = found(500 * MS, |_, units| units * 10_000);
        assert_eq!(units, 50_000);
        assert_eq!(goes[..4], [1, 2, 4, 8]);
        assert_eq!(goes[11..], [2048, 2048, 25_000]);
    }

    #[test]
    fn a_go_that_was_stopped_tells_no_pace() {
        for stop_ns in [20 * MS, 400 * MS, 3_000 * MS] {
            for stopped in 0..14 {
                let (units, _) = found(500 * MS, |go, units| {
                    units * 10_000 + if go == stopped { stop_ns } else { 0 }
                });
                assert_eq!(units, 50_000, "go {stopped}, {stop_ns} ns");
            }
        }
    }

    #[test]
    fn nor_do_all_that_were_starved_for_a_while() {
        // Until half a window is rehearsed, each unit takes 5 ms, and then 10 us.
        for starved in 2..5 {
            let (units, _) = found(500 * MS, |go, units| {
                units * if go < starved { 5 * MS } else { 10_000 }
            });
            assert_eq!(units, 50_000, "{starved} goes");
        }
    }

    #[test]
    fn work_that_keeps_its_own_time_needs_no_pace() {
        // As the timer's wakes are when all of the warm-up is starved: windows had held half of what they should.
        let windows = Windows {
            count: 1,
            length: Length::Time(100 * MS),
        };
        let mut starved = |units| {
            Ok(Span {
                start_ns: 0,
                end_ns: units * 5 * MS,
            })
        };
        let mut notes = Vec::new();
        let kept = windows.of_units_that_take(3 * MS);
        assert_eq!(kept.units(&mut notes, &mut starved).unwrap(), 34);
        assert!(notes.is_empty());
        let asked = Windows {
            length: Length::Work(7),
            ..windows
        };
        assert_eq!(asked.of_units_that_take(3 * MS).length, Length::Work(7));
    }

    #[test]
    fn a_cold_start_tells_no_pace() {
        // Each go is twice as fast as the one before, down to its pace: as a connection finds its window.
        let (units, _) = found(500 * MS, |go, units| {
            units * 10_000 + ((400 * MS) >> go.min(63))
        });
        assert!((25_000..=50_000).contains(&units), "{units}");
    }

    #[test]
    fn the_first_units_may_be_cold_for_longer_than_a_window() {
        let (units, goes) = found(500 * MS, |go, units| {
            [3_000, 900, 40][go.min(2)] * units * MS
        });
        assert_eq!((units, goes), (13, vec![1, 1, 1, 1, 7]));
    }

    #[test]
    fn a_slow_service_has_windows_of_a_few_units() {
        let (units, goes) = found(500 * MS, |_, units| units * 150 * MS);
        assert_eq!((units, goes), (4, vec![1, 1, 2]));
    }

    #[test]
    fn a_unit_longer_than_a_window_is_done_twice() {
        let (units, goes) = found(500 * MS, |_, units| units * 30_000 * MS);
        assert_eq!((units, goes), (1, vec![1, 1]));
    }

    #[test]
    fn a_window_shorter_than_the_calibration_is_not_warmed_up_for_longer() {
        let (units, goes) = found(MS, |_, units| units * 2 * MS);
        assert_eq!((units, goes), (1, vec![1, 1]));
    }

    #[test]
    fn fixed_work_is_what_was_asked_for() {
        let windows = Windows {
            count: 1,
            length: Length::Work(7),
        };
        let mut goes = Vec::new();
        let mut body = |units| {
            goes.push(units);
            Ok(Span {
                start_ns: 0,
                end_ns: 1_000_000 * MS,
            })
        };
        let units = windows.units(&mut Vec::new(), &mut body).unwrap();
        assert_eq!((units, goes), (7, vec![7]));
    }
}
