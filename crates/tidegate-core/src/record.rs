//! The state of one key under a policy, and the pure step that every store with compare-and-swap can run.

use crate::algorithm::{self, Step, StepState};
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
        Self { states: vec![state] }
    }

    pub(crate) fn of_states(states: impl IntoIterator<Item = StepState>) -> Self {
        Self { states: states.into_iter().collect() }
    }

    /// The states there are.
    pub(crate) fn as_states(&self) -> &[StepState] {
        &self.states
    }

    /// The states of a policy's limits: as many as it has.
    pub(crate) fn states(&mut self, limits: &[Step]) -> &mut [StepState] {
        self.states.resize_with(limits.len(), StepState::default);
        &mut self.states
    }
}

impl Policy {
    /// Decides on one request, and takes what it costs from the record if it is allowed. Pure: no clock, no lock.
    ///
    /// A record that was kept under other limits or bursts keeps what was used; one of another algorithm, anchor or
    /// period must not be handed in: it starts afresh, with [`Record::default`].
    pub fn decide(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
        let steps = self.steps();
        algorithm::decide(steps, record.states(steps), now.as_nanos(), cost.thousandths()).0
    }

    /// Gives back what a request took that did not happen after all, and answers like one of cost 0 made right after.
    pub fn refund(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
        let steps = self.steps();
        algorithm::refund(steps, record.states(steps), now.as_nanos(), cost.thousandths()).0
    }
}
