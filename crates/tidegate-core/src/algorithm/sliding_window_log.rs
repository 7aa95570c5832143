//! sliding_window_log: remembers every admitted request for one period.
//!
//! An entry stores the running total up to and including it. The live amount, the wait for a
//! request and the expired entries are therefore found by binary search, however long the log is.

use std::collections::VecDeque;

use super::{Algorithm, Claim};
use crate::cost::THOUSANDTHS;
use crate::policy::Limit;

/// The maximum number of entries per key. Beyond it, the newest entry absorbs the new one and takes
/// its time.
pub(crate) const MAX_ENTRIES: usize = 1_000_000;

/// Admitted requests, oldest first. Requests of the same instant are one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogState {
    entries: VecDeque<Entry>,
    /// The running total before the first entry. Totals wrap; only differences are meaningful.
    base: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    total: u64,
}

impl LogState {
    /// Creates a log from times and running totals, oldest first.
    pub(crate) fn of_totals(totals: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self {
            entries: totals
                .into_iter()
                .map(|(at, total)| Entry { at, total })
                .collect(),
            base: 0,
        }
    }

    /// Returns the running total before the first entry, and the times and running totals of the
    /// entries, oldest first.
    pub(crate) fn parts(&self) -> (u64, impl ExactSizeIterator<Item = (u64, u64)> + '_) {
        (
            self.base,
            self.entries.iter().map(|entry| (entry.at, entry.total)),
        )
    }

    /// Creates a log from the output of [`parts`](Self::parts).
    pub(crate) fn of_parts(base: u64, totals: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self {
            base,
            ..Self::of_totals(totals)
        }
    }

    fn last_at(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.at)
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.base, |entry| entry.total)
    }

    /// Returns the running total after the first `count` entries.
    fn total_of_first(&self, count: usize) -> u64 {
        match count.checked_sub(1) {
            Some(last) => self
                .entries
                .get(last)
                .map_or(self.base, |entry| entry.total),
            None => self.base,
        }
    }

    fn push(&mut self, at: u64, cost: u64) {
        let total = self.total().wrapping_add(cost);
        let is_full = self.entries.len() >= MAX_ENTRIES;
        match self.entries.back_mut() {
            Some(last) if last.at == at || is_full => *last = Entry { at, total },
            _ => self.entries.push_back(Entry { at, total }),
        }
    }

    /// Removes up to `cost` from the entry of time `at`, if there is one.
    fn take_from(&mut self, at: u64, cost: u64) {
        let index = self.entries.partition_point(|entry| entry.at < at);
        let Some(entry) = self.entries.get(index).filter(|entry| entry.at == at) else {
            return;
        };
        let amount = entry.total.wrapping_sub(self.total_of_first(index));
        let given = cost.min(amount);
        for later in self.entries.range_mut(index..) {
            later.total = later.total.wrapping_sub(given);
        }
        if given == amount {
            self.entries.remove(index);
        }
    }

    /// Returns the memory of the entries in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    fn drop_first(&mut self, count: usize) {
        self.base = self.total_of_first(count);
        self.entries.drain(..count.min(self.entries.len()));
        // Memory that a burst needed is returned to the allocator once most entries are gone.
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SlidingWindowLog {
    /// The limit in thousandths.
    limit: u64,
    /// The limit and the debt in thousandths.
    most_counted: u64,
    period: u64,
}

impl SlidingWindowLog {
    pub(crate) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.limit() * THOUSANDTHS,
            most_counted: limit.most_counted() * THOUSANDTHS,
            period: limit.period_ns(),
        }
    }

    /// Returns the number of expired entries.
    fn expired(&self, state: &LogState, now: u64) -> usize {
        // Usually none or only the oldest has expired, so the binary search is skipped.
        match state.entries.front() {
            Some(first) if now.saturating_sub(first.at) >= self.period => state
                .entries
                .partition_point(|entry| now.saturating_sub(entry.at) >= self.period),
            _ => 0,
        }
    }

    fn drop_expired(&self, state: &mut LogState, now: u64) {
        let expired = self.expired(state, now);
        if expired > 0 {
            state.drop_first(expired);
        }
    }

    fn live(&self, state: &LogState, now: u64) -> u64 {
        state
            .total()
            .wrapping_sub(state.total_of_first(self.expired(state, now)))
    }
}

impl Algorithm for SlidingWindowLog {
    type State = LogState;

    fn capacity_cost(&self) -> u64 {
        self.limit
    }

    fn is_from_future(&self, state: &LogState, now: u64) -> bool {
        state.last_at().is_some_and(|at| at > now)
    }

    fn clamp(&self, state: &mut LogState, now: u64) {
        // Everything from the future happened now: one entry with the last total.
        let total = state.total();
        let past = state.entries.partition_point(|entry| entry.at < now);
        state.entries.truncate(past);
        state.entries.push_back(Entry { at: now, total });
    }

    fn wait(&self, state: &LogState, now: u64, cost: u64) -> Option<u64> {
        let excess = self
            .live(state, now)
            .saturating_add(cost)
            .saturating_sub(self.limit);
        if excess == 0 {
            return None;
        }
        // The oldest entries that together free the excess; the last of them must expire.
        let expired = self.expired(state, now);
        let before = state.total_of_first(expired);
        let kept = state.entries.partition_point(|entry| {
            let is_live = now.saturating_sub(entry.at) < self.period;
            !is_live || entry.total.wrapping_sub(before) < excess
        });
        let at = state
            .entries
            .get(kept)
            .or(state.entries.back())
            .map_or(now, |entry| entry.at);
        Some(at.saturating_add(self.period).saturating_sub(now))
    }

    fn take(&self, state: &mut LogState, now: u64, cost: u64) {
        self.drop_expired(state, now);
        state.push(now, cost);
    }

    fn refund_cost(&self, state: &mut LogState, now: u64, cost: u64) {
        let live = self.live(state, now);
        self.drop_expired(state, now);
        // Newest first: the running total is reduced, and entries that no longer add to it are
        // removed.
        let kept = live - cost.min(live);
        let total = state.base.wrapping_add(kept);
        let before = state.base;
        let whole = state
            .entries
            .partition_point(|entry| entry.total.wrapping_sub(before) < kept);
        state
            .entries
            .truncate(if kept == 0 { 0 } else { whole + 1 });
        if let Some(last) = state.entries.back_mut() {
            last.total = total;
        }
    }

    fn claim(&self, _state: &LogState, now: u64) -> Claim {
        Claim { time: now, part: 0 }
    }

    fn refund_claimed(&self, state: &mut LogState, now: u64, claim: Claim, cost: u64) {
        self.drop_expired(state, now);
        state.take_from(claim.time, cost);
    }

    fn charge(&self, state: &mut LogState, now: u64, cost: u64) -> u64 {
        self.drop_expired(state, now);
        let fits = cost.min(self.most_counted.saturating_sub(self.live(state, now)));
        if fits > 0 {
            state.push(now, fits);
        }
        cost - fits
    }

    fn trial_copy(&self, state: &LogState, now: u64) -> LogState {
        let live = self.live(state, now);
        LogState::of_totals(state.last_at().filter(|_| live > 0).map(|at| (at, live)))
    }

    fn remaining(&self, state: &LogState, now: u64) -> u64 {
        self.limit.saturating_sub(self.live(state, now)) / THOUSANDTHS
    }

    fn reset_after(&self, state: &LogState, now: u64) -> u64 {
        match state.last_at() {
            Some(at) => at.saturating_add(self.period).saturating_sub(now),
            None => 0,
        }
    }
}
