//! `virtoll-load confer`: participants of a web conference, who send encoded media and receive that of all others
//! (WebRTC: ICE, DTLS, SRTP, RTP), and decode none of it.
//!
//! The specification is one line of standard input; each further line is an order: so many are to be in the room. They
//! join one after another, and when all have been there for a while, a window begins, of which one line is said. At the
//! end of standard input all leave. Orders are carried out one after another; nobody leaves between them.
//!
//! `room.rs` is what differs between servers, `janus.rs` one of them; `participant.rs` is who joins, `sending.rs` and
//! `receiving.rs` its media, `frames.rs` what could be shown of them; `worker.rs` who drives them.

mod crypto;
#[cfg(test)]
mod fake;
mod film;
mod frames;
mod janus;
mod janus_said;
mod line;
mod participant;
mod peer;
mod play;
mod receiving;
mod room;
mod sending;
mod spec;
mod stream;
mod tally;
mod worker;

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use crate::measure::not_passed;
use crate::{sys, Failed};
use janus::Janus;
use peer::{Clock, Common};
use room::Room;
use spec::{ConferSpec, Order, Role, Server, PARTICIPANTS_MAX};
use tally::{Report, Span, Tally};
use worker::{Task, Worker};

/// For all threads to be ready.
const START_DELAY_NS: i64 = 2_000_000;
/// A WebSocket, with a second descriptor of it, and two sockets of media.
const DESCRIPTORS_EACH: u64 = 4;

/// What all threads have in common.
pub struct Shared<'a> {
    pub spec: &'a ConferSpec,
    pub roles: &'a [Role],
    pub common: Common,
}

impl Shared<'_> {
    /// By what the server calls a sender: the number of its role, or, of nobody of ours, one more.
    pub fn role_named(&self, display: &str) -> usize {
        let name = display
            .strip_prefix("virtoll ")
            .and_then(|rest| rest.split_once(' '));
        let role = name.and_then(|(_, name)| self.roles.iter().position(|role| role.name == name));
        role.unwrap_or(self.roles.len())
    }

    pub fn room(&self, number: usize, role: usize) -> Box<dyn Room + '_> {
        let role = &self.roles[role];
        match &self.spec.server {
            Server::Janus(spec) => {
                let display = format!("virtoll {number} {}", role.name);
                Box::new(Janus::new(spec, display, role.watches))
            }
        }
    }

    pub fn path(&self) -> &str {
        match &self.spec.server {
            Server::Janus(spec) => &spec.path,
        }
    }
}

/// Carry out the orders of standard input.
pub fn run() -> Result<(), Failed> {
    let mut lines = io::stdin().lock().lines();
    let spec = lines.next().unwrap_or_else(|| Ok(String::new()));
    let spec = spec.map_err(|error| Failed(format!("the specification: {error}")))?;
    let spec: ConferSpec = serde_json::from_str(&spec)
        .map_err(|error| Failed(format!("the specification, the first line: {error}")))?;
    let roles = spec.roles()?;
    let descriptors = PARTICIPANTS_MAX as u64 * DESCRIPTORS_EACH + spec.threads as u64 * 4 + 64;
    sys::raise_open_files(descriptors).map_err(|error| Failed::own_limit(&error))?;
    let shared = Shared {
        spec: &spec,
        roles: &roles,
        common: Common {
            clock: Clock::new(),
            crypto: crypto::provider(),
            certificate: crypto::certificate()?,
            local: local_address(spec.server.address())?,
        },
    };
    let orders = lines.map(|line| line.map_err(|error| Failed(format!("the orders: {error}"))));
    carried_out(&shared, orders, &mut |report| {
        let mut out = io::stdout().lock();
        let said = writeln!(out, "{}", crate::json(report)?).and_then(|()| out.flush());
        said.map_err(|error| Failed(format!("the report: {error}")))
    })
}

/// From which of this machine's addresses the server is reached.
fn local_address(server: SocketAddrV4) -> Result<Ipv4Addr, Failed> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let connected =
        socket.and_then(|socket| socket.connect(server).and_then(|()| socket.local_addr()));
    match connected {
        Ok(SocketAddr::V4(local)) => Ok(*local.ip()),
        Ok(_) => Err(Failed(format!("{server} is not reached over IPv4"))),
        Err(error) => Err(Failed(format!(
            "there is no way to {server}: {error}; give the generator's machine a route"
        ))),
    }
}

