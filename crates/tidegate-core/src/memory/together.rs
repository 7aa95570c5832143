//! Several keys at once: all of their lines are locked before anything is decided, so that no other request sees, or comes
//! into, the middle of it.
//!
//! Lines are locked from the lowest up, as everywhere in the table, so that no two threads wait for each other.

use super::evict::{NEAR, Newcomer, SMALL};
use super::fingerprint::Fingerprint;
use super::line::{Guard, Slot};
use super::table::{Place, REACH, Table, apply};
use super::work::Change;

/// Locked lines with their numbers, from the lowest up. Those in which an entry may be found are next to each other.
pub(super) struct Locked<'a> {
    table: &'a Table,
    lines: Vec<Guard<'a>>,
    numbers: Vec<usize>,
    now: u64,
}

impl<'a> Locked<'a> {
    /// Locks all lines in which entries of these places stand or would be put.
    pub(super) fn new(table: &'a Table, places: &[Place<'a>], now: u64) -> Self {
        let mut homes: Vec<(usize, Fingerprint)> = places
            .iter()
            .map(|place| (table.home(place.fingerprint), place.fingerprint))
            .collect();
        homes.sort_by_key(|(home, _)| *home);
        let mut locked = Self {
            table,
            lines: Vec::new(),
            numbers: Vec::new(),
            now,
        };
        for (home, fingerprint) in homes {
            locked.cover(home, fingerprint, places.len());
        }
        locked
    }

    /// Locks the lines from `home` on until the entry is found, or must be absent and there is room for `room` entries.
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

    /// The locked lines from the home of an entry on, without a gap.
    fn lines_of(&mut self, fingerprint: Fingerprint) -> &mut [Guard<'a>] {
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

    /// The slot of an entry, if there is one.
    pub(super) fn slot(&mut self, fingerprint: Fingerprint) -> Option<Slot> {
        self.lines_of(fingerprint)
            .iter()
            .find_map(|line| Some(line.slot(line.find(fingerprint)?)))
    }

    /// Stores what a request did to an entry.
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

/// Puts an entry into the first line that has room for it.
fn place(table: &Table, lines: &mut [Guard<'_>], newcomer: Newcomer<'_>, slot: Slot) -> Option<()> {
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
