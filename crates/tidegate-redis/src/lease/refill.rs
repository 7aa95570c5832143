//! The calls to Redis: taking slices, and giving them back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::{Claims, Cost, Decision, Key, StoreError};
use tokio::task::JoinHandle;

use super::plan::{LeasePlan, cost};
use super::slice::{Granted, KeyReturn, Moment, Order, Return};
use super::table::Leases;
use crate::error::CallError;
use crate::operation::{Operation, OperationKind};
use crate::plan::RedisPlan;
use crate::reply::Reply;
use crate::store::{RedisStore, parts};

impl RedisStore {
    /// Returns the leases, and how this policy's quota is leased, if it is.
    #[inline]
    fn leases<'a>(&'a self, plan: &'a RedisPlan) -> Option<(&'a Leases, &'a LeasePlan)> {
        Some((&self.shared().leases, plan.lease()?))
    }

    /// Admits a request from a slice, without a round trip. The next slice is taken in the
    /// background before this one is spent.
    #[inline]
    pub(crate) fn take_leased(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Option<Decision> {
        let (leases, lease) = self.leases(plan)?;
        if cost == Cost::ZERO {
            return None;
        }
        let (decision, order) = leases.take(plan, lease, key, cost)?;
        if let Some(order) = order {
            drop(self.spawn_refill(order));
        }
        Some(decision)
    }

    /// Takes a new slice for a key whose slice has ended, and admits the request from it.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis did not answer. The check is not sent then, because it would have
    /// to wait once more.
    pub(crate) async fn refill_and_take(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Option<Decision>, StoreError> {
        let Some((leases, lease)) = self.leases(plan) else {
            return Ok(None);
        };
        let Some(order) = leases.order_again(plan, lease, key, cost) else {
            return Ok(None);
        };
        // On a task of its own, so that a caller that goes away does not lose the slice.
        match self.spawn_refill(order).await {
            Ok(Err(error)) => Err(self.failed(error)),
            _ => Ok(self.take_leased(plan, key, cost)),
        }
    }

    /// Records a decision by Redis. A key in demand gets a slice in the background.
    pub(crate) fn observe(&self, plan: &RedisPlan, key: Key<'_>, cost: Cost, decision: &Decision) {
        let Some((leases, lease)) = self.leases(plan) else {
            return;
        };
        if cost > Cost::ZERO
            && let Some(order) = leases.observe(plan, lease, key, cost, decision)
        {
            drop(self.spawn_refill(order));
        }
    }

    fn spawn_refill(&self, order: Order) -> JoinHandle<Result<(), CallError>> {
        let store = self.clone();
        let runtime = &self.shared().runtime;
        runtime.spawn(async move { store.refill(order).await })
    }

    /// Asks Redis for a slice, after giving back what the key does not need any more.
    async fn refill(&self, mut order: Order) -> Result<(), CallError> {
        let leases = &self.shared().leases;
        let Some((lease, key)) = order.plan.lease().zip(Key::new(&order.key).ok()) else {
            return Ok(());
        };
        let amount = cost(order.amount);
        let check = |plan| Operation::new(plan, OperationKind::Check, key, amount);
        let returned = order.returned.take();
        let unspent = returned.as_ref().map_or(0, |rest| rest.amount);
        let mut operations = give_back(&order.plan, key, returned);
        operations.push(Operation::together(
            check(&order.plan),
            check(&lease.registry),
        ));
        let sent = leases.moment();
        let mut results = self.send_part(operations).await;
        let slice = results.pop();
        leases.count_returned(unspent, results.iter().all(Result::is_ok));
        leases.totals.add_lapsed(order.lapsed);
        match slice {
            Some(Ok(reply)) => {
                self.answered(&order, lease, sent, reply);
                Ok(())
            }
            Some(Err(error)) => {
                // Redis may have granted it.
                leases.totals.add_lapsed(order.amount);
                leases.not_granted(&order, sent.now.saturating_add(lease.lifetime), None);
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Adds the slice that Redis granted, if it did.
    fn answered(&self, order: &Order, lease: &LeasePlan, sent: Moment, reply: Reply) {
        let leases = &self.shared().leases;
        let admission = reply.admission;
        let Some(registered) = reply.beside else {
            return;
        };
        if admission.decision.is_denied() || registered.decision.is_denied() {
            let remaining = admission.decision.remaining();
            let until = sent.now.saturating_add(lease.lifetime);
            return leases.not_granted(order, until, Some(remaining));
        }
        leases.totals.add_granted(order.amount);
        let life = LeasePlan::life(order.plan.policy(), &admission, &registered);
        let granted = Granted {
            amount: order.amount,
            decision: admission.decision,
            claims: admission.claims,
            registry_claims: registered.claims,
            received_at: leases.now(),
            // Counted from before the call, so the slice ends before its window does.
            lapses_at: sent.now.saturating_add(life),
            epoch: sent.epoch,
        };
        leases.granted(order, granted);
        self.start_sweeping(lease.lifetime);
    }

    /// Starts the task that ends idle slices, unless it is running.
    fn start_sweeping(&self, every: Duration) {
        if self
            .shared()
            .leases
            .is_sweeping
            .swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = Arc::downgrade(self.shared());
        self.shared().runtime.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(store) = shared.upgrade().map(RedisStore::from_shared) else {
                    return;
                };
                let is_sweeping = &store.shared().leases.is_sweeping;
                if !store.sweep().await {
                    is_sweeping.store(false, Ordering::Release);
                    // A key may have been added in between.
                    let is_done = !store.sweep().await || is_sweeping.swap(true, Ordering::AcqRel);
                    if is_done {
                        return;
                    }
                }
            }
        });
    }

    /// Ends slices that have lapsed or are idle. Returns `false` if no key is left.
    async fn sweep(&self) -> bool {
        let mut returned = Vec::new();
        let has_keys = self.shared().leases.sweep(&mut returned);
        self.give_back_all(returned).await;
        has_keys
    }

    /// Gives all leased quota back, for a process that is about to end. Leases continue with the
    /// next checks.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate::RedisStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect("redis://127.0.0.1/?lease=on").await?;
    /// // Before the program ends:
    /// store.give_back_leases().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn give_back_leases(&self) {
        let returned = self.shared().leases.end_all();
        self.in_runtime(self.give_back_all(returned)).await;
    }

    async fn give_back_all(&self, returned: Vec<KeyReturn>) {
        let mut operations = Vec::new();
        for one in returned {
            if let Ok(key) = Key::new(&one.key) {
                operations.extend(give_back(&one.plan, key, Some(one.rest)));
            }
        }
        let leases = &self.shared().leases;
        for part in parts(operations) {
            // The registry is no quota of the policy.
            let amounts: Vec<u64> = part
                .iter()
                .map(|operation| match operation.plan.lease() {
                    Some(_) => operation.cost.thousandths(),
                    None => 0,
                })
                .collect();
            for (amount, result) in amounts.into_iter().zip(self.send_part(part).await) {
                leases.count_returned(amount, result.is_ok());
            }
        }
    }
}

impl Leases {
    fn count_returned(&self, amount: u64, is_returned: bool) {
        if is_returned {
            self.totals.add_returned(amount);
        } else {
            self.totals.add_lapsed(amount);
        }
    }
}

/// Returns the operations that give quota back.
fn give_back(plan: &RedisPlan, key: Key<'_>, rest: Option<Return>) -> Vec<Operation> {
    let Some((rest, lease)) = rest.zip(plan.lease()) else {
        return Vec::new();
    };
    let settle = |plan: &RedisPlan, claims: Claims, amount: u64| {
        (amount > 0).then(|| Operation::new(plan, OperationKind::Settle(claims), key, cost(amount)))
    };
    [
        settle(plan, rest.claims, rest.amount),
        settle(&lease.registry, rest.registry_claims, rest.registry_amount),
    ]
    .into_iter()
    .flatten()
    .collect()
}
