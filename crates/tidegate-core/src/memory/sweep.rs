//! Sweeping: each request visits a few lines in turn, deletes expired entries and ages the others.

use super::cache_line::{Kind, SLOTS};
use super::probe::Probe;
use super::table::Table;
use crate::hardware;
use crate::sync::Ordering;

/// The time in nanoseconds that an expired entry stays. Otherwise a key in constant use would be
/// deleted and added again all the time.
const GRACE: u64 = 1_000_000_000;

impl Table {
    /// Sweeps for a new key, so that entries expire as fast as new keys arrive. Ages the entries.
    pub(super) fn sweep_for_new_key(&self, now: u64) {
        for _ in 0..self.lines_swept_per_key {
            self.sweep_line(now, true);
        }
    }

    /// Sweeps the next line: deletes expired entries, and clears its overflow flag if nothing
    /// overflows.
    #[cold]
    pub(super) fn sweep(&self, now: u64) {
        self.sweep_line(now, false);
    }

    pub(super) fn sweep_line(&self, now: u64, ages_entries: bool) {
        let index =
            (self.counts.cursor.fetch_add(1, Ordering::Relaxed) % self.lines.len() as u64) as usize;
        let mut probe = Probe::new(self, index, self.lines[index].lock());
        for at in 0..SLOTS {
            let slot = probe.lines[0].slot(at);
            if slot.kind != Kind::Empty && slot.is_expired(now.saturating_sub(GRACE)) {
                self.clear(&mut probe.lines[0], at);
                self.counts.expiries.fetch_add(1, Ordering::Relaxed);
            }
        }
        if ages_entries {
            probe.lines[0].increment_ages();
        }
        // A full line will overflow again, so the flag is only checked if there is room.
        let may_be_over = probe.lines[0].has_overflowed() && probe.lines[0].vacancy().is_some();
        if may_be_over && !probe.is_overflowed_into() {
            probe.lines[0].set_overflowed(false);
        }
        // The next sweep finds its line in the cache.
        if let Some(next) = self.lines.get(index + 1) {
            hardware::prefetch(next);
        }
    }
}
