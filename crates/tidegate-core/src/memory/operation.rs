//! Runs an operation on the stored state of a key: in its slot, or in a record.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use super::cache_line::{Kind, Slot};
use super::entry_update::{Change, EntryUpdate, EntryUse, InPlace, UpdateContext};
use super::packed::{Packed, answer_in_slot};
use super::plan::CounterPlan;
use crate::algorithm::{
    Algorithm, Answer, StateChange, Step, StepState, charge, decide, is_from_future, peek, probe,
    refund,
};
use crate::cost::Cost;
use crate::decision::{Decision, OutcomeKind};
use crate::policy::Policy;
use crate::record::{Record, Settlement, admission, charged};
use crate::store::Admission;

/// One limit whose state is in the slot.
pub(super) struct InSlot<A, O>(PhantomData<(A, O)>);

impl<A: Packed, O: Operation> EntryUpdate for InSlot<A, O> {
    type Step = A;
    type Input = O::Input;

    const KIND: Kind = A::KIND;

    #[inline(always)]
    fn run_in_place(
        step: &A,
        slot: Slot,
        now: u64,
        input: O::Input,
    ) -> Option<(InPlace, Decision)> {
        check_in_place(step, slot, now, O::cost_to_take(input)?)
    }

    #[inline(always)]
    fn run(context: &UpdateContext<'_, A, O::Input>, slot: Option<Slot>) -> (Decision, Change) {
        // A slot of another kind is treated as empty. Only a forged snapshot contains one.
        let own = slot.filter(|slot| slot.kind == A::KIND);
        let mut state = own.map_or_else(A::State::default, |slot| context.step.unpack(slot));
        let (steps, states) = (
            std::slice::from_ref(context.step),
            std::slice::from_mut(&mut state),
        );
        let OperationResult {
            decision, change, ..
        } = run_now::<A, _, O>(context, steps, states);
        let write =
            is_worth_writing(decision.reset_after, change, slot).then(|| context.step.pack(&state));
        let other = slot.filter(|slot| slot.kind != A::KIND && write.is_some());
        if let Some(Slot {
            kind: Kind::Record,
            amount: number,
            ..
        }) = other
        {
            context.table.arena.remove(number, context.fingerprint);
        }
        (
            decision,
            Change {
                write,
                is_other_kind: other.is_some(),
                usage: O::usage_of(context.input, &decision),
            },
        )
    }
}

/// Checks one limit in its slot.
#[inline(always)]
fn check_in_place<A: Packed>(
    step: &A,
    slot: Slot,
    now: u64,
    cost: u64,
) -> Option<(InPlace, Decision)> {
    let answer = answer_in_slot(step, slot, now, cost)?;
    let change = match answer.taken {
        Some(Slot { time, amount, .. }) if A::HAS_AMOUNT => InPlace::TimeAndAmount(time, amount),
        Some(Slot { time, .. }) => InPlace::Time(time),
        None => InPlace::Denied,
    };
    Some((change, decision_of(&answer, step.capacity())))
}

/// Returns the decision of a policy of one limit.
#[inline(always)]
pub(super) fn decision_of(answer: &Answer<Slot>, capacity: u64) -> Decision {
    let kind = match answer.taken {
        Some(_) => OutcomeKind::Allowed,
        None => OutcomeKind::Denied,
    };
    Decision {
        kind,
        wait: answer.wait,
        reset_after: answer.reset_after,
        limit_reset_after: answer.reset_after,
        // Capacities are at most 10^9.
        limit: capacity as u32,
        remaining: answer.remaining as u32,
        limit_index: 0,
        degraded: None,
        is_leased: false,
    }
}

/// A sliding_window_counter that fits in a slot. A larger limit may have left a record, which is
/// updated.
pub(super) struct InSlotOrRecord<O>(PhantomData<O>);

impl<O: Operation> EntryUpdate for InSlotOrRecord<O> {
    type Step = CounterPlan;
    type Input = O::Input;

    const KIND: Kind = Kind::Counter;

    #[inline(always)]
    fn run_in_place(
        step: &CounterPlan,
        slot: Slot,
        now: u64,
        input: O::Input,
    ) -> Option<(InPlace, Decision)> {
        check_in_place(&step.packed, slot, now, O::cost_to_take(input)?)
    }

