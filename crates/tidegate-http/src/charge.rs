//! Costs that are known only after the response: reported by the handler, or counted in bytes.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::{ActualCosts, Cost, CostError, MemoryStore, Name, Receipt, Store};

/// The actual cost of a request, reported by its handler. For costs that are known only afterwards,
/// such as the tokens of a response.
///
/// The handler finds it in the request's extensions if [`Limits::settle`](crate::Limits::settle) is
/// set. The cost taken is corrected to the reported one: the rest is given back, or the difference
/// is charged. If the handler reports nothing, it stays taken. Clones share the cost. It can be
/// reported until the response body has ended.
///
/// # Examples
///
/// ```
/// use tidegate::tower::Charge;
///
/// let charge = Charge::default();
/// charge.set(120)?;
/// charge.add(30)?;
/// # Ok::<(), tidegate::CostError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Charge(Arc<Mutex<ReportedCosts>>);

/// The costs that a handler has reported.
#[derive(Clone, Debug, Default)]
struct ReportedCosts {
    cost: Option<Cost>,
    by_policy: Vec<(Box<str>, Cost)>,
}

impl Charge {
    /// Sets the total cost of the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost is invalid. The reported cost is unchanged then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::Charge;
    ///
    /// fn handler(charge: &Charge) {
    ///     // The last call counts.
    ///     let _ = charge.set(2.5);
    /// }
    /// ```
    pub fn set<C: TryInto<Cost, Error: Into<CostError>>>(&self, cost: C) -> Result<(), CostError> {
        let cost: Cost = cost.try_into().map_err(Into::into)?;
        self.update(|reported| reported.cost = Some(cost));
        Ok(())
    }

