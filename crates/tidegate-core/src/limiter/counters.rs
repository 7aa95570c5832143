//! Counters of the decisions of a limiter on a remote store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::{Decision, Degraded, OutcomeKind};
use crate::health::StoreHealth;

/// The decisions of a limiter so far, and the health of its store.
///
/// This is a snapshot. Counts are since the limiter was created, and include all limiters derived
/// from it by [`with_policy`](crate::Limiter::with_policy).
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Allowed requests, including degraded ones.
    pub allowed: u64,
    /// Denied requests, including degraded ones.
    pub denied: u64,
    /// Requests whose cost exceeded the capacity.
    pub never_allowed: u64,
    /// Denied requests that the deny cache answered.
    pub deny_cache_hits: u64,
    /// Refunds.
    pub refunds: u64,
    /// Degraded answers, by reason.
    degraded: [u64; Degraded::ALL.len()],
    /// The health of the store, or `None` in memory.
    pub store: Option<StoreHealth>,
}

impl Counters {
    /// Returns the number of degraded answers for one reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Degraded, Limiter};
    ///
    /// let limiter = Limiter::memory("1/minute".parse()?);
    /// assert_eq!(limiter.counters().degraded(Degraded::Timeout), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn degraded(&self, reason: Degraded) -> u64 {
        self.degraded.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns the number of degraded answers for all reasons.
    #[must_use]
    pub fn degraded_total(&self) -> u64 {
        self.degraded.iter().sum()
    }
}

/// Prints only the reasons with a count.
impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let degraded = Degraded::ALL.map(|reason| (reason, self.degraded(reason)));
        let degraded: Vec<(Degraded, u64)> = degraded
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        f.debug_struct("Counters")
            .field("allowed", &self.allowed)
            .field("denied", &self.denied)
            .field("never_allowed", &self.never_allowed)
            .field("deny_cache_hits", &self.deny_cache_hits)
            .field("refunds", &self.refunds)
            .field("degraded", &degraded)
            .field("store", &self.store)
            .finish()
    }
}

#[derive(Default)]
pub(super) struct AtomicCounters {
    allowed: AtomicU64,
    denied: AtomicU64,
    never_allowed: AtomicU64,
    deny_cache_hits: AtomicU64,
    refunds: AtomicU64,
    degraded: [AtomicU64; Degraded::ALL.len()],
}

impl AtomicCounters {
    pub(super) fn check(&self, decision: &Decision) {
        let outcome = match decision.kind {
            OutcomeKind::Allowed => &self.allowed,
            OutcomeKind::Denied => &self.denied,
            OutcomeKind::Never => &self.never_allowed,
        };
        outcome.fetch_add(1, Ordering::Relaxed);
        self.degraded(decision);
    }

    pub(super) fn deny_cache_hit(&self) {
        self.denied.fetch_add(1, Ordering::Relaxed);
        self.deny_cache_hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refund(&self, decision: &Decision) {
        self.refunds.fetch_add(1, Ordering::Relaxed);
        self.degraded(decision);
    }

    fn degraded(&self, decision: &Decision) {
        if let Some(count) = decision
            .degraded
            .and_then(|reason| self.degraded.get(reason as usize))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn snapshot(&self, store: Option<StoreHealth>) -> Counters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            never_allowed: read(&self.never_allowed),
            deny_cache_hits: read(&self.deny_cache_hits),
            refunds: read(&self.refunds),
            degraded: self.degraded.each_ref().map(read),
            store,
        }
    }
}
