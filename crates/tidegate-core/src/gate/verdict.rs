//! Verdicts: the result of a gate's check.

use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::{Decision, Degraded, LimitFigures, Outcome};
use crate::denied::{DenialReason, Denied};
use crate::name::Name;
use crate::policy::{Limit, Policy};

/// The result of a request under one or more policies. It may proceed if no enforced policy denies
/// it.
///
/// # Examples
///
/// ```
/// use tidegate::{PolicySet, Gate, Rules};
///
/// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
/// gate.check("api", "user:42").now()?;
/// let verdict = gate.check("api", "user:42").now()?;
/// assert!(verdict.is_denied());
/// assert_eq!(verdict.denial().unwrap().label().name().as_str(), "api");
/// assert_eq!(verdict.retry_after().unwrap().as_secs_f64().ceil(), 60.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a denied request must not proceed: use `or_deny()?` or `is_allowed`"]
#[derive(Clone, Debug)]
pub struct Verdict {
    pub(super) decisions: SmallVec<[PolicyDecision; 1]>,
}

/// The verdict of an allowed request, from [`Verdict::or_deny`]. It dereferences to the verdict.
#[derive(Clone, Debug)]
pub struct AllowedVerdict(Verdict);

impl std::ops::Deref for AllowedVerdict {
    type Target = Verdict;

    fn deref(&self) -> &Verdict {
        &self.0
    }
}

/// The decision of one named policy.
#[derive(Clone, Debug)]
pub struct PolicyDecision {
    pub(super) label: std::sync::Arc<PolicyLabel>,
    pub(super) outcome: PolicyOutcome,
    pub(super) is_shadow: bool,
    /// Absent from most decisions, which are moved often.
    details: Option<Box<Details>>,
}

/// The parts of a decision that few requests have.
#[derive(Clone, Debug)]
struct Details {
    limits: Vec<LimitFigures>,
    candidate: Option<Decision>,
}

/// The policy, tier and limits that were applied.
#[derive(Debug)]
pub struct PolicyLabel {
    name: Name,
    tier: Option<Name>,
    policy: Option<Policy>,
}

/// The outcome of one policy.
///
/// # Examples
///
/// ```
/// use tidegate::{Exception, Gate, PolicyOutcome, PolicySet, Rules};
///
/// let rules = Rules::new("5/minute".parse()?).exception("mallory", Exception::Blocked)?;
/// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
/// let verdict = gate.check("api", "mallory").now()?;
/// assert!(matches!(verdict.decisions()[0].outcome(), PolicyOutcome::Blocked));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyOutcome {
    /// The key is limited, with this decision.
    Limited(Decision),
    /// The key has no limit.
    Unlimited,
    /// The key is blocked.
    Blocked,
    /// The policy was not asked, because another one denied for certain.
    NotAsked,
}

impl PolicyLabel {
    /// Creates a label from a policy's name, its tier and the limits that apply.
    #[must_use]
    pub fn new(name: Name, tier: Option<Name>, policy: Option<Policy>) -> Self {
        Self { name, tier, policy }
    }

    /// Returns the policy's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the tier that was applied, or `None` for the default and for exceptions.
    #[must_use]
    pub fn tier(&self) -> Option<&Name> {
        self.tier.as_ref()
    }

    /// Returns the limits that were applied, or `None` if the key is unlimited or blocked.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }
}

impl PolicyDecision {
    /// Returns the decision of an enforced policy without a candidate.
    #[inline]
    pub(super) fn limited(label: &std::sync::Arc<PolicyLabel>, decision: Decision) -> Self {
        Self::new(
            std::sync::Arc::clone(label),
            PolicyOutcome::Limited(decision),
            false,
        )
    }

    #[inline]
    pub(super) fn new(
        label: std::sync::Arc<PolicyLabel>,
        outcome: PolicyOutcome,
        is_shadow: bool,
    ) -> Self {
        Self {
            label,
            outcome,
            is_shadow,
            details: None,
        }
    }

    /// Adds the figures of every limit, and the decision of the candidate.
    pub(super) fn with_details(
        mut self,
        limits: Vec<LimitFigures>,
        candidate: Option<Decision>,
    ) -> Self {
        if !limits.is_empty() || candidate.is_some() {
            self.details = Some(Box::new(Details { limits, candidate }));
        }
        self
    }

    /// Returns the policy that decided.
    #[must_use]
    pub fn label(&self) -> &PolicyLabel {
        &self.label
    }

    /// Returns the label for sharing.
    #[must_use]
    pub fn shared_label(&self) -> std::sync::Arc<PolicyLabel> {
        std::sync::Arc::clone(&self.label)
    }

