//! One thread's participants, and the loop that serves them. Timers stand in a heap, at most one for a participant that
//! matters; what it does costs as much as what comes, and nothing for those of whom nothing does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use libc::{EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP};
use virtoll_generator::crew::Seat;
use virtoll_generator::datagrams::Batch;
use virtoll_generator::sys::{self, CpuTime};
use virtoll_generator::Failed;

use super::lookout::Lookout;
use super::participant::{failed, Participant, Trouble};
use super::peer::Peer;
use super::room::{Failure, Way};
use super::tally::{Span, Tally};
use super::Shared;

const EVENTS_MAX: usize = 256;
const LINE: u32 = (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) as u32;
/// A thread that looks so much later than it was to, or serves what it found for so long, was away: less is what a busy
/// machine's scheduler takes, or a handshake. While somebody joins it looks as often, for that shows only from where a look
/// was due.
const AWAY_NS: i64 = 5_000_000;
/// What comes to these, once they are connected, gathers. Who sends is asked for key frames, and answers at once.
const GATHERS: [Way; 2] = [Way::Receiving, Way::Audio];
/// The tag of what wakes a worker for a task.
const TASK: u64 = u64::MAX;

/// What a worker is to do, as all are.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub participants: usize,
    /// When the first of those that are to come does, and the time between two.
    pub first_ns: i64,
    pub every_ns: i64,
    pub span: Span,
    /// The order before was for so many.
    pub before: usize,
}

/// A participant's place.
struct Place<'a> {
    number: usize,
    participant: Option<Participant<'a>>,
    /// When it joins next, or was to, until what became of that is told; `i64::MAX`: it is.
    due_ns: i64,
    /// When it did, and for how long the thread had been away by then.
    began_ns: i64,
    away_ns: i64,
    has_failed: bool,
    /// Its timer; `i64::MAX`: none.
    armed_ns: i64,
}

pub struct Worker<'a> {
    shared: &'a Shared<'a>,
    thread: usize,
    tasks: Receiver<Task>,
    reports: Sender<Tally>,
    lookout: Lookout,
    places: Vec<Place<'a>>,
    timers: BinaryHeap<Reverse<(i64, usize)>>,
    batch: Batch,
    tally: Tally,
    /// What the thread had used when the window began; None: there is none now.
    cpu: Option<CpuTime>,
    /// Those who join, and are not told of.
    joining: usize,
    /// For how long the thread was away, up to its last look; and when that was, or was to be.
    away_ns: i64,
    looked_ns: i64,
}

impl<'a> Worker<'a> {
    pub fn new(shared: &'a Shared<'a>, seat: Seat<Task, Tally>) -> Result<Self, Failed> {
        let lookout = Lookout::new().map_err(|error| failed(&error))?;
        let added = lookout.add(seat.bell, (EPOLLIN | EPOLLET) as u32, TASK);
        added.map_err(|error| Failed::system("epoll_ctl", &error))?;
        Ok(Worker {
            shared,
            thread: seat.thread,
            tasks: seat.tasks,
            reports: seat.reports,
            lookout,
            places: Vec::new(),
            timers: BinaryHeap::new(),
            batch: Batch::default(),
            tally: Tally::new(shared.roles.len()),
            cpu: None,
            joining: 0,
            away_ns: 0,
            looked_ns: sys::now_ns(),
        })
    }

