//! Probing: locks lines from a home line upwards.

use arrayvec::ArrayVec;

use super::cache_line::LockedLine;
use super::fingerprint::Fingerprint;
use super::table::{REACH, Table};
use crate::hardware;

/// Lines locked from a home line upwards.
pub(super) struct Probe<'a> {
    table: &'a Table,
    pub(super) home: usize,
    pub(super) lines: ArrayVec<LockedLine<'a>, REACH>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(table: &'a Table, home: usize, line: LockedLine<'a>) -> Self {
        let mut lines = ArrayVec::new();
        lines.push(line);
        Self { table, home, lines }
    }

    /// Locks the next line. Returns `false` at the end of the reach.
    pub(super) fn lock_next(&mut self) -> bool {
        let next = self.home + self.lines.len();
        if let Some(line) = self.table.lines.get(next + 1) {
            hardware::prefetch(line);
        }
        match self.table.lines.get(next) {
            Some(line) if !self.lines.is_full() => {
                self.lines.push(line.lock());
                true
            }
            _ => false,
        }
    }

    /// Searches the home line, and the following lines while they are marked as overflowed.
    pub(super) fn find(
        &mut self,
        fingerprint: Fingerprint,
    ) -> Option<(&mut LockedLine<'a>, usize)> {
        let mut index = 0;
        loop {
            let line = self.lines.get(index)?;
            if let Some(at) = line.find(fingerprint) {
                return Some((self.lines.get_mut(index)?, at));
            }
            let has_overflowed = line.has_overflowed();
            index += 1;
            if !has_overflowed || (index == self.lines.len() && !self.lock_next()) {
                return None;
            }
        }
    }

    /// Returns the first line within reach for which `choose` returns a slot.
    pub(super) fn place(
        &mut self,
        mut choose: impl FnMut(&mut LockedLine<'a>) -> Option<usize>,
    ) -> Option<(usize, usize)> {
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

    /// Returns `true` if an entry in a later line has its home in this one or an earlier one.
    pub(super) fn is_overflowed_into(&mut self) -> bool {
        while self.lines.last().is_some_and(LockedLine::has_overflowed) && self.lock_next() {
            let passes = self.lines.last().is_some_and(|line| {
                line.slots()
                    .any(|(at, _)| self.table.home(line.fingerprint(at)) <= self.home)
            });
            if passes {
                return true;
            }
        }
        false
    }
}
