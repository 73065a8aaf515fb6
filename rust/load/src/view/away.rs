//! For how long a thread did not look at what came for its viewers: it was busy with others, was stopped, or had no CPU.
//!
//! A start-up that waits meanwhile waits for the generator, and not for the service: where the viewer then says something,
//! for which the server has waited, or begins to play, or where what had come is as much as the kernel holds. What comes
//! at the server's own pace waits for nobody.

/// To be busy for longer than this is to be away: a shorter while is what a turn of the loop may take.
const BUSY_NS: i64 = 1_000_000;
/// So is to awake so much later than asked for: less is what a busy machine's scheduler takes.
const LATE_NS: i64 = 5_000_000;

/// A thread's time away before what it looks at now.
#[derive(Debug)]
pub struct Away {
    before_ns: i64,
    looked_ns: i64,
    /// The last look did not hold all: what else there was is found by the next.
    has_more: bool,
}

impl Default for Away {
    /// It has never looked, and is not away.
    fn default() -> Self {
        Away {
            before_ns: 0,
            looked_ns: i64::MAX,
            has_more: false,
        }
    }
}

impl Away {
    /// It asks what there is, after all that it found the last time.
    pub fn asks(&mut self, now_ns: i64) {
        let kept_ns = if self.has_more { self.before_ns } else { 0 };
        self.before_ns = kept_ns + self.busy_ns(now_ns);
    }

    /// It is told of what there is, and was to be so at `due_ns` at the latest; whether it is late. Then it is to ask
    /// again, without waiting: it may have been stopped with what it had found, or before it found anything.
    pub fn looks(&mut self, due_ns: i64, now_ns: i64) -> bool {
        let is_late = now_ns.saturating_sub(due_ns) > LATE_NS;
        if is_late {
            self.before_ns += now_ns - due_ns;
        }
        self.looked_ns = now_ns;
        is_late
    }

    /// Whether there may be more than it was told of.
    pub fn leaves(&mut self, has_more: bool) {
        self.has_more = has_more;
    }

    /// The last look was at another time.
    #[cfg(test)]
    pub fn looked(&mut self, at_ns: i64) {
        self.looked_ns = at_ns;
    }

    /// For how long, at the most, what is taken up now has waited.
    pub fn held_ns(&self, now_ns: i64) -> i64 {
        self.before_ns + self.busy_ns(now_ns)
    }

    fn busy_ns(&self, now_ns: i64) -> i64 {
        match now_ns.saturating_sub(self.looked_ns) {
            busy_ns if busy_ns > BUSY_NS => busy_ns,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn what_is_taken_up_has_waited_while_others_were_served_or_nobody_was_awake() {
        let mut away = Away::default();
        assert_eq!(away.held_ns(7 * MS), 0, "it has not begun");
        away.asks(10 * MS);
        assert!(!away.looks(15 * MS, 12 * MS));
        assert_eq!(away.held_ns(13 * MS), 0);
        assert_eq!(away.held_ns(15 * MS), 3 * MS, "it is at it still");
        away.asks(16 * MS);
        assert!(!away.looks(21 * MS, 20 * MS));
        assert_eq!(away.held_ns(20 * MS), 4 * MS);
        assert_eq!(away.held_ns(23 * MS), 7 * MS);
        away.asks(20 * MS + MS / 2);
        assert!(!away.looks(21 * MS, 26 * MS));
        assert_eq!(away.held_ns(26 * MS), 0, "a little late");
        away.asks(26 * MS);
        assert!(away.looks(31 * MS, 131 * MS));
        away.leaves(true);
        assert_eq!(away.held_ns(131 * MS), 100 * MS);
        away.asks(131 * MS);
        assert!(!away.looks(131 * MS, 131 * MS));
        away.leaves(false);
        let told = "it was there, and found now";
        assert_eq!(away.held_ns(131 * MS), 100 * MS, "{told}");
        away.asks(132 * MS);
        assert!(!away.looks(i64::MAX, 500 * MS));
        let told = "nothing came, and nobody waits";
        assert_eq!(away.held_ns(500 * MS), 0, "{told}");
    }
}
