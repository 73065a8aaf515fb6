//! One thread of the generator: its connections, and the loop that serves them.
//!
//! A keep-alive request costs one `send` and one `recv`, and shares one `epoll_pwait2` with all others that became
//! ready meanwhile: sockets are registered once, edge-triggered, and the next request is sent right after the last
//! byte of an answer was read. A request on a fresh connection is sent without waiting for the connection to be
//! reported writable: over a link to the same machine it is established when `connect` returns; where it is not,
//! `send` says so and the socket is watched; what did not go out waits there for room. Every request is one `send` where
//! there is room, and is sent when nothing of the one before is unacknowledged, so Nagle's algorithm (in Linux it holds
//! a small segment back only behind another small one) has nothing to hold back and TCP_NODELAY is left alone, as are
//! TCP_QUICKACK and SO_LINGER: the packets are those of a plain client.
//!
//! Where many answers are under way in closed loop, it dozes before it waits: see `pace.rs`.
//!
//! A worker with a single connection in closed loop is `alone`: it has nothing else to do than to wait for that one
//! answer, so it waits in a blocking `recv` and needs no epoll.
//!
//! What comes faster than it is read must not keep the others waiting: an answer is read for a turn at most, and what
//! is left of it stands in `unread`, for no event will tell of it.
//!
//! A connection whose end (FIN, or TLS's close_notify) came with an answer is not used again. After that word, as after
//! a `Connection: close` answer, the server ought to close first. If its FIN has not come with the answer, the socket
//! *lingers* until the slot's next answer (or the next tick), so that TIME_WAIT, and with it the end of the ephemeral
//! ports, stays away from the client. Who is `alone` is told of no FIN.

use std::io;

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};
use virtoll_generator::books::Books;
use virtoll_generator::sys::{self, Address, CpuTime, Epoll};
use virtoll_generator::{is_own_limit, Failed};

use crate::dialogue::{Dialogue, Place};
use crate::log::NEVER_SENT;
use crate::pace::Pace;
use crate::schedule::Supply;
use crate::slot::{Phase, Slot};
use crate::stops::Stops;
use crate::tally::{End, Failure, Stretch, Tally};
use crate::tls::Tls;

const BUFFER_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 256;
/// Open loop, all connections busy: it looks at least this often, for a stop is seen only from where a look was due.
const LOOK_NS: i64 = 5_000_000;
const READ: u32 = EPOLLIN as u32 | EPOLLRDHUP as u32 | EPOLLET as u32;
const READ_ONCE: u32 = READ | EPOLLONESHOT as u32;
const READ_OR_WRITE: u32 = READ | EPOLLOUT as u32;

pub struct Worker<'a, D: Dialogue> {
    dialogue: D,
    address: Address,
    tls: Option<Tls>,
    keep_alive: bool,
    timeout_ns: i64,
    tick_ns: i64,
    end_ns: i64,
    alone: bool,
    supply: Supply<'a>,
    epoll: Epoll,
    slots: Vec<Slot<D::Reply>>,
    idle: Vec<usize>,
    /// Slots whose connect or handshake failed; they try again at the next tick, so that a dead server is not hammered.
    resting: Vec<usize>,
    /// Events whose connections were not read to the end of what there was.
    unread: Vec<(u64, u32)>,
    /// The last look was told of as much as it had room for: what else lies ready is found by the next.
    has_more: bool,
    stops: Stops,
    pace: Pace,
    /// When this thread last looked at the clock.
    seen_ns: i64,
    clock: fn() -> i64,
    doze: fn(i64),
    in_flight: usize,
    buffer: Box<[u8]>,
    tally: Tally,
    /// What this thread looks at where the window begins and ends, and when it does so next.
    pub books: Books,
    look_ns: i64,
}

impl<'a, D: Dialogue> Worker<'a, D> {
    /// `end_ns`: when what is still under way is given up.
    pub fn new(
        mut dialogue: D,
        place: &Place,
        supply: Supply<'a>,
        connections: usize,
        log_limit: usize,
        timeout_ns: i64,
        end_ns: i64,
    ) -> Result<Self, Failed> {
        let slots = (0..connections).map(|_| Slot::new(dialogue.reply()));
        Ok(Worker {
            slots: slots.collect(),
            dialogue,
            address: place.address.into(),
            tls: place.tls.clone(),
            keep_alive: place.keep_alive,
            timeout_ns,
            tick_ns: (timeout_ns / 16).clamp(1_000_000, 50_000_000),
            end_ns,
            alone: connections == 1 && matches!(supply, Supply::Closed { .. }),
            supply,
            epoll: Epoll::new().map_err(|error| match is_own_limit(&error) {
                true => Failed::own_limit(&error),
                false => Failed::system("epoll_create1", &error),
            })?,
            idle: (0..connections).rev().collect(),
            resting: Vec::new(),
            unread: Vec::new(),
            has_more: false,
            stops: Stops::default(),
            pace: Pace::new(sys::now_ns()),
            seen_ns: sys::now_ns(),
            clock: sys::now_ns,
            doze: sys::doze,
            in_flight: 0,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            tally: Tally::new(log_limit),
            books: Books::default(),
            look_ns: i64::MAX,
        })
    }

