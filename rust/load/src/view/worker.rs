//! One thread's viewers, and the loop that serves them.
//!
//! Sockets are registered once, edge-triggered; a viewer that pauses is not read, and no event is missed by that, for it
//! reads until there is nothing left when it goes on. Timers stand in a heap, at most one for a viewer that matters.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::ErrorKind;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP};

use super::datagrams::{Batch, Sockets};
use super::library::Library;
use super::player::{Player, Status};
use super::progressive::Progressive;
use super::protocol::{Now, Protocol, Want};
use super::rtmp::Rtmp;
use super::rtsp::Rtsp;
use super::segmented::Segmented;
use super::spec::{Asked, ViewSpec};
use super::tally::Tally;
use crate::schedule::Random;
use crate::slot::is;
use crate::sys::{self, Address, CpuTime, Epoll};
use crate::tally::{kind_of, Failure};
use crate::worker::is_own_limit;
use crate::Failed;

const EVENTS_MAX: usize = 256;
const BUFFER_BYTES: usize = 64 * 1024;
/// What comes faster than it is read must not keep the others waiting.
const TURN_BYTES: usize = 256 * 1024;
const INTEREST: u32 = (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) as u32;
const ENDED: u32 = (EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32;

/// One that watches.
struct View<'a> {
    protocol: Box<dyn Protocol + 'a>,
    player: Player,
    /// When it was to join.
    due_ns: i64,
    /// From when play begins: how long it stays, and until when.
    stays_ns: Option<i64>,
    leaves_ns: i64,
    has_started: bool,
}

/// A viewer's place: when one leaves, another takes it.
struct Place<'a> {
    view: Option<View<'a>>,
    random: Random,
    /// When the next joins, where nobody is there; and since when nobody is, after a failure.
    due_ns: i64,
    gone_ns: Option<i64>,
    connection: Connection,
    sockets: Sockets,
    mode: Mode,
    /// It has had its turn, and is to have another without an event.
    is_unread: bool,
    /// Its timer; `i64::MAX`: none.
    armed_ns: i64,
}

/// None, where there is no socket.
#[derive(Default)]
struct Connection {
    fd: Option<OwnedFd>,
    /// What of a request has not gone yet.
    unsent: Vec<u8>,
    sent: usize,
    /// The server has said its last.
    has_ended: bool,
    /// All that came has been read.
    is_drained: bool,
}

/// What a viewer does with what comes on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Read it.
    Open,
    /// Leave it there until a timer says otherwise.
    Paused,
    /// Nothing is to come.
    Idle,
}

/// What became of a viewer's turn.
enum Turn {
    /// It waits for the server, or until then.
    Waits(i64),
    /// It has had its share, and there may be more to read.
    Unread,
    /// As it should, at this time.
    Left {
        at_ns: i64,
    },
    Failed(Failure),
}

pub struct Worker<'a> {
    spec: &'a ViewSpec,
    asked: &'a Asked,
    address: Address,
    epoll: Epoll,
    library: Rc<RefCell<Library>>,
    places: Vec<Place<'a>>,
    timers: BinaryHeap<Reverse<(i64, usize)>>,
    unread: Vec<usize>,
    /// Joined, and not playing yet.
    starting: usize,
    buffer: Box<[u8]>,
    batch: Batch,
    tally: Tally,
}

impl<'a> Worker<'a> {
    /// `joins`: the number of each viewer, and when it first joins.
    pub fn new(
        spec: &'a ViewSpec,
        asked: &'a Asked,
        joins: impl Iterator<Item = (usize, i64)>,
        window_ns: (i64, i64),
    ) -> Result<Self, Failed> {
        let place = |(number, due_ns)| Place {
            view: None,
            random: Random::derived(spec.seed, number as u64),
            due_ns,
            gone_ns: None,
            connection: Connection::default(),
            sockets: Sockets::default(),
            mode: Mode::Open,
            is_unread: false,
            armed_ns: i64::MAX,
        };
        let mut worker = Worker {
            spec,
            asked,
            address: spec.target.address.into(),
            epoll: Epoll::new().map_err(|error| match is_own_limit(&error) {
                true => Failed::own_limit(&error),
                false => Failed::system("epoll_create1", &error),
            })?,
            library: Rc::default(),
            places: joins.map(place).collect(),
            timers: BinaryHeap::new(),
            unread: Vec::new(),
            starting: 0,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            batch: Batch::new(),
            tally: Tally::within(window_ns.0, window_ns.1),
        };
        for index in 0..worker.places.len() {
            worker.arm(index, worker.places[index].due_ns);
        }
        Ok(worker)
    }