/// A thread, as who orders sees it.
struct Hand {
    tasks: mpsc::Sender<Task>,
    reports: mpsc::Receiver<Tally>,
    bell: OwnedFd,
}

fn ring(bell: &OwnedFd) {
    let one = 1u64;
    // SAFETY: the kernel reads eight bytes of a valid integer; the counter has room for it, and is never read.
    unsafe { libc::write(bell.as_raw_fd(), (&raw const one).cast(), 8) };
}

fn bell() -> Result<OwnedFd, Failed> {
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

fn carried_out(
    shared: &Shared,
    orders: impl Iterator<Item = Result<String, Failed>>,
    say: &mut dyn FnMut(&Report) -> Result<(), Failed>,
) -> Result<(), Failed> {
    thread::scope(|scope| {
        let mut hands = Vec::new();
        let mut workers = Vec::new();
        for thread in 0..shared.spec.threads {
            let (task_sender, tasks) = mpsc::channel();
            let (report_sender, reports) = mpsc::channel();
            let bell = bell()?;
            let twin = bell
                .try_clone()
                .map_err(|error| Failed::own_limit(&error))?;
            let work = move || {
                sys::no_timer_slack();
                pin(shared.spec, thread)?;
                Worker::new(shared, thread, tasks, report_sender, &twin)?.run()
            };
            let begun = thread::Builder::new().spawn_scoped(scope, work);
            workers.push(begun.map_err(|error| Failed::no_thread(thread, &error))?);
            hands.push(Hand {
                tasks: task_sender,
                reports,
                bell,
            });
        }
        let outcome = in_turn(shared, &hands, orders, say);
        // Without a hand, a worker's participants leave.
        for Hand { tasks, bell, .. } in hands {
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

fn pin(spec: &ConferSpec, thread: usize) -> Result<(), Failed> {
    if spec.cpus.is_empty() {
        return Ok(());
    }
    let cpu = spec.cpus[thread % spec.cpus.len()];
    sys::pin_to(cpu).map_err(|error| Failed(format!("cannot pin a thread to CPU {cpu}: {error}")))
}

/// One order after another.
fn in_turn(
    shared: &Shared,
    hands: &[Hand],
    orders: impl Iterator<Item = Result<String, Failed>>,
    say: &mut dyn FnMut(&Report) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut before = 0;
    for line in orders {
        let order: Order =
            serde_json::from_str(&line?).map_err(|error| Failed(format!("an order: {error}")))?;
        let order = order.checked(shared.spec)?;
        let task = task(&order, before, sys::now_ns())?;
        before = order.participants;
        let mut sum: Option<Tally> = None;
        for hand in hands {
            let _ = hand.tasks.send(task);
            ring(&hand.bell);
        }
        for hand in hands {
            match (hand.reports.recv(), &mut sum) {
                (Ok(tally), None) => sum = Some(tally),
                (Ok(tally), Some(sum)) => sum.add(&tally),
                (Err(_), _) => return Ok(()), // it has failed, and says why
            }
        }
        if let Some(sum) = sum {
            say(&Report::new(&sum, shared.roles, order.participants))?;
        }
    }
    Ok(())
}

/// When who joins, and when the window is.
fn task(order: &Order, before: usize, now_ns: i64) -> Result<Task, Failed> {
    let joins = order.participants.saturating_sub(before);
    let lead_ns = joins.saturating_sub(1) as i64 * order.every_ns + order.settle_ns;
    let first_ns = match order.start_ns {
        None => now_ns + START_DELAY_NS,
        Some(start_ns) => not_passed(start_ns.saturating_sub(lead_ns), now_ns, "it was read")?,
    };
    let from_ns = first_ns + lead_ns;
    Ok(Task {
        participants: order.participants,
        first_ns,
        every_ns: order.every_ns,
        span: Span {
            from_ns,
            until_ns: from_ns + order.duration_ns,
        },
        before,
    })
}

#[cfg(test)]
#[path = "confer_tests.rs"]
mod tests;
