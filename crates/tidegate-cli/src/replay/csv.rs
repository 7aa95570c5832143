//! `--output csv`: one line per key.

use std::fmt::Write as _;

use super::Results;

pub(super) fn rendered(results: &Results<'_>) -> String {
    let mut text = String::from("key,requests,first_us,last_us,irregularity");
    for policy in &results.report.policies {
        for column in ["denied", "first_denied_us", "last_denied_us"] {
            let _ = write!(text, ",{}", field(&format!("{column} {}", policy.policy)));
        }
    }
    text.push('\n');
    for key in &results.top {
        let irregularity = key.irregularity.map(|value| format!("{value:.3}"));
        let _ = write!(
            text,
            "{},{},{},{},{}",
            field(&key.key),
            key.requests,
            key.first_us,
            key.last_us,
            irregularity.unwrap_or_default()
        );
        for denials in &key.denials {
            let time = |at_us: u64| match denials.count {
                0 => String::new(),
                _ => at_us.to_string(),
            };
            let (first, last) = (time(denials.first_us), time(denials.last_us));
            let _ = write!(text, ",{},{first},{last}", denials.count);
        }
        text.push('\n');
    }
    text
}

/// Quotes a field if it needs it. A field that a spreadsheet would run as a formula gets an
/// apostrophe.
fn field(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula {
        format!("'{text}")
    } else {
        text.to_owned()
    };
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}
