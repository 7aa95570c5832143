//! The [`Store`] trait: a place that keeps counters and decides on them.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;

use smallvec::SmallVec;

use crate::algorithm::Claims;
use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded, LimitFigures};
use crate::health::StoreHealth;
use crate::key::Key;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::remote;

/// The namespace of buckets whose rate comes with every request.
///
/// In this namespace a key has one bucket, whatever the rate. Its state, the time at which the
/// bucket is full again, has the same meaning under every rate.
#[doc(hidden)] // For Tidegate's own stores.
pub const ANY_RATE: &str = "~cell";

/// A decision, where an admitted request was counted, and the figures of every limit.
#[doc(hidden)] // For Tidegate's own receipts.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The decision.
    pub decision: Decision,
    /// The places where an admitted request was counted. Empty if nothing was taken.
    pub claims: Claims,
    /// The figures of every limit, in the policy's order. Empty if there is only one limit, whose
    /// figures are those of the decision.
    pub limits: Vec<LimitFigures>,
    /// The wait until the same request would be allowed again, or `None` if it is unknown.
    pub again_after: Option<Duration>,
}

impl Admission {
    /// Creates an admission without claims.
    #[must_use]
    pub fn look(decision: Decision) -> Self {
        Self {
            decision,
            claims: Claims::new(),
            limits: Vec::new(),
            again_after: None,
        }
    }
}

/// The result of a charge or a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The decision of a request of cost 0 made right after.
    pub decision: Decision,
    /// The cost beyond the debt, which was not counted: the largest of all limits.
    pub dropped: Cost,
}

impl Charged {
    /// Creates the result of a change that dropped nothing.
    #[must_use]
    pub const fn whole(decision: Decision) -> Self {
        Self {
            decision,
            dropped: Cost::ZERO,
        }
    }
}