    fn run(
        context: &UpdateContext<'_, CounterPlan, O::Input>,
        slot: Option<Slot>,
    ) -> (Decision, Change) {
        match slot {
            Some(Slot {
                kind: Kind::Record, ..
            }) => InRecord::<O>::run(&context.with_step(&context.step.policy), slot),
            _ => InSlot::<_, O>::run(&context.with_step(&context.step.packed), slot),
        }
    }
}

/// Several limits, or one whose state does not fit in a slot.
pub(super) struct InRecord<O>(PhantomData<O>);

impl<O: Operation> EntryUpdate for InRecord<O> {
    type Step = Policy;
    type Input = O::Input;

    fn run(
        context: &UpdateContext<'_, Policy, O::Input>,
        slot: Option<Slot>,
    ) -> (Decision, Change) {
        let (arena, policy) = (&context.table.arena, context.step);
        let run = &|record: &mut Record| {
            let result = record.with_states(policy, context.now, |steps, states| {
                run_now::<_, _, O>(context, steps, states)
            });
            let expires_at = result
                .now
                .saturating_add(result.decision.reset_after)
                .max(record.others_free_at());
            (result, expires_at)
        };
        let updated = match slot {
            Some(Slot {
                kind: Kind::Record,
                amount: number,
                ..
            }) => arena
                .with(number, context.fingerprint, run)
                .map(|(result, time)| (number, result, time)),
            _ => None,
        };
        let (result, time, write) = match updated {
            Some((number, result, time)) => {
                let is_written = result.change == StateChange::Changed;
                (result, time, is_written.then_some(number))
            }
            None => {
                let other = slot.filter(|slot| slot.kind != Kind::Record);
                let state = other.map(|slot| unpacked(policy.steps(), slot));
                let mut record = state.map_or_else(Record::default, Record::of);
                let (result, time) = run(&mut record);
                let is_worth = slot.is_some()
                    || is_worth_writing(result.decision.reset_after, result.change, slot);
                (
                    result,
                    time,
                    is_worth.then(|| arena.insert(record, context.fingerprint)),
                )
            }
        };
        let write = write.map(|number| Slot {
            kind: Kind::Record,
            time,
            amount: number,
        });
        let usage = O::usage_of(context.input, &result.decision);
        (
            result.decision,
            Change {
                write,
                is_other_kind: true,
                usage,
            },
        )
    }
}

/// Runs the operation at the context's time, or at a later time if another thread has written the
/// state since.
#[inline(always)]
pub(super) fn run_now<A: Algorithm, S: ?Sized, O: Operation>(
    context: &UpdateContext<'_, S, O::Input>,
    steps: &[A],
    states: &mut [A::State],
) -> OperationResult {
    let mut now = context.now;
    if is_from_future(steps, states, now) {
        now = context
            .table
            .clock()
            .catch_up(now, |now| is_from_future(steps, states, now));
    }
    let (decision, change) = O::run(steps, states, now, context.input);
    OperationResult {
        decision,
        change,
        now,
    }
}

/// The result of an operation, and the time it was run at.
pub(super) struct OperationResult {
    pub(super) decision: Decision,
    pub(super) change: StateChange,
    pub(super) now: u64,
}

/// An operation on a key.
pub(super) trait Operation {
    /// The values of the request.
    type Input: Copy;

    /// Returns the cost if the operation is a plain check.
    #[inline(always)]
    fn cost_to_take(_input: Self::Input) -> Option<u64> {
        None
    }

    /// Returns how the operation uses the entry, for eviction.
    #[inline]
    fn usage_of(_input: Self::Input, _decision: &Decision) -> EntryUse {
        EntryUse::Looked
    }

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        input: Self::Input,
    ) -> (Decision, StateChange);
}

/// Decides, and takes the cost of an admitted request.
pub(super) struct Checking;

impl Operation for Checking {
    type Input = u64;

    #[inline(always)]
    fn cost_to_take(cost: u64) -> Option<u64> {
        Some(cost)
    }

