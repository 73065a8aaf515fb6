//! When requests are due.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use virtoll_generator::random::Random;

use crate::spec::Arrival;

/// Arrival times of one thread's share of an open load, in nanoseconds since the start, ascending, below the duration.
///
/// Constant: thread k of n takes the arrivals k, k+n, k+2n, ... of the whole, whose first lies anywhere in the first
/// interval, by the seed: a window that holds no whole number of intervals has its rate on average over windows, and
/// one that began with an arrival had always more. Poisson: every thread draws a process
/// of its own at 1/n of the rate, since superposed Poisson processes are one Poisson process.
#[derive(Debug)]
pub struct Arrivals {
    arrival: Arrival,
    duration_ns: f64,
    step_ns: f64,
    offset_ns: f64,
    drawn: u64,
    at_ns: f64,
    random: Random,
}

/// So many places in its interval the first of constant arrivals may have.
const PHASES: u64 = 1 << 32;

impl Arrivals {
    pub fn new(
        arrival: Arrival,
        rate_per_s: f64,
        duration_ns: i64,
        seed: u64,
        thread: usize,
        threads: usize,
    ) -> Self {
        let whole_step_ns = 1e9 / rate_per_s;
        let phase = Random(seed).below(PHASES) as f64 / PHASES as f64;
        Arrivals {
            arrival,
            duration_ns: duration_ns as f64,
            step_ns: whole_step_ns * threads as f64,
            offset_ns: whole_step_ns * (thread as f64 + phase),
            drawn: 0,
            at_ns: 0.0,
            random: Random(seed.wrapping_add((thread as u64).wrapping_mul(0xA076_1D64_78BD_642F))),
        }
    }
}

impl Iterator for Arrivals {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let at_ns = match self.arrival {
            // Multiplied, not summed up: no rounding error grows over a long run.
            Arrival::Constant => self.offset_ns + self.step_ns * self.drawn as f64,
            Arrival::Poisson => {
                self.at_ns += self.random.exponential(self.step_ns);
                self.at_ns
            }
        };
        self.drawn += 1;
        (at_ns < self.duration_ns).then_some(at_ns as i64)
    }
}

/// All threads are told of a window's begin so long before: one that loses its CPU while it tells is late, else.
const AHEAD_NS: i64 = 5_000_000;
/// When so many times as many requests were answered as there are users, each user's first has been: where users are
/// served in turn none waits for longer than the others are answered once, or twice.
const ROUNDS: u64 = 3;

/// How long a closed loop asks, all threads together: to the deadline, or until so many requests of the window were
/// handed out. Those of the lead-in, before the window's begin, cost nothing.
#[derive(Debug)]
pub struct Budget {
    left: Option<AtomicU64>,
    least_ns: i64,
    length_ns: i64,
    from_ns: AtomicI64,
    until_ns: AtomicI64,
    users: u64,
    /// The users for whom the window's begin waits.
    missing: AtomicU64,
    /// How many requests were answered, as long as that matters; and when they were enough for all users to be there.
    answers: AtomicU64,
    even_ns: AtomicI64,
}

impl Budget {
    pub fn new(requests: Option<u64>, from_ns: i64, deadline_ns: i64) -> Self {
        Budget {
            left: requests.map(AtomicU64::new),
            least_ns: from_ns,
            length_ns: deadline_ns - from_ns,
            from_ns: AtomicI64::new(from_ns),
            until_ns: AtomicI64::new(deadline_ns),
            users: 0,
            missing: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            even_ns: AtomicI64::new(i64::MAX),
        }
    }

    /// The same of so many users, with a window that begins when each of them was answered once, or at `most_ns`: not
    /// before its begin, and as long as it was.
    pub fn waiting(self, users: usize, most_ns: i64) -> Self {
        let from_ns = most_ns.max(self.least_ns);
        Budget {
            from_ns: AtomicI64::new(from_ns),
            until_ns: AtomicI64::new(from_ns + self.length_ns),
            users: users as u64,
            missing: AtomicU64::new(users as u64),
            ..self
        }
    }

