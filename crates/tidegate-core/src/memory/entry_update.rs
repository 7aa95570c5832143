//! The interface between the table and the operations on its entries.

use super::cache_line::{Kind, Slot};
use super::fingerprint::Fingerprint;
use super::table::Table;
use crate::decision::Decision;

/// The change that a request makes to an entry.
pub(super) struct Change {
    /// The slot to write, or `None` to leave it unchanged.
    pub(super) write: Option<Slot>,
    /// Set if the kind of the slot changes.
    pub(super) is_other_kind: bool,
    /// The use of the entry by the request, for eviction.
    pub(super) usage: EntryUse,
}

/// The use of an entry by a request. A full table evicts by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryUse {
    Admitted,
    Denied,
    /// A request that takes nothing.
    Looked,
}

/// An update of a key's entry. Each algorithm and operation has its own type without a value, so
/// that all values of a check are passed in registers.
pub(super) trait EntryUpdate {
    /// The limit, or the limits.
    type Step: ?Sized;
    /// The values of the request, usually its cost.
    type Input: Copy;

    /// Decides on the entry's slot, if there is one. Returns the decision and the change.
    fn run(
        context: &UpdateContext<'_, Self::Step, Self::Input>,
        slot: Option<Slot>,
    ) -> (Decision, Change);

    /// The kind of slot that [`run_in_place`](Self::run_in_place) reads.
    const KIND: Kind = Kind::Plain;

    /// Decides on a slot in the common cases: a plain check with plain numbers. Returns `None` in
    /// any other case.
    #[inline(always)]
    fn run_in_place(
        _step: &Self::Step,
        _slot: Slot,
        _now: u64,
        _input: Self::Input,
    ) -> Option<(InPlace, Decision)> {
        None
    }
}

/// The change of a slot by a check.
pub(super) enum InPlace {
    /// Only the time changes.
    Time(u64),
    TimeAndAmount(u64, u64),
    Denied,
}

/// The values of one update.
pub(super) struct UpdateContext<'a, S: ?Sized, I> {
    pub(super) table: &'a Table,
    pub(super) step: &'a S,
    pub(super) fingerprint: Fingerprint,
    pub(super) now: u64,
    pub(super) input: I,
}

impl<'a, S: ?Sized, I: Copy> UpdateContext<'a, S, I> {
    /// Returns the context with another limit, or with the same limit in another form.
    pub(super) fn with_step<'b, T: ?Sized>(&self, step: &'b T) -> UpdateContext<'b, T, I>
    where
        'a: 'b,
    {
        UpdateContext {
            table: self.table,
            step,
            fingerprint: self.fingerprint,
            now: self.now,
            input: self.input,
        }
    }
}
