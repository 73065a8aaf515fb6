//! What the probe's own process did with its CPU meanwhile: whether the generator's side was what was measured.

use crate::report::Report;
use crate::windows::{clock_ns, now_ns};

/// A client that uses this much of its one CPU may be what was measured.
const HEADROOM_PERCENT: f64 = 80.0;

/// CPU time and time, summed over windows. The client is one thread: 100 % is all it can use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    cpu_ns: u64,
    wall_ns: u64,
}

/// The beginning of what is watched.
#[derive(Clone, Copy)]
pub struct Since {
    cpu_ns: u64,
    start_ns: u64,
}

impl Since {
    pub fn now() -> Since {
        Since {
            cpu_ns: cpu_ns(),
            start_ns: now_ns(),
        }
    }

    /// What was done until now, within the time until `end_ns`: what follows is waiting.
    pub fn until(self, end_ns: u64) -> Effort {
        Effort {
            cpu_ns: cpu_ns() - self.cpu_ns,
            wall_ns: end_ns.saturating_sub(self.start_ns),
        }
    }
}

impl Effort {
    pub fn add(&mut self, more: Effort) {
        self.cpu_ns += more.cpu_ns;
        self.wall_ns += more.wall_ns;
    }

    fn percent(self) -> f64 {
        100.0 * self.cpu_ns as f64 / self.wall_ns.max(1) as f64
    }

    /// The fact `generator_cpu_percent`.
    pub fn tell(self, report: &mut Report) {
        report.fact("generator_cpu_percent", self.percent().round());
    }

    /// The fact, and of a flood a note where the client may have been its limit: nothing but the slowest of the sender,
    /// the way and the receiver limits one, so that this is no fault.
    pub fn tell_of_flood(self, report: &mut Report) {
        self.tell(report);
        let percent = self.percent();
        if percent >= HEADROOM_PERCENT {
            report.notes.push(format!(
                "the generator's side used {percent:.0} % of its CPU: the throughput may be its own limit, and the \
                 instance could do more"
            ));
        }
    }
}

/// User and system time of this process, of all its threads.
fn cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// A report, right by all of its checks, that tells that the client used its CPU: one of many, for where the machine stands still amid the short
/// windows of a test, what it used is nothing in whole percents of their time.
#[cfg(test)]
pub fn with_effort(report: impl FnMut() -> Report) -> Report {
    let told = |report: &Report| {
        assert!(
            report.checks.iter().all(|check| check.passed),
            "{:?}",
            report.checks
        );
        report.facts["generator_cpu_percent"].as_f64() > Some(0.0)
    };
    let mut reports = std::iter::repeat_with(report).take(100);
    reports.find(told).expect("some effort")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cpu_ns: u64) -> Report {
        let mut effort = Effort::default();
        for _ in 0..2 {
            effort.add(Effort {
                cpu_ns,
                wall_ns: 1000,
            });
        }
        let mut report = Report::default();
        effort.tell_of_flood(&mut report);
        report
    }

    #[test]
    fn a_flood_at_the_clients_limit_is_noted_and_no_fault() {
        let limited = told(900);
        assert_eq!(limited.facts["generator_cpu_percent"], 90.0);
        assert!(limited.notes[0].contains("90 %"), "{:?}", limited.notes);
        assert!(limited.checks.is_empty());
        let at_ease = told(790);
        assert_eq!(at_ease.facts["generator_cpu_percent"], 79.0);
        assert!(at_ease.notes.is_empty());
    }

    #[test]
    fn work_is_seen_and_waiting_after_the_end_is_not_its_time() {
        let since = Since::now();
        while cpu_ns() < since.cpu_ns + 2_000_000 {
            std::hint::spin_loop();
        }
        let effort = since.until(since.start_ns + 1_000_000);
        assert!(effort.cpu_ns >= 2_000_000);
        assert_eq!(effort.wall_ns, 1_000_000);
    }
}
