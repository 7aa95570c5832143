//! An enum over all algorithms and one over their states, for policies of several limits.

use super::bucket::is_whole;
use super::{
    Algorithm, Bucket, BucketState, Claim, CounterState, FixedWindow, Fractional, LogState,
    SlidingWindowCounter, SlidingWindowLog, Whole, WindowState,
};
use crate::identity::BucketNumbers;
use crate::policy::{self, Limit};

/// The algorithm of one limit with its precomputed numbers.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    WholeBucket(Bucket<Whole>),
    Bucket(Bucket<Fractional>),
    FixedWindow(FixedWindow),
    SlidingWindowCounter(SlidingWindowCounter),
    SlidingWindowLog(SlidingWindowLog),
}

/// The state of one limit; `Fresh` until something is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StepState {
    #[default]
    Fresh,
    Bucket(BucketVersions),
    Window(WindowState),
    Counter(CounterState),
    Log(LogState),
}

impl StepState {
    /// Returns the number of heap bytes in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Log(log) => log.bytes(),
            Self::Bucket(BucketVersions {
                others: Some(others),
                ..
            }) => {
                size_of_val(&**others)
                    + others.capacity() * size_of::<(BucketNumbers, BucketState)>()
            }
            Self::Fresh | Self::Bucket(_) | Self::Window(_) | Self::Counter(_) => 0,
        }
    }
}

/// The state of a bucket in a record, and the states of buckets with other numbers in the same
/// place.
///
/// A bucket with other numbers is another bucket. While two configurations of a policy are in use,
/// each has its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketVersions {
    pub(crate) numbers: BucketNumbers,
    pub(crate) state: BucketState,
    /// Almost always `None`: 8 bytes instead of the 24 of a `Vec`.
    #[allow(clippy::box_collection)]
    pub(crate) others: Option<Box<Vec<(BucketNumbers, BucketState)>>>,
}

/// The maximum number of configurations kept for one bucket. Beyond it, the one that is free
/// soonest is dropped.
const MAX_OTHERS: usize = 6;

impl BucketVersions {
    /// Returns the latest free-again time of the buckets with other numbers.
    pub(crate) fn others_free_at(&self) -> u64 {
        self.others
            .iter()
            .flat_map(|others| others.iter())
            .map(|(_, state)| state.free_at.saturating_add(1))
            .max()
            .unwrap_or(0)
    }

    /// Makes the bucket with these numbers the current one.
    fn select(&mut self, numbers: BucketNumbers, now: u64) {
        let mut others = self.others.take().map_or_else(Vec::new, |others| *others);
        others.push((self.numbers, self.state));
        others.retain(|(_, state)| state.free_at >= now);
        let own = others
            .iter()
            .position(|(other, _)| *other == numbers)
            .map(|at| others.swap_remove(at).1);
        if others.len() > MAX_OTHERS
            && let Some(soonest) = (0..others.len()).min_by_key(|at| others[*at].1.free_at)
        {
            others.swap_remove(soonest);
        }
        *self = Self {
            numbers,
            state: own.unwrap_or_default(),
            others: None,
        };
        if !others.is_empty() {
            self.others = Some(Box::new(others));
        }
    }
}

impl Step {
    /// Selects this step's version of a bucket. Does nothing for other algorithms.
    pub(crate) fn select(&self, state: &mut StepState, now: u64) {
        if let (Some(numbers), StepState::Bucket(versions)) = (self.numbers(), state)
            && versions.numbers != numbers
        {
            versions.select(numbers, now);
        }
    }

    /// Returns the numbers that identify a bucket, or `None` for other algorithms.
    pub(crate) fn numbers(&self) -> Option<BucketNumbers> {
        match self {
            Self::WholeBucket(bucket) => Some(bucket.numbers()),
            Self::Bucket(bucket) => Some(bucket.numbers()),
            Self::FixedWindow(_) | Self::SlidingWindowCounter(_) | Self::SlidingWindowLog(_) => {
                None
            }
        }
    }

    /// See [`Bucket::with_any_rate`]. Returns `None` for other algorithms.
    pub(crate) fn with_any_rate(&self) -> Option<Self> {
        match self {
            Self::WholeBucket(bucket) => Some(Self::WholeBucket(bucket.with_any_rate())),
            Self::Bucket(bucket) => Some(Self::Bucket(bucket.with_any_rate())),
            Self::FixedWindow(_) | Self::SlidingWindowCounter(_) | Self::SlidingWindowLog(_) => {
                None
            }
        }
    }

    pub(crate) fn has_any_rate(&self) -> bool {
        match self {
            Self::WholeBucket(bucket) => bucket.has_any_rate(),
            Self::Bucket(bucket) => bucket.has_any_rate(),
            Self::FixedWindow(_) | Self::SlidingWindowCounter(_) | Self::SlidingWindowLog(_) => {
                false
            }
        }
    }

    /// Returns the state of a bucket with this step's numbers.
    pub(crate) fn bucket_state(&self, state: BucketState) -> StepState {
        let numbers = self.numbers().unwrap_or_default();
        StepState::Bucket(BucketVersions {
            numbers,
            state,
            others: None,
        })
    }