    /// Run to the end of the supply, or to `end_ns`.
    pub fn run(mut self) -> Result<Tally, Failed> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let (mut cpu_before, mut cpu) = (None, None);
        let mut now_ns = (self.clock)();
        self.seen_ns = now_ns;
        let mut next_tick_ns = now_ns + self.tick_ns;
        loop {
            if cpu_before.is_none() && now_ns >= self.supply.begin_ns() {
                self.books.look();
                cpu_before = Some(CpuTime::of_thread());
            }
            self.dispatch(now_ns)?;
            if cpu.is_none() && now_ns >= self.supply.until_ns() {
                self.books.look();
                cpu = Some(CpuTime::of_thread());
            }
            // Who looks at the window's end is there until then.
            let is_wanted = self.books.are_kept() && cpu.is_none();
            if now_ns >= self.end_ns || (self.is_done() && !is_wanted) {
                break;
            }
            let mut wake_ns = self.wake_ns(next_tick_ns);
            let look_ns = match (cpu_before, cpu) {
                (None, _) => self.supply.begin_ns(),
                (_, None) => self.supply.until_ns(),
                _ => i64::MAX,
            };
            wake_ns = wake_ns.min(look_ns);
            self.look_ns = if self.books.are_kept() {
                look_ns
            } else {
                i64::MAX
            };
            self.serve(&mut events, wake_ns)?;
            now_ns = self.look();
            if now_ns >= next_tick_ns {
                self.tick(now_ns)?;
                next_tick_ns = now_ns + self.tick_ns;
            }
        }
        let cpu = cpu.unwrap_or_else(CpuTime::of_thread);
        self.tally.window.cpu = cpu.since(cpu_before.unwrap_or(cpu));
        self.tally.used = self.books.used();
        self.give_up(now_ns);
        Ok(self.tally)
    }

    /// Wait for events until `wake_ns`, and handle them; then whatever of earlier ones is still unread.
    fn serve(&mut self, events: &mut [libc::epoll_event], wake_ns: i64) -> Result<(), Failed> {
        if self.alone && self.in_flight == 1 {
            return self.wait_alone();
        }
        let unread = std::mem::take(&mut self.unread);
        let asked_ns = self.look();
        let timeout_ns = if unread.is_empty() {
            (wake_ns - asked_ns).max(0)
        } else {
            0
        };
        let count = self.wait(events, asked_ns, timeout_ns);
        // Before anything is sent: what it sends next may have waited for this look.
        let found_ns = self.look_due(asked_ns + timeout_ns);
        self.stops.found(found_ns);
        let count = count.map_err(|error| Failed::system("epoll_pwait2", &error))?;
        self.has_more = count == events.len();
        for event in &events[..count] {
            self.on_event(event.u64, event.events)?;
        }
        for (tag, flags) in unread {
            // Unless it had its turn with an event just now.
            if !self.unread.iter().any(|(again, _)| *again == tag) {
                self.on_event(tag, flags)?;
            }
        }
        Ok(())
    }

    /// Wait for events, after a doze where one is worth it.
    fn wait(
        &self,
        events: &mut [libc::epoll_event],
        asked_ns: i64,
        timeout_ns: i64,
    ) -> io::Result<usize> {
        let doze_ns = match self.supply {
            Supply::Closed { .. } => {
                let wake_ns = asked_ns + timeout_ns;
                self.pace.doze_ns(self.in_flight, asked_ns, wake_ns)
            }
            Supply::Open { .. } => 0,
        };
        if doze_ns == 0 {
            return self.epoll.wait(events, timeout_ns);
        }
        match self.epoll.wait(events, 0) {
            Ok(0) => (self.doze)(doze_ns),
            other => return other,
        }
        self.epoll.wait(events, timeout_ns - doze_ns)
    }

    /// The time, and whether this thread was stopped since it was last asked for.
    fn look(&mut self) -> i64 {
        self.look_due(self.seen_ns)
    }

    /// The same where it had nothing to do before `due_ns`.
    fn look_due(&mut self, due_ns: i64) -> i64 {
        let now_ns = (self.clock)();
        if let Supply::Open { next_ns, .. } = self.supply {
            let since_ns = next_ns.unwrap_or(i64::MAX);
            self.stops.looked(due_ns, now_ns, since_ns);
        }
        self.seen_ns = now_ns;
        now_ns
    }

    fn is_done(&self) -> bool {
        self.in_flight == 0
            && match self.supply {
                Supply::Closed { .. } => self.resting.is_empty(),
                Supply::Open { next_ns, .. } => next_ns.is_none(),
            }
    }

    fn wake_ns(&self, next_tick_ns: i64) -> i64 {
        let due_ns = match self.supply {
            Supply::Closed { .. } => None,
            Supply::Open { .. } if self.idle.is_empty() => Some(self.seen_ns + LOOK_NS),
            Supply::Open { next_ns, .. } => next_ns,
        };
        due_ns
            .unwrap_or(i64::MAX)
            .min(next_tick_ns)
            .min(self.end_ns)
    }

    /// Send what may be sent, while there are free slots.
    fn dispatch(&mut self, mut now_ns: i64) -> Result<(), Failed> {
        while let Some(&slot) = self.idle.last() {
            let Some(intended_ns) = self.supply.take(now_ns) else {
                break;
            };
            self.idle.pop();
            let connects = self.slots[slot].fd.is_none();
            self.start(slot, intended_ns, now_ns, now_ns - intended_ns)?;
            if connects {
                now_ns = self.look(); // that took a while, which is none of the next request's
            }
        }
        Ok(())
    }

    /// A slot has become free: go on with what is waiting, or rest.
    fn proceed(&mut self, slot: usize, now_ns: i64) -> Result<(), Failed> {
        let Some(intended_ns) = self.supply.take(now_ns) else {
            self.idle.push(slot);
            return Ok(());
        };
        let late_ns = now_ns - intended_ns;
        if !self.idle.is_empty() || late_ns <= 0 {
            return self.start(slot, intended_ns, now_ns, late_ns);
        }
        if intended_ns >= self.supply.begin_ns() {
            self.tally.queued += 1;
            self.tally.queue_max_ns = self.tally.queue_max_ns.max(late_ns);
        }
        let own_ns = self.stops.since_ns(intended_ns, now_ns);
        self.start(slot, intended_ns, now_ns, own_ns)
    }

    /// `own_late_ns`: how long the request waited for the generator, and for nothing else.
    fn start(
        &mut self,
        index: usize,
        intended_ns: i64,
        now_ns: i64,
        own_late_ns: i64,
    ) -> Result<(), Failed> {
        let counts = intended_ns >= self.supply.begin_ns();
        if counts {
            self.tally.offered += 1;
            if matches!(self.supply, Supply::Open { .. }) {
                self.tally.lateness.record(own_late_ns as u64);
            }
            self.tally.first_ns.get_or_insert(now_ns);
        }
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        (slot.intended_ns, slot.started_ns, slot.counts) = (intended_ns, now_ns, counts);
        slot.own_late_ns = own_late_ns;
        slot.logged = counts && self.tally.log.admit(intended_ns);
        self.dialogue.prepare(index, &mut slot.reply);
        if slot.fd.is_some() {
            return self.ask(index, true);
        }
        let connected = if self.alone {
            sys::connect_blocking(&self.address, self.tick_ns)
        } else {
            sys::connect(&self.address)
        };
        match connected {
            Ok(fd) => {
                self.tally.connects += 1;
                slot.fd = Some(fd);
                self.ask(index, false)
            }
            Err(error) if is_own_limit(&error) => Err(Failed::own_limit(&error)),
            Err(_) => self.fail(index, Failure::Connect),
        }
    }

    fn answered(&mut self, index: usize, server_closed: bool) -> Result<(), Failed> {
        let now_ns = self.look();
        let slot = &mut self.slots[index];
        let answer = self.dialogue.judge(&slot.reply);
        let end = ended(slot, &self.supply, now_ns);
        match answer.failure {
            None => {
                self.tally.complete(end, answer.status, answer.body_bytes);
                let is_first = !std::mem::replace(&mut slot.has_begun, true);
                if is_first {
                    self.tally.window.beginning_ns += missed_ns(&self.supply, now_ns);
                }
                let at_ns = if is_first { (self.clock)() } else { now_ns };
                self.supply.answered(at_ns, is_first);
            }
            Some(failure) => {
                let tells = failure == Failure::Status && answer.status != 0;
                self.tally
                    .fail(failure, end, tells.then_some(answer.status));
            }
        }
        // Whoever is known to have ended would answer the next request with a reset.
        let has_ended = server_closed || slot.tls.as_ref().is_some_and(|tls| tls.is_ended);
        if has_ended || !(self.keep_alive && answer.keep_alive) {
            slot.lingering = slot.fd.take().filter(|_| !server_closed);
            slot.tls = None;
        }
        slot.phase = Phase::Idle;
        self.in_flight -= 1;
        self.proceed(index, now_ns)
    }

    fn fail(&mut self, index: usize, failure: Failure) -> Result<(), Failed> {
        let now_ns = self.look();
        let slot = &mut self.slots[index];
        self.tally
            .fail(failure, ended(slot, &self.supply, now_ns), None);
        slot.close();
        slot.phase = Phase::Idle;
        self.in_flight -= 1;
        if matches!(failure, Failure::Connect | Failure::Tls) {
            self.resting.push(index);
            return Ok(());
        }
        self.proceed(index, now_ns)
    }

    /// Now and then: time-outs, connections that linger, slots that rest. Who has an answer that is yet to be looked at is
    /// not timed out: after a stop of this thread that may be any.
    fn tick(&mut self, now_ns: i64) -> Result<(), Failed> {
        self.pace.tick(now_ns, self.tally.ended_in_all());
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            slot.lingering = None;
            let is_over = now_ns - slot.started_ns > self.timeout_ns;
            if slot.phase != Phase::Idle && is_over && !self.has_more {
                self.fail(index, Failure::Timeout)?;
            }
        }
        for index in std::mem::take(&mut self.resting) {
            let now_ns = self.look(); // those before it took a while, which is none of its request's
            self.proceed(index, now_ns)?;
        }
        Ok(())
    }

    /// Count what is left as unfinished.
    fn give_up(&mut self, now_ns: i64) {
        for slot in self.slots.iter().filter(|slot| slot.phase != Phase::Idle) {
            let end = ended(slot, &self.supply, now_ns);
            self.tally.fail(Failure::Unfinished, end, None);
        }
        let window = stretch(&self.supply);
        let asked = self.slots.iter().filter(|slot| slot.started_ns != 0);
        let never = asked.filter(|slot| !slot.has_begun).count();
        let missed_ns = missed_ns(&self.supply, now_ns).saturating_mul(never as i64);
        let beginning_ns = &mut self.tally.window.beginning_ns;
        *beginning_ns = beginning_ns.saturating_add(missed_ns);
        for intended_ns in self
            .supply
            .rest()
            .filter(|due_ns| *due_ns >= window.from_ns)
        {
            let end = End {
                intended_ns,
                now_ns,
                late_ns: NEVER_SENT,
                share: 0.0,
                position: window.position(intended_ns, now_ns),
                logged: self.tally.log.admit(intended_ns),
            };
            self.tally.fail(Failure::Unfinished, end, None);
        }
    }
}

/// The window, as far as it is known when its end may still be ahead.
fn stretch(supply: &Supply) -> Stretch {
    Stretch {
        from_ns: supply.begin_ns(),
        until_ns: supply.until_ns(),
    }
}

/// For how long in the window one was missing who was not answered until now.
fn missed_ns(supply: &Supply, now_ns: i64) -> i64 {
    let window = stretch(supply);
    window.passed_ns(now_ns) - window.passed_ns(supply.even_ns().min(now_ns))
}

/// How the request of a slot ends now.
fn ended<R>(slot: &Slot<R>, supply: &Supply, now_ns: i64) -> End {
    let window = stretch(supply);
    // Where the window's begin was moved up meanwhile, what was not counted when it was sent lies before it.
    let most_ns = if slot.counts {
        i64::MAX
    } else {
        window.from_ns - 1
    };
    let sent_ns = slot.intended_ns.min(most_ns);
    End {
        intended_ns: slot.intended_ns,
        now_ns,
        late_ns: slot.own_late_ns,
        share: window.share(slot.started_ns, now_ns),
        position: window.position(sent_ns, now_ns),
        logged: slot.logged,
    }
}

#[path = "exchange.rs"]
mod exchange;

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
