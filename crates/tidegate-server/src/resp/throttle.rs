//! The three commands that throttle, each in its own words: CL.THROTTLE of redis-cell, GCRA of Redis, THROTTLE of
//! throttlecrab. All of them ask the same bucket of a key.

use std::time::Duration;

use tidegate::{AnyStore, Cost, Decision, Gate, Limiter, Outcome};

use super::frame::Words;
use crate::inline::BucketNumbers;

/// Which command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `CL.THROTTLE key max_burst count period [quantity]`
    Cell,
    /// `GCRA key max_burst tokens_per_period period [TOKENS n]`
    Gcra,
    /// `THROTTLE key max_burst count period [quantity]`
    Crab,
}

/// One request that is asked about.
pub(super) struct Throttle<'a> {
    pub(super) form: Form,
    pub(super) key: &'a [u8],
    pub(super) cost: Cost,
    pub(super) limiter: Limiter<AnyStore>,
}

impl Form {
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        Some(match name.len() {
            11 if name.eq_ignore_ascii_case(b"CL.THROTTLE") => Self::Cell,
            8 if name.eq_ignore_ascii_case(b"THROTTLE") => Self::Crab,
            4 if name.eq_ignore_ascii_case(b"GCRA") => Self::Gcra,
            _ => return None,
        })
    }

    fn usage(self) -> String {
        match self {
            Self::Cell => {
                "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]".to_owned()
            }
            Self::Gcra => "ERR wrong number of arguments for 'gcra' command".to_owned(),
            Self::Crab => "ERR wrong number of arguments for 'throttle' command".to_owned(),
        }
    }

    fn error(self, text: &str) -> String {
        let kind = if self == Self::Cell {
            "Cell error:"
        } else {
            "ERR"
        };
        format!("{kind} {text}")
    }

    fn integer(self, word: &[u8]) -> Result<i64, String> {
        // One that Rust would read, and nobody has written.
        let digits = std::str::from_utf8(word)
            .ok()
            .filter(|text| !text.starts_with('+'));
        digits
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| match self {
                Self::Cell => format!(
                    "Cell error: Couldn't parse as integer: {}",
                    String::from_utf8_lossy(shown(word))
                ),
                Self::Gcra | Self::Crab => "ERR value is not an integer or out of range".to_owned(),
            })
    }

    fn count(self, word: &[u8], name: &str) -> Result<u64, String> {
        let number = self.integer(word)?;
        u64::try_from(number).map_err(|_| self.error(&format!("{name} is negative")))
    }

    /// Seconds; GCRA's may have decimals.
    fn period(self, word: &[u8]) -> Result<Duration, String> {
        if self != Self::Gcra {
            return self.count(word, "period").map(Duration::from_secs);
        }
        let error = || self.error("period is not a number of seconds, of at most three decimals");
        let seconds: Cost = std::str::from_utf8(word)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(error)?;
        Ok(Duration::from_millis(seconds.thousandths()))
    }
}

/// As much of a word as is worth repeating.
fn shown(word: &[u8]) -> &[u8] {
    word.get(..64).unwrap_or(word)
}

impl<'a> Throttle<'a> {
    /// Reads a command. On an error nothing is asked, and the text is the reply.
    pub(super) fn read(
        form: Form,
        words: &Words<'a>,
        gate: &Gate<AnyStore>,
    ) -> Result<Self, String> {
        let (key, burst, count, period, quantity) = match (form, words.as_slice()) {
            (_, [_, key, burst, count, period]) => (key, burst, count, period, None),
            (Form::Cell | Form::Crab, [_, key, burst, count, period, quantity]) => {
                (key, burst, count, period, Some(quantity))
            }
            (Form::Gcra, [_, key, burst, count, period, option, quantity])
                if option.eq_ignore_ascii_case(b"TOKENS")
                    || option.eq_ignore_ascii_case(b"NUM_REQUESTS") =>
            {
                (key, burst, count, period, Some(quantity))
            }
            (Form::Gcra, [_, _, _, _, _, ..]) => return Err("ERR syntax error".to_owned()),
            _ => return Err(form.usage()),
        };
        if key.is_empty() {
            return Err(form.error("the key is empty"));
        }
        let burst = form.count(burst, "max_burst")?;
        let count = form.count(count, "count per period")?;
        let period = form.period(period)?;
        let cost = match quantity {
            None => Cost::ONE,
            Some(word) => Cost::try_from(form.count(word, "quantity")?)
                .map_err(|error| form.error(&error.to_string()))?,
        };
        if count == 0 || period.is_zero() {
            return Err(form.error("Zero rates are not supported"));
        }
        // Of redis-cell and Redis it is what may come at once beside the one that may always.
        let burst = if form == Form::Crab {
            burst
        } else {
            burst.saturating_add(1)
        };
        let numbers = BucketNumbers {
            burst,
            count,
            period,
        };
        let limiter = numbers
            .find(gate)
            .map_err(|error| form.error(&error.to_string()))?;
        Ok(Self {
            form,
            key,
            cost,
            limiter,
        })
    }
}

impl Form {
    /// A decision in five integers.
    #[inline]
    pub(super) fn reply(self, decision: &Decision) -> [i64; 5] {
        let (limit, remaining) = (number(decision.limit()), number(decision.remaining()));
        let reset = seconds(decision.reset_after());
        let retry = match decision.outcome() {
            Outcome::Denied { retry_after } => seconds(retry_after).max(1),
            Outcome::Allowed { .. } if self == Self::Crab => 0,
            Outcome::Allowed { .. } | Outcome::NeverAllowed => -1,
        };
        match self {
            Self::Cell | Self::Gcra => [
                i64::from(decision.is_denied()),
                limit,
                remaining,
                retry,
                reset,
            ],
            Self::Crab => [
                i64::from(decision.is_allowed()),
                limit,
                remaining,
                reset,
                retry,
            ],
        }
    }
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Rounded up: who waits that long has waited long enough.
fn seconds(duration: Duration) -> i64 {
    number(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}
