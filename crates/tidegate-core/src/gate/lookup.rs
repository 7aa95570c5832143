//! Looks subjects up: their policy, the rule that applies to the key, and the candidate.

use std::sync::Arc;

use smallvec::SmallVec;

use super::compiled::{CompiledPolicies, NamedPolicy, Rule, RuleAction};
use super::verdict::{PolicyDecision, PolicyOutcome};
use crate::cost::Cost;
use crate::decision::{Decision, LimitFigures};
use crate::key::Key;
use crate::limiter::{CheckError, Limiter, LimiterRequest, MAX_POLICIES};
use crate::store::Store;
use crate::subject::{EncodedKey, Subject, encoded};

/// A subject with its policy and rule.
pub(super) struct Lookup<'a, S: Store> {
    pub(super) policy: &'a NamedPolicy<S>,
    pub(super) rule: &'a Arc<Rule<S>>,
    pub(super) candidate: Option<&'a Arc<Rule<S>>>,
    pub(super) key: EncodedKey<'a>,
    pub(super) cost: Cost,
}

/// The subjects of one request.
pub(super) type Lookups<'a, S> = SmallVec<[Lookup<'a, S>; 2]>;

/// Looks up all subjects of a request.
pub(super) fn look_up<'a, S: Store>(
    policies: &'a CompiledPolicies<S>,
    subjects: &'a [Subject<'_>],
) -> Result<Lookups<'a, S>, CheckError> {
    if subjects.len() > MAX_POLICIES {
        let count = subjects.len();
        return Err(CheckError::TooManyPolicies { count });
    }
    let lookups: Lookups<'a, S> = subjects
        .iter()
        .map(|subject| Lookup::new(policies, subject))
        .collect::<Result<_, _>>()?;
    for (index, one) in lookups.iter().enumerate() {
        if lookups[..index].iter().any(|other| one.contradicts(other)) {
            let policy = one.policy.name().to_string();
            return Err(CheckError::TwoTiers { policy });
        }
    }
    Ok(lookups)
}

impl<'a, S: Store> Lookup<'a, S> {
    pub(super) fn new(
        policies: &'a CompiledPolicies<S>,
        subject: &'a Subject<'_>,
    ) -> Result<Self, CheckError> {
        let policy = policies.policy(subject.policy)?;
        let key = encoded(subject.tenant, &subject.key)?;
        let (rule, is_exception) = policy.rule(&key, subject.tier)?;
        let candidate = policy.candidate().filter(|_| !is_exception);
        Ok(Self {
            policy,
            rule,
            candidate,
            key,
            cost: subject.cost,
        })
    }

    /// Returns `true` if both have the same counter under different limits. Only one of the limits
    /// would be applied to their sum.
    fn contradicts(&self, other: &Self) -> bool {
        let (Some(one), Some(other_limiter)) = (self.enforced(), other.enforced()) else {
            return false;
        };
        one.namespace() == other_limiter.namespace()
            && one.policy() != other_limiter.policy()
            && self.key == other.key
    }

    /// Returns the limiter if it is enforced.
    pub(super) fn enforced(&self) -> Option<&Limiter<S>> {
        self.rule.limiter().filter(|_| !self.policy.is_shadow())
    }

    /// Returns the limiter if it is in shadow mode.
    pub(super) fn shadow(&self) -> Option<&Limiter<S>> {
        self.rule.limiter().filter(|_| self.policy.is_shadow())
    }

    /// Returns the limiter of the candidate.
    pub(super) fn candidate_limiter(&self) -> Option<&Limiter<S>> {
        self.candidate.and_then(|rule| rule.limiter())
    }

    /// Returns `true` if the key is blocked by an enforced policy.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.rule.action, RuleAction::Block) && !self.policy.is_shadow()
    }

    /// Returns the request for one of the limiters.
    pub(super) fn request<'b>(
        &'b self,
        limiter: &'b Limiter<S>,
    ) -> Result<LimiterRequest<'b, S>, CheckError> {
        Ok(LimiterRequest {
            limiter,
            key: Key::new(&self.key)?,
            cost: self.cost,
        })
    }

    /// Returns the policy's decision from those of its limiters.
    pub(super) fn policy_decision(
        &self,
        decision: Option<Decision>,
        limits: Vec<LimitFigures>,
        candidate: Option<Decision>,
    ) -> PolicyDecision {
        let outcome = match (&self.rule.action, decision) {
            (RuleAction::Limit(_), Some(decision)) => PolicyOutcome::Limited(decision),
            (RuleAction::Limit(_), None) => PolicyOutcome::NotAsked,
            (RuleAction::Allow, _) => PolicyOutcome::Unlimited,
            (RuleAction::Block, _) => PolicyOutcome::Blocked,
        };
        PolicyDecision::new(
            Arc::clone(&self.rule.label),
            outcome,
            self.policy.is_shadow(),
        )
        .with_details(limits, candidate)
    }
}
