//! By what a request took, some of it can be given back.

use std::sync::Arc;

use smallvec::SmallVec;

use super::tally::Tally;
use super::verdict::Verdict;
use crate::clock::Timestamp;
use crate::cost::Cost;
use crate::decision::Degraded;
use crate::key::{EmptyKey, Key};
use crate::limiter::{CheckError, Limiter};
use crate::store::Store;
use crate::subject::KeyBytes;

/// What a request took, to be given back, once: in part by [`settle`](Self::settle) or whole by
/// [`give_back`](Self::give_back). Dropped, it is kept as it was taken.
#[must_use = "what is not given back is kept"]
pub struct Receipt<S: Store> {
    taken: SmallVec<[Taken<S>; 2]>,
}

/// What was taken from one key.
pub(super) struct Taken<S: Store> {
    pub(super) limiter: Limiter<S>,
    pub(super) key: KeyBytes,
    pub(super) cost: Cost,
    /// From when on nothing of it is counted any more: to give it back then would be to give what others took.
    pub(super) gone_at: Timestamp,
    /// Where the store was gone, and it was taken in its place.
    pub(super) locally: Option<Degraded>,
    /// Where the policy counts what is given back: not for what is only beside it.
    pub(super) tally: Option<Arc<Tally>>,
}

impl<S: Store> Receipt<S> {
    pub(super) fn new(taken: SmallVec<[Taken<S>; 2]>) -> Self {
        Self { taken }
    }

    /// Whether nothing was taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Gives everything back, of a request that was admitted and then turned away because it would have had to wait for too
    /// long.
    pub fn turn_away(self) {
        for tally in self.taken.iter().filter_map(|taken| taken.tally.as_ref()) {
            tally.turned_away();
        }
        self.give_back();
    }

    /// Gives everything back. Nobody waits for it: on a remote store it is on its way.
    pub fn give_back(self) {
        self.settle(Cost::ZERO);
    }

    /// Gives back what the request did not cost after all; what it cost beyond what was taken is taken now, as far as the
    /// limit has room, in whole units. What is not counted any more, because its window is over, is not given back. Nobody
    /// waits for it: on a remote store it is on its way.
    pub fn settle(self, actual: Cost) {
        let open = self.taken.into_iter().filter(|taken| taken.cost != actual);
        let open: SmallVec<[Taken<S>; 2]> = open.collect();
        let Some(first) = open.first() else { return };
        let limiter = first.limiter.clone();
        limiter.store().detach(async move {
            for taken in open {
                taken.settle(actual).await;
            }
        });
    }
}

/// An answer on its way to who asked. Dropped on the way, because nobody waits for it any more, it gives back.
pub(super) struct Unclaimed<S: Store>(Option<Result<(Verdict, Receipt<S>), CheckError>>);

impl<S: Store> Unclaimed<S> {
    pub(super) fn of(answer: Result<(Verdict, Receipt<S>), CheckError>) -> Self {
        Self(Some(answer))
    }

    pub(super) fn claimed(mut self) -> Result<(Verdict, Receipt<S>), CheckError> {
        // There until it is claimed, which is once.
        self.0.take().unwrap_or_else(|| Err(EmptyKey.into()))
    }
}

impl<S: Store> Drop for Unclaimed<S> {
    fn drop(&mut self) {
        if let Some(Ok((_, receipt))) = self.0.take() {
            receipt.give_back();
        }
    }
}

impl<S: Store> Taken<S> {
    async fn settle(self, actual: Cost) {
        if let Some(rest) = self.cost.checked_sub(actual) {
            self.give_back(rest).await;
        } else if let Some(extra) = actual.checked_sub(self.cost)
            && !self.take(extra).await
        {
            self.take_what_is_left(extra).await;
            if let Some(tally) = self.tally {
                tally.unsettled();
            }
        }
    }

    async fn give_back(&self, rest: Cost) {
        if self.limiter.store().now() >= self.gone_at {
            return;
        }
        if let Some(tally) = &self.tally {
            tally.refund();
        }
        if let Ok(key) = Key::new(&self.key) {
            self.limiter.give_back(key, rest, self.locally).await;
        }
    }

    async fn take(&self, cost: Cost) -> bool {
        let taken = self.limiter.check(&self.key[..]).cost(cost).await;
        taken.is_ok_and(|decision| decision.is_allowed())
    }

    async fn take_what_is_left(&self, extra: Cost) {
        let left = self.limiter.check(&self.key[..]).cost(Cost::ZERO).await;
        let left = left.ok().and_then(|decision| Cost::try_from(decision.remaining()).ok());
        if let Some(left) = left.filter(|left| *left < extra) {
            self.take(left).await;
        }
    }
}

impl<S: Store> std::fmt::Debug for Receipt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receipt").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