    /// Returns the outcome.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicyOutcome, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// let verdict = gate.check("api", "user:42").now()?;
    /// assert!(matches!(verdict.decisions()[0].outcome(), PolicyOutcome::Limited(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn outcome(&self) -> PolicyOutcome {
        self.outcome
    }

    /// Returns the decision, if the key is limited and the policy was asked.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.outcome {
            PolicyOutcome::Limited(decision) => Some(decision),
            PolicyOutcome::Unlimited | PolicyOutcome::Blocked | PolicyOutcome::NotAsked => None,
        }
    }

    /// Returns `true` if the policy is in shadow mode.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns `true` if the policy denies the request or, in shadow mode, would deny it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("1/minute".parse()?).shadow();
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// gate.check("api", "user:42").now()?;
    /// let verdict = gate.check("api", "user:42").now()?;
    /// assert!(verdict.is_allowed() && verdict.decisions()[0].would_deny());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn would_deny(&self) -> bool {
        match &self.outcome {
            PolicyOutcome::Limited(decision) => decision.is_denied(),
            PolicyOutcome::Blocked => true,
            PolicyOutcome::Unlimited | PolicyOutcome::NotAsked => false,
        }
    }

    /// Returns `true` if the policy denies the request.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        !self.is_shadow && self.would_deny()
    }

    /// Returns the figures of every limit, in the policy's order.
    ///
    /// They are there if they were asked for ([`Gate::decide_with_limits`](crate::Gate),
    /// `with_limits`, a peek) and the policy has several limits. Otherwise this is empty, and
    /// [`decision`](Self::decision) has the figures of the only limit.
    #[must_use]
    pub fn limits(&self) -> &[LimitFigures] {
        match &self.details {
            Some(details) => &details.limits,
            None => &[],
        }
    }

    /// Returns the limit that denied the request or, if it was allowed, the one with the least
    /// remaining. Returns `None` for a key with an exception that is not a policy.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/second; fixed_window 2/day".parse()?);
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// let verdict = gate.check("api", "user:42").now()?;
    /// assert_eq!(verdict.decisions()[0].limit().unwrap().to_string(), "fixed_window 2/day");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn limit(&self) -> Option<&Limit> {
        let index = self.decision()?.limit_index();
        self.label.policy()?.limits().get(index)
    }

    /// Returns the reason for a denial, or `None` if the policy allows the request.
    #[must_use]
    pub fn reason(&self) -> Option<DenialReason> {
        match &self.outcome {
            PolicyOutcome::Blocked => Some(DenialReason::Blocked),
            PolicyOutcome::Limited(decision) => decision.reason(),
            PolicyOutcome::Unlimited | PolicyOutcome::NotAsked => None,
        }
    }

    /// Returns the decision of the policy's candidate.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("100/minute".parse()?).candidate("1/minute".parse()?);
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// gate.check("api", "user:42").now()?;
    /// let verdict = gate.check("api", "user:42").now()?;
    /// let candidate = verdict.decisions()[0].candidate();
    /// assert!(verdict.is_allowed() && candidate.is_some_and(|decision| decision.is_denied()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn candidate(&self) -> Option<&Decision> {
        self.details.as_ref()?.candidate.as_ref()
    }

    /// Returns how long the policy denies; never is longest.
    fn denied_for(&self) -> Option<Duration> {
        match self.outcome {
            PolicyOutcome::Limited(decision) => match decision.outcome() {
                Outcome::Denied { retry_after } => Some(retry_after),
                Outcome::NeverAllowed => Some(Duration::MAX),
                Outcome::Allowed { .. } => None,
            },
            PolicyOutcome::Blocked => Some(Duration::MAX),
            PolicyOutcome::Unlimited | PolicyOutcome::NotAsked => None,
        }
    }
}

impl Verdict {
    /// Creates a verdict from a decision that was made outside a gate.
    pub fn from_decision(label: std::sync::Arc<PolicyLabel>, decision: Decision) -> Self {
        let decision = PolicyDecision::new(label, PolicyOutcome::Limited(decision), false);
        Self {
            decisions: SmallVec::from_buf([decision]),
        }
    }

    /// Adds the figures of every limit to a verdict of [`from_decision`](Self::from_decision).
    #[doc(hidden)] // For Tidegate's own servers.
    pub fn with_limits(mut self, limits: Vec<LimitFigures>) -> Self {
        if let Some(decision) = self.decisions.pop() {
            self.decisions.push(decision.with_details(limits, None));
        }
        self
    }

