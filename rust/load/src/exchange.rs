//! What a worker says on a connection and hears there, up to where a request has ended.

use std::io::ErrorKind;

use libc::EPOLLRDHUP;
use virtoll_generator::{is_own_limit, sys, Failed};

use super::{Worker, READ, READ_ONCE, READ_OR_WRITE};
use crate::dialogue::Dialogue;
use crate::slot::{is, Outcome, Phase};
use crate::tally::Failure;
use crate::tls::Session;

impl<D: Dialogue> Worker<'_, D> {
    /// Send the request of a slot, after the handshake where there is to be one.
    pub(super) fn ask(&mut self, index: usize, watched: bool) -> Result<(), Failed> {
        let Some(tls) = &self.tls else {
            return self.send(index, watched);
        };
        let slot = &mut self.slots[index];
        slot.phase = Phase::Sent { once: false };
        let Some(fd) = &slot.fd else { return Ok(()) };
        if !watched {
            let session = Session::new(tls).map_err(|why| Failed(format!("TLS: {why}")))?;
            slot.tls = Some(Box::new(session));
            if !self.alone {
                // Edges tell of room to send only after there was none: it stays of interest.
                let added = self.epoll.add(fd, READ_OR_WRITE, sys::tag(index, fd));
                added.map_err(|error| Failed::system("epoll_ctl", &error))?;
            }
        }
        let Some(session) = &mut slot.tls else {
            return Ok(());
        };
        if let Err(why) = session.ask(self.dialogue.request()) {
            return self.refused(index, why);
        }
        match session.flush(fd) {
            Ok(()) => Ok(()),
            Err(error) if is_own_limit(&error) => Err(Failed::own_limit(&error)),
            Err(_) if watched => self.fail(index, Failure::Reset),
            Err(_) => self.fail(index, Failure::Connect),
        }
    }

    /// Send the request, or what of it has not gone yet. `watched`: the connection is known to epoll already.
    fn send(&mut self, index: usize, watched: bool) -> Result<(), Failed> {
        let slot = &mut self.slots[index];
        let Some(fd) = &slot.fd else { return Ok(()) };
        let was_unsent = slot.phase == Phase::Unsent;
        let request = match was_unsent {
            true => &slot.unsent[slot.sent..],
            false => self.dialogue.request(),
        };
        let whole = request.len();
        let sent = match sys::send(fd, request) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) if is_own_limit(&error) => return Err(Failed::own_limit(&error)),
            Err(_) => {
                let has_spoken = if was_unsent { slot.sent > 0 } else { watched };
                return self.fail(
                    index,
                    if has_spoken {
                        Failure::Reset
                    } else {
                        Failure::Connect
                    },
                );
            }
        };
        let tag = sys::tag(index, fd);
        let registered = if sent == whole {
            let once = !watched && !self.keep_alive && !self.alone;
            slot.phase = Phase::Sent { once };
            match (watched || self.alone, once) {
                // That it can take more is of no interest any more.
                (true, _) if was_unsent && !self.alone => self.epoll.modify(fd, READ, tag),
                (true, _) => Ok(()),
                (false, true) => self.epoll.add(fd, READ_ONCE, tag),
                (false, false) => self.epoll.add(fd, READ, tag),
            }
        } else {
            if !was_unsent {
                slot.unsent.clear();
                slot.unsent.extend_from_slice(self.dialogue.request());
                slot.sent = 0;
            }
            slot.sent += sent;
            slot.phase = Phase::Unsent;
            match watched {
                // An edge will tell of room.
                _ if self.alone || was_unsent => Ok(()),
                true => self.epoll.modify(fd, READ_OR_WRITE, tag),
                false => self.epoll.add(fd, READ_OR_WRITE, tag),
            }
        };
        registered.map_err(|error| Failed::system("epoll_ctl", &error))
    }

    pub(super) fn on_event(&mut self, tag: u64, flags: u32) -> Result<(), Failed> {
        let (index, raw_fd) = sys::untag(tag);
        let slot = &mut self.slots[index];
        if !is(&slot.fd, raw_fd) {
            if is(&slot.lingering, raw_fd) {
                slot.part(
                    flags & EPOLLRDHUP as u32 != 0,
                    self.tls.is_some(),
                    &mut self.buffer,
                );
            }
            return Ok(());
        }
        let phase = slot.phase;
        match phase {
            // The server closed a connection that was kept for later, or talks unasked.
            Phase::Idle if !slot.is_quiet(&mut self.buffer) => slot.close(),
            Phase::Idle => {}
            Phase::Unsent => return self.send(index, true),
            Phase::Sent { .. } => return self.advance(index, tag, flags),
        }
        Ok(())
    }

    /// Without epoll: the next step of the only connection, which blocks for at most a tick, and not beyond a look.
    pub(super) fn wait_alone(&mut self) -> Result<(), Failed> {
        let left_ns = self.look_ns - self.seen_ns;
        match (self.slots[0].phase, &self.slots[0].fd) {
            (Phase::Unsent, _) => self.send(0, true),
            (_, Some(fd)) if left_ns < self.tick_ns && !sys::readable_within(fd, left_ns) => Ok(()),
            _ => self.advance(0, 0, 0),
        }
    }

    /// Read for a turn, and do what follows from it.
    fn advance(&mut self, index: usize, tag: u64, flags: u32) -> Result<(), Failed> {
        let ending = flags & EPOLLRDHUP as u32 != 0;
        let outcome = self.slots[index].receive(ending, &mut self.buffer);
        self.count_handshake(index);
        match outcome {
            Outcome::Unread if self.alone => Ok(()),
            Outcome::Unread => {
                self.unread.push((tag, flags));
                Ok(())
            }
            Outcome::Waiting if self.slots[index].phase == (Phase::Sent { once: true }) => {
                self.watch_on(index)
            }
            Outcome::Waiting => Ok(()),
            Outcome::Answered { server_closed } => self.answered(index, server_closed),
            Outcome::Failed(failure) => self.fail(index, failure),
            Outcome::Refused(why) => self.refused(index, why),
        }
    }

    fn count_handshake(&mut self, index: usize) {
        let Some(session) = &mut self.slots[index].tls else {
            return;
        };
        if session.is_established && !session.is_counted {
            session.is_counted = true;
            self.tally.tls.handshakes += 1;
            let agreed = &mut self.tally.tls.agreed;
            *agreed = agreed.take().or_else(|| session.agreed());
        }
    }

    /// TLS does not go on.
    fn refused(&mut self, index: usize, why: String) -> Result<(), Failed> {
        self.tally.tls.failed(why, 1);
        self.fail(index, Failure::Tls)
    }

    /// An answer in several pieces: report all further events.
    fn watch_on(&mut self, index: usize) -> Result<(), Failed> {
        let slot = &mut self.slots[index];
        slot.phase = Phase::Sent { once: false };
        let Some(fd) = &slot.fd else { return Ok(()) };
        let watched = self.epoll.modify(fd, READ, sys::tag(index, fd));
        watched.map_err(|error| Failed::system("epoll_ctl", &error))
    }
}
