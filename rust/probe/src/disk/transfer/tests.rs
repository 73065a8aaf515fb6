//! The queue with a ring and a clock of its own: what is timed, and from when to when.

use std::cell::Cell;
use std::collections::VecDeque;

use super::*;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

fn later(ns: u64) {
    NOW_NS.set(NOW_NS.get() + ns);
}

fn simulated_ns() -> u64 {
    NOW_NS.get()
}

/// Handing one over takes 10 ns, waiting 1000; then all that are under way are done at once.
#[derive(Default)]
struct AllAtOnce {
    queued: u32,
    under_way: VecDeque<Transfer>,
    done: VecDeque<(u32, i32)>,
    most: u32,
}

impl Transfers for AllAtOnce {
    fn busy(&self) -> u32 {
        (self.under_way.len() + self.done.len()) as u32
    }

    unsafe fn queue(&mut self, transfer: &Transfer) {
        self.under_way.push_back(Transfer { ..*transfer });
        self.queued += 1;
    }

    fn submit(&mut self) -> Result<(), Failed> {
        assert_eq!(self.queued, 1, "each by itself");
        self.queued = 0;
        self.most = self.most.max(self.busy());
        later(10);
        Ok(())
    }

    fn wait(&mut self) -> Result<u32, Failed> {
        assert!(self.busy() > 0);
        if self.done.is_empty() {
            later(1000);
            for transfer in self.under_way.drain(..) {
                self.done.push_back((transfer.tag, performed(&transfer)));
            }
        }
        Ok(self.done.len() as u32)
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        later(100); // as much as is done with each
        self.done.pop_front()
    }
}

fn performed(transfer: &Transfer) -> i32 {
    let (address, length) = (transfer.address.cast(), transfer.length as usize);
    let offset = transfer.offset as libc::off_t;
    // SAFETY: the queue's own promise: `address` is valid for `length` bytes, and nobody else uses it.
    let moved = unsafe {
        if transfer.writes {
            libc::pwrite(transfer.descriptor, address, length, offset)
        } else {
            libc::pread(transfer.descriptor, address, length, offset)
        }
    };
    moved as i32
}

fn records(writes: bool) -> Records {
    let directory = std::env::temp_dir().display().to_string();
    Records {
        file: TestFile::create(&directory, false).unwrap(),
        order: Order::Sequential(8),
        pattern: Pattern::new(4096).unwrap(),
        buffers: Buffer::zeroed(5 * 4096).unwrap(),
        record_bytes: 4096,
        writes,
        generation: 1,
        written: vec![0; 8],
        timed_one_in: 1,
        untimed: 0,
        latencies: Latencies::default(),
        moved_bytes: 0,
        wrong: 0,
    }
}

#[test]
fn the_records_that_are_timed_go_on_from_window_to_window_and_some_are_in_each() {
    let mut records = records(false);
    records.time_one_in(5);
    let mut window = |count: u64| {
        records.time_some_of(count);
        (0..count)
            .filter(|_| records.is_timed())
            .collect::<Vec<u64>>()
    };
    assert_eq!(window(8), [2, 7], "not the first, which is cold");
    assert_eq!(window(8), [4]);
    assert_eq!(window(8), [1, 6]);
    assert_eq!(window(2), [1], "3 more were not to be");
}

#[test]
fn what_is_done_together_ends_together_and_begins_when_it_is_handed_over() {
    let mut queue = Queue::of(AllAtOnce::default(), 4, simulated_ns);
    let mut records = records(true);
    queue.transfer(&mut records, 0, 4).unwrap();
    assert_eq!(records.moved_bytes, 4 * 4096);
    // Handed over at 0, 10, 20 and 30; all done at 1040.
    let [mean_us, ..] = records.latencies.keep().unwrap();
    assert!((mean_us - 1.025).abs() < 1e-9, "{mean_us}");
}

#[test]
fn one_that_is_handed_over_between_two_completions_begins_then() {
    let mut queue = Queue::of(AllAtOnce::default(), 2, simulated_ns);
    let mut records = records(true);
    queue.transfer(&mut records, 0, 3).unwrap();
    // Two as above: 1020 and 1010. The third goes at 1120, between the first and the second of them; the next wait is
    // when the second has been reaped too (1230), and ends at 2230.
    let [mean_us, ..] = records.latencies.keep().unwrap();
    assert!(
        (mean_us * 3.0 - (1.020 + 1.010 + 1.110)).abs() < 1e-9,
        "{mean_us}"
    );
}

#[test]
fn every_record_is_moved_once_with_as_many_under_way_as_asked_for() {
    let mut queue = Queue::of(AllAtOnce::default(), 4, simulated_ns);
    let mut records = records(true);
    queue.transfer(&mut records, 0, 8).unwrap();
    assert_eq!(records.written, [1; 8]);
    records.writes = false;
    queue.transfer(&mut records, 8, 16).unwrap();
    assert_eq!((records.moved_bytes, records.wrong), (24 * 4096, 0));
    records.file.prepare(&[0xee; 8], 4096).unwrap();
    queue.transfer(&mut records, 24, 8).unwrap();
    assert_eq!(records.wrong, 1);
    assert_eq!((queue.ring.most, queue.ring.busy()), (4, 0));
}
