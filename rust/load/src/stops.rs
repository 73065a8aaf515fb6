//! When this thread did not look though it ought to have: another had its CPU, it was stopped, or it was busy with others
//! of what it had found.
//!
//! A request that was due while all connections were busy waited for the service; for as long as this thread did not
//! see that a connection was free again, it waited for the generator.

/// Looking away for longer than this is a stop: a shorter while is what a turn of the loop may take.
const STOP_NS: i64 = 1_000_000;

/// The stops that still matter, as (from, until); and since when all that is taken up now lies ready.
#[derive(Debug)]
pub struct Stops {
    noted: Vec<(i64, i64)>,
    found_ns: i64,
}

impl Default for Stops {
    /// It has found nothing yet.
    fn default() -> Self {
        Stops {
            noted: Vec::new(),
            found_ns: i64::MAX,
        }
    }
}

impl Stops {
    /// It looks now, and ought to have looked again at `due_ns`. What was due before `since_ns` has been handed out.
    pub fn looked(&mut self, due_ns: i64, now_ns: i64, since_ns: i64) {
        if now_ns - due_ns > STOP_NS {
            self.noted.retain(|(_, until_ns)| *until_ns > since_ns);
            self.noted.push((due_ns, now_ns));
        }
    }

    /// It has been told of what lies ready, and takes up one after another.
    pub fn found(&mut self, now_ns: i64) {
        self.found_ns = now_ns;
    }

    /// The part of the time since `since_ns` in which what is taken up at `now_ns` waited for this thread: in stops, and
    /// while it took up others.
    pub fn since_ns(&self, since_ns: i64, now_ns: i64) -> i64 {
        let (found_ns, busy_ns) = match now_ns - self.found_ns > STOP_NS {
            true => (self.found_ns, now_ns - since_ns.max(self.found_ns)),
            false => (i64::MAX, 0),
        };
        let before = |(from_ns, until_ns): &(i64, i64)| {
            let until_ns = *until_ns.min(&found_ns);
            (until_ns - since_ns.max(*from_ns)).max(0)
        };
        self.noted.iter().map(before).sum::<i64>() + busy_ns.max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_connection_is_the_generators_only_where_it_did_not_look() {
        const MS: i64 = 1_000_000;
        let mut stops = Stops::default();
        assert_eq!(stops.since_ns(0, 400 * MS), 0, "the service stalled");
        stops.looked(100 * MS, 200 * MS, 0);
        stops.looked(250 * MS, 251 * MS, 0);
        stops.looked(300 * MS, 310 * MS, 0);
        for (since, stopped) in [(50, 110), (150, 60), (250, 10), (310, 0)] {
            let waited_ns = stops.since_ns(since * MS, 400 * MS);
            assert_eq!(waited_ns, stopped * MS, "since {since}");
        }
        stops.looked(400 * MS, 402 * MS, 300 * MS);
        assert_eq!(
            stops.since_ns(0, 400 * MS),
            12 * MS,
            "the first matters to none any more"
        );
    }

    #[test]
    fn so_is_the_time_in_which_it_took_up_others_that_it_had_found() {
        const MS: i64 = 1_000_000;
        let mut stops = Stops::default();
        stops.looked(80 * MS, 100 * MS, 0);
        stops.found(100 * MS);
        assert_eq!(stops.since_ns(90 * MS, 101 * MS), 10 * MS, "a turn");
        for now in 102..=110 {
            assert_eq!(stops.since_ns(0, now * MS), (now - 80) * MS);
            assert_eq!(stops.since_ns(100 * MS, now * MS), (now - 100) * MS);
        }
        stops.looked(104 * MS, 110 * MS, 0); // amid it, which it is part of
        assert_eq!(stops.since_ns(90 * MS, 110 * MS), 20 * MS);
    }
}
