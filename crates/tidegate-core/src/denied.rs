//! The error for a denied request, and the reason for a denial.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::decision::Decision;

/// The reason for a denial.
///
/// # Examples
///
/// ```
/// use tidegate::DenialReason;
///
/// assert_eq!(DenialReason::CostAboveCapacity.name(), "cost_above_capacity");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DenialReason {
    /// A limit is used up, or in debt.
    Limited,
    /// An exception blocks the key.
    Blocked,
    /// The cost exceeds the capacity, so the request can never be allowed.
    CostAboveCapacity,
    /// The store is unavailable, and the failure policy is
    /// [`Closed`](crate::FailurePolicy::Closed).
    Outage,
}

impl DenialReason {
    /// Returns the name used in JSON, logs and metrics.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tidegate::DenialReason::Limited.name(), "limited");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::Blocked => "blocked",
            Self::CostAboveCapacity => "cost_above_capacity",
            Self::Outage => "outage",
        }
    }
}

impl fmt::Display for DenialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a denied request, with the figures of the decision.
///
/// [`Decision::or_deny`] and [`Verdict::or_deny`](crate::Verdict::or_deny) return it.
///
/// # Examples
///
/// ```
/// use tidegate::{Denied, Limiter};
///
/// fn charge_card(limiter: &Limiter) -> Result<(), Box<dyn std::error::Error>> {
///     limiter.check("user:42").now()?.or_deny()?;
///     Ok(())
/// }
///
/// let limiter = Limiter::memory("fixed_window 1/day".parse()?);
/// charge_card(&limiter)?;
/// let error = charge_card(&limiter).unwrap_err();
/// let denied = error.downcast_ref::<Denied>().expect("the second request is denied");
/// assert_eq!(denied.decision().unwrap().limit(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    reason: DenialReason,
    decision: Option<Decision>,
}

impl Denied {
    /// Creates the error for a denied decision.
    pub(crate) const fn of(decision: Decision) -> Self {
        let reason = match decision.reason() {
            Some(reason) => reason,
            None => DenialReason::Limited,
        };
        Self {
            reason,
            decision: Some(decision),
        }
    }

    /// Creates the error for a key that an exception blocks.
    pub(crate) const fn blocked() -> Self {
        Self {
            reason: DenialReason::Blocked,
            decision: None,
        }
    }

    /// Returns the reason.
    #[must_use]
    pub const fn reason(&self) -> DenialReason {
        self.reason
    }

    /// Returns the decision, or `None` if an exception blocks the key.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Returns the shortest wait after which the same request is allowed if nothing else happens.
    ///
    /// Returns `None` if it can never be allowed, or if the wait is unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let is_known = self.reason == DenialReason::Limited;
        self.decision.filter(|_| is_known)?.retry_after()
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, self.decision, self.retry_after()) {
            (DenialReason::Limited, _, Some(wait)) => {
                write!(f, "rate limit exceeded: retry after {wait:?}")
            }
            (DenialReason::CostAboveCapacity, Some(decision), _) => {
                let capacity = decision.limit();
                write!(
                    f,
                    "the cost exceeds the capacity: expected at most {capacity}"
                )
            }
            (DenialReason::Outage, Some(decision), _) => {
                let cause = decision.degraded().map_or("unknown", |cause| cause.name());
                write!(f, "the rate limit is unavailable ({cause})")
            }
            (DenialReason::Blocked, ..) => f.write_str("the key is blocked"),
            _ => f.write_str("rate limit exceeded"),
        }
    }
}

impl std::error::Error for Denied {}

/// The figures of a [`Decision`] that may be ignored: of an allowed request
/// ([`or_deny`](Decision::or_deny), [`acquire`](crate::Limiter::acquire)), or of a key right after a
/// charge, a refund or a settlement.
///
/// It dereferences to the decision.
///
/// # Examples
///
/// ```
/// use tidegate::Limiter;
///
/// let limiter = Limiter::memory("fixed_window 10/day".parse()?);
/// let usage = limiter.charge("user:42", 4).now()?;
/// assert_eq!(usage.remaining(), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage(pub(crate) Decision);

impl Deref for Usage {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}

impl From<Usage> for Decision {
    fn from(usage: Usage) -> Self {
        usage.0
    }
}
