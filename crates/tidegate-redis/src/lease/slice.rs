//! One key: its slice, its demand, and the decisions made from the slice.
//!
//! Amounts are in thousandths of a unit.

use std::time::Duration;

use tidegate_core::{Claims, Decision, Outcome, Timestamp, remote};

use super::plan::LeasePlan;
use crate::plan::RedisPlan;

/// The number of checks within one lifetime after which a key is leased.
const HOT: u32 = 3;

/// The size of a key's first slice: 16 units.
const FIRST_AMOUNT: u64 = 16_000;

/// The factor by which a slice may exceed the previous one.
const GROWTH: u64 = 4;

/// The part of the remaining quota that one slice may take.
const SHARE_OF_REMAINING: u64 = 4;

/// A key of this process.
pub(super) struct LeasedKey {
    pub(super) hash: u64,
    pub(super) plan: RedisPlan,
    pub(super) key: Box<[u8]>,
    slice: Option<Slice>,
    /// Set while a call for a slice is in flight.
    is_refilling: bool,
    /// The time before which no slice is asked for.
    not_before: Timestamp,
    pub(super) last_used: Timestamp,
    /// The size of the last slice, or 0 if there was none.
    amount: u64,
    /// The remaining quota that Redis last reported.
    remaining: u64,
    /// The amount admitted and the number of checks since `measured_at`.
    spent: u64,
    checks: u32,
    measured_at: Timestamp,
}

/// A part of a key's quota that this process may spend.
struct Slice {
    left: u64,
    /// The amount spent since `granted`.
    taken: u64,
    /// The amount spent that the registry still counts as held.
    unreported: u64,
    granted: Granted,
}

/// A slice as Redis granted it.
pub(super) struct Granted {
    pub(super) amount: u64,
    pub(super) decision: Decision,
    /// The places where the slice was counted: in the policy's limits, and in the registry.
    pub(super) claims: Claims,
    pub(super) registry_claims: Claims,
    pub(super) received_at: Timestamp,
    pub(super) lapses_at: Timestamp,
    pub(super) epoch: u64,
}

/// Quota to give back: to the policy's limits, and to the registry.
pub(super) struct Return {
    pub(super) amount: u64,
    pub(super) claims: Claims,
    pub(super) registry_amount: u64,
    pub(super) registry_claims: Claims,
}

/// Quota of one key to give back.
pub(super) struct KeyReturn {
    pub(super) plan: RedisPlan,
    pub(super) key: Box<[u8]>,
    pub(super) rest: Return,
}

/// A call for a slice.
pub(super) struct Order {
    pub(super) hash: u64,
    pub(super) plan: RedisPlan,
    pub(super) key: Box<[u8]>,
    pub(super) amount: u64,
    /// What is given back first.
    pub(super) returned: Option<Return>,
    /// What was lost of the previous slice.
    pub(super) lapsed: u64,
}

/// The current time, and the state of the connections.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) epoch: u64,
}

impl LeasedKey {
    pub(super) fn new(hash: u64, plan: &RedisPlan, key: &[u8], now: Timestamp) -> Self {
        Self {
            hash,
            plan: plan.clone(),
            key: key.into(),
            slice: None,
            is_refilling: false,
            not_before: now,
            last_used: now,
            amount: 0,
            remaining: 0,
            spent: 0,
            checks: 0,
            measured_at: now,
        }
    }

    /// Returns `true` if another key may take this place.
    pub(super) fn is_replaceable(&self) -> bool {
        self.slice.is_none() && !self.is_refilling
    }

    /// Returns the quota held.
    pub(super) fn held(&self) -> Option<u64> {
        self.slice.as_ref().map(|slice| slice.left)
    }

    /// Admits a request from the slice, if it has enough. May also return a call for the next slice.
    #[inline]
    pub(super) fn take(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        cost: u64,
    ) -> Option<(Decision, Option<Order>)> {
        let slice = self.slice.as_mut()?;
        if slice.left < cost || !slice.is_valid(moment) {
            return None;
        }
        let decision = slice.spend(lease, moment.now, cost);
        let is_low = slice.left <= self.amount / 4;
        self.spent += cost;
        self.last_used = moment.now;
        let order = if is_low {
            self.order(lease, moment, cost)
        } else {
            None
        };
        Some((decision, order))
    }

