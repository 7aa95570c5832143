//! What a place that keeps records must do.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;

use crate::algorithm::Claims;
use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::health::StoreHealth;
use crate::key::Key;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::remote;

/// The namespace of buckets whose rate comes with every request. There a key has one bucket, whatever its rate: the time
/// at which it is full again means the same under any.
#[doc(hidden)] // For Tidegate's own stores.
pub const ANY_RATE: &str = "~cell";

/// A decision, and where the request is counted if it was admitted.
#[doc(hidden)] // For Tidegate's own receipts.
pub type Admission = (Decision, Claims);

/// A place that keeps records and decides on them, each check whole or not at all.
///
/// Asynchronous, for stores across a network. [`MemoryStore`](crate::MemoryStore) answers at once and has the same
/// methods without a future.
pub trait Store: Send + Sync + 'static {
    /// What the store works out of a policy once, so that a check need not.
    type Plan: Send + Sync + 'static;

    /// Works out a policy. Plans count together if they have the same namespace and the same `identity`.
    /// A namespace consists of letters, digits and `._-~`; the empty one is that of limits without a name.
    fn plan(&self, policy: &Policy, namespace: &str) -> Self::Plan;

    /// Decides on one request, and takes what it costs if it is allowed.
    fn check(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Decides on several requests in order, at one time, each for itself. One answer a request, in their order.
    fn check_many(
        &self,
        plan: &Self::Plan,
        requests: &[(Key<'_>, Cost)],
    ) -> impl Future<Output = Vec<Result<Decision, StoreError>>> + Send;

    /// The same, each request under a plan of its own.
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

    /// Decides on one request that several keys must all meet: if all allow it, all are taken from, else none. A plan and key
    /// that occur twice count as one request of the summed cost. Returns one answer a key, in their order. If the request
    /// is denied, the keys that would have allowed it answer like a request of cost 0, and those that could not be asked
    /// answer nothing.
    ///
    /// Where a store has no better way, they are taken from in order, and what was taken is given back on a denial. In
    /// between, others may be denied what will be free again.
    fn admit(
        &self,
        requests: &[(&Self::Plan, Key<'_>, Cost)],
    ) -> impl Future<Output = Result<Vec<Option<Admission>>, StoreError>> + Send {
        remote::check_in_order(self, requests)
    }

    /// Decides on one request like [`check`](Self::check), and returns where it is counted if it was admitted. A store that
    /// cannot tell gives no receipts.
    fn admit_one(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Admission, StoreError>> + Send {
        async move { Ok((self.check(plan, key, cost).await?, Claims::new())) }
    }

    /// Corrects an admitted request to its actual cost. Each limit gives back what it still counts of the request. Returns
    /// the decision of a request of cost 0 made right after.
    fn settle(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        // A store without claims gives back as a refund does.
        let rest = settlement
            .taken
            .checked_sub(settlement.actual)
            .unwrap_or(Cost::ZERO);
        self.refund(plan, key, rest)
    }

    /// Gives back what a request took, and answers like one of cost 0 made right after.
    fn refund(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Forgets what the key has used.
    fn reset(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps a receipt of a request of a key for some time, so that [`take_receipt`](Self::take_receipt) returns it once.
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

    /// Returns a receipt and forgets it. `None` if there is none, or it was taken before.
    fn take_receipt(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        id: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send {
        let _ = (plan, key, id);
        std::future::ready(Ok(None))
    }

    /// Whether it is across a network: whether to ask it costs time, and may fail.
    fn is_remote(&self) -> bool {
        true
    }

    /// Waits for one of its own futures on this thread, without an async runtime around.
    ///
    /// # Errors
    /// If this thread must not be held up.
    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError>;

    /// Sees to it that one of its own futures is done, without anybody waiting for it.
    fn detach(&self, future: impl Future<Output = ()> + Send + 'static);

    /// The time it is, as far as this process can tell without asking.
    fn now(&self) -> Timestamp {
        Clock::system().now()
    }

    /// How the store is, as seen from here; `None` where there is nothing to tell.
    fn health(&self) -> Option<StoreHealth> {
        None
    }
}

/// A store that could not answer, and why. The memory store always can.
#[derive(Debug, thiserror::Error)]
#[error("the store could not answer ({reason})")]
pub struct StoreError {
    reason: Degraded,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl StoreError {
    /// An error of a kind that failure policies and counters tell apart.
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

    /// Of what kind it is.
    #[must_use]
    pub fn reason(&self) -> Degraded {
        self.reason
    }
}

/// A thread was to wait for a store that is run by the async runtime of this very thread, or by one that runs only while
/// somebody blocks on it: it would wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`.wait()` would wait for ever here: use `.await`, or connect with `connect_blocking`")]
#[non_exhaustive]
pub struct BlockingError;

impl BlockingError {
    /// For a store that finds itself on a thread that must not wait.
    #[must_use]
    #[allow(clippy::new_without_default)] // Nothing to begin with.
    pub const fn new() -> Self {
        Self
    }
}
