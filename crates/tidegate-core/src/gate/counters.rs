//! Counters of the decisions of a named policy.

use super::verdict::{PolicyDecision, PolicyOutcome};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded, Outcome};
use crate::name::Name;
use crate::store::Charged;
use crate::striped::StripedCounters;

/// The decisions of a named policy so far.
///
/// This is a snapshot. Counts are since the gate was created, or since the policy was added again
/// after a set without it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyCounters {
    /// The name of the policy.
    pub policy: Name,
    /// Allowed requests, including degraded ones.
    pub allowed: u64,
    /// Allowed requests that left less than a fifth of the capacity.
    pub near_limit: u64,
    /// Denied requests, including degraded ones.
    pub denied: u64,
    /// Requests whose cost exceeded the capacity.
    pub never_allowed: u64,
    /// Requests of keys without a limit.
    pub unlimited: u64,
    /// Requests of blocked keys.
    pub blocked: u64,
    /// Requests that another policy denied, and that this one allowed or was not asked about.
    pub denied_by_others: u64,
    /// Requests that the policy would have denied if it were not in shadow mode.
    pub shadow_denied: u64,
    /// Requests that the candidate would have allowed.
    pub candidate_allowed: u64,
    /// Requests that the candidate would have denied.
    pub candidate_denied: u64,
    /// Allowed requests that were turned away because their delay in a queue was too long.
    pub turned_away: u64,
    /// Requests whose cost was given back, in part or in full.
    pub refunds: u64,
    /// Charges, and settlements at a higher cost.
    pub charges: u64,
    /// The units that charges dropped because they exceeded the debt, in thousandths.
    pub dropped: u64,
    /// Requests with a tier that the policy does not have.
    pub unknown_tiers: u64,
    /// Requests denied because the store was unavailable and the failure policy is
    /// [`Closed`](crate::FailurePolicy::Closed).
    pub outages: u64,
    /// Requests whose actual cost exceeded what was left of the limit.
    pub unsettled: u64,
    degraded: [u64; Degraded::ALL.len()],
}

impl PolicyCounters {
    /// Returns the number of degraded answers for one reason.
    #[must_use]
    pub fn degraded(&self, reason: Degraded) -> u64 {
        self.degraded.get(reason as usize).copied().unwrap_or(0)
    }
}

/// The events that are counted.
#[derive(Clone, Copy)]
enum Event {
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
    Charges,
    Dropped,
    Unsettled,
    UnknownTiers,
    Outages,
    /// The first degraded reason; the others follow.
    Degraded,
}

const EVENTS: usize = Event::Degraded as usize + Degraded::ALL.len();

/// The atomic counters of one policy.
#[derive(Default)]
pub(crate) struct PolicyTally(StripedCounters<EVENTS>);

impl PolicyTally {
    fn add(&self, event: Event) {
        self.0.add(event as usize, 1);
    }

    fn add_degraded(&self, reason: Degraded) {
        self.0.add(Event::Degraded as usize + reason as usize, 1);
    }

    /// Counts the decision of the policy on a request. `is_denied` is the verdict of all policies.
    pub(super) fn count(&self, policy: &PolicyDecision, is_denied: bool) {
        match policy.outcome() {
            PolicyOutcome::Unlimited => self.add(Event::Unlimited),
            PolicyOutcome::Blocked if policy.is_shadow() => self.add(Event::ShadowDenied),
            PolicyOutcome::Blocked => self.add(Event::Blocked),
            PolicyOutcome::NotAsked => self.add(Event::DeniedByOthers),
            PolicyOutcome::Limited(decision) => {
                self.count_decision(&decision, policy.is_shadow(), is_denied);
            }
        }
        let candidate = policy
            .candidate()
            .filter(|candidate| candidate.has_figures());
        if let Some(candidate) = candidate {
            self.add(if candidate.is_allowed() {
                Event::CandidateAllowed
            } else {
                Event::CandidateDenied
            });
        }
    }

    /// Counts the decision of an enforced policy in memory, if no other policy denies.
    #[inline]
    pub(super) fn count_enforced(&self, decision: &Decision) {
        self.count_decision(decision, false, false);
    }

    #[inline]
    fn count_decision(&self, decision: &Decision, is_shadow: bool, is_denied: bool) {
        // Without the store it is unknown whether a shadow would have denied.
        if let Some(reason) = decision
            .degraded()
            .filter(|_| is_shadow && !decision.has_figures())
        {
            return self.add_degraded(reason);
        }
        let event = match decision.outcome() {
            Outcome::Allowed { .. } if is_denied && !is_shadow => Event::DeniedByOthers,
            Outcome::Allowed { .. } => Event::Allowed,
            _ if is_shadow => Event::ShadowDenied,
            Outcome::Denied { .. } if !decision.has_figures() => Event::Outages,
            Outcome::Denied { .. } => Event::Denied,
            Outcome::NeverAllowed => Event::NeverAllowed,
        };
        self.add(event);
        let is_near_limit = decision.remaining() * 5 < decision.limit();
        match decision.degraded() {
            Some(reason) => self.add_degraded(reason),
            None if matches!(event, Event::Allowed) && is_near_limit => self.add(Event::NearLimit),
            None => {}
        }
    }

    pub(super) fn count_refund(&self) {
        self.add(Event::Refunds);
    }

    pub(super) fn count_turned_away(&self) {
        self.add(Event::TurnedAway);
    }

    /// Counts a charge, and what it dropped.
    pub(super) fn count_charge(&self, charged: &Charged) {
        self.add(Event::Charges);
        if charged.dropped > Cost::ZERO {
            self.add(Event::Unsettled);
            self.0
                .add(Event::Dropped as usize, charged.dropped.thousandths());
        }
    }

    /// Counts a settlement: a charge if the actual cost was higher, and otherwise a refund.
    pub(super) fn count_settlement(&self, settled: &Charged, is_higher: bool) {
        if is_higher {
            self.count_charge(settled);
        } else {
            self.count_refund();
        }
    }

    pub(super) fn count_unknown_tier(&self) {
        self.add(Event::UnknownTiers);
    }

    pub(super) fn snapshot(&self, policy: Name) -> PolicyCounters {
        let sum = |event: Event| self.0.sum(event as usize);
        PolicyCounters {
            policy,
            allowed: sum(Event::Allowed),
            near_limit: sum(Event::NearLimit),
            denied: sum(Event::Denied),
            never_allowed: sum(Event::NeverAllowed),
            unlimited: sum(Event::Unlimited),
            blocked: sum(Event::Blocked),
            denied_by_others: sum(Event::DeniedByOthers),
            shadow_denied: sum(Event::ShadowDenied),
            candidate_allowed: sum(Event::CandidateAllowed),
            candidate_denied: sum(Event::CandidateDenied),
            turned_away: sum(Event::TurnedAway),
            refunds: sum(Event::Refunds),
            charges: sum(Event::Charges),
            dropped: sum(Event::Dropped),
            unknown_tiers: sum(Event::UnknownTiers),
            outages: sum(Event::Outages),
            unsettled: sum(Event::Unsettled),
            degraded: std::array::from_fn(|reason| self.0.sum(Event::Degraded as usize + reason)),
        }
    }
}
