//! The table: a fixed number of lines, and the rules by which entries find a place in them.
//!
//! An entry's home is the line its fingerprint points at; where that is full it stands in one of the next few, and every
//! line it passed is marked as overflowed. Whatever works on a key holds the lock of its home from beginning to end, so
//! that checks of one key come one after the other; more locks are only ever taken going up, so nobody waits in a circle.

use arrayvec::ArrayVec;

use super::arena::Arena;
use super::fingerprint::Fingerprint;
use super::line::{Guard, Kind, Line, SLOTS, Slot};
use crate::hardware;
use crate::sync::{AtomicU64, Ordering};

/// How many lines an entry may stand away from its home, its home included. With four of five slots filled, one entry
/// in 10^12 finds no place in them.
pub(super) const REACH: usize = 16;
/// Of a hundred slots, how many `max_keys` fills.
const FILL_PERCENT: u64 = 80;

pub(super) struct Table {
    lines: Box<[Line]>,
    /// Lines that can be a home. Those after them only take what overflows.
    homes: u64,
    max_keys: u64,
    pub(super) arena: Arena,
    counts: Counts,
}

/// Written now and then by every thread: on a line of their own, away from what is only read.
#[repr(align(128))]
struct Counts {
    keys: AtomicU64,
    cursor: AtomicU64,
    evictions: AtomicU64,
    expiries: AtomicU64,
}

/// What a check did to an entry.
pub(super) struct Change {
    /// What to write; `None` leaves it as it is.
    pub(super) write: Option<Slot>,
    /// Whether the key is being denied: such a one is dropped last when the table is full.
    pub(super) is_denied: bool,
}

/// What the table has counted.
pub(super) struct Counted {
    pub(super) keys: u64,
    pub(super) evictions: u64,
    pub(super) expiries: u64,
}

impl Table {
    /// `None` if there is not the memory for so many keys.
    pub(super) fn new(max_keys: u64) -> Option<Self> {
        let lines_filled = max_keys.checked_mul(100)?.div_ceil(FILL_PERCENT * SLOTS as u64);
        // Few enough for the reach of one home have only that: then what is dropped is the least of all there are.
        let homes = if lines_filled <= REACH as u64 { 1 } else { lines_filled };
        let lines = usize::try_from(homes).ok()?.checked_add(REACH - 1)?;
        Some(Self {
            lines: allocate(lines)?,
            homes,
            max_keys,
            arena: Arena::new(),
            counts: Counts {
                keys: AtomicU64::new(0),
                cursor: AtomicU64::new(0),
                evictions: AtomicU64::new(0),
                expiries: AtomicU64::new(0),
            },
        })
    }

    pub(super) fn counted(&self) -> Counted {
        Counted {
            keys: self.counts.keys.load(Ordering::Relaxed),
            evictions: self.counts.evictions.load(Ordering::Relaxed),
            expiries: self.counts.expiries.load(Ordering::Relaxed),
        }
    }

