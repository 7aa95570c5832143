//! The header fields of an answer, to the letter.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use smallvec::SmallVec;
use tidegate_core::{Clock, Decision, Label, Limit, Ruling, Verdict};

use crate::dialect::{Dialect, Reset};

/// A header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Its value: visible ASCII and spaces.
    pub value: Bytes,
}

type Fields = SmallVec<[Field; 2]>;

/// What has been written of policies before: it is the same for every answer.
#[derive(Debug, Default)]
pub struct Written(ArcSwapOption<(Arc<Label>, Dialect, Bytes)>);

impl Written {
    /// The limits of all policies that are enforced.
    fn policies(&self, verdict: &Verdict, dialect: Dialect) -> Bytes {
        let [ruling] = verdict.rulings() else {
            return policies(verdict, dialect).into();
        };
        // It may have been in shadow the last time, or be from now on.
        if !is_told(ruling) {
            return Bytes::new();
        }
        let last = self.0.load();
        if let Some((label, last_dialect, text)) = last.as_deref()
            && std::ptr::eq(&**label, ruling.label())
            && *last_dialect == dialect
        {
            return text.clone();
        }
        // Not to be shared out of a string that has room to spare.
        let text = Bytes::from(
            policies(verdict, dialect)
                .into_boxed_str()
                .into_boxed_bytes(),
        );
        self.0.store(Some(Arc::new((
            ruling.shared_label(),
            dialect,
            text.clone(),
        ))));
        text
    }
}

/// The fields that tell a client what is left, in a dialect. With `all`, of every policy and not only of the one nearest to
/// exhaustion. Nothing is made up: of an answer that was given without the store they tell the limits only. Of a request that
/// would have to wait too long in a queue, by so much, they tell that nothing is left until then.
#[must_use]
pub fn fields(
    verdict: &Verdict,
    dialect: Dialect,
    all: bool,
    excess: Option<Duration>,
    written: &Written,
) -> Fields {
    let mut fields = Fields::new();
    if dialect == Dialect::Off {
        return fields;
    }
    let policies = written.policies(verdict, dialect);
    if policies.is_empty() {
        return fields;
    }
    let nearest = match excess {
        Some(_) => verdict
            .longest_delayed()
            .and_then(State::of)
            .map(|state| State { excess, ..state }),
        None => verdict.nearest().and_then(State::of),
    };
    let mut add = |name, value: Bytes| fields.push(Field { name, value });
    match dialect {
        Dialect::Draft11 => {
            add("ratelimit-policy", policies);
            let told: SmallVec<[State<'_>; 1]> = match nearest {
                Some(_) if all && excess.is_none() => verdict
                    .rulings()
                    .iter()
                    .filter(|ruling| is_told(ruling))
                    .filter_map(State::of)
                    .collect(),
                Some(state) => [state].into_iter().collect(),
                None => return fields,
            };
            add("ratelimit", items(&told));
        }
        Dialect::Draft07 => {
            add("ratelimit-policy", policies);
            if let Some(state) = nearest {
                let (limit, left, reset) = state.figures();
                add(
                    "ratelimit",
                    format!("limit={limit}, remaining={left}, reset={reset}").into(),
                );
            }
        }
        Dialect::Draft06 => {
            add("ratelimit-policy", policies);
            if let Some(state) = nearest {
                let (limit, left, reset) = state.figures();
                add("ratelimit-limit", limit.to_string().into());
                add("ratelimit-remaining", left.to_string().into());
                add("ratelimit-reset", reset.to_string().into());
            }
        }
        Dialect::Envoy | Dialect::Legacy(_) => {
            let Some(state) = nearest else { return fields };
            let (limit, left, reset) = state.figures();
            let mut limits = limit.to_string().into_bytes();
            if dialect == Dialect::Envoy {
                limits.extend_from_slice(b", ");
                limits.extend_from_slice(&policies);
            }
            add("x-ratelimit-limit", limits.into());
            add("x-ratelimit-remaining", left.to_string().into());
            add(
                "x-ratelimit-reset",
                (reset + base(dialect)).to_string().into(),
            );
        }
        Dialect::Off => {}
    }
    fields
}

