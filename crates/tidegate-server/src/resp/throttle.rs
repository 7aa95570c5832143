//! The three throttle commands: CL.THROTTLE of redis-cell, GCRA of Redis and THROTTLE of
//! throttlecrab. All of them use the same bucket of a key.

use std::time::Duration;

use tidegate::{AnyStore, Cost, Decision, Gate, Limiter, Outcome};

use tidegate_http::{retry_after_seconds, seconds};

use super::frame::Words;
use crate::inline::BucketArguments;

/// A throttle command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleCommand {
    /// `CL.THROTTLE key max_burst count period [quantity]`
    Cell,
    /// `GCRA key max_burst tokens_per_period period [TOKENS n]`
    Gcra,
    /// `THROTTLE key max_burst count period [quantity]`
    Crab,
}

/// One request.
pub(super) struct Throttle<'a> {
    pub(super) command: ThrottleCommand,
    pub(super) key: &'a [u8],
    pub(super) cost: Cost,
    pub(super) limiter: Limiter<AnyStore>,
}

impl ThrottleCommand {
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
        // Rust accepts a plus sign, Redis does not.
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

    /// Parses seconds. GCRA accepts decimals.
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

/// Returns the part of a word that is repeated in an error.
fn shown(word: &[u8]) -> &[u8] {
    word.get(..64).unwrap_or(word)
}

impl<'a> Throttle<'a> {
    /// Parses a command. On an error nothing is taken, and the text is the reply.
    pub(super) fn read(
        command: ThrottleCommand,
        words: &Words<'a>,
        gate: &Gate<AnyStore>,
    ) -> Result<Self, String> {
        let (key, burst, count, period, quantity) = match (command, words.as_slice()) {
            (_, [_, key, burst, count, period]) => (key, burst, count, period, None),
            (
                ThrottleCommand::Cell | ThrottleCommand::Crab,
                [_, key, burst, count, period, quantity],
            ) => (key, burst, count, period, Some(quantity)),
            (ThrottleCommand::Gcra, [_, key, burst, count, period, option, quantity])
                if option.eq_ignore_ascii_case(b"TOKENS")
                    || option.eq_ignore_ascii_case(b"NUM_REQUESTS") =>
            {
                (key, burst, count, period, Some(quantity))
            }
            (ThrottleCommand::Gcra, [_, _, _, _, _, ..]) => {
                return Err("ERR syntax error".to_owned());
            }
            _ => return Err(command.usage()),
        };
        if key.is_empty() {
            return Err(command.error("the key is empty"));
        }
        let burst = command.count(burst, "max_burst")?;
        let count = command.count(count, "count per period")?;
        let period = command.period(period)?;
        let cost = match quantity {
            None => Cost::ONE,
            Some(word) => Cost::try_from(command.count(word, "quantity")?)
                .map_err(|error| command.error(&error.to_string()))?,
        };
        if count == 0 || period.is_zero() {
            return Err(command.error("Zero rates are not supported"));
        }
        // In redis-cell and Redis, max_burst is what may come at once besides the one that is
        // always allowed.
        let burst = if command == ThrottleCommand::Crab {
            burst
        } else {
            burst.saturating_add(1)
        };
        let numbers = BucketArguments {
            burst,
            count,
            period,
        };
        let limiter = numbers
            .find(gate)
            .map_err(|error| command.error(&error.to_string()))?;
        Ok(Self {
            command,
            key,
            cost,
            limiter,
        })
    }
}

impl ThrottleCommand {
    /// Returns a decision as five integers.
    #[inline]
    pub(super) fn reply(self, decision: &Decision) -> [i64; 5] {
        let (limit, remaining) = (number(decision.limit()), number(decision.remaining()));
        let reset = number(seconds(decision.reset_after()));
        let retry = match decision.outcome() {
            Outcome::Denied { retry_after } => number(retry_after_seconds(retry_after)),
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
