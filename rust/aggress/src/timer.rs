//! A storm of wakeups: threads that sleep for as short a time as the machine lets them.

use virtoll_probe::arguments::Arguments;

use crate::shared::Shared;
use crate::{team, Aggressor, Work};

pub const AGGRESSOR: Aggressor = Aggressor {
    name: "timer",
    summary: "many threads that sleep for moments: timers, interrupts and switches",
    usage: "[--threads 32] [--interval-ns 50000]",
    counts: &["wakeups", "refused"],
    prepare,
};

const WAKEUPS: usize = 0;
const REFUSED: usize = 1;

fn prepare(arguments: &mut Arguments) -> Work {
    let threads = team::threads(arguments, 32);
    let interval_ns = arguments.at_least("interval-ns", 1_000, 50_000);
    if interval_ns >= 1_000_000_000 {
        arguments.complain(format!("--interval-ns {interval_ns} is not below a second"));
    }
    Box::new(move |shared: &Shared| {
        let shared = *shared;
        team::work(
            threads,
            move || shared.add(REFUSED, 1),
            move |_| wake(shared, interval_ns),
        )
    })
}

fn wake(shared: Shared, interval_ns: u64) -> ! {
    let interval = libc::timespec {
        tv_sec: 0,
        tv_nsec: interval_ns as libc::c_long,
    };
    // SAFETY: a setting of this thread: its timers are not to be put together with others'.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    loop {
        // SAFETY: `interval` is valid; the rest of an interrupted sleep is not wanted.
        unsafe { libc::nanosleep(&interval, std::ptr::null_mut()) };
        shared.add(WAKEUPS, 1);
    }
}
