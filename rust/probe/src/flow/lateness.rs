//! What a sender's own lateness spoils, and so what it may be.

use virtoll_wire::hist::Histogram;

use crate::network::quantile_us;
use crate::report::Report;

/// A departure that is later than this is late: what was held back goes at once, a burst that the way did not see by
/// the rate. It is a tenth of the usual interval of the series.
pub const LATE_NS: u64 = 10_000_000;
/// So many may be: of busy machines each wake is late by a scheduler's slice now and then.
pub const MOST_LATE_PERCENT: f64 = 1.0;
/// None may be so late, however many there are: an interval of the series is empty then, and another has it all.
pub const HELD_UP_NS: u64 = 100_000_000;

/// Fail where late departures spoil what is told of the way. With a `most_short_percent` of 100
/// it is the sender that is measured: nothing is judged.
pub fn prove(lateness: &Histogram, most_short_percent: f64, report: &mut Report) {
    if lateness.total() == 0 {
        return;
    }
    let late = lateness.buckets().filter(|bucket| bucket.0 >= LATE_NS);
    let late: u64 = late.map(|bucket| bucket.2).sum();
    let percent = 100.0 * late as f64 / lateness.total() as f64;
    let latest_ns = lateness.buckets().last().map_or(0, |bucket| bucket.0);
    let right = percent <= MOST_LATE_PERCENT.max(most_short_percent) && latest_ns < HELD_UP_NS;
    report.check(
        "departures were on time",
        right || most_short_percent >= 100.0,
        format!(
            "{percent:.2} % later than {} ms, the latest by {:.1} ms",
            LATE_NS / 1_000_000,
            latest_ns as f64 / 1e6
        ),
    );
}

/// Tell how late departures were.
pub fn tell(lateness: &Histogram, report: &mut Report) {
    if lateness.total() == 0 {
        return;
    }
    for (key, share) in [
        ("departure_late_p50_us", 0.5),
        ("departure_late_p99_us", 0.99),
    ] {
        report.fact(key, quantile_us(lateness, share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn passes(times_ns: &[(u64, u64)], most_short_percent: f64) -> bool {
        let mut lateness = Histogram::default();
        for (late_ns, count) in times_ns {
            (0..*count).for_each(|_| lateness.record(*late_ns));
        }
        let mut report = Report::of(&[]);
        prove(&lateness, most_short_percent, &mut report);
        report.checks[0].passed
    }

    #[test]
    fn a_sender_is_judged_by_its_share_of_late_departures_and_by_its_latest() {
        assert!(passes(&[(5 * MS, 1000)], 0.5));
        assert!(passes(&[(MS, 990), (50 * MS, 10)], 0.5));
        assert!(!passes(&[(MS, 989), (50 * MS, 11)], 0.5));
        assert!(!passes(&[(MS, 1_000_000), (120 * MS, 1)], 0.5));
        assert!(passes(&[(120 * MS, 1000)], 100.0));
    }

    #[test]
    fn what_has_no_pace_is_not_late() {
        let mut report = Report::of(&[]);
        prove(&Histogram::default(), 0.5, &mut report);
        assert!(report.checks.is_empty());
    }
}
