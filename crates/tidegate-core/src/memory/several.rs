//! Policies of several limits. Each limit has an entry of its own, and all entries of a key have the
//! same home line, so a check usually reads one line.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::cache_line::{Kind, LockedLine, SLOTS, Slot};
use super::entry_update::{Change, UpdateContext};
use super::fingerprint::{Fingerprint, Fingerprinter};
use super::operation::{Operation, OperationResult, decision_of, is_worth_writing, run_now};
use super::packed::{LARGEST_PACKED_COUNT, Packed, answer_at};
use super::probe::Probe;
use super::table::{KeyLocation, Table, apply};
use crate::algorithm::{Algorithm, Answer, Step, StepState};
use crate::decision::Decision;
use crate::identity::BucketNumbers;
use crate::policy::Policy;
use crate::record::Record;

/// The limits of a policy, with what tells their entries apart.
#[derive(Clone, Debug)]
pub(super) struct SeveralPlan {
    steps: Arc<[Step]>,
    offsets: ArrayVec<u64, SLOTS>,
}

/// The fingerprints of a key's entries.
pub(super) type Fingerprints = ArrayVec<Fingerprint, SLOTS>;

impl SeveralPlan {
    /// Prepares the limits, or returns `None` if there are more than a line has slots, or a log.
    pub(super) fn new(policy: &Policy, fingerprinter: &Fingerprinter) -> Option<Self> {
        let steps = policy.steps();
        let is_log = |step: &Step| matches!(step, Step::SlidingWindowLog(_));
        if steps.len() > SLOTS || steps.iter().any(is_log) {
            return None;
        }
        let stored_at = |index: usize| {
            let order = policy.stored_order();
            let place = order.and_then(|order| {
                let mut order = order.iter();
                order.position(|stored| usize::from(*stored) == index)
            });
            place.unwrap_or(index)
        };
        let offset = |(index, step): (usize, &Step)| {
            // A bucket with other numbers is another bucket.
            let numbers = step.numbers().map(BucketNumbers::to_bytes);
            fingerprinter.offset(stored_at(index), numbers)
        };
        Some(Self {
            steps: Arc::clone(steps),
            offsets: steps.iter().enumerate().map(offset).collect(),
        })
    }

    /// Returns the fingerprints of a key's entries, in the order of the limits.
    pub(super) fn fingerprints(&self, key: Fingerprint) -> Fingerprints {
        let offsets = self.offsets.iter();
        offsets.map(|offset| key.with_offset(*offset)).collect()
    }
}

impl Table {
    /// Updates the entries of a key.
    #[inline(never)]
    pub(super) fn update_several<O: Operation>(
        &self,
        place: KeyLocation<'_>,
        plan: &SeveralPlan,
        now: u64,
        input: O::Input,
    ) -> Decision {
        let mut line = place.lock();
        let is_sweep_due = line.visit();
        if let Some(cost) = O::cost_to_take(input)
            && let Some(decision) = check_in_line(&mut line, place.fingerprint, plan, now, cost)
        {
            drop(line);
            if is_sweep_due {
                self.sweep(now);
            }
            return decision;
        }
        let mut probe = Probe::new(self, self.home(place.fingerprint), line);
        let fingerprints = plan.fingerprints(place.fingerprint);
        let slots: ArrayVec<_, SLOTS> = fingerprints
            .iter()
            .map(|one| probe.find(*one).map(|(line, at)| line.slot(at)))
            .collect();
        let context = UpdateContext {
            table: self,
            step: plan,
            fingerprint: place.fingerprint,
            now,
            input,
        };
        let (decision, changes) = run_several::<O>(&context, &fingerprints, &slots);
        let mut inserted = 0;
        for (fingerprint, change) in fingerprints.iter().zip(&changes) {
            match (probe.find(*fingerprint), change.write) {
                (Some((line, at)), _) => apply(line, at, change),
                (None, Some(slot)) => {
                    self.insert(&mut probe, *fingerprint, &fingerprints, slot, 0, now);
                    inserted += 1;
                }
                (None, None) => {}
            }
        }
        drop(probe);
        for _ in 0..inserted {
            self.sweep_for_new_key(now);
        }
        if inserted == 0 && is_sweep_due {
            self.sweep(now);
        }
        if self.arena.bytes() > self.max_record_bytes {
            self.trim_records(&fingerprints, now);
        }
        decision
    }
}

