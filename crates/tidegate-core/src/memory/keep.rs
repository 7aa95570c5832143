//! Runs a policy's arithmetic on what the table keeps for a key.

use std::marker::PhantomData;

use super::line::{Kind, Slot};
use super::packed::Packed;
use super::plan::CounterPlan;
use super::table::{Change, Job, Work};
use crate::algorithm::{Algorithm, Step, StepState, Written, decide, is_ahead, refund};
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
        let mut state = slot.map_or_else(A::State::default, |slot| job.step.unpack(slot));
        let (steps, states) = (std::slice::from_ref(job.step), std::slice::from_mut(&mut state));
        let Ran { decision, written, .. } = run_now::<A, O>(job, steps, states);
        let write = is_worth_writing(&decision, written, slot).then(|| job.step.pack(&state));
        (decision, Change { write, is_other_kind: false, is_denied: is_being_denied(&decision) })
    }
}

/// A sliding_window_counter that a slot is large enough for; but a larger limit may have left a record, which stays one.
pub(super) struct InSlotOrRecord<O>(PhantomData<O>);

impl<O: Operation> Work for InSlotOrRecord<O> {
    type Step = CounterPlan;

    fn run(job: &Job<'_, CounterPlan>, slot: Option<Slot>) -> (Decision, Change) {
        match slot {
            Some(Slot { kind: Kind::Record, .. }) => InRecord::<O>::run(&job.with_step(&*job.step.as_steps), slot),
            _ => InSlot::<_, O>::run(&job.with_step(&job.step.packed), slot),
        }
    }
}

/// Several limits, or one whose state does not fit a slot.
pub(super) struct InRecord<O>(PhantomData<O>);

impl<O: Operation> Work for InRecord<O> {
    type Step = [Step];

    fn run(job: &Job<'_, [Step]>, slot: Option<Slot>) -> (Decision, Change) {
        let (arena, steps) = (&job.table.arena, job.step);
        let (Ran { decision, now, .. }, write) = match slot {
            Some(Slot { kind: Kind::Record, amount: number, .. }) => {
                let ran = run_now::<_, O>(job, steps, arena.get(number).states(steps));
                let is_written = ran.written == Written::States;
                (ran, is_written.then_some(number))
            }
            _ => {
                let mut record = slot.map_or_else(Record::default, |slot| Record::of(unpacked(steps, slot)));
                let ran = run_now::<_, O>(job, steps, record.states(steps));
                let is_worth = slot.is_some() || is_worth_writing(&ran.decision, ran.written, slot);
                (ran, is_worth.then(|| arena.insert(record, job.fingerprint.low)))
            }
        };
        let time = now.saturating_add(decision.reset_after);
        let write = write.map(|number| Slot { kind: Kind::Record, time, amount: number });
        (decision, Change { write, is_other_kind: true, is_denied: is_being_denied(&decision) })
    }
}

/// Runs the operation at the job's time; or, where others got in before us at a later one, at a time that is not before
/// theirs.
#[inline(always)]
fn run_now<A: Algorithm, O: Operation>(job: &Job<'_, impl ?Sized>, steps: &[A], states: &mut [A::State]) -> Ran {
    let mut now = job.now;
    if is_ahead(steps, states, now) {
        now = job.table.clock().catch_up(now, |now| is_ahead(steps, states, now));
    }
    let (decision, written) = O::run(steps, states, now, job.cost);
    Ran { decision, written, now }
}

/// What an operation answered, and at what time.
struct Ran {
    decision: Decision,
    written: Written,
    now: u64,
}

/// What is done to a key: [`Checking`], [`Probing`] or [`Refunding`].
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

/// Decides as a check would, and takes nothing.
pub(super) struct Probing;

impl Operation for Probing {
    const TAKES: bool = false;

    fn run<A: Algorithm>(steps: &[A], states: &mut [A::State], now: u64, cost: u64) -> (Decision, Written) {
        let (decision, written) = decide(steps, states, now, cost);
        if decision.is_denied() {
            return (decision, written);
        }
        // Given back at the instant at which it was taken: as if it had not been.
        refund(steps, states, now, cost);
        (decision, Written::Nothing)
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

/// A limit that a slot was enough for may have become too large for it: what it kept moves to a record.
fn unpacked(steps: &[Step], slot: Slot) -> StepState {
    match steps {
        [Step::SlidingWindowCounter(step)] => StepState::Counter(step.unpack(slot)),
        _ => StepState::Fresh,
    }
}
