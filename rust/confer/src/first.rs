//! What is waited for once: a stream's first packet, its first key frame, the first packet of the mix.

use virtoll_wire::hist::Histogram;

use super::tally::Span;

/// Times are nanoseconds, by CLOCK_MONOTONIC.
#[derive(Debug)]
pub struct First {
    /// Since when it is waited for.
    since_ns: i64,
    /// It came, or whoever waited for it has given up.
    is_over: bool,
    /// A window has told that it did not come.
    is_told: bool,
}

impl First {
    pub fn new(since_ns: i64) -> Self {
        First {
            since_ns,
            is_over: false,
            is_told: false,
        }
    }

    /// It came, or one more did.
    pub fn came(&mut self, now_ns: i64, times: &mut Histogram) {
        if !std::mem::replace(&mut self.is_over, true) {
            times.record((now_ns - self.since_ns).max(0) as u64);
        }
    }

    /// The window is over, or within it whatever this is of, at `at_ns`: 1 where it never came. That is told as of a join
    /// that is under way then: where it was waited for before the window began; or for as long as the patience. Any other
    /// is the next window's.
    pub fn missing(&mut self, span: Span, at_ns: i64, patience_ns: i64) -> u64 {
        let waited_ns = span.until_ns.min(at_ns) - self.since_ns;
        let waited_through = at_ns >= span.until_ns && self.since_ns < span.from_ns;
        let is_missing = !self.is_over && (waited_through || waited_ns >= patience_ns);
        self.is_told |= is_missing;
        u64::from(is_missing)
    }

    /// Whoever waited for it gives up, before a window, within it or after: 1 where it never came, and no window has told
    /// that. None tells it again.
    pub fn give_up(&mut self) -> u64 {
        u64::from(!std::mem::replace(&mut self.is_over, true) && !self.is_told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span {
        from_ns: 1000,
        until_ns: 2000,
    };
    const NEXT: Span = Span {
        from_ns: 3000,
        until_ns: 4000,
    };

    #[test]
    fn it_comes_once() {
        let (mut first, mut times) = (First::new(100), Histogram::default());
        first.came(350, &mut times);
        first.came(400, &mut times);
        let (lower, upper, count) = times.buckets().next().unwrap();
        assert!((lower..upper).contains(&250));
        assert_eq!((count, times.total()), (1, 1));
        assert_eq!(first.missing(SPAN, SPAN.until_ns, 1), 0);
    }

    #[test]
    fn what_was_waited_for_all_through_a_window_never_came_in_it() {
        let (mut first, mut times) = (First::new(999), Histogram::default());
        assert_eq!(first.missing(SPAN, SPAN.until_ns, 9999), 1);
        assert_eq!(first.missing(NEXT, NEXT.until_ns, 9999), 1);
        first.came(4500, &mut times);
        assert_eq!((first.missing(NEXT, 4900, 1), times.total()), (0, 1));
    }

    #[test]
    fn what_was_waited_for_within_the_window_alone_is_the_nexts_unless_patience_is_over() {
        let mut first = First::new(1500);
        assert_eq!(first.missing(SPAN, SPAN.until_ns, 500), 1);
        assert_eq!(first.missing(SPAN, SPAN.until_ns, 501), 0);
        assert_eq!(first.missing(NEXT, NEXT.until_ns, 9999), 1);
    }

    #[test]
    fn what_is_given_up_never_came_and_is_told_once() {
        let (mut first, mut times) = (First::new(1500), Histogram::default());
        assert_eq!(first.give_up(), 1);
        assert_eq!(first.give_up(), 0);
        assert_eq!(first.missing(NEXT, NEXT.until_ns, 1), 0);
        first = First::new(1500);
        first.came(1600, &mut times);
        assert_eq!(first.give_up(), 0);
        first = First::new(500);
        assert_eq!(first.missing(SPAN, SPAN.until_ns, 9999), 1);
        assert_eq!(first.give_up(), 0, "the window before has told it");
    }

    #[test]
    fn what_is_over_within_the_window_never_came_where_it_had_all_its_patience() {
        let mut first = First::new(500);
        assert_eq!(first.missing(SPAN, 1999, 1499), 1);
        assert_eq!(first.missing(SPAN, 1999, 1500), 0);
    }
}
