//! Times that a generator is told, in nanoseconds.

use crate::Failed;

/// Whatever is longer is a mistake; so much can be added to any time without overflow.
pub const TIME_MAX_NS: i64 = 30 * 86_400 * 1_000_000_000;
/// A start that was asked for and lies ahead.
pub fn not_passed(start_ns: i64, now_ns: i64, when: &str) -> Result<i64, Failed> {
    let why = match start_ns.checked_sub(now_ns) {
        Some(ahead_ns) if (1..=TIME_MAX_NS).contains(&ahead_ns) => return Ok(start_ns),
        Some(ahead_ns) if ahead_ns <= 0 => {
            format!("had passed by {:.3} ms when {when}", -ahead_ns as f64 / 1e6)
        }
        _ => "lies more than 30 days off".to_owned(),
    };
    Err(Failed(format!(
        "start_ns {start_ns} {why}: give a time by CLOCK_MONOTONIC of the generator's machine ({now_ns} now) that leaves \
         it time to begin"
    )))
}
