//! What a gate answers.

use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::{Decision, Degraded, Outcome};
use crate::name::Name;
use crate::policy::Policy;

/// The answer to a request that one policy or several were asked about: it may go on if none that is enforced denies it.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub(super) rulings: SmallVec<[Ruling; 1]>,
}

/// What one named policy says of a request.
#[derive(Clone, Debug)]
pub struct Ruling {
    pub(super) label: std::sync::Arc<Label>,
    pub(super) effect: Effect,
    pub(super) is_shadow: bool,
    pub(super) candidate: Option<Box<Decision>>,
}

/// Which policy of the book was applied.
#[derive(Debug)]
pub struct Label {
    name: Name,
    tier: Option<Name>,
    policy: Option<Policy>,
}

/// What a policy does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is held to limits, with this result.
    Limited(Decision),
    /// The key has no limit.
    Unlimited,
    /// The key may do nothing.
    Blocked,
    /// It was not asked, because another policy denies for certain.
    NotAsked,
}

impl Label {
    /// Of a policy by its name, a tier of it, and the limits that hold there.
    #[must_use]
    pub fn new(name: Name, tier: Option<Name>, policy: Option<Policy>) -> Self {
        Self { name, tier, policy }
    }

    /// The policy's name in the book.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The tier that was applied; `None` for the default and for exceptions.
    #[must_use]
    pub fn tier(&self) -> Option<&Name> {
        self.tier.as_ref()
    }

    /// The limits that were applied; `None` for a key that has none or is blocked.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }
}

impl Ruling {
    /// Which policy it is of.
    #[must_use]
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// The same, shared.
    #[must_use]
    pub fn shared_label(&self) -> std::sync::Arc<Label> {
        std::sync::Arc::clone(&self.label)
    }

    /// What it says.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// The decision, where the key is held to limits and was asked about.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.effect {
            Effect::Limited(decision) => Some(decision),
            Effect::Unlimited | Effect::Blocked | Effect::NotAsked => None,
        }
    }

    /// Whether it is counted and reported only.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Whether it would deny, were it enforced.
    #[must_use]
    pub fn would_deny(&self) -> bool {
        match &self.effect {
            Effect::Limited(decision) => decision.is_denied(),
            Effect::Blocked => true,
            Effect::Unlimited | Effect::NotAsked => false,
        }
    }

    /// Whether it denies.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        !self.is_shadow && self.would_deny()
    }

    /// What the policy's candidate would have decided.
    #[must_use]
    pub fn candidate(&self) -> Option<&Decision> {
        self.candidate.as_deref()
    }

    /// How long it denies for; never is longest.
    fn denied_for(&self) -> Option<Duration> {
        match self.effect {
            Effect::Limited(decision) => match decision.outcome() {
                Outcome::Denied { retry_after } => Some(retry_after),
                Outcome::NeverAllowed => Some(Duration::MAX),
                Outcome::Allowed { .. } => None,
            },
            Effect::Blocked => Some(Duration::MAX),
            Effect::Unlimited | Effect::NotAsked => None,
        }
    }
}

impl Verdict {
    /// Of one decision that was made beside a gate.
    #[must_use]
    pub fn of_one(label: std::sync::Arc<Label>, decision: Decision) -> Self {
        let ruling = Ruling {
            label,
            effect: Effect::Limited(decision),
            is_shadow: false,
            candidate: None,
        };
        Self {
            rulings: SmallVec::from_buf([ruling]),
        }
    }

    /// What each policy says, in the order that they were asked in.
    #[must_use]
    pub fn rulings(&self) -> &[Ruling] {
        &self.rulings
    }

    /// Whether the request may go on.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        !self.is_denied()
    }

    /// Whether the request may not go on, now or ever.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.rulings.iter().any(Ruling::is_denied)
    }

    /// Of the policies that deny, the one that does so for longest; the first on a tie.
    #[must_use]
    pub fn denial(&self) -> Option<&Ruling> {
        let mut denials = self.rulings.iter().filter(|ruling| ruling.is_denied());
        let first = denials.next()?;
        Some(denials.fold(first, |longest, next| {
            if next.denied_for() > longest.denied_for() {
                next
            } else {
                longest
            }
        }))
    }

    /// The policies that deny.
    pub fn denials(&self) -> impl Iterator<Item = &Ruling> {
        self.rulings.iter().filter(|ruling| ruling.is_denied())
    }

    /// The shortest wait after which this same request is allowed by all, if nothing else comes; `None` if it was allowed
    /// or never will be.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.denial()?
            .denied_for()
            .filter(|wait| *wait < Duration::MAX)
    }

    /// Of the policies that are enforced, the one with the least remaining; the first on a tie. On a denial, the one that
    /// denies for longest.
    #[must_use]
    pub fn nearest(&self) -> Option<&Ruling> {
        if let Some(denial) = self.denial() {
            return Some(denial);
        }
        let left = |ruling: &&Ruling| ruling.decision().map(Decision::remaining);
        self.rulings
            .iter()
            .filter(|ruling| !ruling.is_shadow && ruling.decision().is_some())
            .min_by_key(left)
    }

    /// How many requests of cost 1 would be allowed right now, after this one; `None` where nothing is limited.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        Some(self.nearest()?.decision()?.remaining())
    }

    /// Of the policies that are enforced, the one in whose queue the request waits for longest.
    #[must_use]
    pub fn longest_delayed(&self) -> Option<&Ruling> {
        let delay = |ruling: &&Ruling| ruling.decision().map(Decision::delay);
        self.rulings
            .iter()
            .filter(|ruling| !ruling.is_shadow)
            .max_by_key(delay)
    }

    /// How long the request waits in the queues of the leaky buckets that admitted it.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let enforced = self.rulings.iter().filter(|ruling| !ruling.is_shadow);
        enforced
            .filter_map(Ruling::decision)
            .map(Decision::delay)
            .max()
            .unwrap_or(Duration::ZERO)
    }

    /// Why an answer was given without the store, if one that is enforced was.
    #[must_use]
    pub fn degraded(&self) -> Option<Degraded> {
        self.rulings
            .iter()
            .filter(|ruling| !ruling.is_shadow)
            .find_map(|ruling| ruling.decision()?.degraded())
    }
}
