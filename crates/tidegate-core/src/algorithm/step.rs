//! Any one of the algorithms, and its state: for policies of several limits.

use super::bucket::is_whole;
use super::{
    Algorithm, Bucket, BucketState, CounterState, FixedWindow, Fractional, LogState, SlidingWindowCounter,
    SlidingWindowLog, Whole, WindowState,
};
use crate::policy::{self, Limit};

/// One limit, worked out.
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
    Bucket(BucketState),
    Window(WindowState),
    Counter(CounterState),
    Log(LogState),
}

impl Step {
    pub(crate) fn new(limit: &Limit) -> Self {
        match limit.algorithm() {
            policy::Algorithm::TokenBucket | policy::Algorithm::LeakyBucket | policy::Algorithm::Gcra => {
                if is_whole(limit) { Self::WholeBucket(Bucket::new(limit)) } else { Self::Bucket(Bucket::new(limit)) }
            }
            policy::Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::new(limit)),
            policy::Algorithm::SlidingWindowCounter => Self::SlidingWindowCounter(SlidingWindowCounter::new(limit)),
            policy::Algorithm::SlidingWindowLog => Self::SlidingWindowLog(SlidingWindowLog::new(limit)),
        }
    }

    fn fresh(&self) -> StepState {
        match self {
            Self::WholeBucket(_) | Self::Bucket(_) => StepState::Bucket(BucketState::default()),
            Self::FixedWindow(_) => StepState::Window(WindowState::default()),
            Self::SlidingWindowCounter(_) => StepState::Counter(CounterState::default()),
            Self::SlidingWindowLog(_) => StepState::Log(LogState::default()),
        }
    }
}

/// Runs `$method` of the step at hand on its own kind of state; on any other, and on `Fresh`, `$otherwise`.
macro_rules! dispatch {
    ($step:expr, $state:expr, |$algorithm:ident, $own:ident| $call:expr, $otherwise:expr) => {
        match ($step, $state) {
            (Step::WholeBucket($algorithm), StepState::Bucket($own)) => $call,
            (Step::Bucket($algorithm), StepState::Bucket($own)) => $call,
            (Step::FixedWindow($algorithm), StepState::Window($own)) => $call,
            (Step::SlidingWindowCounter($algorithm), StepState::Counter($own)) => $call,
            (Step::SlidingWindowLog($algorithm), StepState::Log($own)) => $call,
            _ => $otherwise,
        }
    };
}

/// A state of another algorithm is as good as none: the policy starts afresh.
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

    fn is_ahead(&self, state: &StepState, now: u64) -> bool {
        dispatch!(self, state, |step, own| step.is_ahead(own, now), false)
    }

    fn bring_back(&self, state: &mut StepState, now: u64) {
        dispatch!(self, state, |step, own| step.bring_back(own, now), ());
    }

    fn wait(&self, state: &StepState, now: u64, cost: u64) -> Option<u64> {
        dispatch!(self, state, |step, own| step.wait(own, now, cost), None)
    }

    fn delay(&self, state: &StepState, now: u64) -> u64 {
        dispatch!(self, state, |step, own| step.delay(own, now), 0)
    }

    fn take(&self, state: &mut StepState, now: u64, cost: u64) {
        dispatch!(self, &mut *state, |step, own| return step.take(own, now, cost), ());
        *state = self.fresh();
        dispatch!(self, state, |step, own| step.take(own, now, cost), ());
    }

    fn give_back(&self, state: &mut StepState, now: u64, cost: u64) {
        dispatch!(self, state, |step, own| step.give_back(own, now, cost), ());
    }

    fn remaining(&self, state: &StepState, now: u64) -> u64 {
        dispatch!(self, state, |step, own| step.remaining(own, now), self.capacity())
    }

    fn reset_after(&self, state: &StepState, now: u64) -> u64 {
        dispatch!(self, state, |step, own| step.reset_after(own, now), 0)
    }
}
