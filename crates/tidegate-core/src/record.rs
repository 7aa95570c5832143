//! The state of one key under a policy, and the pure step that every store with compare-and-swap can run.

use smallvec::SmallVec;

use crate::algorithm::{self, Algorithm, Claim, Claims, Step, StepState};
use crate::clock::Timestamp;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::policy::Policy;

/// What is kept for one key under a policy, one state a limit. The default is a fresh one.
///
/// ```
/// use tidegate_core::{Cost, Policy, Record, Timestamp};
///
/// let policy: Policy = "2/second".parse()?;
/// let mut record = Record::default();
/// let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
/// assert!(policy.decide(&mut record, now, Cost::ONE).is_allowed());
/// assert_eq!(policy.decide(&mut record, now, Cost::ZERO).remaining(), 1);
/// # Ok::<(), tidegate_core::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    states: Vec<StepState>,
}

impl Record {
    pub(crate) fn of(state: StepState) -> Self {
        Self {
            states: vec![state],
        }
    }

    pub(crate) fn of_states(states: impl IntoIterator<Item = StepState>) -> Self {
        Self {
            states: states.into_iter().collect(),
        }
    }

    /// The states there are.
    pub(crate) fn as_states(&self) -> &[StepState] {
        &self.states
    }

    /// Runs `work` on the states of a policy's limits, one a limit, in the order of the policy.
    pub(crate) fn with_states<T>(
        &mut self,
        policy: &Policy,
        now: u64,
        work: impl FnOnce(&[Step], &mut [StepState]) -> T,
    ) -> T {
        let steps = &**policy.steps();
        self.states
            .reserve_exact(steps.len().saturating_sub(self.states.len()));
        self.states.resize_with(steps.len(), StepState::default);
        let Some(order) = policy.stored_order() else {
            steps
                .iter()
                .zip(&mut self.states)
                .for_each(|(step, state)| step.select(state, now));
            return work(steps, &mut self.states);
        };
        let mut states: SmallVec<[StepState; 8]> = steps.iter().map(|_| StepState::Fresh).collect();
        for (stored, index) in self.states.iter_mut().zip(order) {
            states[usize::from(*index)] = std::mem::take(stored);
        }
        steps
            .iter()
            .zip(&mut states)
            .for_each(|(step, state)| step.select(state, now));
        let result = work(steps, &mut states);
        for (stored, index) in self.states.iter_mut().zip(order) {
            *stored = std::mem::take(&mut states[usize::from(*index)]);
        }
        result
    }

    /// The bytes of the heap that it takes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let states = self.states.capacity() * size_of::<StepState>();
        states + self.states.iter().map(StepState::heap_bytes).sum::<usize>()
    }

    /// Puts a state in its place, in stored order.
    pub(crate) fn set(&mut self, index: usize, state: StepState) {
        if let Some(slot) = self.states.get_mut(index) {
            *slot = state;
        }
    }

    /// The latest time at which buckets of other configurations are free again.
    pub(crate) fn others_free_at(&self) -> u64 {
        let others = self.states.iter().map(|state| match state {
            StepState::Bucket(versions) => versions.others_free_at(),
            _ => 0,
        });
        others.max().unwrap_or(0)
    }
}

impl Policy {
    /// Decides on one request, and takes what it costs from the record if it is allowed. Pure: no clock, no lock.
    ///
    /// A record that was written under other limits keeps the counts of windows and logs. A bucket whose numbers changed
    /// is another bucket and starts full. With other algorithms, anchors or periods of windows and logs, start afresh
    /// with [`Record::default`].
    pub fn decide(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            algorithm::decide(steps, states, now, cost).0
        })
    }

    /// Decides like [`decide`](Self::decide), and returns where the request is counted if it was admitted.
    #[doc(hidden)] // For Tidegate's own stores.
    pub fn admit(&self, record: &mut Record, now: Timestamp, cost: Cost) -> (Decision, Claims) {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            let decision = algorithm::decide(steps, states, now, cost).0;
            (decision, claims(&decision, steps, states, now))
        })
    }

    /// Gives back what a request took that did not happen after all, and answers like one of cost 0 made right after.
    pub fn refund(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            algorithm::refund(steps, states, now, cost).0
        })
    }

    /// Corrects an admitted request to its actual cost, and answers like a request of cost 0 made right after.
    #[doc(hidden)] // For Tidegate's own stores.
    pub fn settle(
        &self,
        record: &mut Record,
        now: Timestamp,
        settlement: &Settlement<'_>,
    ) -> Decision {
        let now = now.as_nanos();
        record.with_states(self, now, |steps, states| {
            settlement.run(steps, states, now).0
        })
    }
}

/// A request that was admitted at one cost and turned out to have another.
#[doc(hidden)] // For Tidegate's own stores.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// The claims of the request.
    pub claims: &'a [Claim],
    /// The cost that was taken.
    pub taken: Cost,
    /// The actual cost.
    pub actual: Cost,
}

impl Settlement<'_> {
    pub(crate) fn run<A: Algorithm>(
        &self,
        steps: &[A],
        states: &mut [A::State],
        now: u64,
    ) -> (Decision, algorithm::Written) {
        algorithm::settle(
            steps,
            states,
            self.claims,
            now,
            self.taken.thousandths(),
            self.actual.thousandths(),
        )
    }
}

/// Where a request is counted: nowhere unless it was admitted.
pub(crate) fn claims<A: Algorithm>(
    decision: &Decision,
    steps: &[A],
    states: &[A::State],
    now: u64,
) -> Claims {
    if decision.is_denied() {
        return Claims::new();
    }
    steps
        .iter()
        .zip(states)
        .map(|(step, state)| step.claim(state, now))
        .collect()
}