/// The answer of a limit, and the slot of its entry.
struct Asked {
    at: usize,
    slot: Slot,
    answer: Answer<Slot>,
}

/// Checks all limits in one line. Returns `None` if an entry is not there, or in any other case
/// that [`Algorithm::answer`] leaves out.
#[inline(always)]
fn check_in_line(
    line: &mut LockedLine<'_>,
    key: Fingerprint,
    plan: &SeveralPlan,
    now: u64,
    cost: u64,
) -> Option<Decision> {
    let mut asked = ArrayVec::<Asked, SLOTS>::new();
    for (step, offset) in plan.steps.iter().zip(&plan.offsets) {
        let fingerprint = key.with_offset(*offset);
        let at = line.guess(fingerprint)?;
        if !line.is_at_tagged(at, fingerprint) {
            return None;
        }
        let (slot, answer) = answer_of(step, line, at, now, cost)?;
        asked.push(Asked { at, slot, answer });
    }
    let denied = asked.iter().enumerate();
    let denied = denied.filter(|(_, one)| one.answer.taken.is_none());
    // The longest wait determines the outcome, and the first wins a tie.
    let longest = denied.reduce(|one, other| match other.1.answer.wait > one.1.answer.wait {
        true => other,
        false => one,
    });
    if let Some((index, _)) = longest {
        asked.iter().for_each(|one| line.deny(one.at));
        return Some(denied_decision(plan, &asked, index, now));
    }
    let (mut tightest, mut delay, mut reset_after) = (0, 0, 0);
    for (index, one) in asked.iter().enumerate() {
        if let Some(slot) = one.answer.taken {
            line.write(one.at, slot);
        }
        line.admit(one.at);
        if one.answer.remaining < asked[tightest].answer.remaining {
            tightest = index;
        }
        delay = one.answer.wait.max(delay);
        reset_after = one.answer.reset_after.max(reset_after);
    }
    let answer = &asked[tightest].answer;
    Some(Decision {
        wait: delay,
        reset_after,
        limit_index: tightest as u32,
        ..decision_of(answer, plan.steps[tightest].capacity())
    })
}

/// Returns the decision of a request that the limit at `index` denies.
#[inline(always)]
fn denied_decision(plan: &SeveralPlan, asked: &[Asked], index: usize, now: u64) -> Decision {
    // Nothing is taken from the limits that would allow the request.
    let reset_after = plan
        .steps
        .iter()
        .zip(asked)
        .map(|(step, one)| match one.answer.taken {
            None => one.answer.reset_after,
            Some(_) => step.reset_after(&unpacked(step, one.slot), now),
        });
    Decision {
        reset_after: reset_after.max().unwrap_or(0),
        limit_index: index as u32,
        ..decision_of(&asked[index].answer, plan.steps[index].capacity())
    }
}

#[inline(always)]
fn answer_of(
    step: &Step,
    line: &LockedLine<'_>,
    at: usize,
    now: u64,
    cost: u64,
) -> Option<(Slot, Answer<Slot>)> {
    match step {
        Step::WholeBucket(step) => answer_at(step, line, at, now, cost),
        Step::Bucket(step) => answer_at(step, line, at, now, cost),
        Step::FixedWindow(step) => answer_at(step, line, at, now, cost),
        Step::SlidingWindowCounter(step) => answer_at(step, line, at, now, cost),
        Step::SlidingWindowLog(_) => None,
    }
}

