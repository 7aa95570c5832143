//! Records: the state of one key under a policy, and the pure step that updates it.

use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{self, Algorithm, Claim, Claims, StateChange, Step, StepState};
use crate::clock::Timestamp;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::memory::{decode_record, encode_record};
use crate::policy::Policy;
use crate::store::{Admission, Charged};

/// The state of one key under a policy: one state per limit.
///
/// The default value is a fresh record. A store with compare-and-swap can keep records and run
/// [`Policy::decide`] on them.
///
/// # Examples
///
/// ```
/// use tidegate::store::Record;
/// use tidegate::{Cost, Policy, Timestamp};
///
/// let policy: Policy = "2/second".parse()?;
/// let mut record = Record::default();
/// let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
/// assert!(policy.decide(&mut record, now, Cost::ONE).is_allowed());
/// assert_eq!(policy.decide(&mut record, now, Cost::ZERO).remaining(), 1);
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    states: Vec<StepState>,
}

/// The version of the encoding of records.
const VERSION: u8 = 1;

/// The error for bytes that are not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes are damaged, or not a record.
    #[error("the record is damaged: {0}")]
    Damaged(String),
    /// The record was written by another version of Tidegate.
    #[error("record version {0}: expected {VERSION}")]
    Version(u8),
}

impl Record {
    /// Returns the record as bytes, for a store that keeps it elsewhere.
    ///
    /// The first byte is the version of the encoding.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::store::Record;
    /// use tidegate::{Cost, Policy, Timestamp};
    ///
    /// let policy: Policy = "2/second; sliding_window_log 5/minute".parse()?;
    /// let (mut record, now) = (Record::default(), Timestamp::from_nanos(0));
    /// assert!(policy.decide(&mut record, now, Cost::ONE).is_allowed());
    /// assert_eq!(Record::from_bytes(&record.to_bytes())?, record);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = encode_record(self);
        bytes.insert(0, VERSION);
        bytes
    }

    /// Creates a record from the output of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are damaged or of another version. Any bytes are safe to try.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        match bytes.split_first() {
            Some((&VERSION, states)) => {
                decode_record(states).map_err(|error| RecordError::Damaged(error.to_string()))
            }
            Some((version, _)) => Err(RecordError::Version(*version)),
            None => Err(RecordError::Damaged("it is empty".to_owned())),
        }
    }

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

    /// Returns the states, in stored order.
    pub(crate) fn as_states(&self) -> &[StepState] {
        &self.states
    }

    /// Runs `work` on the states of a policy's limits, in the policy's order.
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

    /// Returns the number of heap bytes in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        let states = self.states.capacity() * size_of::<StepState>();
        states + self.states.iter().map(StepState::heap_bytes).sum::<usize>()
    }

    /// Replaces the state at `index`, in stored order.
    pub(crate) fn set(&mut self, index: usize, state: StepState) {
        if let Some(slot) = self.states.get_mut(index) {
            *slot = state;
        }
    }

    /// Returns the latest free-again time of the buckets of other configurations.
    pub(crate) fn others_free_at(&self) -> u64 {
        let others = self.states.iter().map(|state| match state {
            StepState::Bucket(versions) => versions.others_free_at(),
            _ => 0,
        });
        others.max().unwrap_or(0)
    }
}

