//! Computing for ever on every CPU, and its opposite: a neighbour that takes a small, steady share of one.

use std::hint::black_box;
use std::time::Duration;

use virtoll_probe::arguments::Arguments;
use virtoll_probe::windows::{clock_ns, now_ns};

use crate::shared::Shared;
use crate::{team, Aggressor, Work};

pub const AGGRESSOR: Aggressor = Aggressor {
    name: "cpu",
    summary: "computes without end, on every CPU",
    usage: "[--threads 0]",
    counts: &["cpu_ns", "refused"],
    prepare: prepare_cpu,
};

pub const POLITE: Aggressor = Aggressor {
    name: "polite",
    summary: "behaves well: a small, steady share of one CPU and a little memory",
    usage: "[--share-percent 10] [--held-bytes 8388608]",
    counts: &["periods", "missed", "used_ns"],
    prepare: prepare_polite,
};

const CPU_NS: usize = 0;
const REFUSED: usize = 1;
const PERIODS: usize = 0;
const MISSED: usize = 1;
const USED_NS: usize = 2;

/// What is computed between two looks at the clock: some microseconds.
const STEPS: u64 = 10_000;
/// The CPU time of a thread is added up this often.
const TALLY_NS: u64 = 10_000_000;
/// The period of the well-behaved neighbour.
const PERIOD_NS: u64 = 10_000_000;
const PAGE_BYTES: usize = 4096;
/// A round of the well-behaved neighbour's work is timed so often beforehand.
const TRIALS: u64 = 50;

fn prepare_cpu(arguments: &mut Arguments) -> Work {
    let threads = team::threads(arguments, 0);
    Box::new(move |shared: &Shared| {
        let shared = *shared;
        team::work(
            threads,
            move || shared.add(REFUSED, 1),
            move |_| spin(shared),
        )
    })
}

/// Compute, and count the CPU time that it got.
fn spin(shared: Shared) -> ! {
    let mut counted_ns = 0;
    loop {
        let until_ns = now_ns() + TALLY_NS;
        while now_ns() < until_ns {
            compute();
        }
        let got_ns = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        shared.add(CPU_NS, got_ns - counted_ns);
        counted_ns = got_ns;
    }
}

fn compute() {
    let mut value = 1_u64;
    for _ in 0..STEPS {
        value = black_box(
            value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
    }
}

fn prepare_polite(arguments: &mut Arguments) -> Work {
    let share_percent = arguments.at_least("share-percent", 1, 10);
    if share_percent > 100 {
        arguments.complain(format!("--share-percent {share_percent} is above 100"));
    }
    let held_bytes = arguments.get("held-bytes", 8 * 1024 * 1024_u64);
    Box::new(move |shared: &Shared| {
        let share_ns = PERIOD_NS * share_percent / 100;
        keep_share(*shared, share_ns, &vec![1; held_bytes as usize]) // touched, for it is not zero
    })
}

/// In every period do as much as takes `share_ns` on a CPU of one's own, then sleep. What a period did not give is not
/// made up for in the next.
///
/// The work is fixed beforehand, for the CPU time of a thread is only known in ticks of 10 ms on some kernels.
fn keep_share(shared: Shared, share_ns: u64, held: &[u8]) -> ! {
    let rounds = (share_ns / least_round_ns(held)).max(1);
    let mut next_ns = now_ns();
    let mut counted_ns = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    loop {
        next_ns += PERIOD_NS;
        let done = (0..rounds)
            .take_while(|_| {
                round(held);
                now_ns() < next_ns
            })
            .count() as u64;
        let got_ns = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        shared.add(USED_NS, got_ns - counted_ns);
        counted_ns = got_ns;
        shared.add(PERIODS, 1);
        shared.add(MISSED, u64::from(done < rounds));
        match next_ns.checked_sub(now_ns()) {
            Some(rest_ns) => std::thread::sleep(Duration::from_nanos(rest_ns)),
            None => {
                shared.add(MISSED, (now_ns() - next_ns) / PERIOD_NS);
                next_ns = now_ns();
            }
        }
    }
}

/// Some computing, and a look at each page held.
fn round(held: &[u8]) {
    compute();
    black_box(
        held.iter()
            .step_by(PAGE_BYTES)
            .map(|byte| u64::from(*byte))
            .sum::<u64>(),
    );
}

/// How long a round takes when nobody disturbs it: the shortest of some.
fn least_round_ns(held: &[u8]) -> u64 {
    let time = |_| {
        let start_ns = now_ns();
        round(held);
        now_ns() - start_ns
    };
    (0..TRIALS).map(time).min().expect("some trials").max(1)
}
