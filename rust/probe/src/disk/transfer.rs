//! Moving records between the file and memory: one after the other (pread, pwrite), or many at a time (io_uring).

use std::io::Error;
use std::os::unix::fs::FileExt;

use super::buffer::Buffer;
use super::file::TestFile;
use super::latencies::Latencies;
use super::order::Order;
use super::pattern::Pattern;
use super::uring::{Ring, Transfer, Transfers};
use crate::report::Failed;
use crate::windows::now_ns;

/// The file and all that is needed to move its records; nothing is allocated once it is there.
pub struct Records {
    pub file: TestFile,
    pub order: Order,
    pub pattern: Pattern,
    /// Where records are read to: one for each transfer that may be under way, and one for the last that was.
    pub buffers: Buffer,
    pub record_bytes: usize,
    pub writes: bool,
    /// Which of the pattern's texts is being written.
    pub generation: u8,
    /// By record: which text it holds.
    pub written: Vec<u8>,
    /// One record in so many is timed, where they are moved one after the other,
    pub timed_one_in: u64,
    /// and so many more are not until one is. It goes on from window to window: else the first record of each, which is
    /// cold, would always be among those that are.
    pub untimed: u64,
    pub latencies: Latencies,
    pub moved_bytes: u64,
    /// Records that were read and were not what belongs there.
    pub wrong: u64,
}

impl Records {
    /// From now on time one in so many, from the middle of the first so many on.
    pub fn time_one_in(&mut self, count: u64) {
        (self.timed_one_in, self.untimed) = (count, count / 2);
    }

    /// Of the next so many at least one is.
    pub fn time_some_of(&mut self, count: u64) {
        self.untimed %= count.max(1);
    }

    /// Whether the next record is timed.
    fn is_timed(&mut self) -> bool {
        let is_due = self.untimed == 0;
        self.untimed = if is_due {
            self.timed_one_in - 1
        } else {
            self.untimed - 1
        };
        is_due
    }

    /// Byte offset of the record of this visit.
    fn offset(&self, visit: u64) -> u64 {
        self.order.record(visit) * self.record_bytes as u64
    }

    /// Note that the record of this visit has been moved: what was read lies in this slot.
    fn done(&mut self, visit: u64, slot: usize) {
        let record = self.order.record(visit) as usize;
        self.moved_bytes += self.record_bytes as u64;
        if self.writes {
            self.written[record] = self.generation;
            return;
        }
        let offset = (record * self.record_bytes) as u64;
        let bytes = self
            .buffers
            .part(slot * self.record_bytes, self.record_bytes);
        let right = self
            .pattern
            .has_the_ends_of(self.written[record], offset, bytes);
        self.wrong += u64::from(!right);
    }

    /// A transfer that moved less than a record. Writing the rest tells why: the disk is full.
    fn cut_short(&self, visit: u64, moved: usize) -> Failed {
        let only = || {
            Error::other(format!(
                "only {moved} of {} B were moved",
                self.record_bytes
            ))
        };
        let error = if self.writes {
            let offset = self.offset(visit);
            let rest = &self.pattern.record(self.generation, offset)[moved..];
            let written = self.file.target().write_at(rest, offset + moved as u64);
            written.err().unwrap_or_else(only)
        } else {
            only()
        };
        self.file.failed(self.call(), &error)
    }

    fn call(&self) -> &'static str {
        if self.writes {
            "write"
        } else {
            "read"
        }
    }
}

/// Move the records of these visits one after the other.
pub fn one_by_one(records: &mut Records, first: u64, count: u64) -> Result<(), Failed> {
    for visit in first..first + count {
        let offset = records.offset(visit);
        let is_timed = records.is_timed();
        let start_ns = if is_timed { now_ns() } else { 0 };
        let target = records.file.target();
        let moved = if records.writes {
            target.write_at(records.pattern.record(records.generation, offset), offset)
        } else {
            target.read_at(&mut records.buffers[..records.record_bytes], offset)
        };
        if is_timed {
            records.latencies.record(now_ns() - start_ns);
        }
        match moved {
            Ok(moved) if moved == records.record_bytes => records.done(visit, 0),
            Ok(moved) => return Err(records.cut_short(visit, moved)),
            Err(error) => return Err(records.file.failed(records.call(), &error)),
        }
    }
    Ok(())
}

