//! Runs a policy's arithmetic on what the table keeps for a key.

use super::fingerprint::Fingerprint;
use super::line::{Kind, Slot};
use super::packed::Packed;
use super::table::{Change, Table};
use crate::algorithm::{Step, StepState, Written};
use crate::decision::{Decision, Verdict};
use crate::record::Record;

/// One limit, whose state stands in the slot.
#[inline]
pub(super) fn in_slot<A: Packed>(
    table: &Table,
    step: &A,
    fingerprint: Fingerprint,
    now: u64,
    run: impl FnOnce(&[A], &mut [A::State]) -> (Decision, Written),
) -> Decision {
    table.update(fingerprint, now, |slot| {
        let mut state = match slot {
            None => A::State::default(),
            Some(slot) if slot.kind == A::KIND => step.unpack(slot),
            Some(slot) => taken_from_record(table, slot, A::of_record),
        };
        let (decision, written) = run(std::slice::from_ref(step), std::slice::from_mut(&mut state));
        let is_kept_elsewhere = slot.is_some_and(|slot| slot.kind != A::KIND);
        let write = (is_kept_elsewhere || is_worth_writing(&decision, written, slot)).then(|| step.pack(&state));
        (decision, Change { write, is_denied: is_being_denied(&decision) })
    })
}

/// Several limits, or one whose state does not fit a slot.
pub(super) fn in_record(
    table: &Table,
    steps: &[Step],
    fingerprint: Fingerprint,
    now: u64,
    run: impl FnOnce(&[Step], &mut [StepState]) -> (Decision, Written),
) -> Decision {
    table.update(fingerprint, now, |slot| {
        let number = slot.filter(|slot| slot.kind == Kind::Record).map(|slot| slot.amount);
        let (decision, write) = match number {
            Some(number) => {
                let (decision, written) = run(steps, table.arena.get(number).states(steps));
                (decision, (written == Written::States).then_some(number))
            }
            None => {
                let mut record = slot.map_or_else(Record::default, |slot| Record::of(unpacked(steps, slot)));
                let (decision, written) = run(steps, record.states(steps));
                let is_worth = slot.is_some() || is_worth_writing(&decision, written, slot);
                (decision, is_worth.then(|| table.arena.insert(record, fingerprint.low)))
            }
        };
        let time = now.saturating_add(decision.reset_after);
        let write = write.map(|number| Slot { kind: Kind::Record, time, amount: number });
        (decision, Change { write, is_denied: is_being_denied(&decision) })
    })
}

/// What equals a fresh state need not be stored where nothing stands yet.
#[inline]
fn is_worth_writing(decision: &Decision, written: Written, slot: Option<Slot>) -> bool {
    written == Written::States && (slot.is_some() || decision.reset_after > 0)
}

/// Whether the next request will be denied as well, or this one was, and could pass later.
#[inline]
fn is_being_denied(decision: &Decision) -> bool {
    decision.remaining == 0 || decision.verdict == Verdict::Denied
}

/// A limit that needed a record may have become small enough for a slot: what it kept moves there.
#[cold]
fn taken_from_record<S: Default>(table: &Table, slot: Slot, of_record: impl FnOnce(&StepState) -> S) -> S {
    table.arena.take(slot.amount).first().map_or_else(S::default, of_record)
}

/// A limit that a slot was enough for may have become too large for it: what it kept moves to a record.
fn unpacked(steps: &[Step], slot: Slot) -> StepState {
    match steps {
        [Step::SlidingWindowCounter(step)] => StepState::Counter(step.unpack(slot)),
        _ => StepState::Fresh,
    }
}