/// Runs an operation on the states of all limits. Returns the changes of their entries.
pub(super) fn run_several<O: Operation>(
    context: &UpdateContext<'_, SeveralPlan, O::Input>,
    fingerprints: &[Fingerprint],
    slots: &[Option<Slot>],
) -> (Decision, ArrayVec<Change, SLOTS>) {
    let (table, steps) = (context.table, &*context.step.steps);
    let mut states: ArrayVec<StepState, SLOTS> = steps
        .iter()
        .zip(fingerprints.iter().zip(slots))
        .map(|(step, (fingerprint, slot))| load(table, step, *fingerprint, *slot))
        .collect();
    let OperationResult {
        decision,
        change,
        now,
    } = run_now::<_, _, O>(context, steps, &mut states);
    let usage = O::usage_of(context.input, &decision);
    let entries = fingerprints.iter().zip(slots);
    let changes = steps.iter().zip(states).zip(entries);
    let changes = changes.map(|((step, state), (fingerprint, slot))| {
        let reset_after = step.reset_after(&state, now);
        let is_written = is_worth_writing(reset_after, change, *slot);
        let expires_at = now.saturating_add(reset_after);
        let write = is_written.then(|| store(table, step, *fingerprint, *slot, state, expires_at));
        Change {
            is_other_kind: slot.map(|slot| slot.kind) != write.map(|slot| slot.kind),
            write,
            usage,
        }
    });
    (decision, changes.collect())
}

/// Reads the state of a limit: from its slot, or from a record if it did not fit.
fn load(table: &Table, step: &Step, fingerprint: Fingerprint, slot: Option<Slot>) -> StepState {
    match slot {
        None => StepState::Fresh,
        Some(slot) if slot.kind == Kind::Record => {
            let record = table.arena.get(slot.amount, fingerprint);
            let state = record.and_then(|record| record.as_states().first().cloned());
            state.unwrap_or_default()
        }
        Some(slot) => unpacked(step, slot),
    }
}

/// Returns the slot for a state, which may refer to a record.
fn store(
    table: &Table,
    step: &Step,
    fingerprint: Fingerprint,
    before: Option<Slot>,
    state: StepState,
    expires_at: u64,
) -> Slot {
    let record = before.filter(|slot| slot.kind == Kind::Record);
    if record.is_none()
        && let Some(slot) = packed(step, &state)
    {
        return slot;
    }
    let mut new = Some(Record::of(state));
    let number = record.and_then(|slot| {
        let update = |record: &mut Record| new.take().map(|new| *record = new);
        table.arena.with(slot.amount, fingerprint, update)??;
        Some(slot.amount)
    });
    Slot {
        kind: Kind::Record,
        time: expires_at,
        amount: number.unwrap_or_else(|| table.arena.insert(new.unwrap_or_default(), fingerprint)),
    }
}

/// Returns a state as a slot, or `None` if it does not fit.
fn packed(step: &Step, state: &StepState) -> Option<Slot> {
    match (step, state) {
        (Step::WholeBucket(step), StepState::Bucket(state)) => Some(step.pack(&state.state)),
        (Step::Bucket(step), StepState::Bucket(state)) => Some(step.pack(&state.state)),
        (Step::FixedWindow(step), StepState::Window(state)) => Some(step.pack(state)),
        (Step::SlidingWindowCounter(step), StepState::Counter(state)) => {
            (step.most_counted() <= LARGEST_PACKED_COUNT).then(|| step.pack(state))
        }
        _ => None,
    }
}

/// Returns the state in a slot. A slot of another kind, which only a forged snapshot contains, is
/// fresh.
fn unpacked(step: &Step, slot: Slot) -> StepState {
    match (step, slot.kind) {
        (Step::WholeBucket(bucket), Kind::Plain) => step.bucket_state(bucket.unpack(slot)),
        (Step::Bucket(bucket), Kind::Plain) => step.bucket_state(bucket.unpack(slot)),
        (Step::FixedWindow(step), Kind::Plain) => StepState::Window(step.unpack(slot)),
        (Step::SlidingWindowCounter(step), Kind::Counter) => StepState::Counter(step.unpack(slot)),
        _ => StepState::Fresh,
    }
}
