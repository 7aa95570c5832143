//! Requests on several keys: all lines are locked before anything is decided, so that no other
//! request is decided in between.
//!
//! Lines are locked in ascending order, as everywhere in the table, so there is no deadlock.

use super::cache_line::{LockedLine, Slot};
use super::entry_update::Change;
use super::evict::{NEAR, Newcomer, SMALL};
use super::fingerprint::Fingerprint;
use super::table::{REACH, Table, apply};

/// Locked lines with their indexes, in ascending order. The lines that may hold an entry are
/// adjacent.
pub(super) struct LockedLines<'a> {
    table: &'a Table,
    lines: Vec<LockedLine<'a>>,
    numbers: Vec<usize>,
    now: u64,
}

impl<'a> LockedLines<'a> {
    /// Locks all lines that hold these entries, or that would receive them.
    pub(super) fn new(table: &'a Table, fingerprints: &[Fingerprint], now: u64) -> Self {
        let mut homes: Vec<(usize, Fingerprint)> = fingerprints
            .iter()
            .map(|fingerprint| (table.home(*fingerprint), *fingerprint))
            .collect();
        homes.sort_by_key(|(home, _)| *home);
        let mut locked = Self {
            table,
            lines: Vec::new(),
            numbers: Vec::new(),
            now,
        };
        for (home, fingerprint) in homes {
            locked.cover(home, fingerprint, fingerprints.len());
        }
        locked
    }

    /// Locks the lines from `home` on until the entry is found, or is certainly absent and there is
    /// room for `room` entries.
    fn cover(&mut self, home: usize, fingerprint: Fingerprint, room: usize) {
        let (mut free, mut is_settled) = (0, false);
        for number in (home..self.table.lines.len()).take(REACH) {
            if self.numbers.last().is_none_or(|last| *last < number) {
                self.lines.push(self.table.lines[number].lock());
                self.numbers.push(number);
            }
            let Some(line) = self
                .numbers
                .binary_search(&number)
                .ok()
                .and_then(|at| self.lines.get(at))
            else {
                return;
            };
            if line.find(fingerprint).is_some() {
                return;
            }
            is_settled |= !line.has_overflowed();
            free += line.free_slots(self.now);
            if is_settled && free >= room {
                return;
            }
        }
    }

    /// Returns the locked lines from an entry's home on, without a gap.
    fn lines_of(&mut self, fingerprint: Fingerprint) -> &mut [LockedLine<'a>] {
        let home = self.table.home(fingerprint);
        let first = self.numbers.partition_point(|number| *number < home);
        let count = self.numbers[first..]
            .iter()
            .zip(home..)
            .take(REACH)
            .take_while(|(number, at)| **number == *at)
            .count();
        &mut self.lines[first..first + count]
    }

    /// Returns the slot of an entry, if there is one.
    pub(super) fn slot(&mut self, fingerprint: Fingerprint) -> Option<Slot> {
        self.lines_of(fingerprint)
            .iter()
            .find_map(|line| Some(line.slot(line.find(fingerprint)?)))
    }

    /// Stores the change of an entry.
    pub(super) fn apply(
        &mut self,
        fingerprint: Fingerprint,
        change: &Change,
        spared: &[Fingerprint],
    ) {
        let (table, now) = (self.table, self.now);
        let lines = self.lines_of(fingerprint);
        for line in &mut *lines {
            if let Some(at) = line.find(fingerprint) {
                return apply(line, at, change);
            }
        }
        let Some(slot) = change.write else { return };
        let newcomer = Newcomer {
            fingerprint,
            spared,
            now,
        };
        if !table.try_reserve(fingerprint) {
            let near = if table.homes == 1 { SMALL } else { NEAR };
            let near = near.min(lines.len());
            table.make_room(&mut lines[..near], newcomer);
        }
        if place(table, lines, newcomer, slot).is_none() {
            table.drop_near(lines, newcomer);
            place(table, lines, newcomer, slot);
        }
    }
}

/// Puts an entry into the first line that has room.
fn place(
    table: &Table,
    lines: &mut [LockedLine<'_>],
    newcomer: Newcomer<'_>,
    slot: Slot,
) -> Option<()> {
    let (index, at) = lines
        .iter_mut()
        .enumerate()
        .find_map(|(index, line)| Some((index, table.vacancy_or_expired(line, newcomer.now)?)))?;
    for passed in &mut lines[..index] {
        passed.set_overflowed(true);
    }
    lines[index].insert(at, newcomer.fingerprint, slot, 0);
    Some(())
}
