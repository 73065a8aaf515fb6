//! What became of viewers, counted by each thread for itself and added up at the end.

use std::collections::BTreeMap;

use virtoll_generator::sys::CpuTime;
use virtoll_wire::hist::Histogram;

use super::player::Watched;
use super::protocol::Seen;
use crate::tally::Failure;

/// A viewer that reads again later than this after it wanted to was kept waiting by the generator (record/model.py).
const LATE_NS: i64 = 10_000_000;
/// A viewer looks up by itself so often at the most, or once in a part target.
const LOOKS_NS: i64 = 100_000_000;

/// Statuses of refusals that are told apart; a server that makes up more is not followed.
const MOST_STATUSES: usize = 32;

/// How many failed of what; those whose server refused with a status, by that too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    kinds: [u64; Failure::ALL.len()],
    refused: BTreeMap<u16, u64>,
}

impl Failures {
    pub fn count(&mut self, failure: Failure, refused: Option<u16>) {
        match refused.filter(|_| failure == Failure::Status) {
            Some(status)
                if self.refused.len() < MOST_STATUSES || self.refused.contains_key(&status) =>
            {
                *self.refused.entry(status).or_default() += 1;
            }
            _ => self.kinds[failure as usize] += 1,
        }
    }

    /// By kind: `timeout`, `status`, `status 404`.
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let kinds = Failure::ALL.map(|(kind, name)| (name.to_owned(), self.kinds[kind as usize]));
        let refused = self
            .refused
            .iter()
            .map(|(status, count)| (format!("status {status}"), *count));
        kinds
            .into_iter()
            .chain(refused)
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    fn add(&mut self, other: &Failures) {
        for (mine, theirs) in self.kinds.iter_mut().zip(other.kinds) {
            *mine += theirs;
        }
        for (status, count) in &other.refused {
            *self.refused.entry(*status).or_default() += count;
        }
    }
}

/// One thread's counts.
#[derive(Debug, Default)]
pub struct Tally {
    /// Of the window.
    pub watched: Watched,
    pub seen: Seen,
    /// Nobody was there within the window, after a failure.
    pub gone_ns: i64,
    /// Of the window: those who played all through it and whose media had not all come; and by how much their buffers
    /// fell, all together: how far what was ahead at the most, within it, is below what was before.
    pub standing: u64,
    pub fallen_ns: i64,
    pub cpu: CpuTime,
    /// Of all joins that the order tells of: whatever was still to begin then is waited for.
    pub joins: u64,
    pub started: u64,
    pub not_started: Failures,
    /// Of those that were still to begin at the window's end: how many there were, how many began, and when the last of
    /// them did or failed.
    pub under_way: u64,
    pub started_late: u64,
    pub last_ns: i64,
    /// Start-up delays, from when a viewer was to join; and how long each start-up waited for the generator itself: how
    /// much later than that it joined, and for how long nobody looked until it began to play, or failed.
    pub delays: Histogram,
    pub lateness: Histogram,
    /// Viewers that played when the order came, or began to until the window's end: how many there were, how many of
    /// them left as they should, and for what others failed, until then.
    pub begun: u64,
    pub left: u64,
    pub broken: Failures,
    /// Places whose viewer had not begun to play when the window ended, and of whose join nothing is told.
    pub absent: u64,
    pub connects: u64,
    /// Timers within the window, and those that were looked at too late: each so often as `woke` says.
    pub wakes: u64,
    pub wakes_late: u64,
}

impl Tally {
    pub fn within(from_ns: i64, until_ns: i64) -> Self {
        Tally {
            watched: Watched::within(from_ns, until_ns),
            ..Tally::default()
        }
    }

    /// Of the order's joins one has begun to play; `late_ns`: how long it waited for the generator itself.
    pub fn started(&mut self, due_ns: i64, now_ns: i64, late_ns: i64) {
        self.started += 1;
        self.lateness.record(late_ns.max(0) as u64);
        self.delays.record((now_ns - due_ns).max(0) as u64);
        self.drained(now_ns, true);
    }

