//! Waiting for a deadline: asleep, and where a CPU is there for it, awake for the last part of the way.

use std::time::Duration;

use crate::windows::{clock_ns, now_ns};

const NS_PER_S: u64 = 1_000_000_000;
/// How a sleeper's lateness is measured: so many sleeps, each so long.
const TRIAL_SLEEPS: usize = 50;
const TRIAL_NS: u64 = 100_000;
/// No wait is spun longer than this before its end.
const MOST_SPIN_NS: u64 = 1_000_000;
/// A CPU is there when spinning for so long gets this share of it.
const TRIAL_SPIN: Duration = Duration::from_millis(10);
const SPIN_SHARE: f64 = 0.97;

/// What a sender tells the time by and waits with: CLOCK_MONOTONIC, or a time of a test's own.
pub trait Clock {
    fn now_ns(&self) -> u64;

    /// Come back at `time_ns` or later.
    fn wait_until(&self, time_ns: u64);
}

/// How this machine is waited on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacer {
    /// The last so many ns before a deadline are spun; 0: none.
    pub spin_ns: u64,
    /// The lateness that nine of ten sleepers stayed below.
    pub late_ns: u64,
}

impl Pacer {
    /// By the word of `--wait`: "sleep", "spin", or "auto", which spins where a CPU is there for it.
    pub fn calibrated(wait: &str) -> Pacer {
        // SAFETY: only sets how far the kernel may put off this thread's timers: as little as can be.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
        let late_ns = sleepers_lateness_ns();
        let spins = wait == "spin" || (wait == "auto" && has_cpu_to_spare());
        let spin_ns = if spins {
            late_ns.clamp(1, MOST_SPIN_NS)
        } else {
            0
        };
        Pacer { spin_ns, late_ns }
    }
}

impl Clock for Pacer {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn wait_until(&self, time_ns: u64) {
        if time_ns > now_ns() + self.spin_ns {
            sleep_until(time_ns - self.spin_ns);
        }
        while self.spin_ns > 0 && now_ns() < time_ns {
            std::hint::spin_loop();
        }
    }
}

fn sleepers_lateness_ns() -> u64 {
    let mut lateness = [0; TRIAL_SLEEPS].map(|_: u64| {
        let until_ns = now_ns() + TRIAL_NS;
        sleep_until(until_ns);
        now_ns().saturating_sub(until_ns)
    });
    lateness.sort_unstable();
    lateness[TRIAL_SLEEPS * 9 / 10]
}

/// Whether one that spins takes the CPU from nobody: there are two at least (affinity and quota), and it is given one.
fn has_cpu_to_spare() -> bool {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return false;
    }
    let (wall_ns, cpu_ns) = (now_ns(), clock_ns(libc::CLOCK_THREAD_CPUTIME_ID));
    let end_ns = wall_ns + TRIAL_SPIN.as_nanos() as u64;
    while now_ns() < end_ns {
        std::hint::spin_loop();
    }
    let got_ns = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
    got_ns as f64 >= SPIN_SHARE * (now_ns() - wall_ns) as f64
}

/// Sleep until a time of CLOCK_MONOTONIC.
pub fn sleep_until(time_ns: u64) {
    let time = libc::timespec {
        tv_sec: (time_ns / NS_PER_S) as libc::time_t,
        tv_nsec: (time_ns % NS_PER_S) as libc::c_long,
    };
    // SAFETY: `time` is valid; with TIMER_ABSTIME nothing is written. Interrupted, it is called again.
    while unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            std::ptr::null_mut(),
        )
    } == libc::EINTR
    {}
}

/// A time that passes only when it is looked at or waited for: what is due by it does not depend on the machine.
#[cfg(test)]
pub struct Simulated {
    now_ns: std::cell::Cell<u64>,
    look_ns: u64,
}

#[cfg(test)]
impl Simulated {
    /// It is `now_ns`; each look takes `look_ns`.
    pub fn new(now_ns: u64, look_ns: u64) -> Simulated {
        Simulated {
            now_ns: now_ns.into(),
            look_ns,
        }
    }

    pub fn pass(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }
}

#[cfg(test)]
impl Clock for Simulated {
    fn now_ns(&self) -> u64 {
        self.pass(self.look_ns);
        self.now_ns.get()
    }

    fn wait_until(&self, time_ns: u64) {
        self.now_ns.set(self.now_ns.get().max(time_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_wakes_early_spinning_or_not() {
        for wait in ["sleep", "spin", "auto"] {
            let pacer = Pacer::calibrated(wait);
            assert!(wait != "sleep" || pacer.spin_ns == 0);
            assert!(wait != "spin" || pacer.spin_ns > 0);
            for ns in [0, 1000, 300_000] {
                let until_ns = now_ns() + ns;
                pacer.wait_until(until_ns);
                assert!(now_ns() >= until_ns);
            }
        }
    }
}
