//! Decisions: the result of a check. `denied` has the error for a denial.

use std::time::Duration;

use crate::denied::{DenialReason, Denied, Usage};

/// The result of a check: whether the request may proceed, how much is left, and when to retry.
///
/// Durations are exact. They are rounded once, up, to the store's tick: 1 ns in memory, 1 µs on
/// Redis. The same request is allowed after [`retry_after`](Self::retry_after) and denied just
/// before.
///
/// # Examples
///
/// ```
/// use tidegate::{Limiter, Outcome};
///
/// let limiter = Limiter::memory("2/minute".parse()?);
/// let decision = limiter.check("user:42").now()?;
/// match decision.outcome() {
///     Outcome::Allowed { .. } => println!("{} left", decision.remaining()),
///     Outcome::Denied { retry_after } => println!("retry in {retry_after:?}"),
///     _ => println!("the cost exceeds the limit"),
/// }
/// assert_eq!((decision.limit(), decision.remaining()), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a denied request must not proceed: use `or_deny()?`, `is_allowed` or `outcome`"]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub(crate) kind: OutcomeKind,
    /// The delay of an allowed request, or the wait of a denied one, in nanoseconds.
    pub(crate) wait: u64,
    pub(crate) reset_after: u64,
    /// The reset time of the limit at `limit_index`.
    pub(crate) limit_reset_after: u64,
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    pub(crate) limit_index: u32,
    pub(crate) degraded: Option<Degraded>,
    /// Set if quota leases make the figures estimates.
    pub(crate) is_leased: bool,
}

/// Prints the fields under the names of the accessor methods.
impl std::fmt::Debug for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome())
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("reset_after", &self.reset_after())
            .field("limit_index", &self.limit_index)
            .field("limit_reset_after", &self.limit_reset_after())
            .field("degraded", &self.degraded)
            .field("is_leased", &self.is_leased)
            .finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeKind {
    Allowed,
    Denied,
    Never,
}

/// The reason why the failure policy answered instead of the store.
///
/// # Examples
///
/// ```
/// use tidegate::Degraded;
///
/// assert_eq!(Degraded::Timeout.to_string(), "timeout");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Degraded {
    /// The store did not answer in time. It is unknown whether it counted the request.
    Timeout,
    /// The connection was lost or could not be established. Requests in flight may have been
    /// counted.
    Disconnected,
    /// The circuit breaker is open: the store failed repeatedly and has not answered a probe yet.
    BreakerOpen,
    /// The queue for the store is full. This request was not sent.
    Overloaded,
    /// The store refused the command: it is loading, out of memory, read-only, or denies
    /// permission.
    Refused,
    /// The stored value is not one of Tidegate's. It was left unchanged.
    Unreadable,
}

impl Degraded {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Timeout,
        Self::Disconnected,
        Self::BreakerOpen,
        Self::Overloaded,
        Self::Refused,
        Self::Unreadable,
    ];

    /// Returns the name used in metrics and logs.
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

/// The figures of one limit of a policy.
///
/// For a denied request they describe this limit alone: it may have room although another limit
/// denied the request.
///
/// # Examples
///
/// ```
/// use tidegate::Limiter;
///
/// let limiter = Limiter::memory("5/second; fixed_window 100/day".parse()?);
/// let (decision, limits) = limiter.check("user:42").with_limits().now()?;
/// assert!(decision.is_allowed());
/// assert_eq!((limits[0].remaining(), limits[1].remaining()), (4, 99));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitFigures {
    pub(crate) kind: OutcomeKind,
    pub(crate) wait: u64,
    pub(crate) reset_after: u64,
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
}

impl LimitFigures {
    /// Returns `true` if this limit allows the request.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.kind, OutcomeKind::Allowed)
    }

    /// Returns the capacity in units.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// Returns the number of requests of cost 1 that this limit would allow right now.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining as u64
    }

    /// Returns the reason for which this limit denies the request, or `None` if it allows it.
    #[must_use]
    pub const fn reason(&self) -> Option<DenialReason> {
        match self.kind {
            OutcomeKind::Allowed => None,
            OutcomeKind::Denied => Some(DenialReason::Limited),
            OutcomeKind::Never => Some(DenialReason::CostAboveCapacity),
        }
    }

    /// Returns the shortest wait after which this limit allows the request. Returns `None` if it
    /// allows it now, and also if it never does.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            OutcomeKind::Denied => Some(Duration::from_nanos(self.wait)),
            OutcomeKind::Allowed | OutcomeKind::Never => None,
        }
    }

    /// Returns the shortest wait after which the whole capacity of this limit is free.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_after)
    }

    /// Returns the figures with durations rounded up to a store's tick.
    pub(crate) fn rounded_up(mut self, tick: u64) -> Self {
        self.wait = round_up(self.wait, tick);
        self.reset_after = round_up(self.reset_after, tick);
        self
    }
}