    /// Returns a call for a slice if this key had one and has not enough left.
    pub(super) fn order_again(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        cost: u64,
    ) -> Option<Order> {
        let is_known =
            self.amount > 0 && moment.now < self.last_used.saturating_add(lease.lifetime);
        is_known.then(|| self.order(lease, moment, cost))?
    }

    /// Records a decision by Redis. Returns a call for a slice if the key is in demand.
    pub(super) fn observe(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        cost: u64,
        decision: &Decision,
    ) -> Option<Order> {
        let now = moment.now;
        self.last_used = now;
        self.remaining = decision.remaining().saturating_mul(1_000);
        if !decision.is_allowed() {
            self.not_before = now.saturating_add(lease.lifetime);
            return None;
        }
        if self.slice.is_none() && now >= self.measured_at.saturating_add(lease.lifetime) {
            (self.spent, self.checks, self.measured_at) = (0, 0, now);
        }
        self.spent += cost;
        self.checks = self.checks.saturating_add(1);
        let has_enough = self
            .slice
            .as_ref()
            .is_some_and(|slice| slice.is_valid(moment) && slice.left > self.amount / 4);
        (self.checks >= HOT && !has_enough).then(|| self.order(lease, moment, cost))?
    }

    /// Returns a call for the next slice, unless one is in flight or too little is left to lease.
    fn order(&mut self, lease: &LeasePlan, moment: Moment, cost: u64) -> Option<Order> {
        if self.is_refilling || moment.now < self.not_before {
            return None;
        }
        let amount = self.next_amount(lease, moment.now, cost);
        if amount < (2 * cost).max(2_000) {
            self.not_before = moment.now.saturating_add(lease.lifetime / 2);
            return None;
        }
        self.is_refilling = true;
        (self.amount, self.spent, self.measured_at) = (amount, 0, moment.now);
        let (returned, lapsed) = match &mut self.slice {
            Some(slice) if slice.is_valid(moment) => (slice.report(), 0),
            _ => self.ended(lease, moment),
        };
        Some(Order {
            hash: self.hash,
            plan: self.plan.clone(),
            key: self.key.clone(),
            amount,
            returned,
            lapsed,
        })
    }

    /// Returns the size of the next slice: the demand of one lifetime, within bounds.
    fn next_amount(&self, lease: &LeasePlan, now: Timestamp, cost: u64) -> u64 {
        let lifetime = lease.lifetime.as_nanos();
        let elapsed = now.saturating_since(self.measured_at).as_nanos();
        let demand = u128::from(self.spent) * lifetime / elapsed.max(lifetime / 16).max(1);
        let demand = u64::try_from(demand).unwrap_or(u64::MAX);
        // A window's slice outlives its lifetime, so a larger one is not lost.
        let wanted = if lease.has_bucket {
            demand.saturating_add(demand / 4)
        } else {
            demand.saturating_mul(2)
        };
        let first = FIRST_AMOUNT.max(cost.saturating_mul(4));
        wanted
            .min(self.amount.saturating_mul(GROWTH))
            .max(first)
            .min(lease.max_held)
            .min(self.remaining / SHARE_OF_REMAINING)
    }

    /// Adds a slice that Redis granted. Returns what was lost of the previous one.
    pub(super) fn granted(&mut self, moment: Moment, granted: Granted) -> u64 {
        self.is_refilling = false;
        self.remaining = granted.decision.remaining().saturating_mul(1_000);
        let old = self.slice.take();
        let (mut left, mut unreported, mut lapsed) = (granted.amount, 0, 0);
        match old {
            // It ends at the same time: no window has ended since.
            Some(old) if old.is_valid(moment) => {
                left += old.left;
                unreported = old.unreported;
            }
            Some(old) => lapsed = old.left,
            None => {}
        }
        self.slice = Some(Slice {
            left,
            taken: 0,
            unreported,
            granted,
        });
        lapsed
    }

