//! Receipts: give back or correct the cost of an admitted request.

use std::sync::Arc;

use smallvec::SmallVec;

use super::actual_costs::ActualCosts;
use super::counters::PolicyTally;
use crate::algorithm::Claims;
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::decision::{Decision, Degraded};
use crate::key::{EmptyKey, Key};
use crate::limiter::{CheckError, Limiter};
use crate::memory::MemoryStore;
use crate::name::Name;
use crate::record::Settlement;
use crate::store::Store;
use crate::subject::KeyBytes;

/// A receipt for the cost of an admitted request.
///
/// It settles once: to the actual cost with [`settle`](Self::settle), or to 0 with
/// [`give_back`](Self::give_back). If it is dropped, the cost stays taken.
///
/// - If the actual cost is lower, each limit gives back only what it still counts of this request:
///   nothing once its window has ended or its bucket has refilled.
/// - If it is higher, the difference is [charged](crate::Limiter::charge): it counts even if the
///   limit is used up, as far as the [debt](crate::Limit::debt) allows.
///
/// # Examples
///
/// ```
/// use tidegate::Limiter;
///
/// let limiter = Limiter::memory("fixed_window 100/hour".parse()?);
/// let (decision, receipt) = limiter.check("user:42").cost(10).with_receipt().now()?;
/// assert_eq!(decision.remaining(), 90);
/// // The request cost less than estimated.
/// let after = receipt.settle_now(4)?;
/// assert_eq!(after[0].remaining(), 96);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped receipt keeps the cost taken"]
pub struct Receipt<S: Store> {
    entries: SmallVec<[ReceiptEntry<S>; 2]>,
}

/// The cost taken from one key.
pub(crate) struct ReceiptEntry<S: Store> {
    pub(crate) limiter: Limiter<S>,
    pub(crate) key: KeyBytes,
    pub(crate) cost: Cost,
    /// The places where it is counted.
    pub(crate) claims: Claims,
    /// Set if the failure policy counted the request locally.
    pub(crate) degraded: Option<Degraded>,
    /// Counts refunds; `None` for shadows and candidates.
    /// The policy, if it is named.
    pub(crate) policy: Option<Name>,
    pub(crate) counters: Option<Arc<PolicyTally>>,
}

impl<S: Store> Receipt<S> {
    pub(crate) fn new(entries: SmallVec<[ReceiptEntry<S>; 2]>) -> Self {
        Self { entries }
    }

    /// Returns `true` if nothing was taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 1/day".parse()?);
    /// let (_, receipt) = limiter.check("user:42").with_receipt().now()?;
    /// assert!(!receipt.is_empty());
    /// let (_, denied) = limiter.check("user:42").with_receipt().now()?;
    /// assert!(denied.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives everything back, and counts the request as turned away because its delay was too long.
    pub fn turn_away(self) {
        for counters in self
            .entries
            .iter()
            .filter_map(|entry| entry.counters.as_ref())
        {
            counters.count_turned_away();
        }
        self.give_back();
    }