/// The figures of the limit that a decision names.
impl From<&Decision> for LimitFigures {
    fn from(decision: &Decision) -> Self {
        Self {
            kind: decision.kind,
            wait: if decision.is_allowed() {
                0
            } else {
                decision.wait
            },
            reset_after: decision.limit_reset_after,
            limit: decision.limit,
            remaining: decision.remaining,
        }
    }
}

fn round_up(nanos: u64, tick: u64) -> u64 {
    nanos.div_ceil(tick).saturating_mul(tick)
}

/// The outcome of a request.
///
/// # Examples
///
/// ```
/// use tidegate::{Limiter, Outcome};
///
/// let limiter = Limiter::memory("2/second".parse()?);
/// match limiter.check("user:42").now()?.outcome() {
///     Outcome::Allowed { delay } => println!("proceed after {delay:?}"),
///     Outcome::Denied { retry_after } => println!("retry after {retry_after:?}"),
///     Outcome::NeverAllowed => println!("the cost exceeds the capacity"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request may proceed, and its cost has been taken.
    Allowed {
        /// The time that the request waits in a leaky bucket's queue. Zero for the other
        /// algorithms.
        delay: Duration,
    },
    /// The request must not proceed now. Nothing was taken.
    Denied {
        /// The shortest wait after which the same request is allowed if nothing else happens.
        retry_after: Duration,
    },
    /// The cost exceeds the capacity, so the request can never be allowed. Nothing was taken.
    NeverAllowed,
}

