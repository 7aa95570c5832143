//! A policy prepared for a memory store.

use std::fmt;

use super::cache_line::{LockedLine, Slot};
use super::fingerprint::{Fingerprint, Fingerprinter};
use super::packed::{LARGEST_PACKED_COUNT, answer_at};
use super::several::{Fingerprints, SeveralPlan};
use crate::algorithm::{
    Algorithm, Answer, Bucket, FixedWindow, Fractional, SlidingWindowCounter, Step, Whole,
};
use crate::key::Key;
use crate::policy::Policy;

/// A policy prepared for one [`MemoryStore`](crate::MemoryStore). It is valid for that store only.
#[derive(Clone)]
pub struct Plan {
    fingerprinter: Fingerprinter,
    layout: Layout,
}

/// Omits the secret of the fingerprints.
impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// The place where a policy's states are stored, with its algorithms.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    // One limit whose state fits in a slot.
    WholeBucket(Bucket<Whole>),
    Bucket(Bucket<Fractional>),
    FixedWindow(FixedWindow),
    Counter(CounterPlan),
    /// Several limits, each with an entry of its own.
    Several(SeveralPlan),
    /// Any other policy.
    Record(Policy),
}

/// One limit in two forms: for a slot, and for a record.
#[derive(Clone, Debug)]
pub(super) struct CounterPlan {
    pub(super) packed: SlidingWindowCounter,
    pub(super) policy: Policy,
}

impl Plan {
    pub(super) fn new(policy: &Policy, fingerprinter: Fingerprinter) -> Self {
        let layout = match &**policy.steps() {
            [Step::WholeBucket(step)] => Layout::WholeBucket(step.clone()),
            [Step::Bucket(step)] => Layout::Bucket(step.clone()),
            [Step::FixedWindow(step)] => Layout::FixedWindow(step.clone()),
            [Step::SlidingWindowCounter(step)] if step.most_counted() <= LARGEST_PACKED_COUNT => {
                Layout::Counter(CounterPlan {
                    packed: step.clone(),
                    policy: policy.clone(),
                })
            }
            [_, _, ..] => match SeveralPlan::new(policy, &fingerprinter) {
                Some(plan) => Layout::Several(plan),
                None => Layout::Record(policy.clone()),
            },
            _ => Layout::Record(policy.clone()),
        };
        Self {
            fingerprinter,
            layout,
        }
    }

    #[inline]
    pub(super) fn fingerprint(&self, key: Key<'_>) -> Fingerprint {
        self.fingerprinter.fingerprint(key.as_bytes())
    }

    /// Returns the fingerprints of the entries of a key.
    pub(super) fn fingerprints(&self, key: Fingerprint) -> Fingerprints {
        match &self.layout {
            Layout::Several(plan) => plan.fingerprints(key),
            _ => std::iter::once(key).collect(),
        }
    }

    /// Answers a check of one limit in its slot, see [`answer_in_slot`]. Returns `None` for several
    /// limits and for records.
    pub(super) fn answer(
        &self,
        line: &LockedLine<'_>,
        at: usize,
        now: u64,
        cost: u64,
    ) -> Option<Answer<Slot>> {
        match &self.layout {
            Layout::WholeBucket(step) => answer_at(step, line, at, now, cost),
            Layout::Bucket(step) => answer_at(step, line, at, now, cost),
            Layout::FixedWindow(step) => answer_at(step, line, at, now, cost),
            Layout::Counter(step) => answer_at(&step.packed, line, at, now, cost),
            Layout::Several(_) | Layout::Record(_) => None,
        }
        .map(|(_, answer)| answer)
    }

    /// Returns the capacity of the only limit.
    pub(super) fn capacity(&self) -> u64 {
        match &self.layout {
            Layout::WholeBucket(step) => step.capacity(),
            Layout::Bucket(step) => step.capacity(),
            Layout::FixedWindow(step) => step.capacity(),
            Layout::Counter(step) => step.packed.capacity(),
            Layout::Several(_) | Layout::Record(_) => 0,
        }
    }

    #[inline]
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }
}
