//! The operations of a gate. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.

use std::future::IntoFuture;
use std::pin::Pin;

use super::{Gate, Verdict};
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::limiter::CheckError;
use crate::memory::MemoryStore;
use crate::store::Store;
use crate::subject::Subject;

/// One request under one named policy. Nothing happens until `.now()` (in memory), `.await` or
/// `.wait()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct GateCheck<'a, S: Store> {
    gate: &'a Gate<S>,
    subject: Subject<'a>,
    cost: Result<Cost, CostError>,
}

impl<'a, S: Store> GateCheck<'a, S> {
    pub(super) fn new(gate: &'a Gate<S>, policy: &'a str, key: &'a [u8]) -> Self {
        Self {
            gate,
            subject: Subject::new(policy, key),
            cost: Ok(Cost::ONE),
        }
    }

    /// Sets the cost: an integer, a decimal with up to three places, or a [`Cost`]. 0 looks without
    /// taking.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
    /// assert_eq!(gate.check("api", "user:42").cost(2.5).now()?.remaining(), Some(97));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cost<C: TryInto<Cost, Error: Into<CostError>>>(mut self, cost: C) -> Self {
        self.cost = cost.try_into().map_err(Into::into);
        self
    }

    /// Sets the tier of the key. An unknown tier uses the default limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?).tier("gold", "50/minute".parse()?)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// assert_eq!(gate.check("api", "user:42").tier("gold").now()?.remaining(), Some(49));
    /// // An unknown tier uses the default limits.
    /// assert_eq!(gate.check("api", "user:42").tier("iron").now()?.remaining(), Some(4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier(mut self, tier: &'a str) -> Self {
        self.subject.tier = Some(tier);
        self
    }

    /// Sets the tenant of the key. The same key of another tenant counts separately.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// assert!(gate.check("api", "user:42").tenant("acme").now()?.is_allowed());
    /// assert!(gate.check("api", "user:42").tenant("initech").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tenant(mut self, tenant: &'a str) -> Self {
        self.subject.tenant = Some(tenant);
        self
    }

    async fn answer(self) -> Result<Verdict, CheckError> {
        let subject = Subject {
            cost: self.cost?,
            ..self.subject
        };
        self.gate.decide(&[subject]).await
    }

    /// Runs the check, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist, if the key is empty, if the cost is invalid,
    /// or if the current thread runs async tasks. Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// assert!(gate.check("api", "user:42").wait()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self) -> Result<Verdict, CheckError> {
        self.gate.store().block_on(self.answer())?
    }
}

impl GateCheck<'_, MemoryStore> {
    /// Runs the check.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist, the key is empty, or the cost is invalid.
    /// Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// assert!(gate.check("api", "user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(self) -> Result<Verdict, CheckError> {
        let subject = Subject {
            cost: self.cost?,
            ..self.subject
        };
        blocking::ready(self.gate.decide(&[subject]))
    }
}

impl<'a, S: Store> IntoFuture for GateCheck<'a, S> {
    type Output = Result<Verdict, CheckError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.answer())
    }
}