    pub(crate) fn new(limit: &Limit) -> Self {
        match limit.algorithm() {
            policy::Algorithm::TokenBucket
            | policy::Algorithm::LeakyBucket
            | policy::Algorithm::Gcra => {
                if is_whole(limit) {
                    Self::WholeBucket(Bucket::new(limit))
                } else {
                    Self::Bucket(Bucket::new(limit))
                }
            }
            policy::Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::new(limit)),
            policy::Algorithm::SlidingWindowCounter => {
                Self::SlidingWindowCounter(SlidingWindowCounter::new(limit))
            }
            policy::Algorithm::SlidingWindowLog => {
                Self::SlidingWindowLog(SlidingWindowLog::new(limit))
            }
        }
    }

    fn fresh(&self) -> StepState {
        match self {
            Self::WholeBucket(_) | Self::Bucket(_) => self.bucket_state(BucketState::default()),
            Self::FixedWindow(_) => StepState::Window(WindowState::default()),
            Self::SlidingWindowCounter(_) => StepState::Counter(CounterState::default()),
            Self::SlidingWindowLog(_) => StepState::Log(LogState::default()),
        }
    }
}

/// Runs `$call` if the state belongs to the step's algorithm, and `$otherwise` if it is `Fresh` or
/// belongs to another one.
macro_rules! dispatch {
    ($step:expr, $state:expr, |$algorithm:ident, $own:ident| $call:expr, $otherwise:expr) => {
        match ($step, $state) {
            (
                Step::WholeBucket($algorithm),
                StepState::Bucket(BucketVersions { state: $own, .. }),
            ) => $call,
            (Step::Bucket($algorithm), StepState::Bucket(BucketVersions { state: $own, .. })) => {
                $call
            }
            (Step::FixedWindow($algorithm), StepState::Window($own)) => $call,
            (Step::SlidingWindowCounter($algorithm), StepState::Counter($own)) => $call,
            (Step::SlidingWindowLog($algorithm), StepState::Log($own)) => $call,
            _ => $otherwise,
        }
    };
}

/// A state of another algorithm is treated like a fresh one.
impl Algorithm for Step {
    type State = StepState;

    fn capacity_cost(&self) -> u64 {
        match self {
            Self::WholeBucket(step) => step.capacity_cost(),
            Self::Bucket(step) => step.capacity_cost(),
            Self::FixedWindow(step) => step.capacity_cost(),
            Self::SlidingWindowCounter(step) => step.capacity_cost(),
            Self::SlidingWindowLog(step) => step.capacity_cost(),
        }
    }

    fn is_from_future(&self, state: &StepState, now: u64) -> bool {
        dispatch!(
            self,
            state,
            |step, own| step.is_from_future(own, now),
            false
        )
    }

    fn clamp(&self, state: &mut StepState, now: u64) {
        dispatch!(self, state, |step, own| step.clamp(own, now), ());
    }

    fn wait(&self, state: &StepState, now: u64, cost: u64) -> Option<u64> {
        dispatch!(self, state, |step, own| step.wait(own, now, cost), None)
    }

    fn delay(&self, state: &StepState, now: u64) -> u64 {
        dispatch!(self, state, |step, own| step.delay(own, now), 0)
    }

    fn take(&self, state: &mut StepState, now: u64, cost: u64) {
        dispatch!(
            self,
            &mut *state,
            |step, own| return step.take(own, now, cost),
            ()
        );
        *state = self.fresh();
        dispatch!(self, state, |step, own| step.take(own, now, cost), ());
    }

    fn refund_cost(&self, state: &mut StepState, now: u64, cost: u64) {
        dispatch!(
            self,
            state,
            |step, own| step.refund_cost(own, now, cost),
            ()
        );
    }

    fn claim(&self, state: &StepState, now: u64) -> Claim {
        dispatch!(
            self,
            state,
            |step, own| step.claim(own, now),
            Claim::default()
        )
    }

    fn refund_claimed(&self, state: &mut StepState, now: u64, claim: Claim, cost: u64) {
        dispatch!(
            self,
            state,
            |step, own| step.refund_claimed(own, now, claim, cost),
            ()
        );
    }

    fn charge(&self, state: &mut StepState, now: u64, cost: u64) -> u64 {
        dispatch!(
            self,
            &mut *state,
            |step, own| return step.charge(own, now, cost),
            ()
        );
        *state = self.fresh();
        dispatch!(self, state, |step, own| step.charge(own, now, cost), 0)
    }

    fn trial_copy(&self, state: &StepState, now: u64) -> StepState {
        match (self, state) {
            (Self::SlidingWindowLog(step), StepState::Log(log)) => {
                StepState::Log(step.trial_copy(log, now))
            }
            (_, StepState::Bucket(versions)) => self.bucket_state(versions.state),
            (_, StepState::Log(_)) => StepState::Fresh,
            _ => state.clone(),
        }
    }

    fn remaining(&self, state: &StepState, now: u64) -> u64 {
        dispatch!(
            self,
            state,
            |step, own| step.remaining(own, now),
            self.capacity()
        )
    }

    fn reset_after(&self, state: &StepState, now: u64) -> u64 {
        dispatch!(self, state, |step, own| step.reset_after(own, now), 0)
    }
}
