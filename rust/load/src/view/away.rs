//! For how long a thread did not look at what came for its viewers: it was busy with others, was stopped, or had no CPU.
//!
//! A start-up that waits meanwhile waits for the generator, and not for the service.

/// To be busy for longer than this is to be away: a shorter while is what a turn of the loop may take.
const BUSY_NS: i64 = 1_000_000;
/// So is to awake so much later than asked for: less is what a busy machine's scheduler takes.
const LATE_NS: i64 = 5_000_000;

/// A thread's time away.
#[derive(Debug)]
pub struct Away {
    /// All of it until it last looked, and when that was.
    until_ns: i64,
    looked_ns: i64,
}

impl Default for Away {
    /// It has never looked, and is not away.
    fn default() -> Self {
        Away {
            until_ns: 0,
            looked_ns: i64::MAX,
        }
    }
}

impl Away {
    /// It asks what there is, after all that it found the last time.
    pub fn asks(&mut self, now_ns: i64) {
        (self.until_ns, self.looked_ns) = (self.ns(now_ns), now_ns);
    }

    /// It is told, and was to be so at `due_ns` at the latest.
    pub fn looks(&mut self, due_ns: i64, now_ns: i64) {
        if now_ns.saturating_sub(due_ns) > LATE_NS {
            self.until_ns += now_ns - due_ns;
        }
        self.looked_ns = now_ns;
    }

    /// All of its time away, until now: what counts is the difference of two moments.
    pub fn ns(&self, now_ns: i64) -> i64 {
        match now_ns.saturating_sub(self.looked_ns) {
            busy_ns if busy_ns > BUSY_NS => self.until_ns + busy_ns,
            _ => self.until_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn who_is_busy_with_others_or_awakes_late_is_away() {
        let mut away = Away::default();
        assert_eq!(away.ns(7 * MS), 0, "it has not begun");
        away.asks(10 * MS);
        away.looks(15 * MS, 12 * MS); // something came
        assert_eq!(away.ns(13 * MS), 0);
        assert_eq!(away.ns(15 * MS), 3 * MS, "it is at it still");
        away.asks(16 * MS);
        assert_eq!(away.ns(16 * MS), 4 * MS);
        away.looks(21 * MS, 26 * MS);
        assert_eq!(away.ns(26 * MS), 4 * MS, "a little late");
        away.asks(26 * MS);
        away.looks(31 * MS, 131 * MS);
        assert_eq!(away.ns(131 * MS), 104 * MS);
        away.asks(132 * MS);
        assert_eq!(away.ns(132 * MS), 104 * MS);
        away.looks(i64::MAX, 500 * MS);
        assert_eq!(
            away.ns(500 * MS),
            104 * MS,
            "nothing came, and nobody waits"
        );
    }
}
