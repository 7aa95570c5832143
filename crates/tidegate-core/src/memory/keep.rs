//! Runs a policy's arithmetic on what the table keeps for a key.

use std::marker::PhantomData;

use super::line::{Kind, Slot};
use super::packed::Packed;
use super::table::{Change, Job, Table, Work};
use crate::algorithm::{Algorithm, Step, StepState, Written, decide, refund};
use crate::decision::{Decision, Verdict};
use crate::record::Record;

/// One limit, whose state stands in the slot.
pub(super) struct InSlot<A, O>(PhantomData<(A, O)>);

impl<A: Packed, O: Operation> Work for InSlot<A, O> {
    type Step = A;

    #[inline(always)]
    fn run_swiftly(step: &A, slot: Slot, now: u64, cost: u64) -> Option<(u64, Decision)> {
        if O::TAKES { step.take_swiftly(slot, now, cost) } else { None }
    }

    #[inline(always)]
    fn run(job: &Job<'_, A>, slot: Option<Slot>) -> (Decision, Change) {
        let is_record = A::OF_RECORD.is_some() && slot.is_some_and(|slot| slot.kind == Kind::Record);
        let mut state = match (slot, A::OF_RECORD) {
            (None, _) => A::State::default(),
            (Some(slot), Some(of_record)) if is_record => taken_from_record(job.table, slot, of_record),
            (Some(slot), _) => job.step.unpack(slot),
        };
        let (steps, states) = (std::slice::from_ref(job.step), std::slice::from_mut(&mut state));
        let (decision, written) = O::run(steps, states, job.now, job.cost);
        let write = (is_record || is_worth_writing(&decision, written, slot)).then(|| job.step.pack(&state));
        (decision, Change { write, is_other_kind: is_record, is_denied: is_being_denied(&decision) })
    }
}

/// Several limits, or one whose state does not fit a slot.
pub(super) struct InRecord<O>(PhantomData<O>);

impl<O: Operation> Work for InRecord<O> {
    type Step = [Step];

    fn run(job: &Job<'_, [Step]>, slot: Option<Slot>) -> (Decision, Change) {
        let Job { table, step: steps, place, now, cost } = *job;
        let (decision, write) = match slot {
            Some(Slot { kind: Kind::Record, amount: number, .. }) => {
                let (decision, written) = O::run(steps, table.arena.get(number).states(steps), now, cost);
                (decision, (written == Written::States).then_some(number))
            }
            _ => {
                let mut record = slot.map_or_else(Record::default, |slot| Record::of(unpacked(steps, slot)));
                let (decision, written) = O::run(steps, record.states(steps), now, cost);
                let is_worth = slot.is_some() || is_worth_writing(&decision, written, slot);
                (decision, is_worth.then(|| table.arena.insert(record, place.fingerprint.low)))
            }
        };
        let time = now.saturating_add(decision.reset_after);
        let write = write.map(|number| Slot { kind: Kind::Record, time, amount: number });
        (decision, Change { write, is_other_kind: true, is_denied: is_being_denied(&decision) })
    }
}

/// What is done to a key: [`Checking`] or [`Refunding`].
pub(super) trait Operation {
    /// Whether it takes what it costs.
    const TAKES: bool;

    fn run<A: Algorithm>(steps: &[A], states: &mut [A::State], now: u64, cost: u64) -> (Decision, Written);
}

pub(super) struct Checking;

impl Operation for Checking {
    const TAKES: bool = true;

    #[inline(always)]
    fn run<A: Algorithm>(steps: &[A], states: &mut [A::State], now: u64, cost: u64) -> (Decision, Written) {
        decide(steps, states, now, cost)
    }
}

pub(super) struct Refunding;

impl Operation for Refunding {
    const TAKES: bool = false;

    fn run<A: Algorithm>(steps: &[A], states: &mut [A::State], now: u64, cost: u64) -> (Decision, Written) {
        refund(steps, states, now, cost)
    }
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
