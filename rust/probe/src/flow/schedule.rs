//! When datagrams are to depart: segments of one rate each, one after the other, on deadlines that do not move.

use crate::windows::{Length, Windows};

/// So many segments, and so long a flow, at most.
pub const MOST_SEGMENTS: usize = 1000;
pub const MOST_NS: u64 = 24 * 3600 * 1_000_000_000;
/// No clock of a machine comes there; what is added to it is in range.
pub const MOST_START_NS: u64 = i64::MAX as u64;

/// How the departures of a segment lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// `count` departures, one each `interval_ns`; the first is due so many intervals (`wait`, below 1, and no further
    /// below 0 than by 1e-6) after the segment's start.
    Every {
        interval_ns: f64,
        wait: f64,
        count: u64,
    },
    /// As fast as they go.
    Unpaced,
}

/// A stretch of one rate. Times run from the start of the flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    pub start_ns: u64,
    pub end_ns: u64,
    pub pace: Pace,
}

/// What the first segment follows.
const BEGIN: Segment = Segment {
    start_ns: 0,
    end_ns: 0,
    pace: Pace::Unpaced,
};

impl Segment {
    /// Departures `interval_ns` apart for `duration_ns`; none when the interval is infinite.
    fn timed(start_ns: u64, duration_ns: u64, interval_ns: f64, wait: f64) -> Segment {
        // The last one departs before the end, also where the division is off by its last bit.
        let count = (duration_ns as f64 / interval_ns - wait - 1e-6).ceil();
        let count = match interval_ns.is_infinite() {
            true => 0, // also of what is due by what that division is off
            false => count.max(0.0) as u64,
        };
        Segment {
            start_ns,
            end_ns: start_ns + duration_ns,
            pace: Pace::Every {
                interval_ns,
                wait,
                count,
            },
        }
    }

    /// What follows this one: a schedule goes on where its segments meet, at the same rate or at another. If each began
    /// anew, each had a departure more than its rate where it holds no whole number of them.
    fn then(&self, duration_ns: u64, interval_ns: f64) -> Segment {
        Segment::timed(self.end_ns, duration_ns, interval_ns, self.wait_after())
    }

    /// How many intervals after its end the next departure is due. It may be before it by what a division is off (1e-6):
    /// were that called none, each segment moved all that follow.
    fn wait_after(&self) -> f64 {
        match self.pace {
            Pace::Every {
                interval_ns,
                wait,
                count,
            } => wait + count as f64 - self.duration_ns() as f64 / interval_ns,
            Pace::Unpaced => 0.0,
        }
    }

    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    /// How many are to depart, where that is known.
    pub fn intended(&self) -> Option<u64> {
        match self.pace {
            Pace::Every { count, .. } => Some(count),
            Pace::Unpaced => None,
        }
    }

    /// When departure `number` of this segment is due.
    pub fn deadline_ns(&self, number: u64) -> u64 {
        match self.pace {
            Pace::Every {
                interval_ns, wait, ..
            } => self.start_ns + ((wait + number as f64) * interval_ns).round() as u64,
            Pace::Unpaced => self.start_ns,
        }
    }

    /// How many departures are due at `at_ns` when `done` are gone; at most `most`.
    pub fn due(&self, at_ns: u64, done: u64, most: u64) -> u64 {
        match self.pace {
            Pace::Unpaced => most,
            Pace::Every {
                interval_ns,
                wait,
                count,
            } => {
                let passed_ns = at_ns.saturating_sub(self.start_ns) as f64;
                // By the rounded deadline: what is waited for is due then.
                let by_now = ((passed_ns + 0.5) / interval_ns - wait).floor() + 1.0;
                (by_now as u64).min(count).saturating_sub(done).min(most)
            }
        }
    }
}

/// A warm-up at the first rate, then the windows: equal ones, or the steps.
pub fn constant(
    interval_ns: Option<f64>,
    warm_up_ns: u64,
    windows: &Windows,
) -> Result<Vec<Segment>, String> {
    if let Some(interval_ns) = interval_ns {
        within_reach(interval_ns)?;
    }
    let duration_ns = match (windows.length, interval_ns) {
        (Length::Time(time_ns), interval_ns) => {
            holds_one(time_ns, interval_ns.unwrap_or(0.0))?;
            time_ns
        }
        (Length::Work(work), Some(interval_ns)) => (work as f64 * interval_ns).round() as u64,
        (Length::Work(_), None) => return Err("--work needs a rate".to_owned()),
    };
    within_bounds(
        windows.count as usize,
        u128::from(duration_ns) * u128::from(windows.count),
    )?;
    let after = |before: &Segment, duration_ns| match interval_ns {
        Some(interval_ns) => before.then(duration_ns, interval_ns),
        None => Segment {
            start_ns: before.end_ns,
            end_ns: before.end_ns + duration_ns,
            pace: Pace::Unpaced,
        },
    };
    let mut segments = vec![after(&BEGIN, warm_up_ns)];
    for _ in 0..windows.count {
        segments.push(after(&segments[segments.len() - 1], duration_ns));
    }
    if let Length::Work(work) = windows.length {
        let (warm_up, windows) = segments.split_at_mut(1);
        for window in windows {
            // So many, however its length was rounded to whole nanoseconds.
            if let Pace::Every { wait, count, .. } = &mut window.pace {
                (*wait, *count) = (warm_up[0].wait_after(), work);
            }
        }
    }
    Ok(segments)
}

