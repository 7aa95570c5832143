//! The table: a fixed number of lines, and the rules for placing entries in them.
//!
//! An entry's home is the line that its fingerprint selects. If that line is full, the entry is in
//! one of the next few, and every line it passed is marked as overflowed. Every operation on a key
//! holds the lock of its home line from start to end, so operations on one key are sequential.
//! Further locks are only taken upwards, so there is no deadlock.

use arrayvec::ArrayVec;

use super::arena::Arena;
use super::cache_line::{CacheLine, Kind, LockedLine, SLOTS, Slot};
use super::entry_update::{Change, EntryUpdate, EntryUse, InPlace, UpdateContext};
use super::evict::{NEAR, Newcomer, SMALL};
use super::fingerprint::Fingerprint;
use super::groups::Groups;
use super::probe::Probe;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::hardware;
use crate::record::Record;
use crate::sync::{AtomicU64, Ordering};

/// The number of lines in which an entry may be, including its home. Large enough to place all of
/// `max_keys`.
pub(super) const REACH: usize = 64;
/// The percentage of slots that `max_keys` fills.
const FILL_PERCENT: u64 = 70;

/// Memory that is not touched before use. (Loom's atomics are not zeroes.)
#[cfg(not(tidegate_loom))]
type Lines = hardware::Zeroes<CacheLine>;
#[cfg(tidegate_loom)]
type Lines = Box<[CacheLine]>;

pub(super) struct Table {
    pub(super) lines: Lines,
    /// The number of lines that can be a home. The lines after them only take overflowing entries.
    pub(super) homes: u64,
    max_keys: u64,
    pub(super) max_record_bytes: u64,
    pub(super) arena: Arena,
    pub(super) groups: Groups,
    /// The number of lines that each new key sweeps: all lines are swept, and age, about three
    /// times while the table is filled once.
    pub(super) lines_swept_per_key: u64,
    clock: Clock,
    pub(super) counts: TableCounters,
}

/// Counters that every thread writes, on a cache line of their own, away from read-only data.
#[repr(align(128))]
pub(super) struct TableCounters {
    pub(super) keys: AtomicU64,
    pub(super) cursor: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) denied_evictions: AtomicU64,
    pub(super) record_evictions: AtomicU64,
    pub(super) expiries: AtomicU64,
}

/// The location of a key: its fingerprint and its home line.
#[derive(Clone, Copy)]
pub(super) struct KeyLocation<'a> {
    pub(super) fingerprint: Fingerprint,
    home: usize,
    line: &'a CacheLine,
}

/// A stored key with its state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    pub(super) slot: Slot,
    /// The record, if the slot refers to one.
    pub(super) record: Option<Record>,
    pub(super) denials: u8,
}

/// The table's counters at one time.
pub(super) struct TableStats {
    pub(super) keys: u64,
    pub(super) evictions: u64,
    pub(super) denied_evictions: u64,
    pub(super) record_evictions: u64,
    pub(super) expiries: u64,
}

impl<'a> KeyLocation<'a> {
    #[inline(always)]
    pub(super) fn lock(self) -> LockedLine<'a> {
        self.line.lock()
    }

    /// Returns the number of the home line.
    pub(super) fn home(&self) -> usize {
        self.home
    }

    /// Prefetches the line.
    #[inline]
    pub(super) fn prefetch(self) {
        hardware::prefetch(self.line);
    }
}

impl Table {
    /// Creates a table. Returns `None` if there is not enough memory.
    pub(super) fn new(max_keys: u64, max_record_bytes: u64, clock: Clock) -> Option<Self> {
        let lines_filled = max_keys
            .checked_mul(100)?
            .div_ceil(FILL_PERCENT * SLOTS as u64);
        // A small table has one home line, so that eviction compares all of its entries.
        let homes = if lines_filled <= SMALL as u64 {
            1
        } else {
            lines_filled
        };
        let lines = usize::try_from(homes).ok()?.checked_add(REACH - 1)?;
        Some(Self {
            lines: allocate(lines)?,
            homes,
            max_keys,
            max_record_bytes,
            arena: Arena::new(),
            groups: Groups::new(),
            lines_swept_per_key: (3 * lines as u64)
                .div_ceil(max_keys.saturating_add(max_keys / 10))
                .min(lines as u64),
            clock,
            counts: TableCounters {
                keys: AtomicU64::new(0),
                cursor: AtomicU64::new(0),
                evictions: AtomicU64::new(0),
                denied_evictions: AtomicU64::new(0),
                record_evictions: AtomicU64::new(0),
                expiries: AtomicU64::new(0),
            },
        })
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn stats(&self) -> TableStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TableStats {
            keys: read(&self.counts.keys),
            evictions: read(&self.counts.evictions),
            denied_evictions: read(&self.counts.denied_evictions),
            record_evictions: read(&self.counts.record_evictions),
            expiries: read(&self.counts.expiries),
        }
    }

