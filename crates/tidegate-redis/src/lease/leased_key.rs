//! One key: its slices, and when the next one is taken.
//!
//! Amounts are in thousandths of a unit.

use tidegate_core::{Decision, Timestamp};

use super::demand::Demand;
use super::plan::LeasePlan;
use super::slice::{Granted, Moment, Rest, Return, Slice};
use crate::plan::RedisPlan;

/// The longest key that is leased, in bytes. Longer ones are decided by Redis.
pub(super) const LONGEST_KEY: usize = 256;

/// A key of this process.
pub(super) struct LeasedKey {
    plan: RedisPlan,
    hash: u128,
    key: Box<[u8]>,
    /// The slice that is spent.
    slice: Option<Slice>,
    /// The slice after it.
    next: Option<Slice>,
    /// Set while a call for a slice is in flight.
    is_refilling: bool,
    /// The time before which no slice is asked for.
    not_before: Timestamp,
    last_used: Timestamp,
    demand: Demand,
    unsent: Unsent,
    /// Counts resets. A slice from before a reset is not spent.
    resets: u32,
}

/// The quota that the next call for a slice gives back, and the quota that was lost.
#[derive(Default)]
pub(super) struct Unsent {
    pub(super) returns: Vec<Return>,
    pub(super) lapsed: u64,
    /// The last slice that was spent, for the registry.
    spent: Option<Return>,
}

/// Quota of one key to give back.
pub(super) struct KeyReturn {
    pub(super) plan: RedisPlan,
    pub(super) key: Box<[u8]>,
    pub(super) unsent: Unsent,
}

/// A call for a slice.
pub(super) struct Order {
    pub(super) plan: RedisPlan,
    pub(super) hash: u128,
    pub(super) key: Box<[u8]>,
    pub(super) amount: u64,
    pub(super) unsent: Unsent,
    pub(super) resets: u32,
}

impl LeasedKey {
    pub(super) fn new(plan: &RedisPlan, hash: u128, key: &[u8], now: Timestamp) -> Self {
        Self {
            plan: plan.clone(),
            hash,
            key: key.into(),
            slice: None,
            next: None,
            is_refilling: false,
            not_before: now,
            last_used: now,
            demand: Demand::new(now),
            unsent: Unsent::default(),
            resets: 0,
        }
    }

    /// Returns the time of the last use, if another key may take this one's place.
    pub(super) fn replaceable_since(&self) -> Option<Timestamp> {
        let is_free = self.slices().next().is_none() && !self.is_refilling;
        (is_free && self.unsent.is_empty()).then_some(self.last_used)
    }

    fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.slice.iter().chain(&self.next)
    }

    /// Returns the quota held, if there is any.
    pub(super) fn held(&self) -> Option<u64> {
        self.slices()
            .map(Slice::left)
            .reduce(|sum, left| sum + left)
    }

    /// Admits a request from a slice, if one has enough. May also return a call for the next slice.
    #[inline]
    pub(super) fn take(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        cost: u64,
    ) -> Option<(Decision, Option<Box<Order>>)> {
        if !self.slice.as_ref()?.covers(moment, cost) {
            self.advance(lease, moment, cost)?;
        }
        let slice = self.slice.as_mut()?;
        let decision = slice.spend(lease, moment.now, cost);
        let is_due = slice.is_due(moment.now);
        self.demand.record(cost);
        self.last_used = moment.now;
        let order = if is_due {
            self.renew(lease, moment, cost)
        } else {
            None
        };
        Some((decision, order))
    }

    /// Replaces the slice by the next one, if that has enough.
    #[cold]
    fn advance(&mut self, lease: &LeasePlan, moment: Moment, cost: u64) -> Option<()> {
        let next = self.next.take_if(|next| next.covers(moment, cost))?;
        let old = self.slice.replace(next)?;
        self.unsent.add(old.end(lease, moment));
        Some(())
    }

    /// Returns a call for the slice after the current one.
    #[cold]
    fn renew(&mut self, lease: &LeasePlan, moment: Moment, cost: u64) -> Option<Box<Order>> {
        let slice = self.slice.as_mut()?;
        if slice.is_oversized() {
            slice.stop_renewing();
            return None;
        }
        self.order(lease, moment, cost)
    }

    /// Returns a call for a slice if this key had one until recently, and it has ended.
    pub(super) fn order_again(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        cost: u64,
    ) -> Option<Box<Order>> {
        self.end_lapsed(lease, moment);
        let is_recent = moment.now < self.last_used.saturating_add(lease.lifetime);
        (self.demand.is_proven() && is_recent).then(|| self.order(lease, moment, cost))?
    }

    /// Records a decision by Redis. Returns a call for a slice if the key is in demand.
    pub(super) fn observe(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        cost: u64,
        decision: &Decision,
    ) -> Option<Box<Order>> {
        let now = moment.now;
        self.last_used = now;
        self.demand.remaining = decision.remaining().saturating_mul(1_000);
        if !decision.is_allowed() {
            self.not_before = now.saturating_add(lease.lifetime);
            return None;
        }
        self.end_lapsed(lease, moment);
        let has_slice = self.slice.is_some();
        let is_hot = self.demand.record_check(lease, now, cost, has_slice);
        let is_due = |slice: &Slice| slice.is_due(now);
        if !is_hot || !self.slice.as_ref().is_none_or(is_due) {
            return None;
        }
        self.order(lease, moment, cost)
    }

    /// Returns a call for the next slice, unless one is in flight or too little is left to lease.
    fn order(&mut self, lease: &LeasePlan, moment: Moment, cost: u64) -> Option<Box<Order>> {
        let now = moment.now;
        if self.is_refilling || self.next.is_some() || now < self.not_before {
            return None;
        }
        let unreported = self.slice.as_ref().map_or(0, Slice::unreported)
            + self
                .unsent
                .spent
                .as_ref()
                .map_or(0, |spent| spent.registry_amount);
        let amount = self.demand.next_amount(lease, now, cost, unreported);
        if amount < (2 * cost).max(2_000) {
            self.not_before = now.saturating_add(lease.lifetime / 2);
            self.demand.room = u64::MAX;
            return None;
        }
        self.is_refilling = true;
        self.demand.ordered(now, amount);
        // A report is a call more, so it is made only if the registry may fill up.
        let spent = self.unsent.spent.take();
        if amount > self.demand.room / 2 {
            let report = self.slice.as_mut().and_then(Slice::report);
            self.unsent.returns.extend(spent.into_iter().chain(report));
        }
        Some(Box::new(Order {
            plan: self.plan.clone(),
            hash: self.hash,
            key: self.key.clone(),
            amount,
            unsent: std::mem::take(&mut self.unsent),
            resets: self.resets,
        }))
    }

    /// Adds a slice that Redis granted.
    pub(super) fn granted(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        granted: Granted,
        resets: u32,
    ) {
        self.is_refilling = false;
        if resets != self.resets {
            return;
        }
        self.demand.remaining = granted.decision.remaining().saturating_mul(1_000);
        self.demand.room = granted.room;
        self.end_lapsed(lease, moment);
        let new = Slice::new(lease, granted);
        let Some(old) = &mut self.slice else {
            self.slice = Some(new);
            return;
        };
        if let Some(next) = old.merge(lease, moment, new)
            && let Some(unused) = self.next.replace(next)
        {
            self.unsent.add(unused.end(lease, moment));
        }
    }

    /// Records that no slice was granted.
    pub(super) fn not_granted(&mut self, until: Timestamp) {
        self.is_refilling = false;
        self.not_before = until;
    }

    /// Records that Redis denied a slice, because too little of the quota or of the registry
    /// remained. A smaller one may be granted.
    pub(super) fn denied(&mut self, until: Timestamp, remaining: u64, room: u64) {
        self.not_granted(until);
        (self.demand.remaining, self.demand.room) = (remaining, room);
    }

    /// Ends slices that are not valid any more.
    fn end_lapsed(&mut self, lease: &LeasePlan, moment: Moment) {
        if let Some(old) = self.slice.take_if(|slice| !slice.is_valid(moment)) {
            if old.is_oversized() {
                self.demand.reset();
            }
            self.unsent.add(old.end(lease, moment));
            self.slice = self.next.take();
            self.end_lapsed(lease, moment);
        }
    }

    /// Ends slices that have lapsed, and all of them if the key was not used for a lifetime.
    pub(super) fn sweep(&mut self, lease: &LeasePlan, moment: Moment) -> Unsent {
        self.end_lapsed(lease, moment);
        let is_idle = moment.now >= self.last_used.saturating_add(lease.lifetime);
        if is_idle && !self.is_refilling {
            self.end_all(lease, moment);
        }
        std::mem::take(&mut self.unsent)
    }

    /// Returns `true` if the key was not used for a lifetime and has nothing left.
    pub(super) fn is_unused(&self, lease: &LeasePlan, now: Timestamp) -> bool {
        self.replaceable_since()
            .is_some_and(|used| now >= used.saturating_add(lease.lifetime))
    }

    /// Ends all slices.
    pub(super) fn end_all(&mut self, lease: &LeasePlan, moment: Moment) {
        for slice in [self.slice.take(), self.next.take()].into_iter().flatten() {
            self.unsent.add(slice.end(lease, moment));
        }
    }

    pub(super) fn give_back(&self, unsent: Unsent) -> KeyReturn {
        KeyReturn {
            plan: self.plan.clone(),
            key: self.key.clone(),
            unsent,
        }
    }

    /// Takes what is to be given back.
    pub(super) fn take_unsent(&mut self) -> Unsent {
        std::mem::take(&mut self.unsent)
    }

    pub(super) fn plan(&self) -> &RedisPlan {
        &self.plan
    }

    /// Forgets all slices, also one that is being taken.
    pub(super) fn forget(&mut self) {
        self.resets = self.resets.wrapping_add(1);
        (self.slice, self.next) = (None, None);
        self.unsent = Unsent::default();
    }
}

impl Unsent {
    pub(super) fn is_empty(&self) -> bool {
        self.returns.is_empty() && self.lapsed == 0
    }

    fn add(&mut self, rest: Rest) {
        match rest {
            Rest::Nothing => {}
            Rest::Returned(returned) => self.returns.push(returned),
            Rest::Spent(spent) => self.spent = Some(spent),
            Rest::Lapsed(amount) => self.lapsed += amount,
        }
    }
}