    /// Records that no slice was granted.
    pub(super) fn not_granted(&mut self, until: Timestamp, remaining: Option<u64>) {
        self.is_refilling = false;
        self.not_before = until;
        if let Some(remaining) = remaining {
            self.remaining = remaining.saturating_mul(1_000);
        }
    }

    /// Removes the slice if it has ended, or if the key was not used for a lifetime. Returns what
    /// is to be given back.
    pub(super) fn sweep(&mut self, moment: Moment) -> Swept {
        let plan = self.plan.clone();
        let Some(lease) = plan.lease() else {
            return Swept::Unused;
        };
        let is_idle = moment.now >= self.last_used.saturating_add(lease.lifetime);
        let Some(slice) = &self.slice else {
            return if is_idle && !self.is_refilling {
                Swept::Unused
            } else {
                Swept::Kept
            };
        };
        if !slice.is_valid(moment) {
            let (rest, lapsed) = self.ended(lease, moment);
            return Swept::Ended { rest, lapsed };
        }
        if is_idle && !self.is_refilling {
            let rest = self.end();
            return Swept::Ended { rest, lapsed: 0 };
        }
        Swept::Kept
    }

    pub(super) fn returned(&self, rest: Return) -> KeyReturn {
        KeyReturn {
            plan: self.plan.clone(),
            key: self.key.clone(),
            rest,
        }
    }

    /// Removes a valid slice, and returns all of it.
    pub(super) fn end(&mut self) -> Option<Return> {
        let slice = self.slice.take()?;
        Some(Return {
            amount: slice.left,
            claims: slice.granted.claims,
            registry_amount: slice.left + slice.unreported,
            registry_claims: slice.granted.registry_claims,
        })
    }

    /// Removes a slice that has ended. The rest of a bucket's is given back, that of a window is
    /// lost.
    fn ended(&mut self, lease: &LeasePlan, moment: Moment) -> (Option<Return>, u64) {
        let Some(slice) = self.slice.take().filter(|slice| slice.left > 0) else {
            return (None, 0);
        };
        if !lease.has_bucket || slice.granted.epoch != moment.epoch {
            return (None, slice.left);
        }
        // The registry's window has ended too.
        let rest = Return {
            amount: slice.left,
            claims: slice.granted.claims,
            registry_amount: 0,
            registry_claims: Claims::new(),
        };
        (Some(rest), 0)
    }

    /// Forgets the slice.
    pub(super) fn drop_slice(&mut self) {
        self.slice = None;
    }
}

/// The result of [`LeasedKey::sweep`].
pub(super) enum Swept {
    Kept,
    /// The key has no slice and is not used.
    Unused,
    /// The slice has ended. A part of it is given back, or lost.
    Ended {
        rest: Option<Return>,
        lapsed: u64,
    },
}

impl Slice {
    #[inline]
    fn is_valid(&self, moment: Moment) -> bool {
        moment.now < self.granted.lapses_at && moment.epoch == self.granted.epoch
    }

    #[inline]
    fn spend(&mut self, lease: &LeasePlan, now: Timestamp, cost: u64) -> Decision {
        let elapsed = now.saturating_since(self.granted.received_at);
        let delay = if lease.has_queue() {
            self.queued(lease).saturating_sub(elapsed)
        } else {
            Duration::ZERO
        };
        self.left -= cost;
        self.taken += cost;
        self.unreported += cost;
        remote::admitted_from_lease(&self.granted.decision, self.left / 1_000, delay, elapsed)
    }

    /// Returns the delay of the next request in the leaky bucket's queue, from when the slice was
    /// granted. Requests of a slice have consecutive places.
    fn queued(&self, lease: &LeasePlan) -> Duration {
        let Outcome::Allowed { delay } = self.granted.decision.outcome() else {
            return Duration::ZERO;
        };
        delay + lease.queue_time(self.taken)
    }

    /// Returns what the registry need not count any more.
    fn report(&mut self) -> Option<Return> {
        let spent = std::mem::take(&mut self.unreported);
        (spent > 0).then(|| Return {
            amount: 0,
            claims: Claims::new(),
            registry_amount: spent,
            registry_claims: self.granted.registry_claims.clone(),
        })
    }
}
