//! The answer to a check.

use std::time::Duration;

/// The answer to a check: may it go on, how much is left, and if not, when.
///
/// Durations are exact, rounded up to the store's tick (1 ns in memory) and no other way: a request repeated
/// after [`retry_after`](Self::retry_after) is allowed, and just before it is denied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub(crate) verdict: Verdict,
    /// What the verdict is about: the delay of what is allowed, the wait of what is denied.
    pub(crate) wait: u64,
    pub(crate) reset_after: u64,
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    pub(crate) limit_index: u32,
    pub(crate) degraded: Option<Degraded>,
}

/// By the names that it is asked for.
impl std::fmt::Debug for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome())
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("reset_after", &self.reset_after())
            .field("limit_index", &self.limit_index)
            .field("degraded", &self.degraded)
            .finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Denied,
    Never,
}

/// Why an answer was given without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Degraded {
    /// The store did not answer in time. Whether it counted the request is unknown.
    Timeout,
    /// The connection was lost, or could not be made. What was on its way may have been counted.
    Disconnected,
    /// The store has failed again and again and is not asked until it answers a probe.
    BreakerOpen,
    /// As many requests as may be are waiting for the store already. This one was not sent.
    Overloaded,
    /// The store answered that it cannot do this now: it is loading, out of memory, read-only, or does not permit it.
    Refused,
    /// What is stored under the key is none of ours, and was left alone.
    Unreadable,
}

impl Degraded {
    /// Every reason there is.
    pub const ALL: [Self; 6] = [
        Self::Timeout,
        Self::Disconnected,
        Self::BreakerOpen,
        Self::Overloaded,
        Self::Refused,
        Self::Unreadable,
    ];

    /// Its name, as metrics and logs write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::BreakerOpen => "breaker_open",
            Self::Overloaded => "overloaded",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
        }
    }
}

impl std::fmt::Display for Degraded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of a request: three outcomes, three variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may go on, and what it costs has been taken.
    Allowed {
        /// How long it waits in the queue for those before it: leaky_bucket only, zero elsewhere.
        delay: Duration,
    },
    /// It may not go on now; nothing was taken.
    Denied {
        /// The shortest wait after which this same request is allowed, if nothing else comes.
        retry_after: Duration,
    },
    /// It costs more than the whole capacity and will never be allowed; nothing was taken.
    NeverAllowed,
}

impl Decision {
    /// What became of the request, with the figure that belongs to it.
    #[inline]
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        let wait = Duration::from_nanos(self.wait);
        match self.verdict {
            Verdict::Allowed => Outcome::Allowed { delay: wait },
            Verdict::Denied => Outcome::Denied { retry_after: wait },
            Verdict::Never => Outcome::NeverAllowed,
        }
    }

    /// Whether the request may go on.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed)
    }

    /// Whether the request may not go on, now or ever.
    #[inline]
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// The shortest wait after which this same request is allowed, if nothing else comes.
    ///
    /// `None` where there is nothing to wait for: it was allowed, or never will be. So this does not tell whether a
    /// request may go on: [`is_allowed`](Self::is_allowed) does, and [`outcome`](Self::outcome) tells all three apart.
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Denied => Some(Duration::from_nanos(self.wait)),
            Verdict::Allowed | Verdict::Never => None,
        }
    }

    /// How long an admitted request waits in a leaky bucket's queue; zero elsewhere.
    #[inline]
    #[must_use]
    pub const fn delay(&self) -> Duration {
        match self.verdict {
            Verdict::Allowed => Duration::from_nanos(self.wait),
            Verdict::Denied | Verdict::Never => Duration::ZERO,
        }
    }

    /// The capacity, in units: the burst of a bucket, the limit of a window.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// How many requests of cost 1 would be allowed right now, after this one.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining as u64
    }

    /// The shortest wait after which the whole capacity is free again, if nothing else comes; zero where it is now.
    #[inline]
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_after)
    }

    /// Which limit of the policy [`limit`](Self::limit) and [`remaining`](Self::remaining) speak of, counted from 0:
    /// the one nearest to exhaustion, or the one that denies for longest.
    #[inline]
    #[must_use]
    pub const fn limit_index(&self) -> usize {
        self.limit_index as usize
    }

    /// Why the answer was given without the store, by the failure policy; `None` for the store's own.
    ///
    /// A degraded answer of [`FailurePolicy::Local`](crate::FailurePolicy::Local) has the figures of this process. One of
    /// `Open` or `Closed` has none to give: [`remaining`](Self::remaining) and [`reset_after`](Self::reset_after) are zero.
    #[inline]
    #[must_use]
    pub const fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }

    /// Whether the figures mean something: not those of an answer that was given without the store, `Open` or `Closed`.
    #[must_use]
    pub const fn has_figures(&self) -> bool {
        // Whoever has counted knows of something left, or of a time until all is.
        self.degraded.is_none()
            || self.remaining > 0
            || self.reset_after > 0
            || matches!(self.verdict, Verdict::Never)
    }

    /// The same with its durations rounded up to a store's tick.
    pub(crate) fn rounded_up(mut self, tick: u64) -> Self {
        let up = |nanos: u64| nanos.div_ceil(tick).saturating_mul(tick);
        self.wait = up(self.wait);
        self.reset_after = up(self.reset_after);
        self
    }
}