    /// Sets the total cost of the request under one policy. It replaces the cost for all policies
    /// there.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost is invalid. The reported cost is unchanged then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::Charge;
    ///
    /// fn handler(charge: &Charge) {
    ///     // The request still counts as one under the other policies.
    ///     let _ = charge.set_policy("tokens", 2_300);
    /// }
    /// ```
    pub fn set_policy<C>(&self, policy: &str, cost: C) -> Result<(), CostError>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        let cost: Cost = cost.try_into().map_err(Into::into)?;
        self.update(|reported| *reported.of_policy(policy) = cost);
        Ok(())
    }

    /// Adds to the cost reported so far under one policy.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost is invalid. The reported cost is unchanged then.
    pub fn add_policy<C>(&self, policy: &str, cost: C) -> Result<(), CostError>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        let cost: Cost = cost.try_into().map_err(Into::into)?;
        self.update(|reported| {
            let own = reported.of_policy(policy);
            *own = own.plus(cost).min(Cost::MAX);
        });
        Ok(())
    }

    /// Adds to the cost reported so far.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost is invalid. The reported cost is unchanged then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::Charge;
    ///
    /// fn next_token(charge: &Charge) {
    ///     // A client that disconnects pays for the tokens so far.
    ///     let _ = charge.add(1);
    /// }
    /// ```
    pub fn add<C: TryInto<Cost, Error: Into<CostError>>>(&self, cost: C) -> Result<(), CostError> {
        let cost: Cost = cost.try_into().map_err(Into::into)?;
        self.update(|reported| {
            let so_far = reported.cost.unwrap_or(Cost::ZERO);
            reported.cost = Some(so_far.plus(cost).min(Cost::MAX));
        });
        Ok(())
    }

    fn update(&self, update: impl FnOnce(&mut ReportedCosts)) {
        update(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn reported(&self) -> ReportedCosts {
        let reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reported.clone()
    }
}

impl ReportedCosts {
    /// Returns the cost of one policy, which is 0 if none was reported.
    fn of_policy(&mut self, policy: &str) -> &mut Cost {
        let found = self
            .by_policy
            .iter()
            .position(|(name, _)| **name == *policy);
        let index = found.unwrap_or_else(|| {
            self.by_policy.push((policy.into(), Cost::ZERO));
            self.by_policy.len() - 1
        });
        &mut self.by_policy[index].1
    }
}

/// The source of a request's actual cost.
#[derive(Clone, Debug, Default)]
pub enum ActualCost {
    /// The cost taken at the start.
    #[default]
    AsTaken,
    /// The cost that the handler reports.
    Reported(Charge),
    /// The bytes of the response body: this many cost one unit.
    Bytes(u64),
}

/// The cost of an admitted request until its outcome is known.
///
/// If it is dropped before there is a response, because the client disconnected or the handler
/// panicked, everything is given back except what is known to have been spent.
pub struct PendingCharge<S: Store = MemoryStore> {
    receipt: Option<Receipt<S>>,
    actual_cost: ActualCost,
    /// The policies that one reported cost applies to; `None` for all.
    settled: Option<Arc<[Name]>>,
    bytes: u64,
    has_response: bool,
    /// Set if the cost is kept even without a response.
    counts_aborted: bool,
    /// Set while the request is delayed in a queue.
    is_queued: bool,
}

impl<S: Store> PendingCharge<S> {
    /// Creates a pending charge for a request that has no response yet.
    pub fn new(receipt: Receipt<S>, actual_cost: ActualCost, settled: Option<Arc<[Name]>>) -> Self {
        Self {
            receipt: Some(receipt),
            actual_cost,
            settled,
            bytes: 0,
            has_response: false,
            counts_aborted: false,
            is_queued: false,
        }
    }

    /// Gives everything back.
    pub fn give_back(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            receipt.give_back();
        }
    }

    /// Settles the request to its actual cost.
    pub fn settle(&mut self, cost: Cost) {
        if let Some(receipt) = self.receipt.take() {
            receipt.settle(self.costs(cost));
        }
    }

    /// Returns one cost for the policies it applies to.
    fn costs(&self, cost: Cost) -> ActualCosts {
        let Some(policies) = &self.settled else {
            return cost.into();
        };
        let with = |costs: ActualCosts, policy: &Name| costs.with_policy(policy.as_str(), cost);
        policies.iter().fold(ActualCosts::new(), with)
    }

    /// Keeps the cost as it was taken.
    pub fn keep(&mut self) {
        self.receipt = None;
    }

    /// Sets whether the request is delayed in a queue.
    ///
    /// A request that is dropped while it is queued leaves its place empty. Giving the place back
    /// would move the next request to the time of one behind it.
    pub(crate) fn set_queued(&mut self, is_queued: bool) {
        self.is_queued = is_queued;
    }

    /// Keeps the cost even if there is no response.
    pub(crate) fn count_if_aborted(&mut self) {
        self.counts_aborted = true;
    }

    /// Records that there is a response. A cost that depends on its body stays pending.
    pub fn set_has_response(&mut self) {
        self.has_response = true;
        if matches!(self.actual_cost, ActualCost::AsTaken) {
            self.keep();
        }
    }

    pub(crate) fn actual_cost(&self) -> &ActualCost {
        &self.actual_cost
    }

    /// Returns `true` until the request is settled.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.receipt.is_some()
    }

    /// Counts bytes of the response body that were sent.
    pub fn add_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Returns the actual costs, or `None` if they are unknown.
    fn spent(&self) -> Option<ActualCosts> {
        match &self.actual_cost {
            ActualCost::AsTaken => None,
            ActualCost::Reported(charge) => {
                let ReportedCosts { cost, by_policy } = charge.reported();
                if cost.is_none() && by_policy.is_empty() {
                    return None;
                }
                let all = cost.map_or_else(ActualCosts::new, |cost| self.costs(cost));
                let with = |costs: ActualCosts, (policy, cost): &(Box<str>, Cost)| {
                    costs.with_policy(policy, *cost)
                };
                Some(by_policy.iter().fold(all, with))
            }
            ActualCost::Bytes(per_unit) => {
                let per_unit = u128::from((*per_unit).max(1));
                let thousandths = (u128::from(self.bytes) * 1_000).div_ceil(per_unit);
                let thousandths = thousandths.min(u128::from(Cost::MAX.thousandths()));
                let cost = Cost::from_thousandths(thousandths as u64).ok()?;
                Some(self.costs(cost))
            }
        }
    }
}

impl<S: Store> std::fmt::Debug for PendingCharge<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingCharge")
            .field("actual_cost", &self.actual_cost)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Drop for PendingCharge<S> {
    fn drop(&mut self) {
        let Some(receipt) = self.receipt.take().filter(|_| !self.is_queued) else {
            return;
        };
        match self.spent() {
            Some(spent) => receipt.settle(spent),
            // The client got a response and no cost was reported, so nothing is given back.
            None if self.has_response || self.counts_aborted => {}
            None => receipt.give_back(),
        }
    }
}
