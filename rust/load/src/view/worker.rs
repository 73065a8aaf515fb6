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
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::Arc;

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP};
use virtoll_generator::crew::Seat;
use virtoll_generator::datagrams::{Batch, Sockets};
use virtoll_generator::random::Random;
use virtoll_generator::sys::{self, Address, CpuTime, Epoll};
use virtoll_generator::{is_own_limit, Failed};

use super::library::Library;
use super::live::LowLatency;
use super::player::{Player, Status};
use super::progressive::Progressive;
use super::protocol::{Came, Now, Protocol, Want};
use super::rtmp::Rtmp;
use super::rtsp::Rtsp;
use super::segmented::Segmented;
use super::spec::{Asked, ViewSpec};
use super::tally::Tally;
use super::START_DELAY_NS;
use crate::slot::is;
use crate::tally::{kind_of, Failure};
use away::Away;

const EVENTS_MAX: usize = 256;
const BUFFER_BYTES: usize = 64 * 1024;
/// What comes faster than it is read must not keep the others waiting.
const TURN_BYTES: usize = 256 * 1024;
const INTEREST: u32 = (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) as u32;
const ENDED: u32 = (EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32;
/// Where so small a part of what the kernel holds for a connection comes at once, it may have been all that fits: what it
/// has for itself counts there, too (tcp(7), `tcp_adv_win_scale`).
const FULL_PART: usize = 4;
/// While somebody waits for play to begin it looks at least this often, for it is seen only from where a look was due
/// that it did not look.
const LOOK_NS: i64 = 5_000_000;
/// The tag of what wakes a worker for a task.
const TASK: u64 = u64::MAX;

/// What all workers are to do. Viewers have numbers; those of the highest leave where there are too many.
#[derive(Clone, Debug)]
pub struct Task {
    pub viewers: usize,
    /// So many of those who are there stay; when each of the others joins, the first of them at `first_ns`.
    pub stay: usize,
    pub first_ns: i64,
    pub joins_ns: Arc<[i64]>,
    /// Those who stay have paused, and go on so much one after another, the first at `first_ns`. None: they have not.
    pub goes_on_every_ns: Option<i64>,
    /// All pause after the window.
    pub pauses: bool,
    /// So many leave within the window and come anew, from this one on, and then round again.
    pub anew: usize,
    pub first_anew: usize,
    /// Joins are told that are due later than then.
    pub tells_after_ns: i64,
    /// When all are there, of a crowd that is another than before.
    pub gathered_ns: Option<i64>,
    pub window_ns: (i64, i64),
}

impl Task {
    /// When this viewer joins; None: it is there, and stays.
    pub fn join_ns(&self, number: usize) -> Option<i64> {
        let place = number.checked_sub(self.stay)?;
        self.joins_ns.get(place).copied()
    }

    /// When this viewer goes on; None: it has not paused.
    pub fn goes_on_ns(&self, number: usize) -> Option<i64> {
        let every_ns = self.goes_on_every_ns.filter(|_| number < self.stay)?;
        Some(self.first_ns + every_ns * number as i64)
    }

    /// When this viewer leaves, and comes anew; None: it stays.
    pub fn anew_ns(&self, number: usize) -> Option<i64> {
        let place = (number + self.viewers - self.first_anew) % self.viewers;
        let (from_ns, until_ns) = self.window_ns;
        let part = (2 * place as i128 + 1) * i128::from(until_ns - from_ns);
        (place < self.anew).then(|| from_ns + (part / (2 * self.anew as i128)) as i64)
    }
}

/// What a worker does with time.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The window is to begin; it has, when the thread had used so much.
    Before,
    Within(CpuTime),
    /// It has ended; what was still to begin to play is waited for.
    Drains,
    /// It is told: viewers watch on, and nothing counts.
    Between,
}

/// One that watches no more until it goes on: it asks for nothing.
struct Pause {
    since_ns: i64,
    /// Something that it asked for before is under way still.
    is_busy: bool,
    /// When it goes on; `i64::MAX`: not before another order.
    until_ns: i64,
}