    pub(super) fn max_keys(&self) -> u64 {
        self.max_keys
    }

    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.lines)
    }

    #[inline]
    fn home(&self, fingerprint: Fingerprint) -> usize {
        ((u128::from(fingerprint.low) * u128::from(self.homes)) >> 64) as usize
    }

    /// Has the entry's home brought near.
    #[inline]
    pub(super) fn prefetch(&self, fingerprint: Fingerprint) {
        hardware::prefetch(&self.lines[self.home(fingerprint)]);
    }

    /// Works on the entry of `fingerprint`, which `work` is handed if there is one, and stores the change.
    #[inline]
    pub(super) fn update<R>(
        &self,
        fingerprint: Fingerprint,
        now: u64,
        work: impl FnOnce(Option<Slot>) -> (R, Change),
    ) -> R {
        let home = self.home(fingerprint);
        let mut line = self.lines[home].lock();
        let is_sweep_due = line.touch();
        let result = match line.find(fingerprint) {
            Some(at) => {
                let (result, change) = work(Some(line.slot(at)));
                apply(&mut line, at, &change);
                drop(line);
                result
            }
            None => self.update_beyond(Probe::new(self, home, line), fingerprint, now, work),
        };
        if is_sweep_due {
            self.sweep(now);
        }
        result
    }

    /// The entry is not in its home: it stands in a later line, or nowhere.
    fn update_beyond<R>(
        &self,
        mut probe: Probe<'_>,
        fingerprint: Fingerprint,
        now: u64,
        work: impl FnOnce(Option<Slot>) -> (R, Change),
    ) -> R {
        if let Some((line, at)) = probe.find_beyond(fingerprint) {
            let (result, change) = work(Some(line.slot(at)));
            apply(line, at, &change);
            return result;
        }
        let (result, change) = work(None);
        if let Some(slot) = change.write {
            self.insert(probe, fingerprint, slot, change.is_denied, now);
            // Who adds a key looks after one line for it, so that what expires goes as fast as new keys come.
            self.sweep(now);
        }
        result
    }

    /// Forgets the entry of `fingerprint`.
    pub(super) fn remove(&self, fingerprint: Fingerprint) {
        let home = self.home(fingerprint);
        let mut probe = Probe::new(self, home, self.lines[home].lock());
        let found = match probe.lines[0].find(fingerprint) {
            Some(at) => Some((&mut probe.lines[0], at)),
            None => probe.find_beyond(fingerprint),
        };
        if let Some((line, at)) = found {
            self.clear(line, at);
        }
    }

    fn insert(&self, mut probe: Probe<'_>, fingerprint: Fingerprint, slot: Slot, is_marked: bool, now: u64) {
        let vacancy = if self.try_reserve() {
            let place = probe.place(|line| self.vacancy_or_expired(line, now));
            if place.is_none() {
                self.counts.keys.fetch_sub(1, Ordering::Relaxed);
            }
            place
        } else {
            None
        };
        let place = vacancy.or_else(|| {
            self.make_room(&mut probe, now);
            probe.place(|line| line.vacancy())
        });
        if let Some((index, at)) = place {
            for passed in &mut probe.lines[..index] {
                passed.set_overflowed(true);
            }
            probe.lines[index].insert(at, fingerprint, slot, is_marked);
        }
    }

    /// Counts one key more, if there may be one more.
    fn try_reserve(&self) -> bool {
        let add_one = |keys| (keys < self.max_keys).then_some(keys + 1);
        self.counts.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_one).is_ok()
    }

    fn vacancy_or_expired(&self, line: &mut Guard<'_>, now: u64) -> Option<usize> {
        line.vacancy().or_else(|| {
            let (at, _) = line.slots().find(|(_, slot)| slot.is_expired(now))?;
            self.clear(line, at);
            self.counts.expiries.fetch_add(1, Ordering::Relaxed);
            Some(at)
        })
    }

    /// Drops the entry within reach that carries least; the one that takes its place is counted for it.
    #[cold]
    fn make_room(&self, probe: &mut Probe<'_>, now: u64) {
        probe.lock_all();
        let entries = probe.lines.iter().enumerate().flat_map(|(index, line)| {
            line.slots().map(move |(at, slot)| {
                let is_expired = slot.is_expired(now);
                (!is_expired && line.is_marked(at), slot.expires_at(), index, at, is_expired)
            })
        });
        let Some((_, _, index, at, is_expired)) = entries.min() else {
            // A full table with nothing in this reach, which chance brings about once in 10^20 times: one key too many.
            self.counts.keys.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.release(&mut probe.lines[index], at);
        let count = if is_expired { &self.counts.expiries } else { &self.counts.evictions };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Empties a slot, and counts one key less.
    fn clear(&self, line: &mut Guard<'_>, at: usize) {
        self.release(line, at);
        self.counts.keys.fetch_sub(1, Ordering::Relaxed);
    }

    fn release(&self, line: &mut Guard<'_>, at: usize) {
        let slot = line.slot(at);
        if slot.kind == Kind::Record {
            self.arena.take(slot.amount);
        }
        line.clear(at);
    }

    /// Looks after the next line: forgets what has expired there, and that it overflowed once that is over.
    #[cold]
    pub(super) fn sweep(&self, now: u64) {
        let index = (self.counts.cursor.fetch_add(1, Ordering::Relaxed) % self.lines.len() as u64) as usize;
        let mut probe = Probe::new(self, index, self.lines[index].lock());
        for at in 0..SLOTS {
            let slot = probe.lines[0].slot(at);
            if slot.kind != Kind::Empty && slot.is_expired(now) {
                self.clear(&mut probe.lines[0], at);
                self.counts.expiries.fetch_add(1, Ordering::Relaxed);
            }
        }
        if probe.lines[0].has_overflowed() && !probe.is_passed_by_any() {
            probe.lines[0].set_overflowed(false);
        }
        // The next one to come finds its line near.
        if let Some(next) = self.lines.get(index + 1) {
            hardware::prefetch(next);
        }
    }
}

fn apply(line: &mut Guard<'_>, at: usize, change: &Change) {
    if let Some(slot) = change.write {
        line.write(at, slot);
    }
    line.mark(at, change.is_denied);
}

#[cfg(not(loom))]
fn allocate(lines: usize) -> Option<Box<[Line]>> {
    // Zeroed by the system, page by page as they are first used.
    bytemuck::try_zeroed_slice_box(lines).ok()
}

#[cfg(loom)]
fn allocate(lines: usize) -> Option<Box<[Line]>> {
    Some((0..lines).map(|_| Line::new()).collect())
}

/// Lines locked from a home upwards.
struct Probe<'a> {
    table: &'a Table,
    home: usize,
    lines: ArrayVec<Guard<'a>, REACH>,
}

