//! The calls to Redis: taking slices, and giving them back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::{Claims, Cost, Decision, Key, StoreError};
use tokio::task::JoinHandle;

use super::leased_key::{KeyReturn, Order, Unsent};
use super::plan::{LeasePlan, cost};
use super::slice::{Granted, Moment};
use super::table::Leases;
use crate::error::CallError;
use crate::operation::{Operation, OperationKind};
use crate::plan::RedisPlan;
use crate::reply::Reply;
use crate::store::{RedisStore, parts};

/// The time after a denied slice until the next one is asked for.
const RETRY_AFTER: Duration = Duration::from_millis(25);

impl RedisStore {
    /// Admits a request from a slice, without a round trip. The next slice is taken in the
    /// background before this one is spent.
    #[inline]
    pub(crate) fn take_leased(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Option<Decision> {
        let lease = plan.lease()?;
        if cost == Cost::ZERO {
            return None;
        }
        let (decision, order) = self.shared().leases.take(lease, key, cost)?;
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
        let Some(lease) = plan.lease().filter(|_| cost > Cost::ZERO) else {
            return Ok(None);
        };
        let Some(order) = self.shared().leases.order_again(lease, key, cost) else {
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
        let Some(lease) = plan.lease().filter(|_| cost > Cost::ZERO) else {
            return;
        };
        let leases = &self.shared().leases;
        if let Some(order) = leases.observe(plan, lease, key, cost, decision) {
            drop(self.spawn_refill(order));
        }
    }

    #[cold]
    fn spawn_refill(&self, order: Box<Order>) -> JoinHandle<Result<(), CallError>> {
        let store = self.clone();
        let runtime = &self.shared().runtime;
        runtime.spawn(async move { store.refill(*order).await })
    }

    /// Asks Redis for a slice, after giving back what the key does not need any more.
    async fn refill(&self, order: Order) -> Result<(), CallError> {
        let leases = &self.shared().leases;
        let Some((lease, key)) = order.plan.lease().zip(Key::new(&order.key).ok()) else {
            return Ok(());
        };
        let amount = cost(order.amount);
        let check = |plan| Operation::new(plan, OperationKind::Check, key, amount);
        let (mut operations, amounts) = give_back(&order.plan, lease, key, order.unsent, leases);
        operations.push(Operation::together(
            check(&order.plan),
            check(&lease.registry),
        ));
        let sent = leases.moment();
        let mut results = self.send_part(operations).await;
        let slice = results.pop();
        leases.count_returned(amounts.into_iter().zip(&results));
        match slice {
            Some(Ok(reply)) => {
                self.answered(&order.plan, order.hash, order.amount, sent, reply);
                Ok(())
            }
            Some(Err(error)) => {
                // Redis may have granted it.
                leases.totals.add_lapsed(order.amount);
                let until = sent.now.saturating_add(lease.lifetime);
                leases.not_granted(order.hash, until);
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Adds the slice that Redis granted, if it did.
    fn answered(&self, plan: &RedisPlan, hash: u128, amount: u64, sent: Moment, reply: Reply) {
        let leases = &self.shared().leases;
        let admission = reply.admission;
        let Some((registered, lease)) = reply.beside.zip(plan.lease()) else {
            return;
        };
        if admission.decision.is_denied() || registered.decision.is_denied() {
            // A smaller slice may be granted soon.
            let until = sent.now.saturating_add(lease.lifetime.min(RETRY_AFTER));
            let remaining = admission.decision.remaining() * 1_000;
            let room = registered.decision.remaining() * 1_000;
            return leases.denied(hash, until, remaining, room);
        }
        leases.totals.add_granted(amount);
        let life = lease.life(plan.policy(), &admission, &registered);
        let granted = Granted {
            amount,
            decision: admission.decision,
            claims: admission.claims,
            room: registered.decision.remaining() * 1_000,
            registry_claims: registered.claims,
            received_at: leases.now(),
            // Counted from before the call, so the slice ends before its window does.
            lapses_at: sent.now.saturating_add(life),
            epoch: sent.epoch,
        };
        leases.granted(lease, hash, granted);
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
        let leases = &self.shared().leases;
        let (mut operations, mut amounts) = (Vec::new(), Vec::new());
        for one in returned {
            if let Some((key, lease)) = Key::new(&one.key).ok().zip(one.plan.lease()) {
                let (own, own_amounts) = give_back(&one.plan, lease, key, one.unsent, leases);
                operations.extend(own);
                amounts.extend(own_amounts);
            }
        }
        let mut amounts = amounts.into_iter();
        for part in parts(operations) {
            let results = self.send_part(part).await;
            leases.count_returned(amounts.by_ref().zip(&results));
        }
    }
}

impl Leases {
    fn count_returned<'a>(
        &self,
        returned: impl Iterator<Item = (u64, &'a Result<Reply, CallError>)>,
    ) {
        for (amount, result) in returned {
            match result {
                Ok(_) => self.totals.add_returned(amount),
                Err(_) => self.totals.add_lapsed(amount),
            }
        }
    }
}

/// Returns the operations that give quota back, and the policy's quota in each.
fn give_back(
    plan: &RedisPlan,
    lease: &LeasePlan,
    key: Key<'_>,
    unsent: Unsent,
    leases: &Leases,
) -> (Vec<Operation>, Vec<u64>) {
    leases.totals.add_lapsed(unsent.lapsed);
    let (mut operations, mut amounts) = (Vec::new(), Vec::new());
    let mut settle = |plan: &RedisPlan, claims: Claims, amount: u64, counted: u64| {
        if amount > 0 {
            let kind = OperationKind::Settle(claims);
            operations.push(Operation::new(plan, kind, key, cost(amount)));
            amounts.push(counted);
        }
    };
    for rest in unsent.returns {
        settle(plan, rest.claims, rest.amount, rest.amount);
        // The registry is no quota of the policy.
        settle(
            &lease.registry,
            rest.registry_claims,
            rest.registry_amount,
            0,
        );
    }
    (operations, amounts)
}
