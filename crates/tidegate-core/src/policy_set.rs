//! Named policies with tiers and exceptions. This is plain data; a [`Gate`](crate::Gate) enforces
//! it on a store.

use std::collections::{BTreeMap, HashMap};

use crate::key::{EmptyKey, IntoKey};
use crate::limiter::FailurePolicy;
use crate::name::{Name, NameError};
use crate::policy::Policy;
use crate::subject::encoded;

/// A set of named policies, each with tiers and exceptions.
///
/// # Examples
///
/// ```
/// use tidegate::{PolicySet, Exception, Rules};
///
/// let api = Rules::new("100/minute".parse()?)
///     .tier("premium", "1_000/minute".parse()?)?
///     .exception("user:7", Exception::Unlimited)?;
/// let login = Rules::new("sliding_window_log 5/hour".parse()?);
/// let policies = PolicySet::new().with("api", api)?.with("login", login)?;
/// assert_eq!(policies.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["api", "login"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySet {
    policies: BTreeMap<Name, Rules>,
}

/// The error for an invalid set of policies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicySetError {
    /// A name contains invalid characters.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two policies have the same name.
    #[error("there are two policies `{0}`: expected one of each name")]
    DuplicatePolicy(Name),
    /// Two tiers of a policy have the same name.
    #[error("there are two tiers `{0}` in a policy: expected one of each name")]
    DuplicateTier(Name),
    /// Two exceptions of a policy have the same key.
    #[error("there are two exceptions for one key in a policy: expected one")]
    DuplicateException,
    /// An exception has an empty key.
    #[error(transparent)]
    EmptyKey(#[from] EmptyKey),
    /// A policy that is in use is missing from the set that replaces it.
    #[error("policy `{0}` is in use and missing from the new set: expected it to stay")]
    PolicyInUse(Name),
}

impl PolicySet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a policy.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is invalid or already taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{PolicySet, Rules};
    ///
    /// let policies = PolicySet::new().with("api", Rules::new("100/minute".parse()?))?;
    /// // A name occurs once.
    /// assert!(policies.with("api", Rules::new("5/minute".parse()?)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with(mut self, name: &str, rules: Rules) -> Result<Self, PolicySetError> {
        let name = Name::new(name)?;
        if self.policies.contains_key(&name) {
            return Err(PolicySetError::DuplicatePolicy(name));
        }
        self.policies.insert(name, rules);
        Ok(self)
    }

    /// Returns the names of the policies, sorted.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.policies.keys()
    }

    /// Returns the rules of a policy, or `None` if there is no such policy.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{PolicySet, Rules};
    ///
    /// let policies = PolicySet::new().with("api", Rules::new("100/minute".parse()?))?;
    /// let limits = policies.rules("api").map(|rules| rules.default_policy().to_string());
    /// assert_eq!(limits.as_deref(), Some("token_bucket 100/minute"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rules(&self, name: &str) -> Option<&Rules> {
        self.policies.get(name)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Name, &Rules)> {
        self.policies.iter()
    }
}

/// The limits of one named policy: default, tiers, exceptions and options.
///
/// # Examples
///
/// ```
/// use tidegate::{Exception, FailurePolicy, Rules};
///
/// let rules = Rules::new("100/minute".parse()?)
///     .tier("premium", "1_000/minute".parse()?)?
///     .exception("user:13", Exception::Blocked)?
///     .candidate("50/minute".parse()?)
///     .failure_policy(FailurePolicy::Closed);
/// assert_eq!(rules.tiers().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rules {
    pub(crate) default: Policy,
    pub(crate) tiers: BTreeMap<Name, Policy>,
    /// Exceptions by stored key, which includes the tenant.
    pub(crate) exceptions: HashMap<Box<[u8]>, Exception>,
    pub(crate) has_shared_tiers: bool,
    pub(crate) is_shadow: bool,
    pub(crate) rejects_unknown_tiers: bool,
    pub(crate) candidate: Option<Policy>,
    pub(crate) failure: Option<FailurePolicy>,
    pub(crate) has_leases: bool,
}