impl<'a> Probe<'a> {
    fn new(table: &'a Table, home: usize, line: Guard<'a>) -> Self {
        let mut lines = ArrayVec::new();
        lines.push(line);
        Self { table, home, lines }
    }

    /// Locks the next line. False at the end of the reach.
    fn lock_next(&mut self) -> bool {
        let next = self.home + self.lines.len();
        match self.table.lines.get(next) {
            Some(line) if !self.lines.is_full() => {
                self.lines.push(line.lock());
                true
            }
            _ => false,
        }
    }

    fn lock_all(&mut self) {
        while self.lock_next() {}
    }

    /// Looks in the lines after the home for as long as something passed them.
    fn find_beyond(&mut self, fingerprint: Fingerprint) -> Option<(&mut Guard<'a>, usize)> {
        while self.lines.last()?.has_overflowed() && self.lock_next() {
            if let Some(at) = self.lines.last()?.find(fingerprint) {
                return Some((self.lines.last_mut()?, at));
            }
        }
        None
    }

    /// The first line within reach, from the home on, in which `choose` finds a place.
    fn place(&mut self, mut choose: impl FnMut(&mut Guard<'a>) -> Option<usize>) -> Option<(usize, usize)> {
        for index in 0..REACH {
            if index == self.lines.len() && !self.lock_next() {
                return None;
            }
            if let Some(at) = choose(&mut self.lines[index]) {
                return Some((index, at));
            }
        }
        None
    }

    /// Whether an entry in a later line has its home in this one or before it.
    fn is_passed_by_any(&mut self) -> bool {
        while self.lines.last().is_some_and(Guard::has_overflowed) && self.lock_next() {
            let passes = self.lines.last().is_some_and(|line| {
                line.slots().any(|(at, _)| self.table.home(line.fingerprint(at)) <= self.home)
            });
            if passes {
                return true;
            }
        }
        false
    }
}
