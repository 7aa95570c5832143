//! The work on the entry of a key, as the table runs it.

use super::fingerprint::Fingerprint;
use super::line::Slot;
use super::table::Table;
use crate::decision::Decision;

/// The change that a request makes to an entry.
pub(super) struct Change {
    /// The slot to write; `None` leaves it as it is.
    pub(super) write: Option<Slot>,
    /// True if it is of another kind than the slot before.
    pub(super) is_other_kind: bool,
    /// The use of the entry, for eviction.
    pub(super) use_: Use,
}

/// The use of an entry by a request: it decides what a full table evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Admitted,
    Denied,
    /// Anything that takes nothing.
    Looked,
}

/// Work on the entry of a key. A type of its own for each algorithm and each operation, and no value:
/// all that a check needs is handed on in registers.
pub(super) trait Work {
    /// The limit, or the limits, at hand.
    type Step: ?Sized;
    /// The request's own values: most often its cost.
    type Input: Copy;

    /// Decides on what stands in the entry's slot, if there is one, and says what becomes of it.
    fn run(job: &Job<'_, Self::Step, Self::Input>, slot: Option<Slot>) -> (Decision, Change);

    /// The same in the commonest case, where a request is admitted and only the slot's time changes, to the one that is
    /// answered: `None` in any other.
    #[inline(always)]
    fn run_swiftly(
        _step: &Self::Step,
        _slot: Slot,
        _now: u64,
        _input: Self::Input,
    ) -> Option<(u64, Decision)> {
        None
    }
}

/// A check on its way through the table.
pub(super) struct Job<'a, S: ?Sized, I> {
    pub(super) table: &'a Table,
    pub(super) step: &'a S,
    pub(super) fingerprint: Fingerprint,
    pub(super) now: u64,
    pub(super) input: I,
}

impl<'a, S: ?Sized, I: Copy> Job<'a, S, I> {
    /// The same job under another limit, or the same limit in another form.
    pub(super) fn with_step<'b, T: ?Sized>(&self, step: &'b T) -> Job<'b, T, I>
    where
        'a: 'b,
    {
        Job {
            table: self.table,
            step,
            fingerprint: self.fingerprint,
            now: self.now,
            input: self.input,
        }
    }
}