impl Decision {
    /// Returns the outcome with the duration that belongs to it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Outcome};
    ///
    /// let limiter = Limiter::memory("2/second".parse()?);
    /// let outcome = limiter.check("user:42").now()?.outcome();
    /// assert_eq!(outcome, Outcome::Allowed { delay: Duration::ZERO });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        let wait = Duration::from_nanos(self.wait);
        match self.kind {
            OutcomeKind::Allowed => Outcome::Allowed { delay: wait },
            OutcomeKind::Denied => Outcome::Denied { retry_after: wait },
            OutcomeKind::Never => Outcome::NeverAllowed,
        }
    }

    /// Returns `true` if the request may proceed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("2/second".parse()?);
    /// assert!(limiter.check("user:42").cost(2).now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.kind, OutcomeKind::Allowed)
    }

    /// Returns `true` if the request must not proceed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("2/second".parse()?);
    /// assert!(limiter.check("user:42").cost(3).now()?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Returns the shortest wait after which the same request is allowed if nothing else happens.
    ///
    /// Returns `None` if the request was allowed, and also if it can never be allowed. Use
    /// [`is_allowed`](Self::is_allowed) or [`outcome`](Self::outcome) to tell the two apart.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 1/day".parse()?);
    /// assert_eq!(limiter.check("user:42").now()?.retry_after(), None);
    /// assert!(limiter.check("user:42").now()?.retry_after() > Some(Duration::ZERO));
    /// // The cost exceeds the capacity, so no wait helps.
    /// assert_eq!(limiter.check("user:42").cost(2).now()?.retry_after(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            OutcomeKind::Denied => Some(Duration::from_nanos(self.wait)),
            OutcomeKind::Allowed | OutcomeKind::Never => None,
        }
    }

    /// Returns the time that an admitted request waits in a leaky bucket's queue.
    ///
    /// Returns zero for the other algorithms and for denied requests.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, ManualClock, MemoryStore};
    ///
    /// let store = MemoryStore::builder().clock(ManualClock::new()).build()?;
    /// let limiter = Limiter::new(store, "leaky_bucket 10/second".parse()?);
    /// assert_eq!(limiter.check("user:42").now()?.delay(), Duration::ZERO);
    /// assert_eq!(limiter.check("user:42").now()?.delay(), Duration::from_millis(100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn delay(&self) -> Duration {
        match self.kind {
            OutcomeKind::Allowed => Duration::from_nanos(self.wait),
            OutcomeKind::Denied | OutcomeKind::Never => Duration::ZERO,
        }
    }

    /// Returns the capacity in units: the burst of a bucket, the limit of a window.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("10/second burst=50".parse()?);
    /// assert_eq!(limiter.check("user:42").now()?.limit(), 50);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// Returns the number of requests of cost 1 that would be allowed right now, after this one.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 100/day".parse()?);
    /// assert_eq!(limiter.check("user:42").cost(30).now()?.remaining(), 70);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining as u64
    }

    /// Returns the shortest wait after which the whole capacity is free if nothing else happens.
    ///
    /// Returns zero if it is free now.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, ManualClock, MemoryStore};
    ///
    /// let store = MemoryStore::builder().clock(ManualClock::new()).build()?;
    /// let limiter = Limiter::new(store, "10/second".parse()?);
    /// let decision = limiter.check("user:42").cost(5).now()?;
    /// assert_eq!(decision.reset_after(), Duration::from_millis(500));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_after)
    }

    /// Returns the index of the limit that [`limit`](Self::limit) and
    /// [`remaining`](Self::remaining) describe.
    ///
    /// For an allowed request, that is the limit with the least remaining. For a denied request, it
    /// is the limit with the longest wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/day; fixed_window 2/hour".parse()?);
    /// // The second limit has the least remaining.
    /// assert_eq!(limiter.check("user:42").now()?.limit_index(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn limit_index(&self) -> usize {
        self.limit_index as usize
    }

    /// Returns the shortest wait after which the limit at [`limit_index`](Self::limit_index) is
    /// wholly free.
    ///
    /// [`reset_after`](Self::reset_after) is the longest of all limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, ManualClock, MemoryStore};
    ///
    /// let store = MemoryStore::builder().clock(ManualClock::new()).build()?;
    /// let limiter = Limiter::new(store, "5/second; fixed_window 100/day".parse()?);
    /// let decision = limiter.check("user:42").now()?;
    /// assert_eq!(decision.limit_reset_after(), Duration::from_millis(200));
    /// assert!(decision.reset_after() > Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn limit_reset_after(&self) -> Duration {
        Duration::from_nanos(self.limit_reset_after)
    }

    /// Returns the reason for a denial, or `None` if the request may proceed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{DenialReason, Limiter};
    ///
    /// let limiter = Limiter::memory("2/minute".parse()?);
    /// assert_eq!(limiter.check("user:42").cost(2).now()?.reason(), None);
    /// assert_eq!(limiter.check("user:42").now()?.reason(), Some(DenialReason::Limited));
    /// let reason = limiter.check("user:42").cost(3).now()?.reason();
    /// assert_eq!(reason, Some(DenialReason::CostAboveCapacity));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn reason(&self) -> Option<DenialReason> {
        match self.kind {
            OutcomeKind::Allowed => None,
            _ if !self.has_figures() => Some(DenialReason::Outage),
            OutcomeKind::Denied => Some(DenialReason::Limited),
            OutcomeKind::Never => Some(DenialReason::CostAboveCapacity),
        }
    }

    /// Returns the figures if the request may proceed, and otherwise an error that carries them.
    ///
    /// # Errors
    ///
    /// Returns [`Denied`] if the request must not proceed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Denied, Limiter};
    ///
    /// let limiter = Limiter::memory("1/minute".parse()?);
    /// limiter.check("user:42").now()?.or_deny()?;
    /// let denied: Denied = limiter.check("user:42").now()?.or_deny().unwrap_err();
    /// assert!(denied.retry_after().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub const fn or_deny(self) -> Result<Usage, Denied> {
        if self.is_allowed() {
            Ok(Usage(self))
        } else {
            Err(Denied::of(self))
        }
    }

    /// Returns the reason why the failure policy answered, or `None` if the store did.
    ///
    /// With [`FailurePolicy::Local`](crate::FailurePolicy::Local) the figures are those of this
    /// process. With `Open` and `Closed`, [`remaining`](Self::remaining) and
    /// [`reset_after`](Self::reset_after) are zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/day".parse()?);
    /// // A memory store is never unavailable.
    /// assert_eq!(limiter.check("user:42").now()?.degraded(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }

    /// Returns `true` if the policy uses quota leases, so that the figures are estimates.
    ///
    /// Quota that processes have leased counts as used until they give it back. The remaining
    /// amount may therefore be higher, and the wait shorter, than reported. Whether the request is
    /// allowed is no estimate.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/day".parse()?);
    /// // Only a Redis store with `lease=` in its URL uses leases.
    /// assert!(!limiter.check("user:42").now()?.is_leased());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        self.is_leased
    }

    /// Returns `true` if the figures are meaningful.
    ///
    /// They are not if the failure policy answered with `Open` or `Closed`, which count nothing.
    #[must_use]
    pub const fn has_figures(&self) -> bool {
        // A decision that counted something has units left, or a time until they are free.
        self.degraded.is_none()
            || self.remaining > 0
            || self.reset_after > 0
            || matches!(self.kind, OutcomeKind::Never)
    }

    /// Returns the decision with its durations rounded up to a store's tick.
    pub(crate) fn rounded_up(mut self, tick: u64) -> Self {
        self.wait = round_up(self.wait, tick);
        self.reset_after = round_up(self.reset_after, tick);
        self.limit_reset_after = round_up(self.limit_reset_after, tick);
        self
    }
}