    /// Run until no more tasks can come; then all leave.
    pub fn run(mut self) -> Result<(), Failed> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        while self.look(&mut events)? {
            self.turn()?;
        }
        let now_ns = sys::now_ns();
        for place in &mut self.places {
            if let Some(participant) = &mut place.participant {
                participant.leave(now_ns, self.shared, &mut self.tally);
            }
        }
        Ok(())
    }

    /// Wait for what comes, and serve it; false: no more tasks can come. Whatever was found may have come since the window
    /// began, or was ordered, however late that is noticed: so that is first.
    fn look(&mut self, events: &mut [libc::epoll_event]) -> Result<bool, Failed> {
        let due_ns = self.timers.peek().map_or(i64::MAX, |timer| timer.0 .0);
        let bound_ns = match self.cpu {
            None => self.tally.span.from_ns,
            Some(_) => self.tally.span.until_ns,
        };
        let asked_ns = sys::now_ns();
        self.away_ns = self.away_by(asked_ns);
        let look_ns = match self.joining {
            0 => i64::MAX,
            _ => asked_ns + AWAY_NS,
        };
        let wake_ns = due_ns.min(bound_ns).min(look_ns).max(asked_ns);
        let count = self.lookout.look(events, wake_ns - asked_ns);
        let count = count.map_err(|error| Failed::system("epoll_pwait2", &error))?;
        self.looked_ns = sys::now_ns().min(wake_ns); // to look later is to be away, as to be busy is
        match self.tasks.try_recv() {
            Ok(task) => self.begin(&task)?,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(false),
        }
        self.begin_window(sys::now_ns());
        for event in &events[..count] {
            if event.u64 != TASK {
                let (index, fd) = sys::untag(event.u64);
                self.on_event(index, fd)?;
            }
        }
        Ok(true)
    }

    /// For how long the thread was away until now.
    fn away_by(&self, now_ns: i64) -> i64 {
        let since_ns = now_ns - self.looked_ns;
        self.away_ns + if since_ns > AWAY_NS { since_ns } else { 0 }
    }

    /// A join is told of: how late it began, and for how long, at the most, it waited for this thread since.
    fn told(&mut self, index: usize) {
        let now_ns = sys::now_ns();
        let away_ns = self.away_by(now_ns);
        let place = &mut self.places[index];
        let waited_ns = (away_ns - place.away_ns).min(now_ns - place.began_ns);
        let late_ns = place.began_ns - place.due_ns + waited_ns;
        self.tally.lateness.record(late_ns.max(0) as u64);
        place.due_ns = i64::MAX;
        self.joining -= 1;
    }

    /// All that time brings. What came before the window's end, or was due, is still its own, however late.
    fn turn(&mut self) -> Result<(), Failed> {
        let now_ns = sys::now_ns();
        if self.cpu.is_some() && now_ns >= self.tally.span.until_ns {
            self.on_rest()?;
        }
        self.on_timers(now_ns)?;
        self.end_window(now_ns);
        Ok(())
    }

    /// Places for those who are to come; those who are too many leave.
    fn begin(&mut self, task: &Task) -> Result<(), Failed> {
        let threads = self.shared.spec.threads;
        for index in 0..self.places.len() {
            if self.places[index].number >= task.participants {
                self.leave(index, None);
            }
        }
        self.places.retain(|place| place.number < task.participants);
        self.tally.span = task.span;
        let known = self.places.len();
        let mine = (self.thread..task.participants).step_by(threads);
        for number in mine.skip(known) {
            let before = number.saturating_sub(task.before) as i64;
            self.places.push(Place {
                number,
                participant: None,
                due_ns: task.first_ns + before * task.every_ns,
                began_ns: 0,
                away_ns: 0,
                has_failed: false,
                armed_ns: i64::MAX,
            });
            let index = self.places.len() - 1;
            self.arm(index);
        }
        Ok(())
    }

    fn begin_window(&mut self, now_ns: i64) {
        if self.cpu.is_none() && now_ns >= self.tally.span.from_ns {
            self.cpu = Some(CpuTime::of_thread());
            let participants = self
                .places
                .iter_mut()
                .filter_map(|place| place.participant.as_mut());
            participants.for_each(|participant| participant.begin_window(&mut self.tally));
        }
    }

    fn end_window(&mut self, now_ns: i64) {
        if now_ns < self.tally.span.until_ns {
            return;
        }
        let Some(cpu) = self.cpu.take() else { return };
        self.tally.cpu = CpuTime::of_thread().since(cpu);
        for index in 0..self.places.len() {
            let place = &mut self.places[index];
            let Some(participant) = &mut place.participant else {
                continue;
            };
            participant.end_window(self.shared, &mut self.tally);
            if place.due_ns != i64::MAX {
                self.tally.under_way += 1; // and not again
                self.told(index);
            }
        }
        let next = Tally::new(self.shared.roles.len());
        let _ = self.reports.send(std::mem::replace(&mut self.tally, next));
    }

    /// What came within the window and lies in the sockets still.
    fn on_rest(&mut self) -> Result<(), Failed> {
        let until_ns = self.tally.span.until_ns;
        for index in 0..self.places.len() {
            let Some(participant) = &mut self.places[index].participant else {
                continue;
            };
            let (shared, tally) = (self.shared, &mut self.tally);
            let done = participant.on_rest(until_ns, &mut self.batch, &clocks, shared, tally);
            self.settle(index, done)?;
        }
        Ok(())
    }

    fn on_timers(&mut self, now_ns: i64) -> Result<(), Failed> {
        while let Some(Reverse((due_ns, index))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop();
            let Some(place) = self
                .places
                .get_mut(index)
                .filter(|place| place.armed_ns == due_ns)
            else {
                continue;
            };
            place.armed_ns = i64::MAX;
            let late_ns = sys::now_ns();
            self.tally.woke(due_ns, late_ns);
            match &mut place.participant {
                Some(participant) if participant.wake_ns() <= late_ns => {
                    let done = participant.on_timer(late_ns, self.shared, &mut self.tally);
                    self.settle(index, done)?;
                }
                None if place.due_ns <= late_ns => self.join(index, late_ns)?,
                _ => self.arm(index),
            }
        }
        Ok(())
    }

    fn on_event(&mut self, index: usize, fd: RawFd) -> Result<(), Failed> {
        let Some(place) = self.places.get_mut(index) else {
            return Ok(());
        };
        let Some(participant) = &mut place.participant else {
            return Ok(());
        };
        let (shared, tally) = (self.shared, &mut self.tally);
        let done = match participant.fd_number() == fd {
            true => participant.on_line(sys::now_ns(), shared, tally),
            false => {
                let taken = participant.on_datagrams(fd, &mut self.batch, &clocks, shared, tally);
                if self.batch.is_full() {
                    self.lookout.hurry();
                }
                taken
            }
        };
        self.settle(index, done)
    }

    fn join(&mut self, index: usize, now_ns: i64) -> Result<(), Failed> {
        let place = &mut self.places[index];
        let Some(role) = self.shared.spec.role_of(place.number) else {
            return Ok(());
        };
        self.tally.offered += 1;
        self.tally.again += u64::from(place.has_failed);
        (place.began_ns, place.away_ns) = (now_ns, self.away_ns);
        self.joining += 1;
        let participant = Participant::new(self.shared, place.number, role, now_ns)
            .map_err(|error| failed(&error))?;
        let fd = participant.line_fd();
        let added = self.lookout.add(fd, LINE, sys::tag(index, fd));
        added.map_err(|error| Failed::system("epoll_ctl", &error))?;
        place.participant = Some(participant);
        self.arm(index);
        Ok(())
    }

    /// What became of a participant's turn.
    fn settle(&mut self, index: usize, done: Result<(), Trouble>) -> Result<(), Failed> {
        match done {
            Err(Trouble::Generator(error)) => return Err(failed(&error)),
            Err(Trouble::Participant(failure)) => self.leave(index, Some(failure)),
            Ok(()) => {
                self.wait_for_media(index)
                    .map_err(|error| Failed::system("epoll_ctl", &error))?;
                let place = &mut self.places[index];
                let Some(participant) = &mut place.participant else {
                    return Ok(());
                };
                if let Some(joined_ns) =
                    participant.joined_ns().filter(|_| place.due_ns != i64::MAX)
                {
                    self.tally.joined += 1;
                    self.tally
                        .times
                        .record((joined_ns - place.due_ns).max(0) as u64);
                    self.told(index);
                }
            }
        }
        self.arm(index);
        Ok(())
    }

    /// Its sockets are waited for; what comes to those by which it watches gathers once they are connected.
    fn wait_for_media(&mut self, index: usize) -> io::Result<()> {
        let Some(participant) = &mut self.places[index].participant else {
            return Ok(());
        };
        for way in participant.new_sockets() {
            if let Some(peer) = participant.peer(way) {
                let fd = &peer.sockets().all()[0];
                self.lookout.add(fd, EPOLLIN as u32, sys::tag(index, fd))?;
            }
        }
        let is_to = |peer: &&mut Peer| peer.is_connected() && !peer.gathers;
        for way in GATHERS {
            if let Some(peer) = participant.peer(way).filter(is_to) {
                peer.gathers = true;
                let fd = &peer.sockets().all()[0];
                self.lookout
                    .gather(fd, EPOLLIN as u32, sys::tag(index, fd))?;
            }
        }
        Ok(())
    }

    fn leave(&mut self, index: usize, failure: Option<Failure>) {
        let now_ns = sys::now_ns();
        let place = &mut self.places[index];
        let Some(mut participant) = place.participant.take() else {
            return;
        };
        let is_told = place.due_ns == i64::MAX;
        if !is_told {
            self.told(index);
        }
        let place = &mut self.places[index];
        if failure.is_some() && participant.joined_ns().is_none() {
            participant.give_up(&mut self.tally);
        }
        participant.leave(now_ns, self.shared, &mut self.tally);
        match (&failure, participant.joined_ns()) {
            (None, Some(_)) => self.tally.ordered_away += 1,
            (None, None) => {} // it was told as under way
            (Some(_), None) if is_told => {}
            (Some(failure), None) => self.tally.not_joined.count(failure),
            (Some(failure), Some(_)) => self.tally.lost.count(failure),
        }
        place.has_failed = true;
        place.due_ns = now_ns + self.shared.spec.rest_ns;
    }

    /// See to it that there is a timer early enough.
    fn arm(&mut self, index: usize) {
        let place = &mut self.places[index];
        let wake_ns = place
            .participant
            .as_ref()
            .map_or(place.due_ns, Participant::wake_ns);
        if wake_ns < place.armed_ns {
            place.armed_ns = wake_ns;
            self.timers.push(Reverse((wake_ns, index)));
        }
    }
}

/// What the two clocks say: CLOCK_MONOTONIC, and CLOCK_REALTIME, of which the kernel's stamps are.
fn clocks() -> (i64, i64) {
    (sys::now_ns(), sys::real_ns())
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
