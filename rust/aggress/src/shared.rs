//! A page that an aggressor's processes share with their supervisor, whoever of them is killed.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};

use virtoll_probe::windows::now_ns;

/// How many counters there are.
pub const MOST_COUNTS: usize = 4;
/// How long a reason may be; what is longer is cut.
const REASON_BYTES: usize = 512;

/// Counters by their place in [`crate::Aggressor::counts`], the processes of the group, and when its time is over.
#[derive(Clone, Copy)]
pub struct Shared {
    page: &'static Page,
}

#[repr(C)]
struct Page {
    counts: [AtomicU64; MOST_COUNTS],
    places: AtomicU64,
    processes: AtomicU64,
    processes_peak: AtomicU64,
    deadline_ns: AtomicU64,
    gives_back: AtomicBool,
    reason: [AtomicU8; REASON_BYTES],
}

impl Shared {
    /// A page of zeros that forked processes share.
    pub fn new(deadline_ns: u64) -> io::Result<Shared> {
        // SAFETY: a fresh anonymous mapping, which nothing else refers to and which is never unmapped; it is zeroed
        // (valid atomics), aligned to a page, and large enough.
        let page = unsafe {
            let address = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if address == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*address.cast::<Page>()
        };
        page.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        Ok(Shared { page })
    }

    /// Count `more` at a place.
    pub fn add(&self, place: usize, more: u64) {
        self.page.counts[place].fetch_add(more, Ordering::Relaxed);
    }

    /// Set a place: what is held now, not what was done.
    pub fn set(&self, place: usize, value: u64) {
        self.page.counts[place].store(value, Ordering::Relaxed);
    }

    /// What a place stands at.
    pub fn get(&self, place: usize) -> u64 {
        self.page.counts[place].load(Ordering::Relaxed)
    }

    /// Whether the aggressor's time is over. Its supervisor may be waiting for a CPU; a bomb need not wait for it.
    pub fn is_over(&self) -> bool {
        now_ns() >= self.page.deadline_ns.load(Ordering::Relaxed)
    }

    /// Its time is over now.
    pub fn end_now(&self) {
        self.page.deadline_ns.store(0, Ordering::Relaxed);
    }

    /// The group holds what it gives back by itself when its time is over, or holds it no longer.
    pub fn set_gives_back(&self, holds: bool) {
        self.page.gives_back.store(holds, Ordering::Relaxed);
    }

    /// What [`Shared::set_gives_back`] was told.
    pub fn gives_back(&self) -> bool {
        self.page.gives_back.load(Ordering::Relaxed)
    }

    /// Take a place for a process that is to be made; false where `most` are taken.
    ///
    /// Places bound the processes for certain: one that is killed while it makes another may keep a place in vain,
    /// and none is ever given twice.
    pub fn take_place(&self, most: u64) -> bool {
        let more = |taken: u64| (taken < most).then_some(taken + 1);
        self.page
            .places
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// No process was made after all.
    pub fn give_place(&self) {
        let less = |taken: u64| taken.checked_sub(1);
        let _ = self
            .page
            .places
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A process was made, in a place that was taken.
    pub fn count_made(&self) {
        let before = self.page.processes.fetch_add(1, Ordering::Relaxed);
        self.page
            .processes_peak
            .fetch_max(before.saturating_add(1), Ordering::Relaxed);
    }

    /// A process has ended and was reaped. Never below none: one whose parent was killed before it could count it is
    /// counted off all the same.
    pub fn count_gone(&self) {
        let less = |count: u64| count.checked_sub(1);
        let _ = self
            .page
            .processes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.give_place();
    }

    /// All processes have ended.
    pub fn empty(&self) {
        self.set_gives_back(false);
        self.page.places.store(0, Ordering::Relaxed);
        self.page.processes.store(0, Ordering::Relaxed);
    }

    /// Processes now, and at most so far.
    pub fn processes(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.page.processes), read(&self.page.processes_peak))
    }

    /// Say why the aggressor cannot do what it is for. Only the group's first process does.
    pub fn set_reason(&self, why: &str) {
        for (to, from) in self.page.reason.iter().zip(why.bytes().chain([0])) {
            to.store(from, Ordering::Relaxed);
        }
    }

    /// What [`Shared::set_reason`] was told.
    pub fn reason(&self) -> String {
        let bytes = self
            .page
            .reason
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed));
        let said: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&said).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_places_are_taken_than_there_are() {
        let shared = Shared::new(0).unwrap();
        assert!(shared.take_place(2) && shared.take_place(2) && !shared.take_place(2));
        assert_eq!(shared.processes(), (0, 0));
        shared.count_made();
        shared.count_made();
        assert_eq!(shared.processes(), (2, 2));
        shared.count_gone();
        assert!(shared.take_place(2) && !shared.take_place(2));
        shared.empty();
        assert_eq!(shared.processes(), (0, 2));
    }

    #[test]
    fn one_that_was_never_counted_is_counted_off_to_none_and_no_further() {
        let shared = Shared::new(0).unwrap();
        assert!(shared.take_place(2));
        shared.count_gone();
        shared.count_gone();
        assert_eq!(shared.processes(), (0, 0));
        shared.count_made();
        assert_eq!(shared.processes(), (1, 1));
        assert!(shared.take_place(2) && shared.take_place(2) && !shared.take_place(2));
    }

    #[test]
    fn a_reason_is_kept_and_a_long_one_cut() {
        let shared = Shared::new(0).unwrap();
        assert_eq!(shared.reason(), "");
        shared.set_reason("no room");
        assert_eq!(shared.reason(), "no room");
        shared.set_reason(&"long ".repeat(1000));
        assert_eq!(shared.reason().len(), REASON_BYTES);
        shared.set_reason("short");
        assert_eq!(shared.reason(), "short");
    }

    #[test]
    fn its_time_is_over_at_the_deadline() {
        assert!(Shared::new(now_ns()).unwrap().is_over());
        assert!(!Shared::new(u64::MAX).unwrap().is_over());
    }
}
