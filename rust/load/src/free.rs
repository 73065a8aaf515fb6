//! Since when each thread has had a free connection, as the others see it.
//!
//! A request of an open loop is one thread's, and so are connections. For as long as all of its thread's are busy while
//! another has a free one, it waits for how the generator is made, and not for the service.

use std::sync::atomic::{AtomicI64, Ordering};

/// In cache lines of its own: telling it disturbs nobody who does not ask.
#[repr(align(128))]
struct Since(AtomicI64);

/// Of all threads, each by its index; CLOCK_MONOTONIC.
pub struct Free(Vec<Since>);

const BUSY: i64 = i64::MAX;

impl Free {
    /// None has one yet.
    pub fn new(threads: usize) -> Self {
        Free((0..threads).map(|_| Since(BUSY.into())).collect())
    }

    /// Whether this thread has one now, and from now on.
    pub fn tell(&self, thread: usize, is_free: bool, now_ns: i64) {
        let since = &self.0[thread].0;
        let was_free = since.load(Ordering::Relaxed) != BUSY;
        if is_free != was_free {
            since.store(if is_free { now_ns } else { BUSY }, Ordering::Relaxed);
        }
    }

    /// For how long, of the time since `from_ns`, another thread has had one.
    pub fn elsewhere_ns(&self, thread: usize, from_ns: i64, now_ns: i64) -> i64 {
        let others = self
            .0
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != thread);
        let since_ns = others
            .map(|(_, since)| since.0.load(Ordering::Relaxed))
            .min();
        since_ns.map_or(0, |since_ns| {
            (now_ns - from_ns.max(since_ns.min(now_ns))).max(0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_sees_those_of_the_others_alone() {
        let free = Free::new(3);
        let waited = |thread| free.elsewhere_ns(thread, 100, 300);
        assert_eq!([0, 1, 2].map(waited), [0, 0, 0]);
        free.tell(0, true, 50);
        assert_eq!([0, 1, 2].map(waited), [0, 200, 200]);
        free.tell(0, true, 200);
        assert_eq!(waited(1), 200, "it has had one all along");
        free.tell(2, true, 260);
        assert_eq!([0, 1, 2].map(waited), [40, 200, 200]);
        free.tell(0, false, 270);
        assert_eq!([0, 1, 2].map(waited), [40, 40, 0]);
    }
}
