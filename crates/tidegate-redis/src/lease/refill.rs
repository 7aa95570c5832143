//! The calls to Redis: taking slices, and giving them back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::{Claims, Cost, Decision, Key, Policy, StoreError};
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
const PAUSE_AFTER_DENIAL: Duration = Duration::from_millis(25);

/// The time after an error of Redis until the next slice is asked for. Redis decides the checks
/// until then: the error can be that of the registry alone, such as TRYAGAIN while a slot moves.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// A call for a slice that has been sent.
struct SentOrder<'a> {
    lease: &'a LeasePlan,
    policy: &'a Policy,
    hash: u128,
    amount: u64,
    resets: u32,
    sent: Moment,
}

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
    /// Returns an error if Redis did not answer. The check is not sent then: it would have to wait
    /// once more.
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
            Ok(Err(error)) if error.is_outage() => Err(self.failed(error)),
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
        let key = Key::new(&order.key).ok();
        let (Some(lease), Some(key), Some(amount)) = (order.plan.lease(), key, cost(order.amount))
        else {
            return Ok(());
        };
        let check = |plan| Operation::new(plan, OperationKind::Check, key, amount);
        let (mut operations, amounts) = give_back(&order.plan, lease, key, order.unsent, leases);
        operations.push(Operation::together(
            check(&order.plan),
            check(&lease.registry),
        ));
        let sent = leases.moment();
        let mut results = self.send_part(operations).await;
        let slice = results.pop().unwrap_or(Err(CallError::Timeout));
        leases.count_returned(results.iter().zip(amounts));
        let sent_order = SentOrder {
            lease,
            policy: order.plan.policy(),
            hash: order.hash,
            amount: order.amount,
            resets: order.resets,
            sent,
        };
        match slice {
            Ok(reply) => {
                self.answered(&sent_order, reply);
                Ok(())
            }
            Err(error) => {
                // After an outage, Redis may have granted it.
                let pause = if error.is_outage() {
                    leases.totals.add_lapsed(order.amount);
                    lease.lifetime
                } else {
                    PAUSE_AFTER_ERROR
                };
                leases.not_granted(order.hash, sent.now.saturating_add(pause));
                Err(error)
            }
        }
    }

    /// Adds the slice that Redis granted, if it did.
    fn answered(&self, order: &SentOrder<'_>, reply: Reply) {
        let (leases, lease) = (&self.shared().leases, order.lease);
        let until = |pause| order.sent.now.saturating_add(pause);
        let admission = reply.admission;
        let Some(registered) = reply.beside else {
            return leases.not_granted(order.hash, until(PAUSE_AFTER_ERROR));
        };
        let room = registered.decision.remaining() * 1_000;
        if admission.decision.is_denied() || registered.decision.is_denied() {
            let remaining = admission.decision.remaining() * 1_000;
            let until = until(lease.lifetime.min(PAUSE_AFTER_DENIAL));
            return leases.denied(order.hash, until, remaining, room);
        }
        leases.totals.add_granted(order.amount);
        // Counted from before the call, so the slice ends before its window does.
        let lapses_at = until(lease.life(order.policy, &admission, &registered));
        let granted = Granted {
            amount: order.amount,
            decision: admission.decision,
            claims: admission.claims,
            room,
            registry_claims: registered.claims,
            received_at: leases.now(),
            lapses_at,
            epoch: order.sent.epoch,
        };
        leases.granted(lease, order.hash, granted, order.resets);
        self.start_sweeping(lease.lifetime / 2);
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
            leases.count_returned(results.iter().zip(amounts.by_ref()));
            let is_outage = |result: &Result<Reply, CallError>| {
                result.as_ref().is_err_and(CallError::is_outage)
            };
            if results.iter().any(is_outage) {
                break;
            }
        }
        leases.totals.add_lapsed(amounts.sum());
    }

    /// Gives the slices of a key back, before a charge that may put the key in debt.
    pub(crate) async fn give_back_key(&self, plan: &RedisPlan, key: Key<'_>) {
        if let Some(lease) = plan.lease()
            && let Some(returned) = self.shared().leases.end(lease, key)
        {
            self.in_runtime(self.give_back_all(vec![returned])).await;
        }
    }
}

impl Leases {
    fn count_returned<'a>(
        &self,
        returned: impl Iterator<Item = (&'a Result<Reply, CallError>, u64)>,
    ) {
        for (result, amount) in returned {
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
    let moment = leases.moment();
    let (mut operations, mut amounts) = (Vec::new(), Vec::new());
    let mut settle = |plan: &RedisPlan, claims: Claims, amount: u64, counted: u64| {
        if let Some(amount) = cost(amount) {
            let kind = OperationKind::Settle(claims);
            operations.push(Operation::new(plan, kind, key, amount));
            amounts.push(counted);
        }
    };
    for rest in unsent.returns {
        if !rest.is_due(moment) {
            leases.totals.add_lapsed(rest.amount);
            continue;
        }
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