/// One that watches.
struct View<'a> {
    protocol: Box<dyn Protocol + 'a>,
    player: Player,
    /// When it was to join, and which order tells of that; 0: none.
    due_ns: i64,
    order: u64,
    /// How much later than that it joined, and for how long what it said since had waited for this thread; and when that was
    /// last added up.
    late_ns: i64,
    held_at_ns: i64,
    /// From when play begins: how long it stays, and until when.
    stays_ns: Option<i64>,
    leaves_ns: i64,
    /// When play began.
    began_ns: Option<i64>,
    /// What was ahead at the most before the window, of one that played when it began.
    ahead_ns: Option<i64>,
    pause: Option<Pause>,
}

impl View<'_> {
    /// Whether it does not play, and its join is not told by this order, or any.
    fn is_absent(&self, order: u64) -> bool {
        self.began_ns.is_none() && self.order != order
    }
}

/// A viewer's place: when one leaves, another takes it.
struct Place<'a> {
    number: usize,
    view: Option<View<'a>>,
    random: Random,
    /// When the next joins, where nobody is there; and since when nobody is, after a failure.
    due_ns: i64,
    gone_ns: Option<i64>,
    /// Who was there last never began to play, and nothing is told of its join.
    never_began: bool,
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
    /// At this time: as it should, or because its patience was over.
    Left(i64, Option<Failure>),
    Failed(Failure),
}

pub struct Worker<'a> {
    spec: &'a ViewSpec,
    asked: &'a Asked,
    thread: usize,
    tasks: Receiver<Task>,
    reports: Sender<Tally>,
    address: Address,
    epoll: Epoll,
    library: Rc<RefCell<Library>>,
    places: Vec<Place<'a>>,
    timers: BinaryHeap<Reverse<(i64, usize)>>,
    unread: Vec<usize>,
    /// The number of the order that is carried out, or was the last.
    order: u64,
    task: Option<Task>,
    phase: Phase,
    /// No more tasks can come.
    is_over: bool,
    /// Those of whose joins the order is to tell, and who are not playing yet; and for how long nobody looked at them.
    starting: usize,
    away: Away,
    /// Those who pause, and still wait for what they had asked for.
    busy: usize,
    buffer: Box<[u8]>,
    batch: Batch,
    tally: Tally,
}

impl<'a> Worker<'a> {
    pub fn new(
        spec: &'a ViewSpec,
        asked: &'a Asked,
        seat: Seat<Task, Tally>,
    ) -> Result<Self, Failed> {
        let epoll = Epoll::new().map_err(|error| match is_own_limit(&error) {
            true => Failed::own_limit(&error),
            false => Failed::system("epoll_create1", &error),
        })?;
        let added = epoll.add(seat.bell, (EPOLLIN | EPOLLET) as u32, TASK);
        added.map_err(|error| Failed::system("epoll_ctl", &error))?;
        Ok(Worker {
            spec,
            asked,
            thread: seat.thread,
            tasks: seat.tasks,
            reports: seat.reports,
            address: spec.target.address.into(),
            epoll,
            library: Rc::default(),
            places: Vec::new(),
            timers: BinaryHeap::new(),
            unread: Vec::new(),
            order: 0,
            task: None,
            phase: Phase::Between,
            is_over: false,
            starting: 0,
            away: Away::default(),
            busy: 0,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            batch: Batch::default(),
            tally: Tally::within(i64::MAX, i64::MAX),
        })
    }

