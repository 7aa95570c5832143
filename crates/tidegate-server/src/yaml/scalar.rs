//! The meaning of a plain scalar in YAML 1.1, as the Go library yaml.v2 resolves it.

/// A resolved scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Integer(i128),
    /// A fraction, an exponent, infinity, or digits that are no integer, such as `08`.
    Float(f64),
    /// A date or a time.
    Timestamp,
    Text,
}

impl Scalar {
    /// Resolves an unquoted text.
    pub(crate) fn of_plain(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Self::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                return Self::Bool(true);
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => return Self::Bool(false),
            ".nan" | ".NaN" | ".NAN" => return Self::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
                return Self::Float(f64::INFINITY);
            }
            "-.inf" | "-.Inf" | "-.INF" => return Self::Float(f64::NEG_INFINITY),
            _ => {}
        }
        if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
            return Self::Text;
        }
        if is_timestamp(text) {
            return Self::Timestamp;
        }
        let digits = text.replace('_', "");
        if let Some(number) = integer(&digits) {
            return Self::Integer(number);
        }
        match float(&digits) {
            Some(number) => Self::Float(number),
            None => Self::Text,
        }
    }
}

/// Parses an integer: decimal, hexadecimal `0x`, octal `0` or `0o`, binary `0b`.
fn integer(text: &str) -> Option<i128> {
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, lower.get(2..)?),
        [b'0', b'o', ..] => (8, lower.get(2..)?),
        [b'0', b'b', ..] => (2, lower.get(2..)?),
        [b'0', _, ..] => (8, lower.get(1..)?),
        _ => (10, lower.as_str()),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    let number = if is_negative { -number } else { number };
    // Larger numbers are floats.
    (i128::from(i64::MIN)..=i128::from(u64::MAX))
        .contains(&number)
        .then_some(number)
}

fn float(text: &str) -> Option<f64> {
    let is_float = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    let has_digit = text.bytes().any(|byte| byte.is_ascii_digit());
    (has_digit && text.bytes().all(is_float))
        .then(|| text.parse().ok())
        .flatten()
}

/// Returns `true` for a date such as `2001-1-23`, alone or followed by a time.
fn is_timestamp(text: &str) -> bool {
    let date = text.split(['T', 't', ' ']).next().unwrap_or_default();
    let parts: Vec<&str> = date.split('-').collect();
    let is_number = |part: &&str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    match &parts[..] {
        [year, month, day] => {
            is_number(year, 4..=4) && is_number(month, 1..=2) && is_number(day, 1..=2)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_the_meaning_of_yaml_1_1() {
        let cases = [
            ("010", Scalar::Integer(8)),
            ("0o10", Scalar::Integer(8)),
            ("0x1F", Scalar::Integer(31)),
            ("-0b11", Scalar::Integer(-3)),
            ("1_000", Scalar::Integer(1_000)),
            ("+5", Scalar::Integer(5)),
            ("08", Scalar::Float(8.0)),
            ("1.5", Scalar::Float(1.5)),
            ("1e3", Scalar::Float(1_000.0)),
            ("yes", Scalar::Bool(true)),
            ("off", Scalar::Bool(false)),
            ("~", Scalar::Null),
            ("2001-01-23", Scalar::Timestamp),
            ("2001-1-23 10:11:12", Scalar::Timestamp),
            ("1.2.3.4", Scalar::Text),
            ("1:30", Scalar::Text),
            ("-", Scalar::Text),
            ("10-20-30", Scalar::Text),
            ("18446744073709551615", Scalar::Integer(u64::MAX.into())),
            (
                "18446744073709551616",
                Scalar::Float(18_446_744_073_709_551_616.0),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(Scalar::of_plain(text), expected, "{text}");
        }
    }
}
