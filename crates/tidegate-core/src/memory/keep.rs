//! Runs a policy's arithmetic on what the table keeps for a key.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::line::{Kind, Slot};
use super::packed::Packed;
use super::plan::CounterPlan;
use super::work::{Change, Job, Use, Work};
use crate::algorithm::{
    Algorithm, Claims, Step, StepState, Written, decide, is_ahead, probe, refund,
};
use crate::decision::{Decision, Verdict};
use crate::policy::Policy;
use crate::record::{Record, Settlement, claims};

/// One limit, whose state stands in the slot.
pub(super) struct InSlot<A, O>(PhantomData<(A, O)>);

impl<A: Packed, O: Operation> Work for InSlot<A, O> {
    type Step = A;
    type Input = O::Input;

    #[inline(always)]
    fn run_swiftly(step: &A, slot: Slot, now: u64, input: O::Input) -> Option<(u64, Decision)> {
        step.take_swiftly(slot, now, O::cost_to_take(input)?)
    }

    #[inline(always)]
    fn run(job: &Job<'_, A, O::Input>, slot: Option<Slot>) -> (Decision, Change) {
        // A slot of another kind is as good as none. Only a forged snapshot has one.
        let own = slot.filter(|slot| slot.kind == A::KIND);
        let mut state = own.map_or_else(A::State::default, |slot| job.step.unpack(slot));
        let (steps, states) = (
            std::slice::from_ref(job.step),
            std::slice::from_mut(&mut state),
        );
        let Ran {
            decision, written, ..
        } = run_now::<A, _, O>(job, steps, states);
        let write = is_worth_writing(&decision, written, slot).then(|| job.step.pack(&state));
        let other = slot.filter(|slot| slot.kind != A::KIND && write.is_some());
        if let Some(Slot {
            kind: Kind::Record,
            amount: number,
            ..
        }) = other
        {
            job.table.arena.remove(number, job.fingerprint);
        }
        (
            decision,
            Change {
                write,
                is_other_kind: other.is_some(),
                use_: O::use_of(job.input, &decision),
            },
        )
    }
}

/// A sliding_window_counter that a slot is large enough for; but a larger limit may have left a record, which stays one.
pub(super) struct InSlotOrRecord<O>(PhantomData<O>);

impl<O: Operation> Work for InSlotOrRecord<O> {
    type Step = CounterPlan;
    type Input = O::Input;

    fn run(job: &Job<'_, CounterPlan, O::Input>, slot: Option<Slot>) -> (Decision, Change) {
        match slot {
            Some(Slot {
                kind: Kind::Record, ..
            }) => InRecord::<O>::run(&job.with_step(&job.step.policy), slot),
            _ => InSlot::<_, O>::run(&job.with_step(&job.step.packed), slot),
        }
    }
}

/// Several limits, or one whose state does not fit a slot.
pub(super) struct InRecord<O>(PhantomData<O>);

impl<O: Operation> Work for InRecord<O> {
    type Step = Policy;
    type Input = O::Input;

    fn run(job: &Job<'_, Policy, O::Input>, slot: Option<Slot>) -> (Decision, Change) {
        let (arena, policy) = (&job.table.arena, job.step);
        let run = &|record: &mut Record| {
            let ran = record.with_states(policy, job.now, |steps, states| {
                run_now::<_, _, O>(job, steps, states)
            });
            let expires_at = ran
                .now
                .saturating_add(ran.decision.reset_after)
                .max(record.others_free_at());
            (ran, expires_at)
        };
        let kept = match slot {
            Some(Slot {
                kind: Kind::Record,
                amount: number,
                ..
            }) => arena
                .with(number, job.fingerprint, run)
                .map(|(ran, time)| (number, ran, time)),
            _ => None,
        };
        let (ran, time, write) = match kept {
            Some((number, ran, time)) => {
                let is_written = ran.written == Written::States;
                (ran, time, is_written.then_some(number))
            }
            None => {
                let other = slot.filter(|slot| slot.kind != Kind::Record);
                let state = other.map(|slot| unpacked(policy.steps(), slot));
                let mut record = state.map_or_else(Record::default, Record::of);
                let (ran, time) = run(&mut record);
                let is_worth = slot.is_some() || is_worth_writing(&ran.decision, ran.written, slot);
                (
                    ran,
                    time,
                    is_worth.then(|| arena.insert(record, job.fingerprint)),
                )
            }
        };
        let write = write.map(|number| Slot {
            kind: Kind::Record,
            time,
            amount: number,
        });
        let use_ = O::use_of(job.input, &ran.decision);
        (
            ran.decision,
            Change {
                write,
                is_other_kind: true,
                use_,
            },
        )
    }
}

