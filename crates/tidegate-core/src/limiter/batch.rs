//! Batches of requests, each under its own limiter.

use futures_util::future::join_all;

use super::Limiter;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::maybe_ready::MaybeReady;
use crate::remote;
use crate::store::{Store, StoreError};

/// The number of runs sent at the same time, so that one caller does not fill the store's queue.
const RUNS_AT_A_TIME: usize = 64;

/// One request under a limiter.
pub struct LimiterRequest<'a, S: Store> {
    /// The limiter.
    pub limiter: &'a Limiter<S>,
    /// The key.
    pub key: Key<'a>,
    /// The cost.
    pub cost: Cost,
}

impl<S: Store> Limiter<S> {
    /// Decides a batch of requests in order, each under its own limiter. All limiters must be on
    /// one store.
    ///
    /// In memory, all requests are decided at the same time, before this returns. On a remote
    /// store, consecutive requests of one limiter share a round trip, and so do requests of
    /// different keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the store could not answer and there is no failure policy. A limiter
    /// created on a remote store always has one.
    pub fn check_each<'a>(
        requests: &'a [LimiterRequest<'a, S>],
    ) -> MaybeReady<
        Result<Vec<Decision>, StoreError>,
        impl Future<Output = Result<Vec<Decision>, StoreError>> + Send + 'a,
    > {
        let first = requests.first();
        let is_remote = first.is_some_and(|first| first.limiter.store().is_remote());
        MaybeReady::new(is_remote, check_batch(requests))
    }
}

async fn check_batch<S: Store>(
    requests: &[LimiterRequest<'_, S>],
) -> Result<Vec<Decision>, StoreError> {
    let Some(first) = requests.first() else {
        return Ok(Vec::new());
    };
    if first.limiter.shared.guard.is_none() {
        let planned: Vec<_> = requests
            .iter()
            .map(|request| (&request.limiter.shared.plan, request.key, request.cost))
            .collect();
        let decisions = first.limiter.store().check_each(&planned).await;
        return decisions.into_iter().collect();
    }
    let runs =
        requests.chunk_by(|one, other| std::ptr::eq(&*one.limiter.shared, &*other.limiter.shared));
    let mut decisions = Vec::with_capacity(requests.len());
    for group in remote::groups_apart(runs, |request| request.key.as_bytes()) {
        for part in group.chunks(RUNS_AT_A_TIME) {
            for run in join_all(part.iter().map(|run| check_run(run))).await {
                decisions.extend(run?);
            }
        }
    }
    Ok(decisions)
}

/// Decides the requests of one limiter.
async fn check_run<S: Store>(run: &[LimiterRequest<'_, S>]) -> Result<Vec<Decision>, StoreError> {
    let Some(first) = run.first() else {
        return Ok(Vec::new());
    };
    let requests: Vec<(Key<'_>, Cost)> = run
        .iter()
        .map(|request| (request.key, request.cost))
        .collect();
    first.limiter.shared.check_many(&requests).await
}
