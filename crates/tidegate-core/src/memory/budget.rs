//! The byte budget for records: logs and policies of several limits, which do not fit the table.

use super::evict::{RECORD_CLASSES, Rank, rank};
use super::fingerprint::Fingerprint;
use super::line::Kind;
use super::probe::Probe;
use super::table::Table;
use crate::sync::Ordering;

/// Records that are compared at a time, and how often until one is found that is cheap to drop.
const SAMPLE: usize = 16;
const SAMPLES: u32 = 8;
/// Records that one request evicts at the most. It adds one, or some bytes to one.
const MOST_EVICTED: u32 = 32;
/// Lines that one request sweeps at the most, beside its own.
const MOST_SWEPT: u64 = 32;

impl Table {
    /// Evicts records while they take more bytes than the budget allows. The entry of `own`, which was just written, stays:
    /// otherwise a client could free itself by a log that exceeds the budget.
    #[cold]
    pub(super) fn trim_records(&self, own: Fingerprint, now: u64) {
        for again in 0..MOST_EVICTED {
            if self.arena.bytes() <= self.max_record_bytes {
                break;
            }
            let Some(victim) = self.least_record(own, again, now) else { break };
            self.evict_record(victim, now);
        }
        // Records grow older as fast as they are replaced, which may be faster than the table is.
        let swept = (3 * self.lines.len() as u64).div_ceil(self.arena.len().max(1)).min(MOST_SWEPT);
        for _ in 1..swept {
            self.sweep_line(now, true);
        }
    }

    /// The record of a few samples that is evicted first.
    fn least_record(&self, own: Fingerprint, again: u32, now: u64) -> Option<Fingerprint> {
        let mut least: Option<(Rank, Fingerprint)> = None;
        for sample in 0..SAMPLES {
            if least.is_some_and(|(rank, _)| rank.is_cheap()) {
                break;
            }
            let spread = own.high.rotate_left(7 * (again * SAMPLES + sample)) ^ own.low;
            for other in self.arena.sample::<SAMPLE>(spread).into_iter().filter(|other| *other != own) {
                if let Some(rank) = self.record_rank(other, own, now)
                    && least.is_none_or(|(least, _)| rank < least)
                {
                    least = Some((rank, other));
                }
            }
        }
        least.map(|(_, fingerprint)| fingerprint)
    }

    /// Ranks the record of `fingerprint`, if it still has one.
    fn record_rank(&self, fingerprint: Fingerprint, own: Fingerprint, now: u64) -> Option<Rank> {
        let (group, own) = (fingerprint.group(), own.group());
        let share = self.groups.share(self.max_record_bytes, own);
        let is_own_above = self.arena.bytes_of(own) >= share;
        let may_go = if is_own_above { group == own } else { self.arena.bytes_of(group) > share };
        let home = self.home(fingerprint);
        let mut probe = Probe::new(self, home, self.lines[home].lock());
        let (line, at) = probe.find(fingerprint)?;
        let slot = line.slot(at);
        (slot.kind == Kind::Record).then(|| rank(line, at, slot, &RECORD_CLASSES, now, !may_go))
    }

    fn evict_record(&self, fingerprint: Fingerprint, now: u64) {
        let home = self.home(fingerprint);
        let mut probe = Probe::new(self, home, self.lines[home].lock());
        if let Some((line, at)) = probe.find(fingerprint)
            && line.slot(at).kind == Kind::Record
        {
            let rank = rank(line, at, line.slot(at), &RECORD_CLASSES, now, false);
            self.clear(line, at);
            self.count_eviction(rank);
            self.counts.record_evictions.fetch_add(1, Ordering::Relaxed);
        }
    }
}
