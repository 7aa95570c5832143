//! Counts of what a limiter on a remote store answered.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::{Decision, Degraded, Verdict};
use crate::health::StoreHealth;

/// What a limiter answered, and how its store is. A snapshot; counts are since the limiter was made, together with all
/// that were made of it by [`with_policy`](crate::Limiter::with_policy).
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that were allowed, degraded ones among them.
    pub allowed: u64,
    /// Requests that were denied, degraded ones among them.
    pub denied: u64,
    /// Requests that cost more than the whole capacity.
    pub never_allowed: u64,
    /// Of the denied ones, those that the store was not asked about again.
    pub deny_cache_hits: u64,
    /// Refunds.
    pub refunds: u64,
    /// Answers given without the store, by reason.
    degraded: [u64; Degraded::ALL.len()],
    /// How the store is; `None` where it is memory.
    pub store: Option<StoreHealth>,
}

impl Counters {
    /// Answers given without the store, for this reason.
    #[must_use]
    pub fn degraded(&self, reason: Degraded) -> u64 {
        self.degraded.get(reason as usize).copied().unwrap_or(0)
    }

    /// Answers given without the store, for any reason.
    #[must_use]
    pub fn degraded_total(&self) -> u64 {
        self.degraded.iter().sum()
    }
}

/// Of the reasons, those that there were.
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
pub(super) struct Tally {
    allowed: AtomicU64,
    denied: AtomicU64,
    never_allowed: AtomicU64,
    deny_cache_hits: AtomicU64,
    refunds: AtomicU64,
    degraded: [AtomicU64; Degraded::ALL.len()],
}

impl Tally {
    pub(super) fn check(&self, decision: &Decision) {
        let outcome = match decision.verdict {
            Verdict::Allowed => &self.allowed,
            Verdict::Denied => &self.denied,
            Verdict::Never => &self.never_allowed,
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
