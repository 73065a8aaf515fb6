//! Workers that do one piece of work together, again and again, and wait for each other in between.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;

use crate::report::Failed;
use crate::windows::{now_ns, Span};

/// How long a worker looks out for the others before it sleeps: longer than a wake-up, shorter than it would hurt.
const SPIN_NS: u64 = 100_000;

/// Where the members of a team wait for each other.
pub struct Barrier {
    members: usize,
    spin_ns: u64,
    arrived: AtomicUsize,
    round: AtomicUsize,
    dissolved: AtomicBool,
    sleepers: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    fn of(members: usize, spin_ns: u64) -> Barrier {
        Barrier {
            members,
            spin_ns,
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            dissolved: AtomicBool::new(false),
            sleepers: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Wait until all members are here. False: the team is dissolved.
    pub fn wait(&self) -> bool {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round + 1, Ordering::Release);
            self.wake_all();
        } else if !self.spin(round) {
            let mut sleepers = self.sleepers.lock().expect("no one panics holding it");
            while !self.is_over(round) {
                sleepers = self.wake.wait(sleepers).expect("no one panics holding it");
            }
        }
        !self.dissolved.load(Ordering::Acquire)
    }

    fn is_over(&self, round: usize) -> bool {
        self.round.load(Ordering::Acquire) != round || self.dissolved.load(Ordering::Acquire)
    }

    /// Look out for the end of the round; false when it has not come in time.
    fn spin(&self, round: usize) -> bool {
        let give_up_ns = now_ns() + self.spin_ns;
        loop {
            for _ in 0..64 {
                if self.is_over(round) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if now_ns() >= give_up_ns {
                return false;
            }
        }
    }

    fn dissolve(&self) {
        self.dissolved.store(true, Ordering::Release);
        self.wake_all();
    }

    fn wake_all(&self) {
        drop(self.sleepers.lock().expect("no one panics holding it"));
        self.wake.notify_all();
    }
}

/// Call `lead` with a function that has all of `members` workers do `work(worker, barrier)` once, and gives their spans.
///
/// Worker 0 is the caller's thread. Workers spin for a while before they sleep, but where there are more of them than
/// CPUs they sleep at once. Fails when a thread cannot be made.
pub fn with_team<R>(
    members: usize,
    work: impl Fn(usize, &Barrier) -> Span + Sync,
    lead: impl FnOnce(&mut dyn FnMut() -> Vec<Span>) -> R,
) -> Result<R, Failed> {
    let spin_ns = if members > cpus() { 0 } else { SPIN_NS };
    let barrier = Barrier::of(members, spin_ns);
    let spans: Vec<Mutex<Option<Span>>> = (0..members).map(|_| Mutex::new(None)).collect();
    let act = |worker: usize| {
        *spans[worker].lock().expect("no one panics holding it") = Some(work(worker, &barrier));
    };
    thread::scope(|scope| {
        let mut outcome = Ok(());
        for worker in 1..members {
            let (barrier, act) = (&barrier, &act);
            let body = move || {
                while barrier.wait() {
                    act(worker);
                    barrier.wait();
                }
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, body) {
                outcome = Err(Failed::system(format!("thread {worker}"), &error));
                break;
            }
        }
        let led = outcome.map(|()| {
            lead(&mut || {
                barrier.wait();
                act(0);
                barrier.wait();
                spans
                    .iter()
                    .filter_map(|span| *span.lock().expect("no one panics holding it"))
                    .collect()
            })
        });
        barrier.dissolve();
        led
    })
}

/// CPUs that this process may use: its affinity mask, and its control group's quota where it can see it.
pub fn cpus() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_works_once_a_round_however_many_there_are() {
        for members in [1, 2, 5] {
            let sums: Vec<AtomicUsize> = (0..members).map(|_| AtomicUsize::new(0)).collect();
            let work = |worker: usize, barrier: &Barrier| {
                Span::of(|| {
                    sums[worker].fetch_add(1, Ordering::Relaxed);
                    barrier.wait();
                    let first = sums[0].load(Ordering::Relaxed);
                    assert!(sums.iter().all(|sum| sum.load(Ordering::Relaxed) == first));
                    barrier.wait();
                })
            };
            let spans = with_team(members, work, |go| {
                (0..10).map(|_| go().len()).sum::<usize>()
            });
            assert_eq!(spans.unwrap(), 10 * members);
            assert!(sums.iter().all(|sum| sum.load(Ordering::Relaxed) == 10));
        }
    }
}