    #[inline]
    fn usage_of(cost: u64, decision: &Decision) -> EntryUse {
        match decision.kind {
            _ if cost == 0 => EntryUse::Looked,
            OutcomeKind::Allowed => EntryUse::Admitted,
            OutcomeKind::Denied => EntryUse::Denied,
            OutcomeKind::Never => EntryUse::Looked,
        }
    }

    #[inline(always)]
    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        cost: u64,
    ) -> (Decision, StateChange) {
        decide(steps, states, now, cost)
    }
}

/// Like [`Checking`], and stores where the request is counted and the figures of every limit.
pub(super) struct Admitting<'a>(PhantomData<&'a ()>);

/// The place where an operation stores its admission.
pub(super) type AdmissionCell = RefCell<Option<Admission>>;

impl<'a> Operation for Admitting<'a> {
    type Input = (u64, &'a AdmissionCell);

    #[inline]
    fn usage_of((cost, _): Self::Input, decision: &Decision) -> EntryUse {
        Checking::usage_of(cost, decision)
    }

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        (cost, admitted): Self::Input,
    ) -> (Decision, StateChange) {
        let (decision, change) = decide(steps, states, now, cost);
        *admitted.borrow_mut() = Some(admission(decision, steps, states, now, cost));
        (decision, change)
    }
}

/// Returns the decision that a check would get, and takes nothing.
pub(super) struct Peeking<'a>(PhantomData<&'a ()>);

impl<'a> Operation for Peeking<'a> {
    type Input = (u64, &'a AdmissionCell);

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        (cost, peeked): Self::Input,
    ) -> (Decision, StateChange) {
        let (decision, limits, change) = peek(steps, states, now, cost);
        *peeked.borrow_mut() = Some(Admission {
            limits,
            ..Admission::look(decision)
        });
        (decision, change)
    }
}

/// Takes a cost whatever the limits say, and stores the amount that was dropped.
pub(super) struct Charging<'a>(PhantomData<&'a ()>);

impl<'a> Operation for Charging<'a> {
    type Input = (u64, &'a Cell<Cost>);

    fn usage_of((cost, _): Self::Input, _decision: &Decision) -> EntryUse {
        if cost > 0 {
            EntryUse::Admitted
        } else {
            EntryUse::Looked
        }
    }

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        (cost, dropped): Self::Input,
    ) -> (Decision, StateChange) {
        let (result, change) = charged(charge(steps, states, now, cost));
        dropped.set(result.dropped);
        (result.decision, change)
    }
}

/// Decides like a check without taking. If the request would be allowed, the figures are those of a
/// look.
pub(super) struct Probing;

impl Operation for Probing {
    type Input = u64;

    #[inline]
    fn usage_of(cost: u64, decision: &Decision) -> EntryUse {
        // Only a denial is final.
        if decision.is_denied() {
            Checking::usage_of(cost, decision)
        } else {
            EntryUse::Looked
        }
    }

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        cost: u64,
    ) -> (Decision, StateChange) {
        probe(steps, states, now, cost)
    }
}

/// Gives back a cost.
pub(super) struct Refunding;

impl Operation for Refunding {
    type Input = u64;

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        cost: u64,
    ) -> (Decision, StateChange) {
        refund(steps, states, now, cost)
    }
}

/// Corrects an admitted request to its actual cost.
pub(super) struct Settling<'a>(PhantomData<&'a ()>);

impl<'a> Operation for Settling<'a> {
    type Input = (&'a Settlement<'a>, &'a Cell<Cost>);

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        (settlement, dropped): Self::Input,
    ) -> (Decision, StateChange) {
        let (result, change) = charged(settlement.run(steps, states, now));
        dropped.set(result.dropped);
        (result.decision, change)
    }
}

/// Returns `true` if the state must be stored. A fresh state need not be, if there is no entry yet.
#[inline]
pub(super) fn is_worth_writing(reset_after: u64, change: StateChange, slot: Option<Slot>) -> bool {
    change == StateChange::Changed && (slot.is_some() || reset_after > 0)
}

/// Converts a slot to the state of a record, for a limit that has become too large for a slot.
fn unpacked(steps: &[Step], slot: Slot) -> StepState {
    match steps {
        [Step::SlidingWindowCounter(step)] => StepState::Counter(step.unpack(slot)),
        _ => StepState::Fresh,
    }
}
