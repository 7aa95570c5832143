//! The byte budget for records: logs, and other states that do not fit in the table.
//!
//! Each group has an equal share of the budget. Records of a group below its share are not evicted.
//! If large records exceed the budget, they are evicted before the many small ones.

use smallvec::SmallVec;

use super::arena::LARGE;
use super::cache_line::Kind;
use super::evict::{RECORD_CLASSES, Rank, rank};
use super::fingerprint::{Fingerprint, Group};
use super::probe::Probe;
use super::table::Table;
use crate::sync::Ordering;

/// The number of records compared at a time, and the number of samples taken until one is cheap to
/// drop.
const SAMPLE: usize = 16;
const SAMPLES: u32 = 8;
/// The number of large records compared.
const LARGE_SAMPLE: usize = 64;
/// The maximum number of records that one request evicts. It adds at most one record, or bytes to
/// one.
const MAX_EVICTED: u32 = 32;
/// The maximum number of lines that one request sweeps, besides its own.
const MAX_SWEPT: u64 = 32;

impl Table {
    /// Evicts records while they exceed the byte budget.
    ///
    /// The records of `own`, which were just written, stay. Otherwise a client could reset its
    /// limit with a log that exceeds the budget.
    #[cold]
    pub(super) fn trim_records(&self, own: &[Fingerprint], now: u64) {
        for again in 0..MAX_EVICTED {
            if self.arena.bytes() <= self.max_record_bytes || !self.evict_record(own, again, now) {
                break;
            }
        }
        // Records must age as fast as they are replaced, which may be faster than the table's
        // entries.
        let swept = (3 * self.lines.len() as u64)
            .div_ceil(self.arena.len().max(1))
            .min(MAX_SWEPT);
        for _ in 1..swept {
            self.sweep_line(now, true);
        }
    }

    /// Evicts one record. Returns `false` if none may be evicted.
    fn evict_record(&self, own: &[Fingerprint], again: u32, now: u64) -> bool {
        let groups = self.groups_to_trim(own);
        let is_far_above = self.arena.bytes() > self.max_record_bytes.saturating_add(LARGE as u64);
        let victim =
            groups
                .into_iter()
                .find_map(|group| match self.arena.large::<LARGE_SAMPLE>(group) {
                    large if is_far_above && !large.is_empty() => {
                        self.least_of(&large, own, now).map(|(_, victim)| victim)
                    }
                    _ => self.least_record(group, own, again, now),
                });
        if let Some(fingerprint) = victim {
            self.drop_record(fingerprint, now);
        }
        victim.is_some()
    }

    /// Returns the groups to evict from: those of the request above their share, then the largest.
    fn groups_to_trim(&self, own: &[Fingerprint]) -> SmallVec<[Group; 2]> {
        let newcomer = own.first().map_or(Group(0), |own| own.group());
        let share = self.groups.share(self.max_record_bytes, newcomer);
        let groups = own
            .iter()
            .map(|own| own.group())
            .chain([self.arena.largest_group()]);
        groups
            .filter(|group| self.arena.bytes_of(*group) > share)
            .collect()
    }

    /// Returns the record to evict first, from a few samples of a group.
    fn least_record(
        &self,
        group: Group,
        own: &[Fingerprint],
        again: u32,
        now: u64,
    ) -> Option<Fingerprint> {
        let spread = own.first().map_or((0, 0), |own| (own.high, own.low));
        let mut least: Option<(Rank, Fingerprint)> = None;
        for sample in 0..SAMPLES {
            if least.is_some_and(|(rank, _)| rank.is_cheap()) {
                break;
            }
            let spread = spread.0.rotate_left(7 * (again * SAMPLES + sample)) ^ spread.1;
            let sampled = self.least_of(&self.arena.sample::<SAMPLE>(group, spread), own, now);
            least = match (least, sampled) {
                (Some(least), Some(sampled)) if sampled.0 < least.0 => Some(sampled),
                (least, sampled) => least.or(sampled),
            };
        }
        least.map(|(_, fingerprint)| fingerprint)
    }

    /// Returns the record to evict first, of those in `all`. The records of `own` stay.
    fn least_of(
        &self,
        all: &[Fingerprint],
        own: &[Fingerprint],
        now: u64,
    ) -> Option<(Rank, Fingerprint)> {
        let others = all.iter().filter(|other| !own.contains(other));
        let ranked = others.filter_map(|other| Some((self.record_rank(*other, now)?, *other)));
        ranked.min_by_key(|(rank, _)| *rank)
    }

    /// Returns the rank of a record, if the key still has one.
    fn record_rank(&self, fingerprint: Fingerprint, now: u64) -> Option<Rank> {
        let home = self.home(fingerprint);
        let mut probe = Probe::new(self, home, self.lines[home].lock());
        let (line, at) = probe.find(fingerprint)?;
        let slot = line.slot(at);
        (slot.kind == Kind::Record).then(|| rank(line, at, slot, &RECORD_CLASSES, now, false))
    }

    fn drop_record(&self, fingerprint: Fingerprint, now: u64) {
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
