//! Numbers and durations for people.

/// Formats a number with thousands separators.
///
/// # Examples
///
/// ```
/// assert_eq!(tidegate_insight::text::count(1_234_567), "1,234,567");
/// ```
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun: `1 key`, `2 keys`.
///
/// # Examples
///
/// ```
/// assert_eq!(tidegate_insight::text::plural(1, "key"), "1 key");
/// ```
#[must_use]
pub fn plural(number: u64, noun: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{} {noun}{end}", count(number))
}

/// Formats a number of thousandths with at most three decimals.
#[must_use]
pub fn thousandths(number: u64) -> String {
    let whole = count(number / 1_000);
    match number % 1_000 {
        0 => whole,
        rest => format!("{whole}.{rest:03}")
            .trim_end_matches('0')
            .to_owned(),
    }
}

/// The units of time in nanoseconds, largest first.
const UNITS: [(u64, &str); 7] = [
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "min"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "µs"),
    (1, "ns"),
];

/// Formats nanoseconds in the one or two largest units that matter.
///
/// # Examples
///
/// ```
/// use tidegate_insight::text::duration;
///
/// assert_eq!(duration(600_000_000), "600 ms");
/// assert_eq!(duration(61_000_000_000), "1 min 1 s");
/// assert_eq!(duration(1), "1 ns");
/// ```
#[must_use]
pub fn duration(ns: u64) -> String {
    let Some(index) = UNITS.iter().position(|(size, _)| ns >= *size) else {
        return "0 s".to_owned();
    };
    let (size, unit) = UNITS[index];
    let (whole, rest) = (ns / size, ns % size);
    // Decimals from a second on, two units above.
    if size <= 1_000_000_000 {
        let thousandths = rest.saturating_mul(1_000) / size;
        let decimals = format!(".{thousandths:03}");
        let decimals = decimals.trim_end_matches('0').trim_end_matches('.');
        return format!("{whole}{decimals} {unit}");
    }
    let (next_size, next_unit) = UNITS[index + 1];
    match rest / next_size {
        0 => format!("{whole} {unit}"),
        next => format!("{whole} {unit} {next} {next_unit}"),
    }
}

/// Formats an instant relative to an edge: `-1 ns`, `0 s`, `+1 min 100 ms`. It has the three largest
/// units that are not zero.
#[must_use]
pub fn instant(ns: i64) -> String {
    let sign = match ns {
        0 => return "0 s".to_owned(),
        1.. => '+',
        _ => '-',
    };
    let mut rest = ns.unsigned_abs();
    let mut parts = Vec::new();
    for (size, unit) in UNITS {
        let count = rest / size;
        rest %= size;
        if count > 0 && parts.len() < 3 {
            parts.push(format!("{count} {unit}"));
        }
    }
    format!("{sign}{}", parts.join(" "))
}

/// Formats a share in per cent with one decimal, rounded to the nearest, or more decimals if it
/// is small.
#[must_use]
pub fn per_cent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0.0 %".to_owned();
    }
    let rounded =
        |scale: u128| (u128::from(part) * 2 * scale + u128::from(whole)) / (2 * u128::from(whole));
    let tenths = rounded(1_000);
    if part > 0 && tenths < 10 {
        let thousandths = rounded(100_000);
        return format!("{}.{:03} %", thousandths / 1_000, thousandths % 1_000);
    }
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Escapes text for XML and HTML. Control characters, which XML forbids, become spaces.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            control if control.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_exact() {
        assert_eq!(
            (count(0), count(999), count(1_000)),
            ("0".into(), "999".into(), "1,000".into())
        );
        assert_eq!(
            (thousandths(1_666), thousandths(2_500)),
            ("1.666".into(), "2.5".into())
        );
        let cases = [
            (0, "0 s"),
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (1_500_000_000, "1.5 s"),
            (90_000_000_000, "1 min 30 s"),
            (3_600_000_000_000, "1 h"),
            (200_000_000_000_000, "2 d 7 h"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(instant(-1), "-1 ns");
        assert_eq!(instant(60_100_000_000), "+1 min 100 ms");
        assert_eq!(
            (per_cent(1, 3), per_cent(1, 10_000)),
            ("33.3 %".into(), "0.010 %".into())
        );
    }
}