/// From `RATE:NS,RATE:NS,...`, in bit/s of payload; 0 is silence. The warm-up has the first step's rate.
pub fn steps(text: &str, bits: u64, warm_up_ns: u64) -> Result<Vec<Segment>, String> {
    let step = |word: &str| -> Option<(f64, u64)> {
        let (rate, time_ns) = word.split_once(':')?;
        let (rate, time_ns) = (rate.parse::<u64>().ok()?, time_ns.parse::<u64>().ok()?);
        (time_ns >= 1_000_000).then(|| (bits as f64 * 1e9 / rate as f64, time_ns))
    };
    let steps = text
        .split(',')
        .map(|word| {
            step(word)
                .ok_or_else(|| format!("--steps {word:?} is not RATE:NS, of 1000000 ns at least"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    within_bounds(
        steps.len(),
        steps.iter().map(|step| u128::from(step.1)).sum(),
    )?;
    for (interval_ns, time_ns) in &steps {
        within_reach(*interval_ns)?;
        if interval_ns.is_finite() {
            holds_one(*time_ns, *interval_ns)?;
        }
    }
    let mut segments = vec![BEGIN.then(warm_up_ns, steps[0].0)];
    for (interval_ns, time_ns) in steps {
        segments.push(segments[segments.len() - 1].then(time_ns, interval_ns));
    }
    Ok(segments)
}

/// A window without a departure would measure nothing.
fn holds_one(time_ns: u64, interval_ns: f64) -> Result<(), String> {
    if time_ns as f64 >= interval_ns {
        return Ok(());
    }
    Err(format!(
        "a window of {time_ns} ns holds less than one packet, each {interval_ns:.0} ns: take longer windows, or a \
         higher rate"
    ))
}

/// Departures have times in whole nanoseconds.
fn within_reach(interval_ns: f64) -> Result<(), String> {
    if interval_ns >= 1.0 {
        return Ok(());
    }
    Err("a rate has one departure a nanosecond at most".to_owned())
}

fn within_bounds(segments: usize, ns: u128) -> Result<(), String> {
    if segments > MOST_SEGMENTS || ns > u128::from(MOST_NS) {
        return Err(format!(
            "a flow has {MOST_SEGMENTS} windows or steps and 24 h at most"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rate_is_kept_exactly_over_its_windows() {
        let windows = Windows {
            count: 2,
            length: Length::Time(1_000_000_000),
        };
        let segments = constant(Some(300_000.0), 3_000_000, &windows).unwrap();
        assert_eq!(segments[0].intended(), Some(10));
        assert_eq!(segments[1].intended(), Some(3334)); // the last departs 0.1 ms before the end
        assert_eq!(segments[2].start_ns, 1_003_000_000);
        assert_eq!(segments[1].deadline_ns(3333), 3_000_000 + 999_900_000);
        assert_eq!(segments[2].intended(), Some(3333)); // and the first of these 0.2 ms after it
        assert_eq!(segments[2].deadline_ns(0), 1_003_200_000);
    }

    #[test]
    fn what_is_due_follows_the_clock_alone() {
        let segment = Segment::timed(1000, 10_000, 1000.0, 0.0);
        assert_eq!(segment.due(999, 0, 64), 1); // a segment begins with its first
        assert_eq!(segment.due(1000, 0, 64), 1);
        assert_eq!(segment.due(1999, 1, 64), 0);
        assert_eq!(segment.due(2000, 1, 64), 1);
        assert_eq!(segment.due(9000, 1, 64), 8);
        assert_eq!(segment.due(9000, 1, 4), 4);
        assert_eq!(segment.due(50_000, 0, 64), 10);
    }

    #[test]
    fn what_is_waited_for_is_due_at_its_deadline() {
        for interval_ns in [333.333_333, 27_000.1, 16_666.666_7, 1.5] {
            for wait in [0.0, 0.3, 0.999_99] {
                let segment = Segment::timed(7, 1_000_000_000, interval_ns, wait);
                for number in [0, 1, 2, 3, 1000, 33_333] {
                    let deadline_ns = segment.deadline_ns(number);
                    assert!(
                        segment.due(deadline_ns, number, 64) >= 1,
                        "{interval_ns} {wait} {number}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_rate_is_beyond_the_clock() {
        let windows = Windows {
            count: 1,
            length: Length::Time(1_000_000),
        };
        assert!(constant(Some(1.0), 0, &windows).is_ok());
        for interval_ns in [0.999, 0.0, f64::NAN] {
            assert!(constant(Some(interval_ns), 0, &windows).is_err());
        }
    }

    proptest! {
        /// The warm-up and the windows share one schedule: departure k of the flow is due after k intervals.
        #[test]
        fn windows_of_one_rate_have_what_falls_due_in_them(
            interval_ns in 1_000.0..5_000_000.0_f64,
            warm_up_ns in 0..20_000_000_u64,
            duration_ns in 5_000_000..20_000_000_u64,
            count in 1..6_u64,
        ) {
            let length = Length::Time(duration_ns);
            let segments = constant(Some(interval_ns), warm_up_ns, &Windows { count, length }).unwrap();
            falls_due_each_interval(&segments, interval_ns)?;
        }
    }

    fn falls_due_each_interval(
        segments: &[Segment],
        interval_ns: f64,
    ) -> Result<(), TestCaseError> {
        let off_ns = 1e-6 * interval_ns + 1.0;
        let mut number = 0;
        for segment in segments {
            for each in 0..segment.intended().unwrap() {
                let due_ns = number as f64 * interval_ns;
                let deadline_ns = segment.deadline_ns(each) as f64;
                // A segment's first is not due before it begins.
                let most_ns = if each == 0 { off_ns } else { 1.0 };
                let is_due = (deadline_ns - due_ns).abs() <= most_ns;
                prop_assert!(is_due, "{number}: {deadline_ns} {due_ns}");
                number += 1;
            }
            prop_assert!(number as f64 * interval_ns >= segment.end_ns as f64 - off_ns);
        }
        Ok(())
    }

    #[test]
    fn silence_holds_nothing_that_is_due_where_it_begins() {
        let before = Segment {
            start_ns: 0,
            end_ns: 1_000_001,
            pace: Pace::Every {
                interval_ns: 1e6,
                wait: -1e-6,
                count: 1,
            },
        };
        assert!(before.wait_after() < -1e-6);
        assert_eq!(before.then(1000, f64::INFINITY).intended(), Some(0));
    }

    /// Its twelfth departure is due 1.3 ns before a window ends, and all after that were late by as much.
    #[test]
    fn what_is_due_where_a_window_ends_moves_nothing_that_follows() {
        let (interval_ns, length) = (4304790.557920544, Length::Time(18793662));
        let segments = constant(Some(interval_ns), 9765373, &Windows { count: 3, length }).unwrap();
        falls_due_each_interval(&segments, interval_ns).unwrap();
    }

    #[test]
    fn a_rate_goes_on_through_steps_and_silence() {
        let text = "1500:1000000000,0:1000000000,1250:1000000000,1250:1000000000";
        let segments = steps(text, 1000, 0).unwrap();
        let intended: Vec<_> = segments[1..].iter().map(Segment::intended).collect();
        assert_eq!(intended, [Some(2), Some(0), Some(1), Some(1)]);
        assert_eq!(segments[3].deadline_ns(0), 2_400_000_000); // half a datagram was sent beforehand
        assert_eq!(segments[4].deadline_ns(0), 3_200_000_000);
    }

    #[test]
    fn a_window_that_may_hold_nothing_is_refused() {
        let of = |time_ns| Windows {
            count: 3,
            length: Length::Time(time_ns),
        };
        assert!(constant(Some(1e9), 0, &of(1_000_000_000)).is_ok());
        assert!(constant(Some(1e9), 0, &of(500_000_000)).is_err());
        assert!(steps("1000:500000000,0:1000000000", 1000, 0).is_err());
        assert!(steps("0:500000000,1000:1000000000", 1000, 0).is_ok());
    }

    #[test]
    fn fixed_work_is_so_many_datagrams() {
        let windows = Windows {
            count: 1,
            length: Length::Work(10_000),
        };
        let segments = constant(Some(26_666.67), 0, &windows).unwrap();
        assert_eq!(segments[0].intended(), Some(0));
        assert_eq!(segments[1].intended(), Some(10_000));
        assert!(constant(None, 0, &windows).is_err());
    }

    #[test]
    fn steps_are_read_and_silence_is_one() {
        let segments = steps("8000000:2000000,0:1000000", 8000, 1_000_000).unwrap();
        let intended: Vec<_> = segments.iter().map(Segment::intended).collect();
        assert_eq!(intended, [Some(1), Some(2), Some(0)]);
        assert_eq!(segments[2].end_ns, 4_000_000);
        for wrong in [
            "",
            "5",
            "5:0",
            "x:1000000",
            "5:1000000,",
            "1:99999999999999999",
            "18446744073709551615:1000000",
        ] {
            assert!(steps(wrong, 8, 0).is_err(), "{wrong}");
        }
    }
}
