//! What a place that keeps records must do.

use std::future::Future;

use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;

/// A place that keeps records and decides on them, each check whole or not at all.
///
/// Asynchronous, for stores across a network. [`MemoryStore`](crate::MemoryStore) answers at once and has the same
/// methods without a future.
pub trait Store: Send + Sync + 'static {
    /// What the store works out of a policy once, so that a check need not.
    type Plan: Send + Sync + 'static;

    /// Works out a policy.
    fn plan(&self, policy: &Policy) -> Self::Plan;

    /// Decides on one request, and takes what it costs if it is allowed.
    fn check(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Decides on several requests in order, at one time, each for itself.
    fn check_many(
        &self,
        plan: &Self::Plan,
        requests: &[(Key<'_>, Cost)],
    ) -> impl Future<Output = Result<Vec<Decision>, StoreError>> + Send;

    /// Gives back what a request took, and answers like one of cost 0 made right after.
    fn refund(
        &self,
        plan: &Self::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Forgets what the key has used.
    fn reset(&self, plan: &Self::Plan, key: Key<'_>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A store that could not answer. The memory store always can.
#[derive(Debug, thiserror::Error)]
#[error("the store could not answer")]
pub struct StoreError(#[from] Box<dyn std::error::Error + Send + Sync>);