    /// Gives everything back in the background. On a remote store, the call is queued when this
    /// returns.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// let (decision, receipt) = limiter.check("user:42").with_receipt().now()?;
    /// assert_eq!(decision.remaining(), 4);
    /// receipt.give_back();
    /// assert_eq!(limiter.check("user:42").cost(0).now()?.remaining(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn give_back(self) {
        self.settle(Cost::ZERO);
    }

    /// Corrects the request to its actual cost in the background. On a remote store, the call is
    /// queued when this returns.
    ///
    /// If the actual cost is lower, each limit gives back the difference as far as it still counts
    /// there. If it is higher, the difference is taken as far as there is room.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Cost, Limiter};
    ///
    /// let limiter = Limiter::memory("fixed_window 100/day".parse()?);
    /// let (_, receipt) = limiter.check("user:42").cost(50).with_receipt().now()?;
    /// receipt.settle("20".parse::<Cost>()?);
    /// assert_eq!(limiter.check("user:42").cost(0).now()?.remaining(), 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(self, actual: impl Into<ActualCosts>) {
        let actual = actual.into();
        let open = self.entries.into_iter().filter_map(|entry| {
            let actual = actual.of(entry.policy.as_ref().map(Name::as_str))?;
            (entry.cost != actual).then_some((entry, actual))
        });
        let open: SmallVec<[(ReceiptEntry<S>, Cost); 2]> = open.collect();
        let Some((first, _)) = open.first() else {
            return;
        };
        let limiter = first.limiter.clone();
        limiter.store().detach(async move {
            for (entry, actual) in open {
                let _ = entry.settle(actual).await;
            }
        });
    }

    /// Corrects the request to its actual cost. Returns the decision of a request of cost 0 made
    /// right after, one for each limiter that the request took from.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost is invalid, or if the store could not answer. The cost then
    /// stays taken as far as is known.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::memory("fixed_window 100/day".parse()?);
    /// let (_, receipt) = limiter.check("user:42").cost(50).with_receipt().await?;
    /// let decisions = receipt.settle_and_peek(20).await?;
    /// assert_eq!(decisions[0].remaining(), 80);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle_and_peek<C>(self, actual: C) -> Result<Vec<Decision>, CheckError>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        let actual: Cost = actual.try_into().map_err(Into::into)?;
        self.settle_each(actual).await
    }

    /// Settles each policy to its own actual cost. Returns one decision per policy, that of a
    /// request of cost 0 made right after.
    ///
    /// # Errors
    ///
    /// Returns an error if the store could not answer for one of the policies. The others are
    /// settled.
    pub async fn settle_each(
        self,
        actual: impl Into<ActualCosts>,
    ) -> Result<Vec<Decision>, CheckError> {
        let actual = actual.into();
        let mut decisions = Vec::with_capacity(self.entries.len());
        let mut failure = None;
        for entry in self.entries {
            let own = actual.of(entry.policy.as_ref().map(Name::as_str));
            match entry.settle(own.unwrap_or(entry.cost)).await {
                Ok(decision) => decisions.push(decision),
                // The other limiters are settled all the same.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(decisions), Err)
    }
}

impl Receipt<MemoryStore> {
    /// [`settle_and_peek`](Self::settle_and_peek) in memory, without a future.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost is invalid. The cost then stays taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 100/day".parse()?);
    /// let (_, receipt) = limiter.check("user:42").cost(50).with_receipt().now()?;
    /// assert_eq!(receipt.settle_now(20)?[0].remaining(), 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_now<C>(self, actual: C) -> Result<Vec<Decision>, CheckError>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        blocking::ready(self.settle_and_peek(actual))
    }
}

/// A result on its way to the caller. If it is dropped on the way, everything taken is given back.
pub(crate) struct Undelivered<S: Store, T>(Option<Result<(T, Receipt<S>), CheckError>>);

impl<S: Store, T> Undelivered<S, T> {
    pub(crate) fn new(answer: Result<(T, Receipt<S>), CheckError>) -> Self {
        Self(Some(answer))
    }

    pub(crate) fn deliver(mut self) -> Result<(T, Receipt<S>), CheckError> {
        // Present until it is delivered, which happens once.
        self.0.take().unwrap_or_else(|| Err(EmptyKey.into()))
    }
}

impl<S: Store, T> Drop for Undelivered<S, T> {
    fn drop(&mut self) {
        if let Some(Ok((_, receipt))) = self.0.take() {
            receipt.give_back();
        }
    }
}

impl<S: Store> ReceiptEntry<S> {
    /// Settles one policy to the actual cost.
    async fn settle(&self, actual: Cost) -> Result<Decision, CheckError> {
        let settlement = Settlement {
            claims: &self.claims,
            taken: self.cost,
            actual,
        };
        let settled = self
            .limiter
            .settle(Key::new(&self.key)?, &settlement, self.degraded)
            .await;
        match (&self.counters, &settled) {
            (Some(counters), Ok(settled)) if actual > self.cost => counters.count_charge(settled),
            (Some(counters), _) if actual <= self.cost => counters.count_refund(),
            _ => {}
        }
        Ok(settled?.decision)
    }
}

impl<S: Store> std::fmt::Debug for Receipt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receipt")
            .field("is_empty", &self.is_empty())
            .finish_non_exhaustive()
    }
}
