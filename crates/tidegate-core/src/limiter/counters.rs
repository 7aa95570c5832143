//! Counters of the decisions of a limiter.

use crate::cost::Cost;
use crate::decision::{Decision, Degraded, OutcomeKind};
use crate::health::StoreHealth;
use crate::record::Settlement;
use crate::store::Charged;
use crate::striped::StripedCounters;

/// The decisions of a limiter so far, and the health of its store.
///
/// This is a snapshot. Counts are since the limiter was created, and include all limiters derived
/// from it by [`with_policy`](crate::Limiter::with_policy).
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Allowed requests, including degraded ones.
    pub allowed: u64,
    /// Requests denied by a limit, including degraded ones.
    pub denied: u64,
    /// Requests denied because the store was unavailable and the failure policy is
    /// [`Closed`](crate::FailurePolicy::Closed).
    pub outages: u64,
    /// Requests whose cost exceeded the capacity.
    pub never_allowed: u64,
    /// Denied requests that the deny cache answered.
    pub deny_cache_hits: u64,
    /// Refunds, and settlements at a lower cost.
    pub refunds: u64,
    /// Charges, and settlements at a higher cost.
    pub charges: u64,
    /// The units that charges dropped because they exceeded the debt, in thousandths.
    pub dropped: u64,
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
            .field("outages", &self.outages)
            .field("never_allowed", &self.never_allowed)
            .field("deny_cache_hits", &self.deny_cache_hits)
            .field("refunds", &self.refunds)
            .field("charges", &self.charges)
            .field("dropped", &self.dropped)
            .field("degraded", &degraded)
            .field("store", &self.store)
            .finish()
    }
}

/// The events that are counted.
#[derive(Clone, Copy)]
enum Event {
    Allowed,
    Denied,
    Outages,
    NeverAllowed,
    DenyCacheHits,
    Refunds,
    Charges,
    Dropped,
    Degraded,
}

const EVENTS: usize = Event::Degraded as usize + Degraded::ALL.len();

/// The counters of one limiter.
#[derive(Default)]
pub(super) struct AtomicCounters(StripedCounters<EVENTS>);

impl AtomicCounters {
    #[inline]
    pub(super) fn check(&self, decision: &Decision) {
        self.0.add(event(decision) as usize, 1);
        self.degraded(decision);
    }

    /// Counts a decision of a memory store, which is never degraded.
    #[inline(always)]
    pub(super) fn check_in_memory(&self, decision: &Decision) {
        match decision.kind {
            OutcomeKind::Allowed => self.0.add(Event::Allowed as usize, 1),
            OutcomeKind::Denied => self.0.add(Event::Denied as usize, 1),
            OutcomeKind::Never => self.0.add(Event::NeverAllowed as usize, 1),
        }
    }

    /// Counts a batch. Requests of cost 0 are not counted.
    pub(super) fn check_many<'a>(&self, decisions: impl Iterator<Item = (&'a Decision, Cost)>) {
        let mut counts = [0; Event::DenyCacheHits as usize];
        for (decision, _) in decisions.filter(|(_, cost)| *cost > Cost::ZERO) {
            if let Some(count) = counts.get_mut(event(decision) as usize) {
                *count += 1;
            }
            self.degraded(decision);
        }
        for (event, count) in counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0)
        {
            self.0.add(event, count);
        }
    }

    pub(super) fn deny_cache_hit(&self) {
        self.0.add(Event::Denied as usize, 1);
        self.0.add(Event::DenyCacheHits as usize, 1);
    }

    pub(super) fn refund(&self, decision: &Decision) {
        self.0.add(Event::Refunds as usize, 1);
        self.degraded(decision);
    }

    pub(super) fn charge(&self, charged: &Charged) {
        self.0.add(Event::Charges as usize, 1);
        self.0
            .add(Event::Dropped as usize, charged.dropped.thousandths());
        self.degraded(&charged.decision);
    }

    /// Counts a settlement as a charge or a refund.
    pub(super) fn settle(&self, settled: &Charged, settlement: &Settlement<'_>) {
        if settlement.actual > settlement.taken {
            self.charge(settled);
        } else {
            self.refund(&settled.decision);
        }
    }

    #[inline]
    fn degraded(&self, decision: &Decision) {
        if let Some(reason) = decision.degraded {
            self.0.add(Event::Degraded as usize + reason as usize, 1);
        }
    }

    pub(super) fn snapshot(&self, store: Option<StoreHealth>) -> Counters {
        let sum = |event: Event| self.0.sum(event as usize);
        Counters {
            allowed: sum(Event::Allowed),
            denied: sum(Event::Denied),
            outages: sum(Event::Outages),
            never_allowed: sum(Event::NeverAllowed),
            deny_cache_hits: sum(Event::DenyCacheHits),
            refunds: sum(Event::Refunds),
            charges: sum(Event::Charges),
            dropped: sum(Event::Dropped),
            degraded: std::array::from_fn(|reason| self.0.sum(Event::Degraded as usize + reason)),
            store,
        }
    }
}

/// Returns the event of a decision.
#[inline]
fn event(decision: &Decision) -> Event {
    match decision.kind {
        OutcomeKind::Allowed => Event::Allowed,
        OutcomeKind::Denied if !decision.has_figures() => Event::Outages,
        OutcomeKind::Denied => Event::Denied,
        OutcomeKind::Never => Event::NeverAllowed,
    }
}
