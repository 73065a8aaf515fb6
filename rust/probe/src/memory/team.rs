//! Threads that do one piece of work together, and stamp its begin and end themselves.

use std::sync::{Condvar, Mutex};
use std::thread;

use crate::arguments::Arguments;
use crate::report::Failed;
use crate::windows::Span;

/// `--threads`; by default as many as there are CPUs for this process.
pub fn threads(arguments: &mut Arguments) -> usize {
    let cpus = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    arguments.at_least("threads", 1, cpus) as usize
}

/// Where threads sleep until all of them are there. One that cannot be started must not leave the others waiting.
struct Gate {
    opened: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Gate {
    fn new() -> Gate {
        Gate {
            opened: Mutex::new(None),
            changed: Condvar::new(),
        }
    }

    /// Let everyone go: to work, or home.
    fn open(&self, to_work: bool) {
        *self.opened.lock().expect("no one panics in here") = Some(to_work);
        self.changed.notify_all();
    }

    /// Sleep until it opens; whether there is work.
    fn wait(&self) -> bool {
        let shut = self.opened.lock().expect("no one panics in here");
        let opened = self.changed.wait_while(shut, |opened| opened.is_none());
        opened.expect("no one panics in here").unwrap_or(false)
    }
}

/// Do `work` on each of `shares` at once: this thread on the first, a thread each on the others.
///
/// The span is from the first begin to the last end, by the threads' own stamps.
pub fn together<T: Send>(shares: &mut [T], work: impl Fn(&mut T) + Sync) -> Result<Span, Failed> {
    let gate = Gate::new();
    let count = shares.len();
    let Some((first, others)) = shares.split_first_mut() else {
        return Ok(Span::of(|| ()));
    };
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for (number, share) in (2..).zip(others) {
            let (gate, work) = (&gate, &work);
            let worker = thread::Builder::new()
                .spawn_scoped(scope, move || gate.wait().then(|| Span::of(|| work(share))));
            workers.push(worker.map_err(|error| {
                gate.open(false);
                Failed::system(format!("starting thread {number} of {count}"), &error)
            })?);
        }
        gate.open(true);
        let mut spans = vec![Span::of(|| work(first))];
        for worker in workers {
            spans.extend(worker.join().expect("the work does not panic"));
        }
        Ok(Span::over(&spans))
    })
}
