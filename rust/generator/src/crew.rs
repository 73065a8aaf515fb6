//! Threads that carry out orders together: a process that is told on its first line what it works with, and on each
//! further line what to do next, of which it says one line. At the end of standard input it ends.

use std::io::{self, BufRead, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::{sys, Failed};

/// What standard input says: the specification, and the orders as they come.
pub fn asked<Spec: DeserializeOwned>(
) -> Result<(Spec, impl Iterator<Item = Result<String, Failed>>), Failed> {
    let mut lines = io::stdin().lock().lines();
    let spec = lines.next().unwrap_or_else(|| Ok(String::new()));
    let spec = spec.map_err(|error| Failed(format!("the specification: {error}")))?;
    let spec = serde_json::from_str(&spec)
        .map_err(|error| Failed(format!("the specification, the first line: {error}")))?;
    let orders = lines.map(|line| line.map_err(|error| Failed(format!("the orders: {error}"))));
    Ok((spec, orders))
}

/// An order, as a line has it.
pub fn order<Order: DeserializeOwned>(line: &str) -> Result<Order, Failed> {
    serde_json::from_str(line).map_err(|error| Failed(format!("an order: {error}")))
}

/// Say what became of an order.
pub fn say(report: &impl Serialize) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{}", crate::json(report)?).and_then(|()| out.flush());
    said.map_err(|error| Failed(format!("the report: {error}")))
}

/// A thread's end of it. `bell`: readable when there is a task, or will be none any more.
pub struct Seat<'a, Task, Told> {
    pub thread: usize,
    pub tasks: mpsc::Receiver<Task>,
    pub reports: mpsc::Sender<Told>,
    pub bell: &'a OwnedFd,
}

/// A thread, as who orders sees it.
struct Hand<Task, Told> {
    tasks: mpsc::Sender<Task>,
    reports: mpsc::Receiver<Told>,
    bell: OwnedFd,
}

pub struct Crew<Task, Told>(Vec<Hand<Task, Told>>);

impl<Task: Clone, Told> Crew<Task, Told> {
    /// What each reports of a task; None: one has failed, and says why when all have ended.
    pub fn carried_out(&self, task: &Task) -> Option<Vec<Told>> {
        for hand in &self.0 {
            let _ = hand.tasks.send(task.clone());
            ring(&hand.bell);
        }
        let reports = self.0.iter().map(|hand| hand.reports.recv().ok());
        reports.collect()
    }
}

/// Have `threads` work, pinned to one of `cpus` each in turn (none: as inherited), while `orders` tells them what to do.
pub fn at_work<Task: Send, Told: Send>(
    threads: usize,
    cpus: &[usize],
    work: impl Fn(Seat<Task, Told>) -> Result<(), Failed> + Sync,
    orders: impl FnOnce(&Crew<Task, Told>) -> Result<(), Failed>,
) -> Result<(), Failed> {
    thread::scope(|scope| {
        let (work, mut crew, mut workers) = (&work, Crew(Vec::new()), Vec::new());
        let begun = (0..threads).try_for_each(|thread| {
            let (task_sender, tasks) = mpsc::channel();
            let (report_sender, reports) = mpsc::channel();
            let bell = bell()?;
            let twin = bell
                .try_clone()
                .map_err(|error| Failed::own_limit(&error))?;
            let run = move || {
                sys::no_timer_slack();
                pin(cpus, thread)?;
                work(Seat {
                    thread,
                    tasks,
                    reports: report_sender,
                    bell: &twin,
                })
            };
            let begun = thread::Builder::new().spawn_scoped(scope, run);
            workers.push(begun.map_err(|error| Failed::no_thread(thread, &error))?);
            crew.0.push(Hand {
                tasks: task_sender,
                reports,
                bell,
            });
            Ok(())
        });
        let outcome = begun.and_then(|()| orders(&crew));
        // Without a hand a worker ends.
        for Hand { tasks, bell, .. } in crew.0 {
            drop(tasks);
            ring(&bell);
        }
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        for end in ends {
            end.map_err(|_| Failed("a thread of the generator panicked".into()))??;
        }
        outcome
    })
}

fn pin(cpus: &[usize], thread: usize) -> Result<(), Failed> {
    if cpus.is_empty() {
        return Ok(());
    }
    let cpu = cpus[thread % cpus.len()];
    sys::pin_to(cpu).map_err(|error| Failed(format!("cannot pin a thread to CPU {cpu}: {error}")))
}

fn ring(bell: &OwnedFd) {
    let one = 1u64;
    // SAFETY: the kernel reads eight bytes of a valid integer; the counter has room for it, and is never read.
    unsafe { libc::write(bell.as_raw_fd(), (&raw const one).cast(), 8) };
}

pub fn bell() -> Result<OwnedFd, Failed> {
    // SAFETY: `eventfd` returns a descriptor that nobody else owns, or says that there is none.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    match fd {
        0.. => {
            // SAFETY: see above.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        _ => Err(Failed::own_limit(&io::Error::last_os_error())),
    }
}