impl Policy {
    /// Decides a request and, if it is allowed, takes its cost from the record.
    ///
    /// This function is pure: it reads no clock and takes no lock.
    ///
    /// If the policy changed since the record was written, windows and logs keep their counts, and
    /// a bucket with another rate or burst starts full. After a change of algorithm, anchor or
    /// period, start with [`Record::default`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::store::Record;
    /// use tidegate::{Cost, Policy, Timestamp};
    ///
    /// let policy: Policy = "fixed_window 1/second".parse()?;
    /// let (mut record, now) = (Record::default(), Timestamp::from_nanos(0));
    /// assert!(policy.decide(&mut record, now, Cost::ONE).is_allowed());
    /// assert!(policy.decide(&mut record, now, Cost::ONE).is_denied());
    /// # Ok::<(), tidegate::PolicyError>(())
    /// ```
    pub fn decide(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            algorithm::decide(steps, states, now, cost).0
        })
    }

    /// Decides like [`decide`](Self::decide), and returns where an admitted request was counted and
    /// the figures of every limit.
    #[doc(hidden)] // For Tidegate's own stores.
    pub fn admit(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Admission {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            let decision = algorithm::decide(steps, states, now, cost).0;
            admission(decision, steps, states, now, cost)
        })
    }

    /// Returns the decision that a request would get, and takes nothing.
    ///
    /// The record changes only if it is from the future: it is then moved back to now.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::store::Record;
    /// use tidegate::{Cost, Policy, Timestamp};
    ///
    /// let policy: Policy = "fixed_window 1/second".parse()?;
    /// let (mut record, now) = (Record::default(), Timestamp::from_nanos(0));
    /// assert!(policy.peek(&mut record, now, Cost::ONE).is_allowed());
    /// assert!(policy.peek(&mut record, now, Cost::ONE).is_allowed());
    /// # Ok::<(), tidegate::PolicyError>(())
    /// ```
    pub fn peek(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            algorithm::peek(steps, states, now, cost).0
        })
    }

    /// Like [`peek`](Self::peek), with the figures of every limit.
    #[doc(hidden)] // For Tidegate's own stores.
    pub fn peek_with_limits(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Admission {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            let (decision, limits, _) = algorithm::peek(steps, states, now, cost);
            Admission {
                limits,
                ..Admission::look(decision)
            }
        })
    }

    /// Returns the time from which on a record equals a fresh one, so that a store may delete it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::store::Record;
    /// use tidegate::{Cost, Policy, Timestamp};
    ///
    /// let policy: Policy = "fixed_window 1/second".parse()?;
    /// let (mut record, now) = (Record::default(), Timestamp::from_nanos(0));
    /// assert!(policy.decide(&mut record, now, Cost::ONE).is_allowed());
    /// assert_eq!(policy.expires_at(&mut record, now).as_nanos(), 1_000_000_000);
    /// # Ok::<(), tidegate::PolicyError>(())
    /// ```
    pub fn expires_at(&self, record: &mut Record, now: Timestamp) -> Timestamp {
        let reset_after = self.peek(record, now, Cost::ZERO).reset_after();
        let others = Timestamp::from_nanos(record.others_free_at());
        now.saturating_add(reset_after).max(others)
    }

    /// Takes a cost whatever the limits say, as far as their debt allows.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::store::Record;
    /// use tidegate::{Cost, Policy, Timestamp};
    ///
    /// let policy: Policy = "fixed_window 10/second debt=5".parse()?;
    /// let (mut record, now) = (Record::default(), Timestamp::from_nanos(0));
    /// let charged = policy.charge(&mut record, now, Cost::try_from(20)?);
    /// assert_eq!(charged.dropped, Cost::try_from(5)?);
    /// assert!(charged.decision.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Charged {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            charged(algorithm::charge(steps, states, now, cost)).0
        })
    }

    /// Gives back the cost of a request that did not happen. Returns the decision of a request of
    /// cost 0 made right after.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::store::Record;
    /// use tidegate::{Cost, Policy, Timestamp};
    ///
    /// let policy: Policy = "fixed_window 1/second".parse()?;
    /// let (mut record, now) = (Record::default(), Timestamp::from_nanos(0));
    /// policy.decide(&mut record, now, Cost::ONE);
    /// assert_eq!(policy.refund(&mut record, now, Cost::ONE).remaining(), 1);
    /// # Ok::<(), tidegate::PolicyError>(())
    /// ```
    pub fn refund(&self, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
        let (now, cost) = (now.as_nanos(), cost.thousandths());
        record.with_states(self, now, |steps, states| {
            algorithm::refund(steps, states, now, cost).0
        })
    }

    /// Corrects an admitted request to its actual cost. Returns the decision of a request of cost 0
    /// made right after.
    #[doc(hidden)] // For Tidegate's own stores.
    pub fn settle(
        &self,
        record: &mut Record,
        now: Timestamp,
        settlement: &Settlement<'_>,
    ) -> Charged {
        let now = now.as_nanos();
        record.with_states(self, now, |steps, states| {
            charged(settlement.run(steps, states, now)).0
        })
    }
}

/// Returns the result of a charge, and the change of the states.
pub(crate) fn charged(
    (decision, change, dropped): (Decision, StateChange, u64),
) -> (Charged, StateChange) {
    // At most the cost of the charge, so it is valid.
    let dropped = Cost::from_thousandths(dropped).unwrap_or(Cost::MAX);
    (Charged { decision, dropped }, change)
}

/// A correction of an admitted request from the cost taken to the actual cost.
#[doc(hidden)] // For Tidegate's own stores.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// The places where the request was counted.
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
    ) -> (Decision, StateChange, u64) {
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

/// Returns the admission of a request that was decided on these states.
pub(crate) fn admission<A: Algorithm>(
    decision: Decision,
    steps: &[A],
    states: &[A::State],
    now: u64,
    cost: u64,
) -> Admission {
    let mut claims = Claims::new();
    if decision.is_allowed() {
        claims.extend(
            steps
                .iter()
                .zip(states)
                .map(|(step, state)| step.claim(state, now)),
        );
    }
    let limits = algorithm::limit_figures(&decision, steps, states, now, cost);
    let again_after = algorithm::wait(steps, states, now, cost);
    Admission {
        decision,
        claims,
        limits,
        again_after: again_after.map(Duration::from_nanos),
    }
}