/// Runs the operation at the job's time; or, where others got in before us at a later one, at a time that is not before
/// theirs.
#[inline(always)]
fn run_now<A: Algorithm, S: ?Sized, O: Operation>(
    job: &Job<'_, S, O::Input>,
    steps: &[A],
    states: &mut [A::State],
) -> Ran {
    let mut now = job.now;
    if is_ahead(steps, states, now) {
        now = job
            .table
            .clock()
            .catch_up(now, |now| is_ahead(steps, states, now));
    }
    let (decision, written) = O::run(steps, states, now, job.input);
    Ran {
        decision,
        written,
        now,
    }
}

/// What an operation answered, and at what time.
struct Ran {
    decision: Decision,
    written: Written,
    now: u64,
}

/// An operation on a key.
pub(super) trait Operation {
    /// The request's own values.
    type Input: Copy;

    /// The cost of a request that takes it, and does nothing else.
    #[inline(always)]
    fn cost_to_take(_input: Self::Input) -> Option<u64> {
        None
    }

    /// The use that eviction is told of.
    #[inline]
    fn use_of(_input: Self::Input, _decision: &Decision) -> Use {
        Use::Looked
    }

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        input: Self::Input,
    ) -> (Decision, Written);
}

/// Decides, and takes the cost of a request that is admitted.
pub(super) struct Checking;

impl Operation for Checking {
    type Input = u64;

    #[inline(always)]
    fn cost_to_take(cost: u64) -> Option<u64> {
        Some(cost)
    }

    #[inline]
    fn use_of(cost: u64, decision: &Decision) -> Use {
        match decision.verdict {
            _ if cost == 0 => Use::Looked,
            Verdict::Allowed => Use::Admitted,
            Verdict::Denied => Use::Denied,
            Verdict::Never => Use::Looked,
        }
    }

    #[inline(always)]
    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        cost: u64,
    ) -> (Decision, Written) {
        decide(steps, states, now, cost)
    }
}

/// The same, and puts down where the request is counted.
pub(super) struct Admitting<'a>(PhantomData<&'a ()>);

impl<'a> Operation for Admitting<'a> {
    type Input = (u64, &'a RefCell<Claims>);

    #[inline]
    fn use_of((cost, _): Self::Input, decision: &Decision) -> Use {
        Checking::use_of(cost, decision)
    }

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        (cost, taken): Self::Input,
    ) -> (Decision, Written) {
        let (decision, written) = decide(steps, states, now, cost);
        *taken.borrow_mut() = claims(&decision, steps, states, now);
        (decision, written)
    }
}

/// Decides as a check would, and takes nothing. Of a request that would be allowed, the figures are those of a look.
pub(super) struct Probing;

impl Operation for Probing {
    type Input = u64;

    #[inline]
    fn use_of(cost: u64, decision: &Decision) -> Use {
        // Only a denial is final.
        if decision.is_denied() {
            Checking::use_of(cost, decision)
        } else {
            Use::Looked
        }
    }

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        cost: u64,
    ) -> (Decision, Written) {
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
    ) -> (Decision, Written) {
        refund(steps, states, now, cost)
    }
}

/// Corrects an admitted request to its actual cost.
pub(super) struct Settling<'a>(PhantomData<&'a ()>);

impl<'a> Operation for Settling<'a> {
    type Input = &'a Settlement<'a>;

    fn run<A: Algorithm>(
        steps: &[A],
        states: &mut [A::State],
        now: u64,
        settlement: Self::Input,
    ) -> (Decision, Written) {
        settlement.run(steps, states, now)
    }
}

/// What equals a fresh state need not be stored where nothing stands yet.
#[inline]
fn is_worth_writing(decision: &Decision, written: Written, slot: Option<Slot>) -> bool {
    written == Written::States && (slot.is_some() || decision.reset_after > 0)
}

/// A limit that a slot was enough for may have become too large for it: what it kept moves to a record.
fn unpacked(steps: &[Step], slot: Slot) -> StepState {
    match steps {
        [Step::SlidingWindowCounter(step)] => StepState::Counter(step.unpack(slot)),
        _ => StepState::Fresh,
    }
}