    /// Run to the window's end, and until nobody is waiting for play to begin.
    pub fn run(mut self) -> Result<Tally, Failed> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let (from_ns, until_ns) = (self.tally.watched.from_ns, self.tally.watched.until_ns);
        let (mut cpu_from, mut cpu_until) = (None, None);
        loop {
            let now_ns = sys::now_ns();
            for (at_ns, cpu) in [(from_ns, &mut cpu_from), (until_ns, &mut cpu_until)] {
                if now_ns >= at_ns {
                    cpu.get_or_insert_with(CpuTime::of_thread);
                }
            }
            for index in std::mem::take(&mut self.unread) {
                self.places[index].is_unread = false;
                self.turn(index)?;
            }
            self.on_timers(now_ns)?;
            if now_ns >= until_ns && self.starting == 0 {
                break; // also where the last of them has just given up: its next timer may be far off
            }
            let due_ns = self.timers.peek().map_or(i64::MAX, |timer| timer.0 .0);
            let bounds = [from_ns, until_ns]
                .into_iter()
                .filter(|at_ns| *at_ns > now_ns);
            let wake_ns = bounds.fold(due_ns, i64::min);
            let timeout_ns = match self.unread.is_empty() {
                true => wake_ns.saturating_sub(sys::now_ns()),
                false => 0,
            };
            let count = self.epoll.wait(&mut events, timeout_ns);
            let count = count.map_err(|error| Failed::system("epoll_pwait2", &error))?;
            for event in &events[..count] {
                self.on_event(event.u64, event.events)?;
            }
        }
        self.finish();
        let cpu = cpu_until.unwrap_or_default();
        self.tally.cpu = cpu.since(cpu_from.unwrap_or_default());
        Ok(self.tally)
    }

    fn on_timers(&mut self, now_ns: i64) -> Result<(), Failed> {
        while let Some(Reverse((due_ns, index))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop();
            if self.places[index].armed_ns == due_ns {
                self.places[index].armed_ns = i64::MAX;
                self.tally.woke(due_ns, sys::now_ns());
                self.turn(index)?;
            }
        }
        Ok(())
    }

    fn on_event(&mut self, tag: u64, flags: u32) -> Result<(), Failed> {
        let (index, raw_fd) = sys::untag(tag);
        let place = &mut self.places[index];
        if !is(&place.connection.fd, raw_fd) {
            return self.on_datagrams(index, raw_fd);
        }
        place.connection.is_drained = false;
        place.connection.has_ended |= flags & ENDED != 0; // told once, also to one that has yet to read
        if place.is_unread {
            return Ok(());
        }
        match place.mode {
            Mode::Open => self.turn(index),
            Mode::Idle if place.connection.has_ended => self.turn(index),
            Mode::Idle | Mode::Paused => Ok(()),
        }
    }

    /// Let a viewer do what it can.
    fn turn(&mut self, index: usize) -> Result<(), Failed> {
        let mut read_bytes = 0;
        loop {
            let now_ns = sys::now_ns();
            if self.places[index].view.is_none() {
                let due_ns = self.places[index].due_ns;
                if now_ns >= self.tally.watched.until_ns {
                    return Ok(()); // nobody joins any more
                }
                if due_ns > now_ns {
                    self.arm(index, due_ns);
                    return Ok(());
                }
                self.join(index, now_ns);
            }
            match self.step(index, now_ns, &mut read_bytes)? {
                None => {}
                Some(Turn::Waits(until_ns)) => {
                    self.arm(index, until_ns);
                    return Ok(());
                }
                Some(Turn::Unread) => {
                    if !std::mem::replace(&mut self.places[index].is_unread, true) {
                        self.unread.push(index);
                    }
                    return Ok(());
                }
                Some(Turn::Left { at_ns }) => return self.leave(index, at_ns, None),
                Some(Turn::Failed(failure)) => return self.leave(index, now_ns, Some(failure)),
            }
        }
    }
}

#[path = "turn.rs"]
mod turn;

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