/// The rule for one key, whatever its tier.
///
/// # Examples
///
/// ```
/// use tidegate::{Exception, Gate, PolicySet, Rules};
///
/// let rules = Rules::new("5/minute".parse()?)
///     .exception("status-page", Exception::Unlimited)?
///     .exception("mallory", Exception::Blocked)?
///     .exception("partner", Exception::Policy("500/minute".parse()?))?;
/// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
/// assert!(gate.check("api", "mallory").now()?.is_denied());
/// assert_eq!(gate.check("api", "partner").now()?.remaining(), Some(499));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exception {
    /// The key has its own policy.
    Policy(Policy),
    /// Every request is allowed, and nothing is counted.
    Unlimited,
    /// Every request is denied.
    Blocked,
}

impl Rules {
    /// Creates rules with a default policy, which applies to every key without a tier or an
    /// exception.
    pub fn new(default: Policy) -> Self {
        Self {
            default,
            tiers: BTreeMap::new(),
            exceptions: HashMap::new(),
            has_shared_tiers: false,
            is_shadow: false,
            rejects_unknown_tiers: false,
            candidate: None,
            failure: None,
            has_leases: true,
        }
    }

    /// Adds a tier: keys of this tier are limited by `policy`. An unknown tier uses the default
    /// policy.
    ///
    /// Each tier counts separately, so a key that moves to another tier has that tier's whole limit
    /// at once. [`shared_tiers`](Self::shared_tiers) carries usage over instead.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is invalid or already taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?).tier("gold", "50/minute".parse()?)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// assert_eq!(gate.check("api", "user:42").tier("gold").now()?.remaining(), Some(49));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier(mut self, name: &str, policy: Policy) -> Result<Self, PolicySetError> {
        let name = Name::new(name)?;
        if self.tiers.contains_key(&name) {
            return Err(PolicySetError::DuplicateTier(name));
        }
        self.tiers.insert(name, policy);
        Ok(self)
    }

    /// Carries usage over when a key changes tier, for windows and logs of the same algorithm and
    /// period. A bucket with another rate or burst is another bucket and starts full.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("fixed_window 5/day".parse()?)
    ///     .tier("gold", "fixed_window 50/day".parse()?)?
    ///     .shared_tiers();
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// gate.check("api", "user:42").cost(5).now()?;
    /// // The key keeps its usage.
    /// assert_eq!(gate.check("api", "user:42").tier("gold").now()?.remaining(), Some(44));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared_tiers(mut self) -> Self {
        self.has_shared_tiers = true;
        self
    }

    /// Rejects requests with a tier that the policy does not have. By default, they use the default
    /// limits and are [counted](crate::PolicyCounters::unknown_tiers).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?)
    ///     .tier("gold", "50/minute".parse()?)?
    ///     .reject_unknown_tiers();
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// let error = gate.check("api", "user:42").tier("iron").now().unwrap_err();
    /// assert_eq!(error.to_string(), "unknown tier `iron` of policy `api`: expected one of gold");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reject_unknown_tiers(mut self) -> Self {
        self.rejects_unknown_tiers = true;
        self
    }

    /// Adds an exception for one key, whatever its tier.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or already has an exception.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Exception, Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?).exception("mallory", Exception::Blocked)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// assert!(gate.check("api", "mallory").now()?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exception<'a>(
        self,
        key: impl IntoKey<'a>,
        exception: Exception,
    ) -> Result<Self, PolicySetError> {
        let key = encoded(None, &key.into_key())?.to_vec();
        self.except(key.into(), exception)
    }

    /// Adds an exception for one key of one tenant.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or already has an exception.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Exception, Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?).tenant_exception("acme", "ann", Exception::Blocked)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// assert!(gate.check("api", "ann").tenant("acme").now()?.is_denied());
    /// assert!(gate.check("api", "ann").tenant("initech").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tenant_exception<'a>(
        self,
        tenant: &str,
        key: impl IntoKey<'a>,
        exception: Exception,
    ) -> Result<Self, PolicySetError> {
        let key = encoded(Some(tenant), &key.into_key())?.to_vec();
        self.except(key.into(), exception)
    }

    fn except(mut self, key: Box<[u8]>, exception: Exception) -> Result<Self, PolicySetError> {
        if self.exceptions.contains_key(&key) {
            return Err(PolicySetError::DuplicateException);
        }
        self.exceptions.insert(key, exception);
        Ok(self)
    }

    /// Puts the policy in shadow mode: it counts and reports, and never denies.
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
    pub fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Adds a candidate: a policy that counts the same requests and reports its decisions, but is
    /// not enforced.
    ///
    /// Use it to try a policy before it replaces the current one. It has its own counters and
    /// applies to every tier. Keys with an exception are skipped.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("100/minute".parse()?).candidate("60/minute".parse()?);
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// let verdict = gate.check("api", "user:42").now()?;
    /// let candidate = verdict.decisions()[0].candidate();
    /// assert_eq!(candidate.map(|decision| decision.remaining()), Some(59));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn candidate(mut self, policy: Policy) -> Self {
        self.candidate = Some(policy);
        self
    }

    /// Sets the failure policy. The default is the gate's.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{FailurePolicy, PolicySet, Rules};
    ///
    /// let login = Rules::new("5/minute".parse()?).failure_policy(FailurePolicy::Closed);
    /// let policies = PolicySet::new().with("login", login)?;
    /// assert!(policies.rules("login").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.failure = Some(failure);
        self
    }

    /// Decides every request in the store, also if the store's URL has `lease=`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{PolicySet, Rules};
    ///
    /// let login = Rules::new("sliding_window_log 5/hour".parse()?).without_leases();
    /// let policies = PolicySet::new().with("login", login)?;
    /// assert!(policies.rules("login").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn without_leases(mut self) -> Self {
        self.has_leases = false;
        self
    }

    /// Returns the policies that may use quota leases: all, or none.
    #[doc(hidden)] // For Tidegate's own stores.
    pub fn leased_policies(&self) -> impl Iterator<Item = &Policy> {
        let exceptions = self
            .exceptions
            .values()
            .filter_map(|exception| match exception {
                Exception::Policy(policy) => Some(policy),
                Exception::Unlimited | Exception::Blocked => None,
            });
        std::iter::once(&self.default)
            .chain(self.tiers.values())
            .chain(&self.candidate)
            .chain(exceptions)
            .filter(|_| self.has_leases)
    }

    /// Returns the default policy.
    #[must_use]
    pub fn default_policy(&self) -> &Policy {
        &self.default
    }

    /// Returns the tiers by name, with their policies.
    pub fn tiers(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        self.tiers.iter()
    }

    /// Returns `true` if the policy is in shadow mode.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns the candidate, if there is one.
    #[must_use]
    pub fn candidate_policy(&self) -> Option<&Policy> {
        self.candidate.as_ref()
    }
}