/// A ring, and what is under way in each of its slots: one more than transfers, so that the next is handed over before
/// the last is looked at.
pub struct Queue<R = Ring> {
    ring: R,
    now_ns: fn() -> u64,
    depth: u32,
    free: Vec<usize>,
    visits: Vec<u64>,
    started_ns: Vec<u64>,
}

impl Queue {
    /// For so many transfers at a time.
    pub fn new(depth: u32) -> Result<Queue, Failed> {
        Ok(Queue::of(Ring::new(depth)?, depth, now_ns))
    }

    /// Whether the kernel could be asked to let completions wait until they are asked for.
    pub fn is_deferred(&self) -> bool {
        self.ring.is_deferred
    }
}

impl<R: Transfers> Queue<R> {
    fn of(ring: R, depth: u32, now_ns: fn() -> u64) -> Queue<R> {
        let slots = depth as usize + 1;
        Queue {
            ring,
            now_ns,
            depth,
            free: (0..slots).rev().collect(),
            visits: vec![0; slots],
            started_ns: vec![0; slots],
        }
    }

    /// Move the records of these visits, as many at a time as the depth says. None is under way any more afterwards.
    ///
    /// Each transfer is handed over by itself as soon as there is room, as fio does (iodepth_batch=1): the kernel
    /// would hold back a batch until all of it is there, and the disk would run dry meanwhile. A transfer's time begins
    /// when it is handed over itself. Those that are done together end together, as fio has it too: what is done with
    /// the first of them is no part of the time of the others.
    pub fn transfer(
        &mut self,
        records: &mut Records,
        first: u64,
        count: u64,
    ) -> Result<(), Failed> {
        let mut failure = None;
        let mut next = first;
        let mut done: Option<(usize, i32)> = None;
        let (mut ready, mut stamp_ns) = (0, 0);
        loop {
            while failure.is_none() && next < first + count && self.ring.busy() < self.depth {
                let slot = self.free.pop().expect("one slot more than transfers");
                self.start(records, slot, next)?;
                next += 1;
            }
            if let Some((slot, result)) = done.take() {
                if let Err(error) = self.finish(records, slot, result) {
                    failure.get_or_insert(error);
                }
                self.free.push(slot);
            }
            if self.ring.busy() == 0 {
                return failure.map_or(Ok(()), Err);
            }
            if ready == 0 {
                ready = self.ring.wait()?;
                stamp_ns = (self.now_ns)();
            }
            let (slot, result) = self.ring.reap().expect("as many as are ready");
            ready -= 1;
            let slot = slot as usize;
            records.latencies.record(stamp_ns - self.started_ns[slot]);
            done = Some((slot, result));
        }
    }

    fn start(&mut self, records: &mut Records, slot: usize, visit: u64) -> Result<(), Failed> {
        self.visits[slot] = visit;
        let offset = records.offset(visit);
        let address = if records.writes {
            let record = records.pattern.record(records.generation, offset);
            record.as_ptr().cast_mut()
        } else {
            records.buffers.address(slot * records.record_bytes)
        };
        let transfer = Transfer {
            descriptor: records.file.descriptor(),
            writes: records.writes,
            address,
            length: records.record_bytes as u32,
            offset,
            tag: slot as u32,
        };
        // SAFETY: the caller sees to it that there is room in the ring; the slot was free, so nobody uses its part of the
        // buffers until it has been reaped and looked at; the pattern is only ever read. Both outlive the transfer:
        // `transfer` ends only when none is busy.
        unsafe { self.ring.queue(&transfer) };
        self.started_ns[slot] = (self.now_ns)();
        self.ring.submit()
    }

    fn finish(&self, records: &mut Records, slot: usize, result: i32) -> Result<(), Failed> {
        let visit = self.visits[slot];
        if result < 0 {
            let error = Error::from_raw_os_error(-result);
            return Err(records.file.failed(records.call(), &error));
        }
        if result as usize == records.record_bytes {
            records.done(visit, slot);
            return Ok(());
        }
        Err(records.cut_short(visit, result as usize))
    }
}

#[cfg(test)]
mod tests;