    /// A request was answered; `is_first`: it was its user's first. Whoever asks meanwhile may see either begin.
    pub fn answered(&self, now_ns: i64, is_first: bool) {
        if self.even_ns() == i64::MAX {
            let answers = self.answers.fetch_add(1, Ordering::Relaxed) + 1;
            if self.users > 0 && answers == ROUNDS * self.users {
                self.even_ns.store(now_ns, Ordering::Relaxed);
            }
        }
        if is_first && self.missing.load(Ordering::Relaxed) > 0 {
            self.begins(now_ns);
        }
    }

    fn begins(&self, now_ns: i64) {
        let before = self.missing.fetch_sub(1, Ordering::Relaxed);
        let from_ns = self.least_ns.max(now_ns + AHEAD_NS);
        if before == 1 && from_ns < self.begin_ns() {
            self.until_ns
                .store(from_ns + self.length_ns, Ordering::Relaxed);
            self.from_ns.store(from_ns, Ordering::Relaxed);
        }
    }

    /// From when on a user who was not answered yet is missing; `i64::MAX`: nobody is so far.
    pub fn even_ns(&self) -> i64 {
        self.even_ns.load(Ordering::Relaxed)
    }

    /// The window's begin, as far as it is known by now: it is not later.
    pub fn begin_ns(&self) -> i64 {
        self.from_ns.load(Ordering::Relaxed)
    }

    /// The deadline, or the moment the last request was handed out.
    pub fn until_ns(&self) -> i64 {
        self.until_ns.load(Ordering::Relaxed)
    }

    /// Whether so many requests were handed out as were asked for.
    pub fn is_used_up(&self) -> bool {
        let left = self.left.as_ref();
        left.is_some_and(|left| left.load(Ordering::Relaxed) == 0)
    }

    fn take(&self, now_ns: i64) -> bool {
        if now_ns >= self.until_ns() {
            return false;
        }
        let Some(left) = self.left.as_ref().filter(|_| now_ns >= self.begin_ns()) else {
            return true;
        };
        let one_less = |left: u64| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(1) => self.until_ns.store(now_ns, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => return false,
        }
        true
    }
}

/// Hands out requests to connections that are free.
#[derive(Debug)]
pub enum Supply<'a> {
    /// Whenever one is asked for, until the common budget is used up.
    Closed { budget: &'a Budget },
    /// When one is due.
    Open {
        arrivals: Arrivals,
        start_ns: i64,
        from_ns: i64,
        end_ns: i64,
        next_ns: Option<i64>,
    },
}

impl<'a> Supply<'a> {
    pub fn closed(budget: &'a Budget) -> Self {
        Supply::Closed { budget }
    }

    /// `start_ns`: of the schedule; `from_ns`: of the window, after its lead-in; `end_ns`: of both, and all arrivals lie
    /// before it.
    pub fn open(mut arrivals: Arrivals, start_ns: i64, from_ns: i64, end_ns: i64) -> Self {
        let next_ns = arrivals.next().map(|at_ns| start_ns + at_ns);
        Supply::Open {
            arrivals,
            start_ns,
            from_ns,
            end_ns,
            next_ns,
        }
    }

    /// The window's begin: what is due before it belongs to the lead-in.
    pub fn begin_ns(&self) -> i64 {
        match self {
            Supply::Closed { budget } => budget.begin_ns(),
            Supply::Open { from_ns, .. } => *from_ns,
        }
    }

    /// A request was answered, its user's first or another. An open loop has no users.
    pub fn answered(&self, now_ns: i64, is_first: bool) {
        if let Supply::Closed { budget } = self {
            budget.answered(now_ns, is_first);
        }
    }

