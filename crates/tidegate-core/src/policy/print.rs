//! Prints policies. Parsing the result returns an equal policy.

use std::fmt;

use super::{Limit, Policy};

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, limit) in self.limits().iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{limit}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/", self.algorithm, self.rate.limit)?;
        write_period(f, self.rate.period.as_millis())?;
        if let Some(burst) = self.burst {
            write!(f, " burst={burst}")?;
        }
        if let Some(anchor) = self.anchor {
            write!(f, " anchor={}", anchor.name())?;
        }
        if self.debt > 0 {
            write!(f, " debt={}", self.debt)?;
        }
        Ok(())
    }
}

/// Writes a period in the largest unit that divides it.
fn write_period(f: &mut fmt::Formatter<'_>, period_ms: u128) -> fmt::Result {
    const UNITS: [(u128, &str); 6] = [
        (604_800_000, "week"),
        (86_400_000, "day"),
        (3_600_000, "hour"),
        (60_000, "minute"),
        (1_000, "second"),
        (1, "ms"),
    ];
    let (unit_ms, name) = UNITS
        .into_iter()
        .find(|(unit_ms, _)| period_ms.is_multiple_of(*unit_ms))
        .unwrap_or((1, "ms"));
    match period_ms / unit_ms {
        1 => f.write_str(name),
        count if name == "ms" => write!(f, "{count} ms"),
        count => write!(f, "{count} {name}s"),
    }
}