    /// A timer's turn has come. While nobody looks there is no other of the same viewer's: one that is late counts as often
    /// as the viewer would have looked meanwhile, within the window.
    pub fn woke(&mut self, due_ns: i64, now_ns: i64) {
        let is_late = now_ns - due_ns > LATE_NS;
        let part_ns = self.watched.part_ns(due_ns, now_ns);
        let late_times = match is_late && part_ns > LATE_NS {
            true => (part_ns as u64).div_ceil(LOOKS_NS as u64),
            false => 0,
        };
        if self.watched.holds(due_ns) {
            self.wakes += late_times.max(1);
            self.wakes_late += late_times.max(u64::from(is_late));
        } else {
            self.wakes += late_times; // it was due before the window, and looked at amid it
            self.wakes_late += late_times;
        }
    }

    /// Of the order's joins one will never begin to play. Where nothing failed its media ended before, which never
    /// happens, for then play begins.
    pub fn not_started(
        &mut self,
        at_ns: i64,
        late_ns: i64,
        failure: Option<Failure>,
        refused: Option<u16>,
    ) {
        self.lateness.record(late_ns.max(0) as u64);
        self.not_started
            .count(failure.unwrap_or(Failure::Unfinished), refused);
        self.drained(at_ns, false);
    }

    /// Somebody began to play, whenever it joined.
    pub fn begun(&mut self, at_ns: i64) {
        self.begun += u64::from(at_ns < self.watched.until_ns);
    }

    /// Who had begun to play left at `of_ns`; or it began then, and was not given after the window what it had asked for
    /// before: that counts where its begin does.
    pub fn left(&mut self, of_ns: i64, failure: Option<Failure>, refused: Option<u16>) {
        match failure {
            _ if of_ns >= self.watched.until_ns => {}
            Some(failure) => self.broken.count(failure, refused),
            None => self.left += 1,
        }
    }

    fn drained(&mut self, at_ns: i64, has_started: bool) {
        if at_ns >= self.watched.until_ns {
            self.under_way += 1;
            self.started_late += u64::from(has_started);
            self.last_ns = self.last_ns.max(at_ns);
        }
    }

    /// Add another thread's.
    pub fn add(&mut self, other: &Tally) {
        self.watched.add(&other.watched);
        self.seen.add(&other.seen);
        self.gone_ns += other.gone_ns;
        self.standing += other.standing;
        self.fallen_ns = self.fallen_ns.saturating_add(other.fallen_ns);
        self.cpu += other.cpu;
        self.joins += other.joins;
        self.started += other.started;
        self.under_way += other.under_way;
        self.started_late += other.started_late;
        self.last_ns = self.last_ns.max(other.last_ns);
        self.delays.merge(&other.delays);
        self.lateness.merge(&other.lateness);
        self.begun += other.begun;
        self.left += other.left;
        self.absent += other.absent;
        self.connects += other.connects;
        self.wakes += other.wakes;
        self.wakes_late += other.wakes_late;
        self.not_started.add(&other.not_started);
        self.broken.add(&other.broken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_of_the_window_alone_say_whether_it_was_kept() {
        let mut tally = Tally::within(100 * LATE_NS, 200 * LATE_NS);
        for (due, late_ns) in [
            (0, 9),
            (100, 0),
            (150, LATE_NS),
            (199, LATE_NS + 1),
            (200, 9 * LATE_NS),
        ] {
            tally.woke(due * LATE_NS, due * LATE_NS + late_ns);
        }
        assert_eq!((tally.wakes, tally.wakes_late), (3, 1));
    }

    /// One that was late counted once, however late, and not at all where it was due before the window: a thread that was
    /// stopped for seconds of a window had stalls and ages told as the service's, and hardly a time too late.
    #[test]
    fn a_timer_that_is_late_counts_for_as_long_as_it_is_within_the_window() {
        for (due, woke, wakes, late) in [
            (110, 110, 1, 0),
            (110, 111, 1, 0),
            (110, 112, 1, 1),
            (110, 135, 3, 3),
            (175, 225, 3, 3),
            (199, 225, 1, 1),
            (90, 125, 3, 3),
            (90, 101, 0, 0),
            (90, 102, 1, 1),
            (90, 500, 10, 10),
            (200, 300, 0, 0),
        ] {
            let mut tally = Tally::within(i64::MAX, i64::MAX);
            tally.woke(due * LATE_NS, woke * LATE_NS);
            assert_eq!(tally.wakes, 0, "there is no window");
            tally = Tally::within(100 * LATE_NS, 200 * LATE_NS);
            tally.woke(due * LATE_NS, woke * LATE_NS);
            let told = (tally.wakes, tally.wakes_late);
            assert_eq!(told, (wakes, late), "{due} {woke}");
        }
    }
}