    /// Run until no more tasks can come; then all leave.
    pub fn run(mut self) -> Result<(), Failed> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        while !self.is_over {
            self.on_time()?;
            let due_ns = self.timers.peek().map_or(i64::MAX, |timer| timer.0 .0);
            let bound_ns = match self.phase {
                Phase::Before => self.tally.watched.from_ns,
                Phase::Within(_) => self.tally.watched.until_ns,
                Phase::Drains | Phase::Between => i64::MAX,
            };
            let asked_ns = sys::now_ns();
            self.away.asks(asked_ns);
            let look_ns = match self.starting {
                0 => i64::MAX,
                _ => asked_ns + LOOK_NS,
            };
            let wake_ns = match self.unread.is_empty() {
                true => due_ns.min(bound_ns).min(look_ns),
                false => asked_ns,
            };
            let mut count = self.find(&mut events, wake_ns.saturating_sub(asked_ns))?;
            if self.away.looks(wake_ns.max(asked_ns), sys::now_ns()) && count < EVENTS_MAX {
                let again = self.find(&mut events[count..], 0)?;
                count = merged(&mut events, count, again);
            }
            self.away.leaves(count == EVENTS_MAX);
            for event in &events[..count] {
                self.heed();
                if event.u64 != TASK {
                    self.on_event(event.u64, event.events)?;
                }
            }
        }
        self.all_leave(0);
        Ok(())
    }

    fn find(&self, events: &mut [libc::epoll_event], timeout_ns: i64) -> Result<usize, Failed> {
        let found = self.epoll.wait(events, timeout_ns);
        found.map_err(|error| Failed::system("epoll_pwait2", &error))
    }

    /// Begin what has been ordered, between any two turns: what is done of a window before that counts for nothing.
    fn heed(&mut self) {
        match self.tasks.try_recv() {
            Ok(task) => self.begin(task),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => self.is_over = true,
        }
    }

    /// All that time brings.
    fn on_time(&mut self) -> Result<(), Failed> {
        let now_ns = sys::now_ns();
        self.forget_smaller_crowd(now_ns);
        self.begin_window(now_ns);
        for index in std::mem::take(&mut self.unread) {
            self.heed();
            if let Some(place) = self.places.get_mut(index) {
                place.is_unread = false;
                self.turn(index)?;
            }
        }
        // Those of before the window's end are still its own, however late.
        self.on_timers(now_ns.min(self.tally.watched.until_ns - 1))?;
        self.end_window(now_ns);
        self.on_timers(now_ns)?;
        self.tell();
        Ok(())
    }

    fn on_timers(&mut self, now_ns: i64) -> Result<(), Failed> {
        while let Some(Reverse((due_ns, index))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop();
            self.heed();
            let place = self.places.get_mut(index);
            if let Some(place) = place.filter(|place| place.armed_ns == due_ns) {
                place.armed_ns = i64::MAX;
                self.tally.woke(due_ns, sys::now_ns());
                self.turn(index)?;
            }
        }
        Ok(())
    }

    fn on_event(&mut self, tag: u64, flags: u32) -> Result<(), Failed> {
        let (index, raw_fd) = sys::untag(tag);
        let Some(place) = self.places.get_mut(index) else {
            return Ok(());
        };
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
                if self.has_paused() {
                    return Ok(()); // the next order will tell when another comes
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
                Some(Turn::Left(at_ns, failure)) => return self.leave(index, at_ns, failure),
                Some(Turn::Failed(failure)) => return self.leave(index, now_ns, Some(failure)),
            }
        }
    }
}

/// Events of two looks as one: one to a connection, for it may be another by its second. How many there are.
fn merged(events: &mut [libc::epoll_event], first: usize, second: usize) -> usize {
    let mut count = first;
    for index in first..first + second {
        let event = events[index];
        let tag = event.u64;
        match events[..first].iter_mut().find(|known| known.u64 == tag) {
            Some(known) => known.events |= event.events,
            None => {
                events[count] = event;
                count += 1;
            }
        }
    }
    count
}

#[path = "away.rs"]
mod away;
#[path = "orders.rs"]
mod orders;
#[path = "pause.rs"]
mod pause;
#[path = "turn.rs"]
mod turn;

#[cfg(test)]
#[path = "pause_tests.rs"]
mod pause_tests;
#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
