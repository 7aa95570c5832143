//! Policies: one or more limits that a key must meet together.
//!
//! `lexer` and `parser` read policy text, `print` writes it, `bounds` checks the numbers.

mod bounds;
mod error;
mod lexer;
mod limit;
mod parser;
mod print;
#[cfg(test)]
mod tests;

use std::str::FromStr;
use std::sync::Arc;

pub(crate) use bounds::MAX_LIMITS;
pub use error::PolicyError;
pub use limit::{Algorithm, Anchor, Limit, Rate};

use crate::algorithm::Step;

/// One or more limits that a key must meet together, all or nothing.
///
/// A policy is parsed from text or built from [`Limit`]s, and is always within bounds. Printing a
/// policy and parsing the result returns an equal policy. Clones share their data.
///
/// # Examples
///
/// ```
/// use tidegate::{Limit, Policy, Rate};
///
/// let parsed: Policy = "10/s; fixed_window 5_000 per day".parse()?;
/// let built = Policy::new([
///     Limit::token_bucket(Rate::per_second(10)),
///     Limit::fixed_window(Rate::per_day(5_000)),
/// ])?;
/// assert_eq!(parsed, built);
/// assert_eq!(parsed.to_string(), "token_bucket 10/second; fixed_window 5000/day");
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    limits: Arc<[Limit]>,
    /// The limits' algorithms with their precomputed numbers, in the same order.
    steps: Arc<[Step]>,
    /// The index in `limits` of each limit in stored order; `None` if both orders are the same.
    stored_order: Option<Arc<[u8]>>,
}

impl Policy {
    /// Creates a policy.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no limits or more than 8, if a limit is out of bounds, or if
    /// it has an option that its algorithm does not support.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, PolicyError> {
        let limits: Vec<Limit> = limits
            .into_iter()
            .map(|limit| limit.checked().map_err(|out| PolicyError::new(out.message)))
            .collect::<Result<_, _>>()?;
        if limits.is_empty() {
            return Err(PolicyError::new(
                "a policy without a limit: expected at least one",
            ));
        }
        if limits.len() > MAX_LIMITS {
            let count = limits.len();
            return Err(PolicyError::new(format!(
                "a policy of {count} limits: expected at most {MAX_LIMITS}"
            )));
        }
        Ok(Self::of_checked(limits))
    }

    fn of_checked(limits: Vec<Limit>) -> Self {
        let steps = limits.iter().map(Step::new).collect();
        let mut order: Vec<u8> = (0..limits.len() as u8).collect();
        order.sort_by_key(|index| limits[usize::from(*index)].stored_rank());
        let stored_order = (!order.is_sorted()).then(|| order.into());
        Self {
            limits: limits.into(),
            steps,
            stored_order,
        }
    }

    /// Returns the policy of one bucket that keeps its state when the rate changes, see
    /// [`ANY_RATE`](crate::store::ANY_RATE). Returns `None` if the policy is not exactly one
    /// bucket.
    pub(crate) fn with_any_rate(&self) -> Option<Self> {
        let [step] = &*self.steps else { return None };
        Some(Self {
            steps: [step.with_any_rate()?].into(),
            ..self.clone()
        })
    }

    /// Returns `true` for a policy created by [`with_any_rate`](Self::with_any_rate).
    pub(crate) fn has_any_rate(&self) -> bool {
        self.steps.iter().any(Step::has_any_rate)
    }

    /// Returns the index in [`limits`](Self::limits) of each limit in stored order, or `None` if
    /// both orders are the same.
    ///
    /// Stores keep the states of a policy's limits in this order, so that policies which differ
    /// only in the order of their limits share a record.
    #[doc(hidden)] // For Tidegate's own stores.
    #[must_use]
    pub fn stored_order(&self) -> Option<&[u8]> {
        self.stored_order.as_deref()
    }

    /// Returns the limits, in the order given.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    pub(crate) fn steps(&self) -> &Arc<[Step]> {
        &self.steps
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.limits == other.limits
    }
}

impl Eq for Policy {}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        parser::limits(text).map(Self::of_checked)
    }
}

impl TryFrom<Limit> for Policy {
    type Error = PolicyError;

    fn try_from(limit: Limit) -> Result<Self, PolicyError> {
        Self::new([limit])
    }
}
