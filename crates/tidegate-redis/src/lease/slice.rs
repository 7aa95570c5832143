//! A slice: a part of a key's quota that this process may spend.
//!
//! Amounts are in thousandths of a unit.

use std::time::Duration;

use tidegate_core::{Claims, Decision, Outcome, Timestamp, remote};

use super::plan::LeasePlan;

/// The current time, and the state of the connections.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) epoch: u64,
}

/// A slice as Redis granted it.
pub(super) struct Granted {
    pub(super) amount: u64,
    pub(super) decision: Decision,
    /// The places where the slice was counted: in the policy's limits, and in the registry.
    pub(super) claims: Claims,
    pub(super) registry_claims: Claims,
    /// The quota that may be leased beside this slice.
    pub(super) room: u64,
    pub(super) received_at: Timestamp,
    pub(super) lapses_at: Timestamp,
    pub(super) epoch: u64,
}

/// A part of a key's quota that this process may spend.
pub(super) struct Slice {
    left: u64,
    /// The amount spent since `granted`.
    spent: u64,
    /// The amount spent that the registry still counts as held.
    unreported: u64,
    /// The next slice is taken when this is left, or at this time.
    low: u64,
    renews_at: Timestamp,
    granted: Granted,
}

/// Quota to give back: to the policy's limits, and to the registry.
pub(super) struct Return {
    /// The time after which it must not be given back any more.
    pub(super) until: Timestamp,
    pub(super) epoch: u64,
    pub(super) amount: u64,
    pub(super) claims: Claims,
    pub(super) registry_amount: u64,
    pub(super) registry_claims: Claims,
}

impl Return {
    /// Returns `true` if Redis still knows the slice, and it still counts.
    pub(super) fn is_due(&self, moment: Moment) -> bool {
        moment.now < self.until && moment.epoch == self.epoch
    }
}

/// The rest of a slice that is not spent any more.
pub(super) enum Rest {
    Nothing,
    Returned(Return),
    /// Everything is spent. The registry may be told.
    Spent(Return),
    /// It stays taken until its limits free it.
    Lapsed(u64),
}

impl Slice {
    pub(super) fn new(lease: &LeasePlan, granted: Granted) -> Self {
        Self {
            left: granted.amount,
            spent: 0,
            unreported: 0,
            low: granted.amount / 4,
            renews_at: lease.renewal(granted.received_at, granted.lapses_at),
            granted,
        }
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    #[inline]
    pub(super) fn is_valid(&self, moment: Moment) -> bool {
        moment.now < self.granted.lapses_at && moment.epoch == self.granted.epoch
    }

    /// Returns `true` if `cost` can be spent.
    #[inline]
    pub(super) fn covers(&self, moment: Moment, cost: u64) -> bool {
        self.left >= cost && self.is_valid(moment)
    }

    /// Admits a request.
    #[inline]
    pub(super) fn spend(&mut self, lease: &LeasePlan, now: Timestamp, cost: u64) -> Decision {
        let elapsed = now.saturating_since(self.granted.received_at);
        let delay = if lease.has_queue() {
            self.queued(lease).saturating_sub(elapsed)
        } else {
            Duration::ZERO
        };
        self.left -= cost;
        self.spent += cost;
        self.unreported += cost;
        remote::admitted_from_lease(&self.granted.decision, self.left / 1_000, delay, elapsed)
    }

    /// Returns the delay of the next request in the leaky bucket's queue, from when the slice was
    /// granted. Requests of a slice have consecutive places.
    fn queued(&self, lease: &LeasePlan) -> Duration {
        let Outcome::Allowed { delay } = self.granted.decision.outcome() else {
            return Duration::ZERO;
        };
        delay + lease.queue_time(self.spent)
    }

    /// Returns `true` if it is time for the next slice.
    #[inline]
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.left <= self.low || now >= self.renews_at
    }

    /// Returns `true` if the demand is too low for another slice of this size.
    pub(super) fn is_oversized(&self) -> bool {
        self.spent < self.granted.amount / 4
    }

    /// Ignores the time: the next slice is taken when this one is low.
    pub(super) fn stop_renewing(&mut self) {
        self.renews_at = self.granted.lapses_at;
    }

    /// Adds a slice of the same windows to this one. Returns the other one if that is not possible.
    pub(super) fn merge(
        &mut self,
        lease: &LeasePlan,
        moment: Moment,
        mut next: Self,
    ) -> Option<Self> {
        let (old, new) = (&self.granted, &next.granted);
        let is_same = old.claims == new.claims && old.registry_claims == new.registry_claims;
        if lease.has_bucket || !is_same || !self.is_valid(moment) {
            return Some(next);
        }
        next.left += self.left;
        next.unreported += self.unreported;
        *self = next;
        None
    }

    pub(super) fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Returns what the registry need not count any more.
    pub(super) fn report(&mut self) -> Option<Return> {
        (self.unreported > 0).then(|| Return {
            until: self.granted.lapses_at,
            epoch: self.granted.epoch,
            amount: 0,
            claims: Claims::new(),
            registry_amount: std::mem::take(&mut self.unreported),
            registry_claims: self.granted.registry_claims.clone(),
        })
    }

    /// Ends the slice.
    pub(super) fn end(self, lease: &LeasePlan, moment: Moment) -> Rest {
        let has_lapsed = moment.now >= self.granted.lapses_at;
        // After a failover, Redis may not know the slice.
        let is_known = moment.epoch == self.granted.epoch;
        if !is_known || has_lapsed && !lease.returns_late {
            return match self.left {
                0 => Rest::Nothing,
                left => Rest::Lapsed(left),
            };
        }
        // A registry forgets the slices that have lapsed.
        let registry_amount = if has_lapsed {
            0
        } else {
            self.left + self.unreported
        };
        let rest = Return {
            until: lease.last_return(self.granted.lapses_at),
            epoch: self.granted.epoch,
            amount: self.left,
            claims: self.granted.claims,
            registry_amount,
            registry_claims: self.granted.registry_claims,
        };
        match (rest.amount, rest.registry_amount) {
            (0, 0) => Rest::Nothing,
            (0, _) if lease.has_bucket => Rest::Spent(rest),
            _ => Rest::Returned(rest),
        }
    }
}
