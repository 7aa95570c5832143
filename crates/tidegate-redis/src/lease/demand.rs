//! The demand of a key, and the size of its next slice.
//!
//! Amounts are in thousandths of a unit.

use tidegate_core::Timestamp;

use super::plan::LeasePlan;

/// The number of checks within one lifetime after which a key is leased.
const HOT: u32 = 4;

/// The size of a key's first slice: 16 units.
const FIRST_AMOUNT: u64 = 16_000;

/// The factor by which a slice may exceed the previous one.
const GROWTH: u64 = 4;

/// The part of the remaining quota that one slice may take.
const SHARE_OF_REMAINING: u64 = 4;

/// The recent use of a key by this process, and the quota that is left.
pub(super) struct Demand {
    /// The size of the last slice, or 0 if the key has to show demand first.
    last_amount: u64,
    /// The remaining quota that Redis last reported, and that of the registry.
    pub(super) remaining: u64,
    pub(super) room: u64,
    /// The amount admitted and the number of checks by Redis since `measured_at`.
    spent: u64,
    checks: u32,
    measured_at: Timestamp,
}

impl Demand {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            last_amount: 0,
            remaining: 0,
            room: u64::MAX,
            spent: 0,
            checks: 0,
            measured_at: now,
        }
    }

    /// Records an amount that was admitted from a slice.
    #[inline]
    pub(super) fn record(&mut self, cost: u64) {
        self.spent += cost;
    }

    /// Records a check that Redis allowed. Returns `true` if the key is in demand.
    pub(super) fn record_check(
        &mut self,
        lease: &LeasePlan,
        now: Timestamp,
        cost: u64,
        has_slice: bool,
    ) -> bool {
        if !has_slice && now >= self.measured_at.saturating_add(lease.lifetime) {
            (self.spent, self.checks, self.measured_at) = (0, 0, now);
        }
        self.spent += cost;
        self.checks = self.checks.saturating_add(1);
        self.checks >= HOT
    }

    /// Returns `true` if the key had a slice that it needed.
    pub(super) fn is_proven(&self) -> bool {
        self.last_amount > 0
    }

    /// Forgets the demand: the last slice was not needed.
    pub(super) fn reset(&mut self) {
        (self.last_amount, self.checks) = (0, 0);
    }

    /// Starts to measure the demand for the slice after one of `amount`.
    pub(super) fn ordered(&mut self, now: Timestamp, amount: u64) {
        (self.last_amount, self.spent, self.measured_at) = (amount, 0, now);
    }

    /// Returns the size of the next slice: the demand of one lifetime, within bounds. Quota that is
    /// reported as spent makes room.
    pub(super) fn next_amount(
        &self,
        lease: &LeasePlan,
        now: Timestamp,
        cost: u64,
        unreported: u64,
    ) -> u64 {
        let lifetime = lease.lifetime.as_nanos();
        let elapsed = now.saturating_since(self.measured_at).as_nanos();
        let demand = u128::from(self.spent) * lifetime / elapsed.max(lifetime / 16).max(1);
        let demand = u64::try_from(demand).unwrap_or(u64::MAX);
        // The slice of a bucket is used for three quarters of its life. That of a window outlives a
        // lifetime, so a larger one is not lost.
        let wanted = if lease.has_bucket {
            demand
        } else {
            demand.saturating_mul(2)
        };
        let room = if elapsed < lifetime {
            self.room.saturating_add(unreported)
        } else {
            u64::MAX
        };
        let amount = wanted
            .min(self.last_amount.saturating_mul(GROWTH))
            .max(FIRST_AMOUNT.max(cost.saturating_mul(4)))
            .min(room)
            .min(lease.max_slice)
            .min(self.remaining / SHARE_OF_REMAINING);
        // Part of a unit could not be spent by a request of cost 1.
        amount - amount % 1_000
    }
}
