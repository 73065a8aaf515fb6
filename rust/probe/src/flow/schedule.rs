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
    /// `count` departures, one each `interval_ns` from the segment's start on.
    Every { interval_ns: f64, count: u64 },
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

impl Segment {
    /// Departures `interval_ns` apart for `duration_ns`; none when the interval is infinite.
    fn timed(start_ns: u64, duration_ns: u64, interval_ns: f64) -> Segment {
        // The last one departs before the end, also where the division is off by its last bit.
        let count = (duration_ns as f64 / interval_ns - 1e-6).ceil().max(0.0) as u64;
        Segment {
            start_ns,
            end_ns: start_ns + duration_ns,
            pace: Pace::Every { interval_ns, count },
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
            Pace::Every { interval_ns, .. } if number > 0 => {
                self.start_ns + (number as f64 * interval_ns).round() as u64
            }
            _ => self.start_ns,
        }
    }

    /// How many departures are due at `at_ns` when `done` are gone; at most `most`.
    pub fn due(&self, at_ns: u64, done: u64, most: u64) -> u64 {
        match self.pace {
            Pace::Unpaced => most,
            Pace::Every { interval_ns, count } => {
                let passed_ns = at_ns.saturating_sub(self.start_ns) as f64;
                // By the rounded deadline: what is waited for is due then.
                let by_now = ((passed_ns + 0.5) / interval_ns).floor() as u64 + 1;
                by_now.min(count).saturating_sub(done).min(most)
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
    let of = |start_ns, duration_ns| match interval_ns {
        Some(interval_ns) => Segment::timed(start_ns, duration_ns, interval_ns),
        None => Segment {
            start_ns,
            end_ns: start_ns + duration_ns,
            pace: Pace::Unpaced,
        },
    };
    let duration_ns = match (windows.length, interval_ns) {
        (Length::Time(time_ns), _) => time_ns,
        (Length::Work(work), Some(interval_ns)) => (work as f64 * interval_ns).round() as u64,
        (Length::Work(_), None) => return Err("--work needs a rate".to_owned()),
    };
    within_bounds(
        windows.count as usize,
        u128::from(duration_ns) * u128::from(windows.count),
    )?;
    let mut segments = vec![of(0, warm_up_ns)];
    for _ in 0..windows.count {
        segments.push(of(segments[segments.len() - 1].end_ns, duration_ns));
    }
    if let Length::Work(work) = windows.length {
        for segment in &mut segments[1..] {
            if let Pace::Every { count, .. } = &mut segment.pace {
                *count = work;
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
    steps.iter().try_for_each(|step| within_reach(step.0))?;
    let mut segments = vec![Segment::timed(0, warm_up_ns, steps[0].0)];
    for (interval_ns, time_ns) in steps {
        segments.push(Segment::timed(
            segments[segments.len() - 1].end_ns,
            time_ns,
            interval_ns,
        ));
    }
    Ok(segments)
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
    }

    #[test]
    fn what_is_due_follows_the_clock_alone() {
        let segment = Segment::timed(1000, 10_000, 1000.0);
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
            let segment = Segment::timed(7, 1_000_000_000, interval_ns);
            for number in [1, 2, 3, 1000, 33_333] {
                let deadline_ns = segment.deadline_ns(number);
                assert!(
                    segment.due(deadline_ns, number, 64) >= 1,
                    "{interval_ns} {number}"
                );
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