    pub(super) fn max_keys(&self) -> u64 {
        self.max_keys
    }

    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.lines)
    }

    #[inline]
    pub(super) fn place(&self, fingerprint: Fingerprint) -> KeyLocation<'_> {
        let home = self.home(fingerprint);
        KeyLocation {
            fingerprint,
            home,
            line: &self.lines[home],
        }
    }

    /// Returns the home line of a fingerprint.
    #[inline]
    pub(super) fn home(&self, fingerprint: Fingerprint) -> usize {
        ((u128::from(fingerprint.low) * u128::from(self.homes)) >> 64) as usize
    }

    /// Prefetches the next line too, if the entry is not in its home line but may be beyond it.
    /// This is cheap once the home line is in the cache.
    #[inline]
    pub(super) fn prefetch_beyond(&self, place: KeyLocation<'_>) {
        if place.line.may_be_beyond(place.fingerprint)
            && let Some(next) = self.lines.get(place.home + 1)
        {
            hardware::prefetch(next);
        }
    }

    /// Updates the entry of a key.
    ///
    /// While a line is fetched from memory, the processor runs ahead into the next checks, as far
    /// as its buffers hold their instructions and stores. The common case is therefore short, and
    /// everything else is in other functions.
    #[inline(always)]
    pub(super) fn update<W: EntryUpdate>(
        &self,
        place: KeyLocation<'_>,
        step: &W::Step,
        now: u64,
        input: W::Input,
    ) -> Decision {
        let KeyLocation {
            fingerprint,
            home,
            line,
        } = place;
        let (mut line, at) = line.lock_and_guess(fingerprint);
        let is_sweep_due = line.visit();
        if let Some(at) = at
            && line.is_at_tagged(at, fingerprint)
            && let Some(slot) = line.slot_of_kind(at, W::KIND)
            && let Some((change, decision)) = W::run_in_place(step, slot, now, input)
        {
            match change {
                InPlace::Time(time) => {
                    line.write_time(at, time);
                    line.admit(at);
                }
                InPlace::TimeAndAmount(time, amount) => {
                    line.write_time_and_amount(at, time, amount);
                    line.admit(at);
                }
                InPlace::Denied => line.deny(at),
            }
            drop(line);
            if is_sweep_due {
                self.sweep(now);
            }
            return decision;
        }
        let Fingerprint { low, high, tag } = fingerprint;
        self.update_any::<W>(line, is_sweep_due, low, high, tag, home, step, now, input)
    }

    /// Updates the entry in the general case, wherever it is.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // One by one they are in registers; together they would have to be stored first.
    fn update_any<W: EntryUpdate>(
        &self,
        line: LockedLine<'_>,
        is_sweep_due: bool,
        low: u64,
        high: u64,
        tag: u8,
        home: usize,
        step: &W::Step,
        now: u64,
        input: W::Input,
    ) -> Decision {
        let fingerprint = Fingerprint { low, high, tag };
        let mut probe = Probe::new(self, home, line);
        let found = probe.find(fingerprint);
        let slot = found.as_ref().map(|(line, at)| line.slot(*at));
        let (decision, change) = W::run(
            &UpdateContext {
                table: self,
                step,
                fingerprint,
                now,
                input,
            },
            slot,
        );
        let is_new = found.is_none() && change.write.is_some();
        match (found, change.write) {
            (Some((line, at)), _) => {
                apply(line, at, &change);
                drop(probe);
            }
            (None, Some(slot)) => {
                self.insert(&mut probe, fingerprint, &[], slot, 0, now);
                drop(probe);
            }
            (None, None) => drop(probe),
        }
        if is_new {
            self.sweep_for_new_key(now);
        } else if is_sweep_due {
            self.sweep(now);
        }
        if self.arena.bytes() > self.max_record_bytes {
            self.trim_records(&[fingerprint], now);
        }
        decision
    }

    /// Sweeps and trims after a request on several keys.
    pub(super) fn after_multi_key(&self, fingerprints: &[Fingerprint], now: u64) {
        self.sweep_for_new_key(now);
        if self.arena.bytes() > self.max_record_bytes {
            self.trim_records(fingerprints, now);
        }
    }

    /// Deletes the entries of a key. Returns `true` if any counted.
    pub(super) fn remove(&self, key: Fingerprint, entries: &[Fingerprint], now: u64) -> bool {
        let home = self.home(key);
        let mut probe = Probe::new(self, home, self.lines[home].lock());
        let mut is_used = false;
        for fingerprint in entries {
            if let Some((line, at)) = probe.find(*fingerprint) {
                is_used |= !line.slot(at).is_expired(now);
                self.clear(line, at);
            }
        }
        is_used
    }

    /// Inserts an entry of a snapshot, unless it has expired.
    pub(super) fn restore(&self, entry: Entry, now: u64) {
        let Entry {
            fingerprint,
            mut slot,
            record,
            denials,
        } = entry;
        if slot.is_expired(now) {
            return;
        }
        if let Some(record) = record {
            slot.amount = self.arena.insert(record, fingerprint);
        }
        let home = self.home(fingerprint);
        let mut probe = Probe::new(self, home, self.lines[home].lock());
        match probe.find(fingerprint) {
            Some((line, at)) => {
                self.release(line, at);
                line.insert(at, fingerprint, slot, denials);
                drop(probe);
            }
            None => {
                self.insert(&mut probe, fingerprint, &[], slot, denials, now);
                drop(probe);
            }
        }
        if self.arena.bytes() > self.max_record_bytes {
            self.trim_records(&[fingerprint], now);
        }
    }

    /// Returns the entries of a line.
    pub(super) fn entries(&self, line: usize) -> ArrayVec<Entry, SLOTS> {
        let Some(line) = self.lines.get(line) else {
            return ArrayVec::new();
        };
        let line = line.lock();
        let entry = |(at, slot): (usize, Slot)| {
            let fingerprint = line.fingerprint(at);
            let record = match slot.kind {
                Kind::Record => Some(self.arena.get(slot.amount, fingerprint)?.clone()),
                _ => None,
            };
            Some(Entry {
                fingerprint,
                slot,
                record,
                denials: line.denials(at),
            })
        };
        line.slots().filter_map(entry).collect()
    }

    /// Inserts an entry. Those of `spared` are not evicted for it.
    pub(super) fn insert<'a>(
        &'a self,
        probe: &mut Probe<'a>,
        fingerprint: Fingerprint,
        spared: &[Fingerprint],
        slot: Slot,
        denials: u8,
        now: u64,
    ) {
        let newcomer = Newcomer {
            fingerprint,
            spared,
            now,
        };
        if self.counts.keys.load(Ordering::Relaxed) > self.max_keys {
            // A request on more keys than fit may have left too many.
            self.drop_near(&mut probe.lines, newcomer);
        }
        if !self.try_reserve(fingerprint) {
            let near = if self.homes == 1 { SMALL } else { NEAR };
            while probe.lines.len() < near && probe.lock_next() {}
            self.make_room(&mut probe.lines, newcomer);
        }
        // The key is counted. Now find a slot within reach.
        let place = probe
            .place(|line| self.vacancy_or_expired(line, now))
            .or_else(|| {
                self.drop_near(&mut probe.lines, newcomer);
                probe.place(|line| line.vacancy())
            });
        if let Some((index, at)) = place {
            for passed in &mut probe.lines[..index] {
                passed.set_overflowed(true);
            }
            probe.lines[index].insert(at, fingerprint, slot, denials);
        }
    }

    /// Counts one more key, unless the table is full.
    pub(super) fn try_reserve(&self, fingerprint: Fingerprint) -> bool {
        let add_one = |keys| (keys < self.max_keys).then_some(keys + 1);
        let is_reserved = self
            .counts
            .keys
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_one)
            .is_ok();
        if is_reserved {
            self.groups.add(fingerprint.group());
        }
        is_reserved
    }

    pub(super) fn vacancy_or_expired(&self, line: &mut LockedLine<'_>, now: u64) -> Option<usize> {
        line.vacancy().or_else(|| {
            let (at, _) = line.slots().find(|(_, slot)| slot.is_expired(now))?;
            self.clear(line, at);
            self.counts.expiries.fetch_add(1, Ordering::Relaxed);
            Some(at)
        })
    }

    /// Empties a slot and counts one key less.
    pub(super) fn clear(&self, line: &mut LockedLine<'_>, at: usize) {
        self.groups.remove(line.fingerprint(at).group());
        self.release(line, at);
        self.counts.keys.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn release(&self, line: &mut LockedLine<'_>, at: usize) {
        let slot = line.slot(at);
        if slot.kind == Kind::Record {
            self.arena.remove(slot.amount, line.fingerprint(at));
        }
        line.clear(at);
    }
}

