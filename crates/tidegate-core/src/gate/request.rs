//! The operations of a gate. Nothing happens until `.now()` (in memory), `.await` or `.blocking()`.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;

use super::{Gate, Verdict};
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::denied::Usage;
use crate::key::KeyBuf;
use crate::limiter::{CheckError, kind};
use crate::memory::MemoryStore;
use crate::store::Store;
use crate::subject::Subject;

/// One operation on one key under one named policy. Nothing happens until `.now()` (in memory),
/// `.await` or `.blocking()`.
///
/// [`Gate::check`], [`peek`](Gate::peek), [`charge`](Gate::charge), [`refund`](Gate::refund) and
/// [`reset`](Gate::reset) create it.
#[must_use = "nothing happens until `.now()`, `.await` or `.blocking()`"]
pub struct GateRequest<'a, S: Store, K> {
    gate: &'a Gate<S>,
    subject: Subject<'a>,
    cost: Result<Cost, CostError>,
    wants_limits: bool,
    kind: PhantomData<fn() -> K>,
}

/// A check. See [`Gate::check`].
pub type GateCheck<'a, S> = GateRequest<'a, S, kind::Check>;
/// A peek. See [`Gate::peek`].
pub type GatePeek<'a, S> = GateRequest<'a, S, kind::Peek>;
/// A charge. See [`Gate::charge`].
pub type GateCharge<'a, S> = GateRequest<'a, S, kind::Charge>;
/// A refund. See [`Gate::refund`].
pub type GateRefund<'a, S> = GateRequest<'a, S, kind::Refund>;
/// A reset. See [`Gate::reset`].
pub type GateReset<'a, S> = GateRequest<'a, S, kind::Reset>;

/// A kind of request to a gate, with the type of its result.
pub trait GateRequestKind: Sized + 'static {
    /// The result.
    type Output: Send;

    /// Runs the operation.
    #[doc(hidden)]
    fn run<S: Store>(
        gate: &Gate<S>,
        subject: Subject<'_>,
        wants_limits: bool,
    ) -> impl Future<Output = Result<Self::Output, CheckError>> + Send;

    /// Runs the operation in memory.
    #[doc(hidden)]
    #[inline]
    fn now(request: GateRequest<'_, MemoryStore, Self>) -> Result<Self::Output, CheckError> {
        blocking::ready(request.answer())
    }
}

impl<'a, S: Store, K: GateRequestKind> GateRequest<'a, S, K> {
    pub(super) fn new(
        gate: &'a Gate<S>,
        policy: &'a str,
        key: KeyBuf<'a>,
        cost: Result<Cost, CostError>,
    ) -> Self {
        Self {
            gate,
            subject: Subject::new(policy, key),
            cost,
            wants_limits: false,
            kind: PhantomData,
        }
    }

    /// Sets the cost: an integer, a decimal with up to three places, or a [`Cost`]. A check of cost
    /// 0 looks without taking. A reset has no cost.
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

    /// Sets the tier of the key. An unknown tier uses the default limits, unless the policy
    /// [rejects](crate::Rules::reject_unknown_tiers) it. A reset applies to all tiers.
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

    /// Also returns the figures of every limit, see
    /// [`PolicyDecision::limits`](crate::PolicyDecision::limits).
    pub fn with_limits(mut self) -> Self {
        self.wants_limits = true;
        self
    }

    async fn answer(self) -> Result<K::Output, CheckError> {
        let subject = Subject {
            cost: self.cost?,
            ..self.subject
        };
        K::run(self.gate, subject, self.wants_limits).await
    }

    /// Runs the request, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist, if the key is empty, if the cost is invalid,
    /// or if the current thread runs async tasks. A refund and a reset also fail if the store cannot
    /// answer. Nothing changes then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// assert!(gate.check("api", "user:42").blocking()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocking(self) -> Result<K::Output, CheckError> {
        self.gate.store().block_on(self.answer())?
    }
}

impl<K: GateRequestKind> GateRequest<'_, MemoryStore, K> {
    /// Runs the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist, the key is empty, or the cost is invalid.
    /// Nothing changes then.
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
    #[inline]
    pub fn now(self) -> Result<K::Output, CheckError> {
        K::now(self)
    }
}

impl<'a, S: Store, K: GateRequestKind> IntoFuture for GateRequest<'a, S, K> {
    type Output = Result<K::Output, CheckError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.answer())
    }
}

impl<S: Store, K> std::fmt::Debug for GateRequest<'_, S, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GateRequest")
            .field("subject", &self.subject)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

impl GateRequestKind for kind::Check {
    type Output = Verdict;

    async fn run<S: Store>(
        gate: &Gate<S>,
        subject: Subject<'_>,
        wants_limits: bool,
    ) -> Result<Verdict, CheckError> {
        if wants_limits {
            gate.decide_with_limits(&[subject]).await
        } else {
            gate.decide(&[subject]).await
        }
    }

    #[inline]
    fn now(request: GateRequest<'_, MemoryStore, Self>) -> Result<Verdict, CheckError> {
        let subject = Subject {
            cost: request.cost?,
            ..request.subject
        };
        let subjects = std::slice::from_ref(&subject);
        match request.gate.decide_now(subjects, request.wants_limits) {
            Some(verdict) => verdict,
            // Not reached: the store is in memory.
            None => blocking::ready(Self::run(request.gate, subject, request.wants_limits)),
        }
    }
}

impl GateRequestKind for kind::Peek {
    type Output = Verdict;

    async fn run<S: Store>(
        gate: &Gate<S>,
        subject: Subject<'_>,
        _: bool,
    ) -> Result<Verdict, CheckError> {
        gate.peek_subject(&subject).await
    }
}

impl GateRequestKind for kind::Charge {
    type Output = Option<Usage>;

    async fn run<S: Store>(
        gate: &Gate<S>,
        subject: Subject<'_>,
        _: bool,
    ) -> Result<Option<Usage>, CheckError> {
        gate.charge_subject(&subject).await
    }
}

impl GateRequestKind for kind::Refund {
    type Output = Option<Usage>;

    async fn run<S: Store>(
        gate: &Gate<S>,
        subject: Subject<'_>,
        _: bool,
    ) -> Result<Option<Usage>, CheckError> {
        gate.refund_subject(&subject).await
    }
}

impl GateRequestKind for kind::Reset {
    type Output = bool;

    async fn run<S: Store>(
        gate: &Gate<S>,
        subject: Subject<'_>,
        _: bool,
    ) -> Result<bool, CheckError> {
        gate.reset_subject(&subject).await
    }
}