/// A place that keeps counters and decides on them. Every check is atomic.
///
/// The methods are asynchronous, for stores across a network. [`MemoryStore`](crate::MemoryStore)
/// never waits, and has the same methods without a future.
pub trait Store: Send + Sync + 'static {
    /// A policy prepared for this store. It is computed once, so that a check does not have to.
    type Plan: Send + Sync + 'static;

    /// Prepares a policy.
    ///
    /// Two plans share counters if they have the same namespace and the same `identity`. A
    /// namespace consists of letters, digits and `._-~`. The empty namespace is for limits without
    /// a name.
    fn plan(&self, policy: &Policy, namespace: &str) -> Self::Plan;

    /// Prepares a policy that never uses quota leases, whatever the store's settings.
    #[doc(hidden)] // For Tidegate's own stores.
    fn plan_without_lease(&self, policy: &Policy, namespace: &str) -> Self::Plan {
        self.plan(policy, namespace)
    }

    /// Admits a request from quota that this process has leased, without asking the store. Returns
    /// `None` if that is not possible; nothing is taken then.
    #[doc(hidden)] // For Tidegate's own stores.
    #[inline]
    fn check_leased(&self, _: &Self::Plan, _: Key<'_>, _: Cost) -> Option<Decision> {
        None
    }

    /// Decides a request and, if it is allowed, takes its cost.
    fn check(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Decides several requests, in order and independently, all with one timestamp. Returns one
    /// decision per request, in the same order.
    fn check_many(
        &self,
        plan: &Self::Plan,
        requests: &[(Key<'_>, Cost)],
    ) -> impl Future<Output = Vec<Result<Decision, StoreError>>> + Send;

    /// Takes from all keys of one request at once, if the store is in this process, every key is
    /// stored and every one allows the request. Returns `None` in any other case; nothing is taken
    /// then.
    #[doc(hidden)] // A shortcut of Tidegate's own stores.
    fn check_allowed(
        &self,
        _requests: &[(&Self::Plan, Key<'_>, Cost)],
    ) -> Option<SmallVec<[Decision; 4]>> {
        None
    }

    /// Like [`check_many`](Self::check_many), with a plan for each request.
    fn check_each(
        &self,
        requests: &[(&Self::Plan, Key<'_>, Cost)],
    ) -> impl Future<Output = Vec<Result<Decision, StoreError>>> + Send {
        async move {
            let mut answers = Vec::with_capacity(requests.len());
            for group in remote::groups_apart(requests.chunks(1), |(_, key, _)| key.as_bytes()) {
                let group = group.into_iter().flatten();
                answers.extend(
                    join_all(group.map(|(plan, key, cost)| self.check(plan, *key, *cost))).await,
                );
            }
            answers
        }
    }

    /// Decides one request that several keys must allow: either all are taken from, or none.
    ///
    /// The same plan and key given twice counts as one request of the summed cost. Returns one
    /// admission per key, in the same order. If the request is denied, a key that would have
    /// allowed it has the decision of a request of cost 0, and a key that could not be asked has
    /// `None`.
    ///
    /// The default implementation takes from the keys in order, and gives back on a denial. In
    /// between, other requests may be denied capacity that is about to be freed.
    fn admit(
        &self,
        requests: &[(&Self::Plan, Key<'_>, Cost)],
    ) -> impl Future<Output = Result<Vec<Option<Admission>>, StoreError>> + Send {
        remote::check_in_order(self, requests)
    }

    /// Decides like [`check`](Self::check), and returns where an admitted request was counted.
    ///
    /// The default implementation returns no claims, so such a store issues no receipts.
    fn admit_one(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Admission, StoreError>> + Send {
        async move { Ok(Admission::look(self.check(plan, key, cost).await?)) }
    }

    /// Returns the decision that a check of this cost would get, and takes nothing.
    fn peek(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Admission, StoreError>> + Send;

    /// Takes a cost whatever the limits say, as far as their debt allows.
    fn charge(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send;

    /// Corrects an admitted request to its actual cost. If it is lower, each limit gives back what
    /// it still counts of the request. If it is higher, the difference is charged.
    fn settle(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send {
        // A store without claims gives back in the same way as a refund.
        let (taken, actual) = (settlement.taken, settlement.actual);
        async move {
            match actual.checked_sub(taken) {
                Some(extra) => self.charge(plan, key, extra).await,
                None => {
                    let rest = taken.checked_sub(actual).unwrap_or(Cost::ZERO);
                    Ok(Charged::whole(self.refund(plan, key, rest).await?))
                }
            }
        }
    }

    /// Gives back the cost of a request. Returns the decision of a request of cost 0 made right
    /// after.
    fn refund(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Deletes the usage of a key. Returns `true` if there was any.
    fn reset(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Stores a receipt for `keep_for`, so that [`take_receipt`](Self::take_receipt) returns it
    /// once.
    fn keep_receipt(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        id: &str,
        receipt: &[u8],
        keep_for: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = (plan, key, id, receipt, keep_for);
        std::future::ready(Err(StoreError::new(
            Degraded::Refused,
            "this store keeps no receipts",
        )))
    }

    /// Returns a receipt and deletes it. Returns `None` if there is none, or if it was taken
    /// before.
    fn take_receipt(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        id: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send {
        let _ = (plan, key, id);
        std::future::ready(Ok(None))
    }

    /// Returns `true` if the store is across a network: a call takes time and may fail.
    fn is_remote(&self) -> bool {
        true
    }

    /// Gives all leased quota back, for a process that is about to end.
    #[doc(hidden)] // For Tidegate's own servers.
    fn give_back_leases(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Runs one of the store's futures on this thread, without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if this thread must not block.
    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError>;

    /// Runs one of the store's futures to completion in the background.
    fn detach(&self, future: impl Future<Output = ()> + Send + 'static);

    /// Returns the clock that waits for this store are measured with. The default is the system's.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Returns the current time as this process knows it, without asking the store.
    fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// Returns the health of the store as seen from this process, or `None` if it has none to
    /// report.
    fn health(&self) -> Option<StoreHealth> {
        None
    }
}

/// The error of a store that could not answer. The memory store never returns it.
#[derive(Debug, thiserror::Error)]
#[error("the store could not answer ({reason})")]
pub struct StoreError {
    reason: Degraded,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl StoreError {
    /// Creates an error with the reason that failure policies and metrics report.
    #[must_use]
    pub fn new(
        reason: Degraded,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            reason,
            source: source.into(),
        }
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> Degraded {
        self.reason
    }
}

/// The error for a blocking call that would deadlock.
///
/// The store runs on the async runtime of this very thread, or on a runtime that only makes
/// progress while a thread blocks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`.blocking()` must not be called in async code: expected `.await`")]
#[non_exhaustive]
pub struct BlockingError;

impl BlockingError {
    /// Creates the error, for a store that detects the situation.
    #[must_use]
    #[allow(clippy::new_without_default)] // Starts empty.
    pub const fn new() -> Self {
        Self
    }
}
