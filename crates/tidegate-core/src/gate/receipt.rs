//! By what a request took, some of it can be given back.

use std::sync::Arc;

use smallvec::SmallVec;

use super::tally::Tally;
use super::verdict::Verdict;
use crate::algorithm::Claims;
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::decision::{Decision, Degraded};
use crate::key::{EmptyKey, Key};
use crate::limiter::{CheckError, Limiter};
use crate::memory::MemoryStore;
use crate::record::Settlement;
use crate::store::Store;
use crate::subject::KeyBytes;

/// A receipt for what a request took. It settles once: in part by [`settle`](Self::settle) or whole by
/// [`give_back`](Self::give_back). Dropped, the request keeps what it took.
///
/// Each limit gives back only what it still counts of this request: nothing once its window has ended or its bucket has
/// refilled.
///
/// ```
/// use tidegate_core::Limiter;
///
/// let limiter = Limiter::memory("fixed_window 100/hour".parse()?);
/// let (decision, receipt) = limiter.check("user:42").cost(10).with_receipt().now()?;
/// assert_eq!(decision.remaining(), 90);
/// // It cost less than expected.
/// let after = receipt.settle_now(4)?;
/// assert_eq!(after[0].remaining(), 96);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "what is not given back stays taken"]
pub struct Receipt<S: Store> {
    taken: SmallVec<[Taken<S>; 2]>,
}

/// What was taken from one key.
pub(crate) struct Taken<S: Store> {
    pub(crate) limiter: Limiter<S>,
    pub(crate) key: KeyBytes,
    pub(crate) cost: Cost,
    /// Where it is counted.
    pub(crate) claims: Claims,
    /// Set where the store was not available and the request was counted in its place.
    pub(crate) locally: Option<Degraded>,
    /// Counts what is given back; `None` for shadows and candidates.
    pub(crate) tally: Option<Arc<Tally>>,
}

impl<S: Store> Receipt<S> {
    pub(crate) fn new(taken: SmallVec<[Taken<S>; 2]>) -> Self {
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

    /// Gives everything back, in the background: on a remote store it is on its way when this returns.
    pub fn give_back(self) {
        self.settle(Cost::ZERO);
    }

    /// Corrects the request to its actual cost, in the background: on a remote store it is on its way when this returns.
    ///
    /// If the actual cost is lower, each limit gives back the difference as far as it still counts there. If it is higher,
    /// the difference is taken as far as there is room.
    pub fn settle(self, actual: Cost) {
        let open = self.taken.into_iter().filter(|taken| taken.cost != actual);
        let open: SmallVec<[Taken<S>; 2]> = open.collect();
        let Some(first) = open.first() else { return };
        let limiter = first.limiter.clone();
        limiter.store().detach(async move {
            for taken in open {
                let _ = taken.settle(actual).await;
            }
        });
    }

    /// Corrects the request to its actual cost like [`settle`](Self::settle), and returns the decision of a request of cost
    /// 0 made right after, one for each limiter that the request took from.
    ///
    /// # Errors
    /// If the cost is invalid, or the store could not answer. Then what was taken stays taken, as far as is known.
    pub async fn settle_and_look<C>(self, actual: C) -> Result<Vec<Decision>, CheckError>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        let actual = actual.try_into().map_err(Into::into)?;
        let mut decisions = Vec::with_capacity(self.taken.len());
        let mut failure = None;
        for taken in self.taken {
            match taken.settle(actual).await {
                Ok(decision) => decisions.push(decision),
                // The others are settled all the same.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(decisions), Err)
    }
}

impl Receipt<MemoryStore> {
    /// [`settle_and_look`](Self::settle_and_look) at once, in memory.
    ///
    /// # Errors
    /// If the cost is invalid. Then what was taken stays taken.
    pub fn settle_now<C>(self, actual: C) -> Result<Vec<Decision>, CheckError>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        blocking::ready(self.settle_and_look(actual))
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
    async fn settle(&self, actual: Cost) -> Result<Decision, CheckError> {
        let key = Key::new(&self.key)?;
        if let (Some(extra), Some(tally)) = (actual.checked_sub(self.cost), &self.tally)
            && extra > Cost::ZERO
        {
            let taken = self.limiter.check(&self.key[..]).cost(extra).await?;
            if taken.is_allowed() {
                return Ok(taken);
            }
            tally.unsettled();
        } else if let Some(tally) = &self.tally {
            tally.refund();
        }
        let settlement = Settlement {
            claims: &self.claims,
            taken: self.cost,
            actual,
        };
        Ok(self.limiter.settle(key, &settlement, self.locally).await?)
    }
}

impl<S: Store> std::fmt::Debug for Receipt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receipt")
            .field("is_empty", &self.is_empty())
            .finish_non_exhaustive()
    }
}
