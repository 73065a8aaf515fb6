//! Both ends of a flow over UDP.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::counts::Counts;
use super::depart::Way;
use super::stamps::{Ahead, Prepared, Stamps};
use super::wire::{
    hear, tell, Answer, Ended, Header, Order, Ready, HEADER_BYTES, MOST_ORDER_BYTES,
    MOST_WORD_BYTES,
};
use crate::network::sockets::{readable, segment, Batch};
use crate::network::MOST_DATAGRAM_BYTES;
use crate::windows::now_ns;

/// Messages in one system call.
const SLOTS: usize = 64;
/// The kernel cuts one message into no more datagrams than this (UDP_MAX_SEGMENTS of linux/udp.h before 6.9).
const MOST_SEGMENTS: usize = 64;
/// A flow is over when its sender says so and nothing has come for so long: what a queue on the way may hold.
const QUIET: Duration = Duration::from_millis(500);

/// What datagrams depart from.
pub struct Datagrams<'a> {
    socket: &'a UdpSocket,
    batch: Batch,
    run: u32,
    size_bytes: usize,
    segments: usize,
    /// Whether to wait where the socket's buffer is full: a paced flow does not.
    waits: bool,
}

impl<'a> Datagrams<'a> {
    /// With `segmentation` the kernel cuts them from messages of up to 64.
    pub fn new(
        socket: &'a UdpSocket,
        order: &Order,
        segmentation: bool,
        waits: bool,
    ) -> io::Result<Datagrams<'a>> {
        let size_bytes = order.size_bytes;
        let segments = if segmentation {
            segment(socket, size_bytes)?;
            (MOST_DATAGRAM_BYTES as usize / size_bytes).clamp(1, MOST_SEGMENTS)
        } else {
            1
        };
        Ok(Datagrams {
            socket,
            batch: Batch::new(SLOTS, segments * size_bytes),
            run: order.run,
            size_bytes,
            segments,
            waits,
        })
    }
}

impl Way for Datagrams<'_> {
    fn most(&self) -> u64 {
        (SLOTS * self.segments) as u64
    }

    fn depart(&mut self, segment: u32, number: u64, at_ns: u64, count: u64) -> io::Result<u64> {
        let mut filled = 0;
        let mut slots = 0;
        while filled < count {
            let inside = (count - filled).min(self.segments as u64) as usize;
            let slot = self.batch.slot(slots);
            for datagram in slot.chunks_exact_mut(self.size_bytes).take(inside) {
                let header = Header {
                    run: self.run,
                    segment,
                    number: number + filled,
                    at_ns,
                };
                header.write(&mut datagram[..HEADER_BYTES]);
                filled += 1;
            }
            self.batch.set_length(slots, inside * self.size_bytes);
            slots += 1;
        }
        if self.waits {
            self.batch.send(self.socket, slots)?;
            return Ok(count);
        }
        let messages = self.batch.offer(self.socket, slots)?;
        Ok((messages as u64 * self.segments as u64).min(count))
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes as u64
    }
}

/// The receiver's end: one flow, as `control` orders it. `patience`: how long it waits for a sender that is silent
/// beyond its schedule.
pub fn receive(control: &TcpStream, socket: &UdpSocket, patience: Duration) -> io::Result<()> {
    let order = hear::<Order>(control, MOST_ORDER_BYTES)?.sound(MOST_DATAGRAM_BYTES)?;
    let prepared = Prepared::new(socket, order.buffer_bytes);
    socket.set_read_timeout(Some(QUIET))?;
    let mut receiver = Receiver {
        stamps: Stamps::new(order.size_bytes + 1),
        counts: Counts::new(order),
        stamped: prepared.stamped,
        unstamped: 0,
        ahead: Ahead::now(),
    };
    tell(control, &Ready { now_ns: now_ns() })?;
    receiver.receive(control, socket, patience)?;
    tell(control, &receiver.answer(&prepared))
}

struct Receiver {
    stamps: Stamps,
    counts: Counts,
    stamped: bool,
    unstamped: u64,
    ahead: Ahead,
}

impl Receiver {
    fn receive(
        &mut self,
        control: &TcpStream,
        socket: &UdpSocket,
        patience: Duration,
    ) -> io::Result<()> {
        let mut taken = None;
        let mut last = Instant::now();
        while taken != Some(self.counts.received) {
            let before = self.counts.received;
            match self.stamps.receive(socket) {
                Ok(count) => self.note(count),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if taken.is_some() => break,
                Err(_) => {}
            }
            if self.counts.received > before {
                last = Instant::now();
            } else if self.is_given_up(last, patience) {
                // Silent, or in the midst of what is not of this flow.
                return Err(ErrorKind::TimedOut.into());
            }
            if taken.is_none() && readable(control)? {
                taken = Some(hear::<Ended>(control, MOST_WORD_BYTES)?.taken);
            }
        }
        Ok(())
    }

    fn is_given_up(&self, last: Instant, patience: Duration) -> bool {
        let over = self.counts.end_ns().is_none_or(|end_ns| now_ns() > end_ns);
        over && last.elapsed() > patience
    }

    fn note(&mut self, count: usize) {
        let here_ns = now_ns();
        for slot in 0..count {
            let one = self.stamps.received(slot);
            let kernels_ns = one.monotonic_ns(self.ahead.ns);
            self.unstamped += u64::from(self.stamped && kernels_ns.is_none());
            self.counts
                .datagram(one.bytes, kernels_ns.unwrap_or(here_ns));
        }
    }

    fn answer(self, prepared: &Prepared) -> Answer {
        Answer {
            stamps: if self.stamped { "kernel" } else { "program" }.to_owned(),
            unstamped: self.unstamped,
            overrun: prepared.overrun(),
            buffer_bytes: prepared.buffer_bytes,
            clock_moved_ns: self.ahead.moved_ns(Ahead::now()),
            now_ns: now_ns(),
            ..self.counts.answer()
        }
    }
}
