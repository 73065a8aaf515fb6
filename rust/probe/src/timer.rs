//! How late a timer wakes its sleeper, in the manner of cyclictest (rt-tests): sleep until an absolute time, see what
//! time it is, and go on to the next.

use virtoll_wire::hist::Histogram;

use crate::arguments::Arguments;
use crate::flow::pace::sleep_until;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "timer",
    summary: "how late a sleeper is woken (clock_nanosleep, SCHED_OTHER)",
    usage: "[--interval-ns 1000000]",
    run,
};

const NS_PER_US: f64 = 1000.0;

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let interval_ns = arguments.at_least("interval-ns", 10_000, 1_000_000);
    let windows = windows.of_units_that_take(interval_ns);
    let mut report = Report::of(&[
        ("lateness_max_us", "us"),
        ("lateness_p50_us", "us"),
        ("lateness_p99_us", "us"),
    ]);
    if !arguments.are_right() {
        return Ok(report);
    }
    // SAFETY: only sets how far the kernel may put off this thread's timers: as little as can be.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
    let going = std::cell::RefCell::new(Going::default());
    report.windows = windows.measure(
        &mut report.notes,
        |wakes| {
            let mut going = going.borrow_mut();
            going.begin(wakes);
            let span = Span::of(|| going.sleep(wakes, interval_ns));
            Ok(span)
        },
        |_, _| going.borrow_mut().values(),
    )?;
    let going = going.into_inner();
    report.check(
        "no sleeper was woken too early",
        going.early == 0,
        format!("{} of all wakes were before their time", going.early),
    );
    report.fact("policy", policy());
    // SAFETY: only asks.
    let slack_ns = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
    report.fact("timer_slack_ns", slack_ns);
    report.histogram = Some(going.all.buckets().collect());
    Ok(report)
}

/// The lateness of every wake of a window, and of all windows.
#[derive(Default)]
struct Going {
    lateness_ns: Vec<u64>,
    early: u64,
    all: Histogram,
}

impl Going {
    /// Make room, and touch it: nothing is allocated between wakes.
    fn begin(&mut self, wakes: u64) {
        self.lateness_ns = vec![1; wakes as usize];
        self.lateness_ns.clear();
    }

    /// Wake so many times. A wake that comes after the next one's time does not move it: that one is late as well.
    fn sleep(&mut self, wakes: u64, interval_ns: u64) {
        let start_ns = now_ns();
        for number in 1..=wakes {
            let intended_ns = start_ns + number * interval_ns;
            sleep_until(intended_ns);
            let woken_ns = now_ns();
            self.early += u64::from(woken_ns < intended_ns);
            self.lateness_ns.push(woken_ns.saturating_sub(intended_ns));
        }
    }

    /// The quantities of the last window, which joins the histogram of all.
    fn values(&mut self) -> Vec<(&'static str, f64)> {
        self.lateness_ns.iter().for_each(|ns| self.all.record(*ns));
        self.lateness_ns.sort_unstable();
        [
            ("lateness_max_us", 1.0),
            ("lateness_p50_us", 0.5),
            ("lateness_p99_us", 0.99),
        ]
        .map(|(key, share)| (key, quantile(&self.lateness_ns, share) as f64 / NS_PER_US))
        .to_vec()
    }
}

/// The smallest of the ascending values that at least `share` of them do not exceed.
fn quantile(ascending: &[u64], share: f64) -> u64 {
    let rank = (share * ascending.len() as f64).ceil().max(1.0) as usize;
    ascending[rank - 1]
}

/// This thread's scheduling policy. The probe never sets one: services run as SCHED_OTHER too.
fn policy() -> String {
    // SAFETY: only asks about this process.
    match unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } {
        0 => "SCHED_OTHER".to_owned(),
        number => format!("policy {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!(quantile(&values, 0.5), 50);
        assert_eq!(quantile(&values, 0.99), 99);
        assert_eq!(quantile(&values, 1.0), 100);
        assert_eq!(quantile(&[7], 0.5), 7);
    }

    #[test]
    fn every_wake_counts_and_none_is_early() {
        let mut going = Going::default();
        going.begin(20);
        going.sleep(20, 10_000);
        assert_eq!(going.early, 0);
        assert_eq!(going.values().len(), 3);
        assert_eq!(going.all.total(), 20);
    }
}
