//! Times in logs: RFC 3339, the format of Apache and nginx, seconds and milliseconds since 1970.

use time::{Date, Month};

/// The months of the common log format.
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
/// The Julian day of 1970-01-01.
const EPOCH: i64 = 2_440_588;
/// The largest time: the year 2554, in microseconds.
const LATEST_US: u64 = u64::MAX / 1_000;

/// A time, and whether it has whole seconds only.
pub(super) type LogTime = (u64, bool);

/// Parses any of the formats into microseconds since 1970.
///
/// # Examples
///
/// ```
/// use tidegate_insight::log::parse_time;
///
/// assert_eq!(parse_time("2023-11-14T22:13:20.5Z"), Some(1_700_000_000_500_000));
/// assert_eq!(parse_time("14/Nov/2023:23:13:20 +0100"), Some(1_700_000_000_000_000));
/// assert_eq!(parse_time("1700000000.5"), Some(1_700_000_000_500_000));
/// ```
#[must_use]
pub fn parse_time(text: &str) -> Option<u64> {
    any(text).map(|(at_us, _)| at_us)
}

pub(super) fn any(text: &str) -> Option<LogTime> {
    let text = text.trim();
    let bytes = text.as_bytes();
    match bytes {
        [_, _, b'/', ..] => common_log(bytes),
        [_, _, _, _, b'-', ..] => rfc3339(bytes),
        _ => epoch(text),
    }
}

/// Parses `10/Oct/2000:13:55:36 -0700`.
pub(super) fn common_log(text: &[u8]) -> Option<LogTime> {
    let [
        _,
        _,
        b'/',
        m1,
        m2,
        m3,
        b'/',
        _,
        _,
        _,
        _,
        b':',
        _,
        _,
        b':',
        _,
        _,
        b':',
        _,
        _,
        rest @ ..,
    ] = text
    else {
        return None;
    };
    let month = MONTHS.iter().position(|month| **month == [*m1, *m2, *m3])? + 1;
    let day = digits(&text[..2])?;
    let year = digits(&text[7..11])?;
    let clock = clock(&text[12..20])?;
    let offset = match rest.trim_ascii() {
        [] => 0,
        zone => zone_seconds(zone)?,
    };
    let seconds = days(year, month as u64, day)? * 86_400 + clock - offset;
    micros(seconds, 0).map(|at_us| (at_us, true))
}

/// Parses `2000-10-10T13:55:36.123Z`, also with a space or an offset.
fn rfc3339(text: &[u8]) -> Option<LogTime> {
    if text.len() < 19 || text[7] != b'-' || !matches!(text[10], b'T' | b't' | b' ') {
        return None;
    }
    let date = days(
        digits(&text[..4])?,
        digits(&text[5..7])?,
        digits(&text[8..10])?,
    )?;
    let clock = clock(&text[11..19])?;
    let rest = &text[19..];
    let (fraction, zone) = match rest.strip_prefix(b".").or_else(|| rest.strip_prefix(b",")) {
        Some(rest) => {
            let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (Some(&rest[..length]), &rest[length..])
        }
        None => (None, rest),
    };
    let offset = match zone.trim_ascii() {
        [] | b"Z" | b"z" | b"UTC" => 0,
        zone => zone_seconds(zone)?,
    };
    let us = fraction.map_or(Some(0), fraction_us)?;
    micros(date * 86_400 + clock - offset, us).map(|at_us| (at_us, fraction.is_none()))
}

/// Parses seconds with a fraction, or whole milliseconds, microseconds or nanoseconds.
fn epoch(text: &str) -> Option<LogTime> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    if whole.is_empty() || whole.len() > 20 || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    let us = match fraction {
        Some(fraction) => fraction_us(fraction.as_bytes())?,
        None => 0,
    };
    // By its size: the unit changes in the years 5138 and 1973.
    let at_us = match number {
        0..100_000_000_000 => number * 1_000_000 + us,
        100_000_000_000..100_000_000_000_000 => number * 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => number,
        _ => number / 1_000,
    };
    let is_whole_second = number < 100_000_000_000 && fraction.is_none();
    (at_us <= LATEST_US).then_some((at_us, is_whole_second))
}

fn digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0_u64, |number, byte| {
        byte.is_ascii_digit()
            .then(|| number * 10 + u64::from(byte - b'0'))
    })
}

/// Returns the seconds of `13:55:36`, with a leap second as the one before.
fn clock(text: &[u8]) -> Option<i64> {
    let (hour, minute) = (digits(&text[..2])?, digits(&text[3..5])?);
    let second = digits(&text[6..8])?;
    let is_valid = text[2] == b':' && text[5] == b':' && hour < 24 && minute < 60 && second < 61;
    is_valid.then(|| (hour * 3_600 + minute * 60 + second.min(59)) as i64)
}

/// Returns the seconds of `+0100` or `-07:00`.
fn zone_seconds(zone: &[u8]) -> Option<i64> {
    let (sign, rest) = match zone {
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match rest {
        [h1, h2, b':', m1, m2] | [h1, h2, m1, m2] => ([*h1, *h2], [*m1, *m2]),
        _ => return None,
    };
    let (hours, minutes) = (digits(&hours)?, digits(&minutes)?);
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3_600 + minutes * 60) as i64)
}

/// Returns the days since 1970 of a valid date.
fn days(year: u64, month: u64, day: u64) -> Option<i64> {
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?);
    Some(i64::from(date.ok()?.to_julian_day()) - EPOCH)
}

/// Returns the microseconds of the digits after a decimal point.
fn fraction_us(fraction: &[u8]) -> Option<u64> {
    let mut us = 0;
    for index in 0..6 {
        let digit = fraction.get(index).copied().unwrap_or(b'0');
        us = us * 10 + digits(&[digit])?;
    }
    fraction.iter().all(u8::is_ascii_digit).then_some(us)
}

fn micros(seconds: i64, us: u64) -> Option<u64> {
    let at_us = u64::try_from(seconds).ok()?.checked_mul(1_000_000)? + us;
    (at_us <= LATEST_US).then_some(at_us)
}

/// Formats microseconds since 1970 as `2023-11-14 22:13:20`, in UTC.
#[must_use]
pub fn utc_seconds(at_us: u64) -> String {
    let seconds = at_us / 1_000_000;
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let julian = i32::try_from(days as i64 + EPOCH).unwrap_or(i32::MAX);
    let Ok(date) = Date::from_julian_day(julian) else {
        return format!("{seconds} s");
    };
    let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
    let (year, month, day) = date.to_calendar_date();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}