impl From<Policy> for Rules {
    fn from(default: Policy) -> Self {
        Self::new(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::new("1/s".parse().unwrap())
    }

    #[test]
    fn duplicates_and_invalid_names_are_errors() {
        let policies = PolicySet::new().with("api", rules()).unwrap();
        assert!(matches!(
            policies.clone().with("api", rules()),
            Err(PolicySetError::DuplicatePolicy(_))
        ));
        assert!(matches!(
            policies.with("a b", rules()),
            Err(PolicySetError::Name(_))
        ));
        let tiered = rules().tier("gold", "2/s".parse().unwrap()).unwrap();
        assert!(matches!(
            tiered.clone().tier("gold", "3/s".parse().unwrap()),
            Err(PolicySetError::DuplicateTier(_))
        ));
        assert!(matches!(
            tiered.tier("", "3/s".parse().unwrap()),
            Err(PolicySetError::Name(_))
        ));
        let excepted = rules().exception("k", Exception::Blocked).unwrap();
        assert!(matches!(
            excepted.clone().exception("k", Exception::Unlimited),
            Err(PolicySetError::DuplicateException)
        ));
        assert!(
            excepted
                .tenant_exception("t", "k", Exception::Unlimited)
                .is_ok()
        );
        assert!(matches!(
            rules().exception("", Exception::Blocked),
            Err(PolicySetError::EmptyKey(_))
        ));
    }
}
