//! Counts of what a policy of the book answered.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::verdict::{Effect, Ruling};
use crate::decision::{Decision, Degraded, Outcome};
use crate::name::Name;

/// What a policy answered. A snapshot; counts are since the gate was made, or since a book had the policy again that others had not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyCounters {
    /// The policy's name.
    pub policy: Name,
    /// Requests that it allowed, degraded ones among them.
    pub allowed: u64,
    /// Of those, the ones that left less than a fifth of the capacity.
    pub near_limit: u64,
    /// Requests that it denied, degraded ones among them.
    pub denied: u64,
    /// Requests that cost more than the whole capacity.
    pub never_allowed: u64,
    /// Requests of keys that have no limit.
    pub unlimited: u64,
    /// Requests of keys that are blocked.
    pub blocked: u64,
    /// Requests that it would have allowed, or was not asked about, because another policy denied them.
    pub denied_by_others: u64,
    /// Requests that it would have denied, had it not been in shadow.
    pub shadow_denied: u64,
    /// Requests that its candidate would have allowed.
    pub candidate_allowed: u64,
    /// Requests that its candidate would have denied.
    pub candidate_denied: u64,
    /// Of the allowed requests, those that would have had to wait for too long in a queue, and were turned away.
    pub turned_away: u64,
    /// Requests whose cost was given back, in part or whole.
    pub refunds: u64,
    /// Requests that cost more in the end than the limit had left to take.
    pub unsettled: u64,
    degraded: [u64; Degraded::ALL.len()],
}

impl PolicyCounters {
    /// Answers given without the store, for this reason.
    #[must_use]
    pub fn degraded(&self, reason: Degraded) -> u64 {
        self.degraded.get(reason as usize).copied().unwrap_or(0)
    }
}

/// What is counted, each in a place of its own.
#[derive(Clone, Copy)]
enum Counted {
    Allowed,
    NearLimit,
    Denied,
    NeverAllowed,
    Unlimited,
    Blocked,
    DeniedByOthers,
    ShadowDenied,
    CandidateAllowed,
    CandidateDenied,
    TurnedAway,
    Refunds,
    Unsettled,
    /// And one for each other reason after it.
    Degraded,
}

const COUNTED: usize = Counted::Degraded as usize + Degraded::ALL.len();

/// Threads that count at the same time do so in places of their own.
const STRIPES: usize = 8;

#[derive(Default)]
pub(crate) struct Tally {
    stripes: [Stripe; STRIPES],
}

/// On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Stripe([AtomicU64; COUNTED]);

impl Tally {
    fn count(&self, what: Counted, beyond: usize) {
        if let Some(count) = self
            .stripes
            .get(stripe())
            .and_then(|stripe| stripe.0.get(what as usize + beyond))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn ruling(&self, ruling: &Ruling, is_denied: bool) {
        match ruling.effect() {
            Effect::Unlimited => self.count(Counted::Unlimited, 0),
            Effect::Blocked if ruling.is_shadow() => self.count(Counted::ShadowDenied, 0),
            Effect::Blocked => self.count(Counted::Blocked, 0),
            Effect::NotAsked => self.count(Counted::DeniedByOthers, 0),
            Effect::Limited(decision) => self.decision(&decision, ruling.is_shadow(), is_denied),
        }
        if let Some(candidate) = ruling
            .candidate()
            .filter(|candidate| candidate.has_figures())
        {
            let what = if candidate.is_allowed() {
                Counted::CandidateAllowed
            } else {
                Counted::CandidateDenied
            };
            self.count(what, 0);
        }
    }

    fn decision(&self, decision: &Decision, is_shadow: bool, is_denied: bool) {
        // What would have been denied, nobody knows without the store.
        if let Some(reason) = decision
            .degraded()
            .filter(|_| is_shadow && !decision.has_figures())
        {
            return self.count(Counted::Degraded, reason as usize);
        }
        let what = match decision.outcome() {
            Outcome::Allowed { .. } if is_denied && !is_shadow => Counted::DeniedByOthers,
            Outcome::Allowed { .. } => Counted::Allowed,
            _ if is_shadow => Counted::ShadowDenied,
            Outcome::Denied { .. } => Counted::Denied,
            Outcome::NeverAllowed => Counted::NeverAllowed,
        };
        self.count(what, 0);
        match decision.degraded() {
            Some(reason) => self.count(Counted::Degraded, reason as usize),
            None if matches!(what, Counted::Allowed)
                && decision.remaining() * 5 < decision.limit() =>
            {
                self.count(Counted::NearLimit, 0);
            }
            None => {}
        }
    }

    pub(super) fn refund(&self) {
        self.count(Counted::Refunds, 0);
    }

    pub(super) fn turned_away(&self) {
        self.count(Counted::TurnedAway, 0);
    }

    pub(super) fn unsettled(&self) {
        self.count(Counted::Unsettled, 0);
    }

    fn sum(&self, what: Counted, beyond: usize) -> u64 {
        let counts = self
            .stripes
            .iter()
            .filter_map(|stripe| stripe.0.get(what as usize + beyond));
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn snapshot(&self, policy: Name) -> PolicyCounters {
        let sum = |what| self.sum(what, 0);
        PolicyCounters {
            policy,
            allowed: sum(Counted::Allowed),
            near_limit: sum(Counted::NearLimit),
            denied: sum(Counted::Denied),
            never_allowed: sum(Counted::NeverAllowed),
            unlimited: sum(Counted::Unlimited),
            blocked: sum(Counted::Blocked),
            denied_by_others: sum(Counted::DeniedByOthers),
            shadow_denied: sum(Counted::ShadowDenied),
            candidate_allowed: sum(Counted::CandidateAllowed),
            candidate_denied: sum(Counted::CandidateDenied),
            turned_away: sum(Counted::TurnedAway),
            refunds: sum(Counted::Refunds),
            unsettled: sum(Counted::Unsettled),
            degraded: std::array::from_fn(|reason| self.sum(Counted::Degraded, reason)),
        }
    }
}

/// The place of this thread.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static OWN: Cell<usize> = const { Cell::new(usize::MAX) } }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        own.get()
    })
}
