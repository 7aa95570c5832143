//! By what a request took, some of it can be given back.

use std::sync::Arc;

use smallvec::SmallVec;

use super::tally::Tally;
use crate::cost::Cost;
use crate::limiter::Limiter;
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
    pub(super) tally: Arc<Tally>,
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

    /// Gives everything back. Nobody waits for it: on a remote store it is on its way.
    pub fn give_back(self) {
        self.settle(Cost::ZERO);
    }

    /// Gives back what the request did not cost after all; what it cost beyond what was taken is taken now, as far as the
    /// limit allows it. Nobody waits for it: on a remote store it is on its way.
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

impl<S: Store> Taken<S> {
    async fn settle(self, actual: Cost) {
        // What the store cannot do its failure policy has answered, and counted.
        if let Some(rest) = self.cost.checked_sub(actual) {
            self.tally.refund();
            let _ = self.limiter.refund(&self.key[..], rest).await;
        } else if let Some(extra) = actual.checked_sub(self.cost) {
            let taken = self.limiter.check(&self.key[..]).cost(extra).await;
            if !taken.is_ok_and(|decision| decision.is_allowed()) {
                self.tally.unsettled();
            }
        }
    }
}

impl<S: Store> std::fmt::Debug for Receipt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receipt").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