fn items(told: &[State<'_>]) -> Bytes {
    let mut text = SmallVec::new();
    for state in told {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        state.write_item(&mut text);
    }
    Bytes::copy_from_slice(&text)
}

/// What the seconds of a reset are counted from.
fn base(dialect: Dialect) -> u64 {
    match dialect {
        Dialect::Legacy(Reset::Epoch) => Clock::system().now().as_nanos() / 1_000_000_000,
        _ => 0,
    }
}

/// A wait in whole seconds, rounded up, at least one: what Retry-After says.
#[must_use]
pub fn retry_after_seconds(wait: Duration) -> u64 {
    seconds(wait).max(1)
}

fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

fn is_told(ruling: &Ruling) -> bool {
    !ruling.is_shadow() && ruling.label().policy().is_some()
}

/// The limits, of all policies that are enforced.
fn policies(verdict: &Verdict, dialect: Dialect) -> String {
    let mut text = String::with_capacity(32);
    for ruling in verdict.rulings().iter().filter(|ruling| is_told(ruling)) {
        let Some(policy) = ruling.label().policy() else {
            continue;
        };
        for (index, limit) in policy.limits().iter().enumerate() {
            if !text.is_empty() {
                text.push_str(", ");
            }
            // Writing into memory does not fail.
            let _ = write_limit(&mut text, ruling, index, limit, dialect);
        }
    }
    text
}

fn write_limit(
    text: &mut String,
    ruling: &Ruling,
    index: usize,
    limit: &Limit,
    dialect: Dialect,
) -> std::fmt::Result {
    let capacity = limit.capacity();
    match dialect {
        Dialect::Draft11 => {
            write_name(text, ruling, index)?;
            write!(text, ";q={capacity}")?;
        }
        _ => write!(text, "{capacity}")?,
    }
    if let Some(window) = window(limit) {
        write!(text, ";w={window}")?;
    }
    if dialect == Dialect::Envoy {
        text.push_str(";name=");
        write_name(text, ruling, index)?;
    }
    Ok(())
}

/// A policy's name, and of several limits of it the number.
fn write_name(text: &mut String, ruling: &Ruling, index: usize) -> std::fmt::Result {
    let name = ruling.label().name();
    match ruling.label().policy().map(|policy| policy.limits().len()) {
        // No name has a slash in it: no other policy is named so.
        Some(2..) => write!(text, "\"{name}/{}\"", index + 1),
        _ => write!(text, "\"{name}\""),
    }
}

/// A window in whole seconds: of a bucket the time in which it refills, so that nobody reads more than the rate into it.
fn window(limit: &Limit) -> Option<u64> {
    if limit.algorithm().is_bucket() {
        let nanos = u128::from(limit.capacity()) * limit.period().as_nanos();
        return u64::try_from(nanos.div_ceil(u128::from(limit.limit()) * 1_000_000_000)).ok();
    }
    (limit.period().subsec_nanos() == 0).then(|| limit.period().as_secs())
}

/// What is left of a limit that was asked.
struct State<'a> {
    ruling: &'a Ruling,
    limit: &'a Limit,
    decision: &'a Decision,
    is_alone: bool,
    excess: Option<Duration>,
}

impl<'a> State<'a> {
    fn of(ruling: &'a Ruling) -> Option<Self> {
        let decision = ruling
            .decision()
            .filter(|decision| decision.degraded().is_none())?;
        let limits = ruling.label().policy()?.limits();
        Some(Self {
            ruling,
            limit: limits.get(decision.limit_index())?,
            decision,
            is_alone: limits.len() == 1,
            excess: None,
        })
    }

    /// `"api";r=50;t=30`. This is written for every answer, so by hand.
    fn write_item(&self, text: &mut SmallVec<[u8; 128]>) {
        let mut digits = itoa::Buffer::new();
        text.push(b'"');
        text.extend_from_slice(self.ruling.label().name().as_str().as_bytes());
        if !self.is_alone {
            text.push(b'/');
            text.extend_from_slice(digits.format(self.decision.limit_index() + 1).as_bytes());
        }
        text.extend_from_slice(b"\";r=");
        text.extend_from_slice(digits.format(self.remaining()).as_bytes());
        if let Some(more) = self.more_after() {
            text.extend_from_slice(b";t=");
            text.extend_from_slice(digits.format(more).as_bytes());
        }
    }

    /// Seconds until there is more: on a denial until this request is allowed; in a window until it is over; of a bucket
    /// until it has one unit more. Of several limits only the longest wait is known, which may be another's.
    fn more_after(&self) -> Option<u64> {
        if let Some(excess) = self.excess {
            return Some(retry_after_seconds(excess));
        }
        if self.decision.is_denied() {
            return self.decision.retry_after().map(retry_after_seconds);
        }
        if !self.is_alone {
            return None;
        }
        if !self.limit.algorithm().is_bucket() {
            return Some(seconds(self.decision.reset_after()));
        }
        let missing = self
            .limit
            .capacity()
            .saturating_sub(self.decision.remaining());
        let later = u128::from(missing.saturating_sub(1)) * self.limit.period().as_nanos()
            / u128::from(self.limit.limit());
        let wait = self.decision.reset_after().as_nanos().saturating_sub(later);
        u64::try_from(wait.div_ceil(1_000_000_000)).ok()
    }

    /// Limit, remaining and seconds until the reset, for dialects that want all three.
    fn figures(&self) -> (u64, u64, u64) {
        let reset = self
            .more_after()
            .unwrap_or_else(|| seconds(self.decision.reset_after()));
        (self.decision.limit(), self.remaining(), reset)
    }

    fn remaining(&self) -> u64 {
        if self.excess.is_some() {
            0
        } else {
            self.decision.remaining()
        }
    }
}
