//! Several requests at one time, each for itself and each under its own limiter.

use futures_util::future::join_all;

use super::Limiter;
use crate::blocking;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::remote;
use crate::store::{Store, StoreError};

/// Runs that are on their way at a time: one caller does not fill the store's queue.
const RUNS_AT_A_TIME: usize = 64;

/// One request under a limiter.
pub type Each<'a, S> = (&'a Limiter<S>, Key<'a>, Cost);

impl<S: Store> Limiter<S> {
    /// Decides on a batch of requests in order, each for itself and each under its own limiter: in memory at one time; on a
    /// remote store those of one limiter that follow one another, and those of different keys, travel together. All limiters
    /// are of one store.
    ///
    /// # Errors
    /// If the store could not answer, and nothing stands in for it: never of a limiter that was made on a remote store.
    pub async fn check_each(requests: &[Each<'_, S>]) -> Result<Vec<Decision>, StoreError> {
        let Some((first, ..)) = requests.first() else {
            return Ok(Vec::new());
        };
        if first.shared.guard.is_none() {
            let asked: Vec<_> = requests
                .iter()
                .map(|(limiter, key, cost)| (&limiter.shared.plan, *key, *cost))
                .collect();
            return first.store().check_each(&asked).await.into_iter().collect();
        }
        let runs =
            requests.chunk_by(|(one, ..), (other, ..)| std::ptr::eq(&*one.shared, &*other.shared));
        let mut decisions = Vec::with_capacity(requests.len());
        for group in remote::groups_apart(runs, |(_, key, _)| key.as_bytes()) {
            for part in group.chunks(RUNS_AT_A_TIME) {
                for run in join_all(part.iter().map(|run| check_run(run))).await {
                    decisions.extend(run?);
                }
            }
        }
        Ok(decisions)
    }

    /// The same at once, where the store is in this process; `None` where it is not.
    pub fn check_each_at_once(
        requests: &[Each<'_, S>],
    ) -> Option<Result<Vec<Decision>, StoreError>> {
        let (first, ..) = requests.first()?;
        (!first.store().is_remote()).then(|| blocking::ready(Self::check_each(requests)))
    }
}

/// Requests under one limiter.
async fn check_run<S: Store>(run: &[Each<'_, S>]) -> Result<Vec<Decision>, StoreError> {
    let Some((limiter, ..)) = run.first() else {
        return Ok(Vec::new());
    };
    let requests: Vec<(Key<'_>, Cost)> = run.iter().map(|(_, key, cost)| (*key, *cost)).collect();
    limiter.shared.check_many(&requests).await
}