    /// Returns the decision of each policy, in the order of the request.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// let verdict = gate.check("api", "user:42").now()?;
    /// assert_eq!(verdict.decisions()[0].label().name().as_str(), "api");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn decisions(&self) -> &[PolicyDecision] {
        &self.decisions
    }

    /// Returns `true` if the request may proceed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// assert!(gate.check("api", "user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        !self.is_denied()
    }

    /// Returns `true` if the request must not proceed.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.decisions.iter().any(PolicyDecision::is_denied)
    }

    /// Returns the policy that denies for the longest time, the first on a tie.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// gate.check("api", "user:42").now()?;
    /// let verdict = gate.check("api", "user:42").now()?;
    /// let name = verdict.denial().map(|denial| denial.label().name().as_str());
    /// assert_eq!(name, Some("api"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn denial(&self) -> Option<&PolicyDecision> {
        let mut denials = self
            .decisions
            .iter()
            .filter(|decision| decision.is_denied());
        let first = denials.next()?;
        Some(denials.fold(first, |longest, next| {
            if next.denied_for() > longest.denied_for() {
                next
            } else {
                longest
            }
        }))
    }

    /// Returns the reason for the denial, or `None` if the request may proceed.
    ///
    /// [`denial`](Self::denial) names the policy, and [`PolicyDecision::limit`] its limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{DenialReason, Exception, Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?).exception("mallory", Exception::Blocked)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// let verdict = gate.check("api", "mallory").now()?;
    /// assert_eq!(verdict.reason(), Some(DenialReason::Blocked));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn reason(&self) -> Option<DenialReason> {
        self.denial()?.reason()
    }

    /// Returns the verdict if the request may proceed, and otherwise an error with the figures. The
    /// verdict of an allowed request may be ignored.
    ///
    /// # Errors
    ///
    /// Returns [`Denied`] if the request must not proceed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// gate.check("api", "user:42").now()?.or_deny()?;
    /// assert!(gate.check("api", "user:42").now()?.or_deny().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn or_deny(self) -> Result<AllowedVerdict, Denied> {
        match self.denial().map(|denial| denial.decision().copied()) {
            None => Ok(AllowedVerdict(self)),
            Some(Some(decision)) => Err(Denied::of(decision)),
            Some(None) => Err(Denied::blocked()),
        }
    }

    /// Returns the policies that deny.
    pub fn denials(&self) -> impl Iterator<Item = &PolicyDecision> {
        self.decisions
            .iter()
            .filter(|decision| decision.is_denied())
    }

    /// Returns the shortest wait after which all policies allow the same request if nothing else
    /// happens. Returns `None` if it was allowed, or can never be allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// assert_eq!(gate.check("api", "user:42").now()?.retry_after(), None);
    /// assert!(gate.check("api", "user:42").now()?.retry_after().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.denial()?
            .denied_for()
            .filter(|wait| *wait < Duration::MAX)
    }

    /// Returns the policy to report: the one that denies for the longest time, or else the enforced
    /// policy with the least remaining; the first on a tie.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// let verdict = gate.check("api", "user:42").now()?;
    /// let decision = verdict.nearest().and_then(|nearest| nearest.decision());
    /// assert_eq!(decision.map(|decision| decision.limit()), Some(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn nearest(&self) -> Option<&PolicyDecision> {
        if let Some(denial) = self.denial() {
            return Some(denial);
        }
        let left = |decision: &&PolicyDecision| decision.decision().map(Decision::remaining);
        self.decisions
            .iter()
            .filter(|decision| !decision.is_shadow && decision.decision().is_some())
            .min_by_key(left)
    }

    /// Returns the number of requests of cost 1 that would be allowed right now, after this one.
    /// Returns `None` if nothing limits the key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Exception, Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?).exception("admin", Exception::Unlimited)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// assert_eq!(gate.check("api", "user:42").now()?.remaining(), Some(4));
    /// assert_eq!(gate.check("api", "admin").now()?.remaining(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        Some(self.nearest()?.decision()?.remaining())
    }

    /// Returns the enforced policy in whose queue the request waits the longest.
    #[must_use]
    pub fn longest_delayed(&self) -> Option<&PolicyDecision> {
        let delay = |decision: &&PolicyDecision| decision.decision().map(Decision::delay);
        self.decisions
            .iter()
            .filter(|decision| !decision.is_shadow)
            .max_by_key(delay)
    }

    /// Returns how long the request waits in the queues of the leaky buckets that admitted it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("leaky_bucket 1/day burst=5".parse()?);
    /// let gate = Gate::memory(PolicySet::new().with("jobs", rules)?);
    /// assert_eq!(gate.check("jobs", "export").now()?.delay(), Duration::ZERO);
    /// assert!(gate.check("jobs", "export").now()?.delay() > Duration::ZERO);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn delay(&self) -> Duration {
        let enforced = self.decisions.iter().filter(|decision| !decision.is_shadow);
        enforced
            .filter_map(PolicyDecision::decision)
            .map(Decision::delay)
            .max()
            .unwrap_or(Duration::ZERO)
    }

    /// Returns the reason if the failure policy answered for an enforced policy.
    #[must_use]
    pub fn degraded(&self) -> Option<Degraded> {
        self.decisions
            .iter()
            .filter(|decision| !decision.is_shadow)
            .find_map(|decision| decision.decision()?.degraded())
    }
}
