//! Sweeping: lines are looked after in turn, a little at each request. What has expired goes, and entries grow older.

use super::line::{Kind, SLOTS};
use super::probe::Probe;
use super::table::Table;
use crate::hardware;
use crate::sync::Ordering;

/// The time for which an expired entry is left in its place, in nanoseconds. A key that is used all the time would otherwise
/// be deleted and added again all the time.
const GRACE: u64 = 1_000_000_000;

impl Table {
    /// Sweeps a line for a new key, so that entries expire as fast as new keys come. The entries there grow older.
    pub(super) fn sweep_for_new_key(&self, now: u64) {
        for _ in 0..self.lines_swept {
            self.sweep_line(now, true);
        }
    }

    /// Looks after the next line: forgets what has expired there, and that it overflowed once that is over.
    #[cold]
    pub(super) fn sweep(&self, now: u64) {
        self.sweep_line(now, false);
    }

    pub(super) fn sweep_line(&self, now: u64, grows_older: bool) {
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
        if grows_older {
            probe.lines[0].grow_older();
        }
        // A full line will be passed again: only where there is room is it worth a look whether it still is.
        let may_be_over = probe.lines[0].has_overflowed() && probe.lines[0].vacancy().is_some();
        if may_be_over && !probe.is_passed_by_any() {
            probe.lines[0].set_overflowed(false);
        }
        // The next one to come finds its line near.
        if let Some(next) = self.lines.get(index + 1) {
            hardware::prefetch(next);
        }
    }
}
