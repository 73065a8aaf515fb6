//! Moments of an ISO 8601 calendar: what EXT-X-PROGRAM-DATE-TIME tells (RFC 8216bis, 4.4.4.6), and xs:dateTime.

const DAY_S: i64 = 86_400;

/// Nanoseconds since 1970 of `2026-11-23T21:51:39.615Z`; the zone is Z, +hh:mm or +hhmm. None: it is no such moment, or
/// tells no zone, without which nobody knows which one it is.
pub fn unix_ns(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', 't'])?;
    let mut parts = date.split('-');
    let (year, month, day) = (
        number(parts.next()?, 4)?,
        number(parts.next()?, 2)?,
        number(parts.next()?, 2)?,
    );
    let at = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(at);
    let mut parts = time.split(':');
    let (hour, minute, seconds) = (
        number(parts.next()?, 2)?,
        number(parts.next()?, 2)?,
        parts.next()?,
    );
    let (second, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let second = number(second, 2)?;
    let in_range = (1970..=2200).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !in_range || parts.next().is_some() || date.split('-').nth(3).is_some() {
        return None;
    }
    let seconds = days(year, month, day) * DAY_S + hour * 3600 + minute * 60 + second;
    Some((seconds - zone_s(zone)?) * 1_000_000_000 + nanoseconds(fraction)?)
}

/// Of a number with just so many digits.
fn number(text: &str, digits: usize) -> Option<i64> {
    let is_one = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_one)
}

/// Of what stands behind the decimal point; what is beyond nanoseconds is cut off.
fn nanoseconds(fraction: &str) -> Option<i64> {
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = fraction.get(..9).unwrap_or(fraction);
    let value: i64 = digits.parse().ok()?;
    Some(value * 10_i64.pow(9 - digits.len() as u32))
}

/// How far a zone is ahead of UTC.
fn zone_s(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let digits = zone.get(1..)?.replacen(':', "", 1);
    let (hours, minutes) = (number(digits.get(..2)?, 2)?, number(digits.get(2..)?, 2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// From the first of January 1970 to this day of the Gregorian calendar: years that begin in March end with the day that
/// is left out in most of them.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn moments_are_read() {
        for (text, unix_ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-23T21:51:39.615Z", 1_795_470_699_615),
            ("2026-11-23T22:51:39.615+01:00", 1_795_470_699_615),
            ("2026-11-23T16:21:39.615-0530", 1_795_470_699_615),
            ("2024-02-29T23:59:60.0001Z", 1_709_251_200_000),
            ("2000-03-01T00:00:00z", 951_868_800_000),
        ] {
            assert_eq!(
                unix_ns(text).map(|ns| ns / 1_000_000),
                Some(unix_ms),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "",
            "T",
            "2026-11-23",
            "2026-11-23T21:51:39",
            "2026-11-23T21:51:39.Z",
            "2026-13-23T21:51:39Z",
            "2026-11-23-1T21:51:39Z",
            "2026-11-23T24:51:39Z",
            "2026-11-23T21:51:39:1Z",
            "26-11-23T21:51:39Z",
            "2026-11-23T+1:51:39Z",
            "2026-11-23T21:51:39+1",
            "2026-11-23T21:51:39+01:0\u{e9}",
        ] {
            assert_eq!(unix_ns(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,40}", pieces in "[0-9TZ:.+-]{0,40}") {
            unix_ns(&text);
            unix_ns(&pieces);
        }

        #[test]
        fn days_follow_each_other(day in 0i64..80_000) {
            let text = |ns: i64| format!("{}", ns);
            let (mut year, mut left) = (1970, day);
            let length = |year: i64| 365 + i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
            while left >= length(year) {
                left -= length(year);
                year += 1;
            }
            prop_assert_eq!(days(year, 1, 1) + left, day, "{}", text(day));
        }
    }
}
