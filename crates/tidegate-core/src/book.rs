//! Policies as a book: by name, with tiers and exceptions. Pure data; a [`Gate`](crate::Gate) puts it on a store.

use std::collections::{BTreeMap, HashMap};

use crate::key::{EmptyKey, Key};
use crate::limiter::FailurePolicy;
use crate::name::{Name, NameError};
use crate::policy::Policy;
use crate::subject::composed;

/// Named policies, each with tiers and exceptions.
///
/// ```
/// use tidegate_core::{Book, Exception, Rules};
///
/// let api = Rules::new("100/minute".parse()?)
///     .tier("premium", "1_000/minute".parse()?)?
///     .exception("user:7", Exception::Unlimited)?;
/// let book = Book::new().with("api", api)?.with("login", Rules::new("sliding_window_log 5/hour".parse()?))?;
/// assert_eq!(book.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["api", "login"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    policies: BTreeMap<Name, Rules>,
}

/// Why a book is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// A name has something in it that names have not.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two policies of one name.
    #[error("there are two policies `{0}`: expected one of each name")]
    PolicyTwice(Name),
    /// Two tiers of one name in a policy.
    #[error("there are two tiers `{0}` in a policy: expected one of each name")]
    TierTwice(Name),
    /// Two exceptions for one key in a policy.
    #[error("there are two exceptions for one key in a policy: expected one")]
    ExceptionTwice,
    /// An exception for nobody.
    #[error(transparent)]
    EmptyKey(#[from] EmptyKey),
    /// A policy that is in use is not in the book that was to take the place of the one in use.
    #[error("the new book has no policy `{0}`, which is in use: expected it to stay")]
    PolicyInUse(Name),
}

impl Book {
    /// An empty book.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same book with one policy more.
    ///
    /// # Errors
    /// If the name is not one, or is taken.
    pub fn with(mut self, name: &str, rules: Rules) -> Result<Self, BookError> {
        let name = Name::new(name)?;
        if self.policies.contains_key(&name) {
            return Err(BookError::PolicyTwice(name));
        }
        self.policies.insert(name, rules);
        Ok(self)
    }

    /// The names of its policies, in their order.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.policies.keys()
    }

    /// The rules of a policy.
    #[must_use]
    pub fn rules(&self, name: &str) -> Option<&Rules> {
        self.policies.get(name)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Name, &Rules)> {
        self.policies.iter()
    }
}

/// What keys of one named policy are held to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rules {
    pub(crate) default: Policy,
    pub(crate) tiers: BTreeMap<Name, Policy>,
    /// By key, with its tenant.
    pub(crate) exceptions: HashMap<Box<[u8]>, Exception>,
    pub(crate) has_shared_tiers: bool,
    pub(crate) is_shadow: bool,
    pub(crate) candidate: Option<Policy>,
    pub(crate) failure: Option<FailurePolicy>,
}

/// What one key is held to, whatever its tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exception {
    /// A policy of its own.
    Policy(Policy),
    /// None: every request goes on, and nothing is counted.
    Unlimited,
    /// No request goes on.
    Blocked,
}

impl Rules {
    /// Everybody is held to this policy.
    pub fn new(default: Policy) -> Self {
        Self {
            default,
            tiers: BTreeMap::new(),
            exceptions: HashMap::new(),
            has_shared_tiers: false,
            is_shadow: false,
            candidate: None,
            failure: None,
        }
    }

    /// Adds a tier: keys of this tier are held to this policy. An unknown tier uses the default policy.
    ///
    /// Each tier counts apart, so a key that moves to another tier has that tier's whole limit at once.
    /// [`shared_tiers`](Self::shared_tiers) carries usage over instead.
    ///
    /// # Errors
    /// If the name is not one, or is taken.
    pub fn tier(mut self, name: &str, policy: Policy) -> Result<Self, BookError> {
        let name = Name::new(name)?;
        if self.tiers.contains_key(&name) {
            return Err(BookError::TierTwice(name));
        }
        self.tiers.insert(name, policy);
        Ok(self)
    }

    /// Makes a key that changes its tier keep its usage, for windows and logs of the same algorithm and period. A bucket with
    /// another rate or burst is another bucket and starts full.
    pub fn shared_tiers(mut self) -> Self {
        self.has_shared_tiers = true;
        self
    }

    /// What holds for one key, whatever its tier.
    ///
    /// # Errors
    /// If the key is empty, or has an exception.
    pub fn exception(self, key: &str, exception: Exception) -> Result<Self, BookError> {
        self.except(
            composed(None, Key::new(key.as_bytes())?).to_vec().into(),
            exception,
        )
    }

    /// What holds for one key of one tenant.
    ///
    /// # Errors
    /// If the key is empty, or has an exception.
    pub fn exception_of(
        self,
        tenant: &str,
        key: &str,
        exception: Exception,
    ) -> Result<Self, BookError> {
        self.except(
            composed(Some(tenant), Key::new(key.as_bytes())?)
                .to_vec()
                .into(),
            exception,
        )
    }

    fn except(mut self, key: Box<[u8]>, exception: Exception) -> Result<Self, BookError> {
        if self.exceptions.contains_key(&key) {
            return Err(BookError::ExceptionTwice);
        }
        self.exceptions.insert(key, exception);
        Ok(self)
    }

    /// Counts and reports, and never denies.
    pub fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Counts what this policy would have done to the same requests, beside what is enforced: a candidate to take its
    /// place. It counts for itself, for every tier; keys with an exception are not held to it.
    pub fn candidate(mut self, policy: Policy) -> Self {
        self.candidate = Some(policy);
        self
    }

    /// What is answered when the store cannot; the gate's own where not given.
    pub fn failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.failure = Some(failure);
        self
    }

    /// The policy of those without a tier or an exception.
    #[must_use]
    pub fn default_policy(&self) -> &Policy {
        &self.default
    }

    /// The tiers, by name, with their policies.
    pub fn tiers(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        self.tiers.iter()
    }

    /// Whether it never denies.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// The candidate, if there is one.
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
    fn what_is_there_twice_or_is_no_name_is_an_error() {
        let book = Book::new().with("api", rules()).unwrap();
        assert!(matches!(
            book.clone().with("api", rules()),
            Err(BookError::PolicyTwice(_))
        ));
        assert!(matches!(book.with("a b", rules()), Err(BookError::Name(_))));
        let tiered = rules().tier("gold", "2/s".parse().unwrap()).unwrap();
        assert!(matches!(
            tiered.clone().tier("gold", "3/s".parse().unwrap()),
            Err(BookError::TierTwice(_))
        ));
        assert!(matches!(
            tiered.tier("", "3/s".parse().unwrap()),
            Err(BookError::Name(_))
        ));
        let excepted = rules().exception("k", Exception::Blocked).unwrap();
        assert!(matches!(
            excepted.clone().exception("k", Exception::Unlimited),
            Err(BookError::ExceptionTwice)
        ));
        assert!(
            excepted
                .exception_of("t", "k", Exception::Unlimited)
                .is_ok()
        );
        assert!(matches!(
            rules().exception("", Exception::Blocked),
            Err(BookError::EmptyKey(_))
        ));
    }
}
