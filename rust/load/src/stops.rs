//! When this thread did not look though it ought to have: another had its CPU, or it was stopped.
//!
//! A request that was due while all connections were busy waited for the service; for as long as this thread did not
//! see that a connection was free again, it waited for the generator.

/// Looking away for longer than this is a stop: a shorter while is what a turn of the loop may take.
const STOP_NS: i64 = 1_000_000;

/// The stops that still matter, as (from, until).
#[derive(Debug, Default)]
pub struct Stops {
    noted: Vec<(i64, i64)>,
}

impl Stops {
    /// It looks now, and ought to have looked again at `due_ns`. What was due before `since_ns` has been handed out.
    pub fn looked(&mut self, due_ns: i64, now_ns: i64, since_ns: i64) {
        if now_ns - due_ns > STOP_NS {
            self.noted.retain(|(_, until_ns)| *until_ns > since_ns);
            self.noted.push((due_ns, now_ns));
        }
    }

    /// The part of the time since `since_ns` that lies in stops.
    pub fn since_ns(&self, since_ns: i64) -> i64 {
        let overlap = |(from_ns, until_ns): &(i64, i64)| until_ns - since_ns.max(*from_ns);
        self.noted.iter().map(|stop| overlap(stop).max(0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_connection_is_the_generators_only_where_it_did_not_look() {
        const MS: i64 = 1_000_000;
        let mut stops = Stops::default();
        assert_eq!(stops.since_ns(0), 0, "the service stalled");
        stops.looked(100 * MS, 200 * MS, 0);
        stops.looked(250 * MS, 251 * MS, 0);
        stops.looked(300 * MS, 310 * MS, 0);
        for (since, stopped) in [(50, 110), (150, 60), (250, 10), (310, 0)] {
            assert_eq!(stops.since_ns(since * MS), stopped * MS, "since {since}");
        }
        stops.looked(400 * MS, 402 * MS, 300 * MS);
        assert_eq!(
            stops.since_ns(0),
            12 * MS,
            "the first matters to none any more"
        );
    }
}