pub(super) fn apply(line: &mut LockedLine<'_>, at: usize, change: &Change) {
    if let Some(slot) = change.write {
        line.write(at, slot);
        if change.is_other_kind {
            line.set_kind(at, slot.kind);
        }
    }
    match change.usage {
        EntryUse::Admitted => line.admit(at),
        EntryUse::Denied => line.deny(at),
        EntryUse::Looked => line.touch(at),
    }
}

#[cfg(not(tidegate_loom))]
fn allocate(lines: usize) -> Option<Lines> {
    Lines::new(lines)
}

#[cfg(tidegate_loom)]
fn allocate(lines: usize) -> Option<Lines> {
    Some((0..lines).map(|_| CacheLine::new()).collect())
}

#[cfg(all(test, not(tidegate_loom)))]
impl Table {
    /// Checks the invariants between two operations: every entry is found from its home, and is
    /// counted.
    pub(super) fn assert_sound(&self) {
        let mut keys = 0;
        for (index, line) in self.lines.iter().enumerate() {
            let line = line.lock();
            for (at, _) in line.slots() {
                keys += 1;
                let home = self.home(line.fingerprint(at));
                assert!(
                    (home..home + REACH).contains(&index),
                    "an entry of {home} in {index}"
                );
                for passed in home..index {
                    assert!(
                        self.lines[passed].lock().has_overflowed(),
                        "an entry of {home} in {index} passed {passed}"
                    );
                }
            }
        }
        assert_eq!(keys, self.stats().keys);
        assert_eq!(
            keys,
            (0..=255)
                .map(|group| self.groups.keys(super::fingerprint::Group(group)))
                .sum::<u64>()
        );
    }
}
