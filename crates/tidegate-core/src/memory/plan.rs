//! A policy as a memory store runs it.

use std::fmt;

use super::fingerprint::{Fingerprint, Fingerprinter};
use super::packed::LARGEST_PACKED_COUNT;
use crate::algorithm::{
    Algorithm, Bucket, FixedWindow, Fractional, SlidingWindowCounter, Step, Whole,
};
use crate::key::Key;
use crate::policy::Policy;

/// A policy, worked out for one [`MemoryStore`](crate::MemoryStore). It serves that store only.
#[derive(Clone)]
pub struct Plan {
    fingerprinter: Fingerprinter,
    kept: Kept,
}

/// Without the secret that the fingerprints hang on.
impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

/// Where the states of a policy are kept, and the arithmetic that works on them.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    // One limit whose state fits a slot.
    WholeBucket(Bucket<Whole>),
    Bucket(Bucket<Fractional>),
    FixedWindow(FixedWindow),
    Counter(CounterPlan),
    /// Anything else.
    Record(Policy),
}

/// One limit twice: for a slot, and for a record.
#[derive(Clone, Debug)]
pub(super) struct CounterPlan {
    pub(super) packed: SlidingWindowCounter,
    pub(super) policy: Policy,
}

impl Plan {
    pub(super) fn new(policy: &Policy, fingerprinter: Fingerprinter) -> Self {
        let kept = match &**policy.steps() {
            [Step::WholeBucket(step)] => Kept::WholeBucket(step.clone()),
            [Step::Bucket(step)] => Kept::Bucket(step.clone()),
            [Step::FixedWindow(step)] => Kept::FixedWindow(step.clone()),
            [Step::SlidingWindowCounter(step)] if step.capacity_cost() <= LARGEST_PACKED_COUNT => {
                Kept::Counter(CounterPlan {
                    packed: step.clone(),
                    policy: policy.clone(),
                })
            }
            _ => Kept::Record(policy.clone()),
        };
        Self {
            fingerprinter,
            kept,
        }
    }

    #[inline]
    pub(super) fn fingerprint(&self, key: Key<'_>) -> Fingerprint {
        self.fingerprinter.fingerprint(key.as_bytes())
    }

    #[inline]
    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }
}
