//! A decision in JSON.

use serde::Serialize;
use tidegate::{Cost, Decision, Outcome};

/// The figures of a decision, durations rounded up to microseconds.
#[derive(Serialize)]
pub(crate) struct Figures {
    allowed: bool,
    limit: u64,
    remaining: u64,
    /// 0 if allowed, null for never.
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
}

impl Figures {
    pub(crate) fn of(decision: &Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after_us: match decision.outcome() {
                Outcome::Allowed { .. } => Some(0),
                Outcome::Denied { retry_after } => Some(micros(retry_after)),
                Outcome::NeverAllowed => None,
            },
            reset_after_us: micros(decision.reset_after()),
            delay_us: micros(decision.delay()),
        }
    }
}

/// Rounded up, so that who waits that long has waited long enough. A decision's durations are below 2^64 ns: they fit.
fn micros(duration: std::time::Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000) as u64
}

/// A cost as a JSON number, exactly.
pub(crate) struct Number(pub(crate) Cost);

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let thousandths = self.0.thousandths();
        if thousandths.is_multiple_of(1_000) {
            return serializer.serialize_u64(thousandths / 1_000);
        }
        // A double holds 15 digits; a cost has at most 13.
        serializer.serialize_f64(thousandths as f64 / 1e3)
    }
}