    /// See `Budget::even_ns`.
    pub fn even_ns(&self) -> i64 {
        match self {
            Supply::Closed { budget } => budget.even_ns(),
            Supply::Open { .. } => i64::MAX,
        }
    }

    /// The window's end: nothing more is asked for from then on.
    pub fn until_ns(&self) -> i64 {
        match self {
            Supply::Closed { budget } => budget.until_ns(),
            Supply::Open { end_ns, .. } => *end_ns,
        }
    }

    /// The intended start of a request that may be sent now.
    pub fn take(&mut self, now_ns: i64) -> Option<i64> {
        match self {
            Supply::Closed { budget } => budget.take(now_ns).then_some(now_ns),
            Supply::Open {
                arrivals,
                start_ns,
                next_ns,
                ..
            } => {
                let due_ns = (*next_ns)?;
                if due_ns > now_ns {
                    return None;
                }
                *next_ns = arrivals.next().map(|at_ns| *start_ns + at_ns);
                Some(due_ns)
            }
        }
    }

    /// Take all that is left, whether due or not: (intended starts of requests that were never sent).
    pub fn rest(&mut self) -> impl Iterator<Item = i64> + use<'_, 'a> {
        let open = matches!(self, Supply::Open { .. });
        std::iter::from_fn(move || if open { self.take(i64::MAX) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(arrival: Arrival, thread: usize, threads: usize) -> Vec<i64> {
        Arrivals::new(arrival, 1000.0, 10_000_000_000, 7, thread, threads).collect()
    }

    #[test]
    fn constant_arrivals_of_all_threads_interleave_to_the_whole() {
        let whole = arrivals(Arrival::Constant, 0, 1);
        assert_eq!(whole.len(), 10_000);
        assert!((0..1_000_000).contains(&whole[0]), "{}", whole[0]);
        assert!(whole.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000));
        let mut merged: Vec<i64> = (0..3)
            .flat_map(|thread| arrivals(Arrival::Constant, thread, 3))
            .collect();
        merged.sort_unstable();
        assert_eq!(merged, whole);
    }

    #[test]
    fn windows_of_constant_arrivals_have_their_rate_on_average() {
        // Of windows of one second at 1.5 a second one half has one arrival and the other two.
        let count =
            |seed| Arrivals::new(Arrival::Constant, 1.5, 1_000_000_000, seed, 0, 1).count() as u64;
        let counts: Vec<u64> = (0..1000).map(count).collect();
        assert!(counts.iter().all(|count| (1..=2).contains(count)));
        let all: u64 = counts.iter().sum();
        assert!((1440..=1560).contains(&all), "{all}"); // 1500, standard deviation 16
    }

    #[test]
    fn poisson_gaps_are_exponential_and_repeatable() {
        let whole = arrivals(Arrival::Poisson, 0, 1);
        assert_eq!(whole, arrivals(Arrival::Poisson, 0, 1));
        // 10,000 expected, standard deviation 100; of a memoryless process e^-1 of the gaps exceed the mean gap.
        assert!(
            (whole.len() as f64 - 10_000.0).abs() < 500.0,
            "{}",
            whole.len()
        );
        let long = whole
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > 1_000_000)
            .count();
        assert!(
            (long as f64 / whole.len() as f64 - (-1f64).exp()).abs() < 0.03,
            "{long}"
        );
        assert!(whole.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn poisson_threads_differ_and_add_up() {
        let (a, b) = (
            arrivals(Arrival::Poisson, 0, 2),
            arrivals(Arrival::Poisson, 1, 2),
        );
        assert_ne!(a[..10], b[..10]);
        assert!(((a.len() + b.len()) as f64 - 10_000.0).abs() < 500.0);
    }

    #[test]
    fn a_closed_budget_is_shared_and_ends_with_the_last_that_is_handed_out() {
        let budget = Budget::new(Some(3), 0, 100);
        let (mut a, mut b) = (Supply::closed(&budget), Supply::closed(&budget));
        assert_eq!([a.take(1), b.take(2)], [Some(1), Some(2)]);
        assert!(!budget.is_used_up());
        assert_eq!(b.until_ns(), 100);
        assert_eq!([a.take(3), b.take(4)], [Some(3), None]);
        assert_eq!(b.until_ns(), 3);
        assert!(budget.is_used_up());
    }

    #[test]
    fn a_closed_loop_asks_no_longer_than_to_its_deadline() {
        let by_time = Budget::new(None, 0, 100);
        assert_eq!(Supply::closed(&by_time).take(99), Some(99));
        assert_eq!(Supply::closed(&by_time).take(100), None);
        let too_many = Budget::new(Some(2), 0, 100);
        assert_eq!(Supply::closed(&too_many).take(1), Some(1));
        assert_eq!(Supply::closed(&too_many).take(100), None);
        assert_eq!((by_time.until_ns(), too_many.until_ns()), (100, 100));
    }

    #[test]
    fn a_window_waits_for_its_users_but_not_for_ever_nor_shorter_than_asked_for() {
        let ms = |from, until| (from * AHEAD_NS, until * AHEAD_NS);
        let told = |budget: &Budget| (budget.begin_ns(), budget.until_ns());
        for (begins_ms, expected) in [
            ([10, 20], ms(100, 300)),  // both before its begin
            ([10, 250], ms(251, 451)), // one after it
            ([250, 260], ms(261, 461)),
            ([10, 999], ms(1000, 1200)), // too late
            ([10, 1500], ms(1000, 1200)),
        ] {
            let budget = Budget::new(Some(1), 100 * AHEAD_NS, 300 * AHEAD_NS);
            let budget = budget.waiting(2, 1000 * AHEAD_NS);
            let mut supply = Supply::closed(&budget);
            for at_ms in begins_ms {
                assert_eq!(told(&budget), ms(1000, 1200));
                supply.answered(at_ms * AHEAD_NS, true);
            }
            assert_eq!(told(&budget), expected);
            supply.answered(begins_ms[1] * AHEAD_NS + 1, true); // of nobody
            assert_eq!(told(&budget), expected);
            assert!(supply.take(expected.0 - 1).is_some(), "of its lead-in");
            assert!(supply.take(expected.0).is_some());
            assert_eq!(supply.take(expected.0 + 1), None);
            assert_eq!(told(&budget), (expected.0, expected.0));
        }
    }

    #[test]
    fn who_is_not_answered_is_missing_when_the_others_were_answered_thrice() {
        let budget = Budget::new(None, 0, 100).waiting(4, 0);
        for (at_ns, is_first) in (1..12).map(|at_ns| (at_ns, at_ns < 3)) {
            budget.answered(at_ns, is_first);
            assert_eq!(budget.even_ns(), i64::MAX);
        }
        budget.answered(12, false);
        budget.answered(13, false);
        assert_eq!(budget.even_ns(), 12);
        let nobody = Budget::new(None, 0, 100);
        nobody.answered(1, true);
        assert_eq!((nobody.even_ns(), nobody.begin_ns()), (i64::MAX, 0));
    }

    #[test]
    fn an_open_supply_gives_what_is_due_with_its_intended_start() {
        let arrivals = Arrivals::new(Arrival::Constant, 1000.0, 3_000_000, 0, 0, 1);
        let first_ns = arrivals.offset_ns as i64;
        let mut supply = Supply::open(arrivals, 50 - first_ns, 50, 3_000_050);
        assert_eq!(supply.take(49), None);
        assert_eq!(supply.take(1_000_050), Some(50));
        assert_eq!(supply.take(1_000_050), Some(1_000_050));
        assert_eq!(supply.take(1_000_050), None);
        assert_eq!(supply.until_ns(), 3_000_050);
        assert_eq!(supply.rest().collect::<Vec<_>>(), [2_000_050]);
    }
}
