//! Operations on keys: checks, peeks, charges, refunds, settlements, resets and receipts.

use std::time::Duration;

use tidegate_core::{Claims, Cost, Key, ManualClock};

use crate::plan::RedisPlan;
use crate::script::ScriptTask;
use crate::settings::MAX_BATCH_WEIGHT;

/// One operation on one key.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) plan: RedisPlan,
    pub(crate) kind: OperationKind,
    /// The Redis key.
    pub(crate) name: Vec<u8>,
    pub(crate) cost: Cost,
    /// A check in the same slot that is decided together with this one, all or nothing.
    pub(crate) beside: Option<Box<Self>>,
}

/// The kind of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Check,
    /// Decides without taking.
    Peek,
    Refund,
    /// Gives the cost back as far as it still counts where the request was counted.
    Settle(Claims),
    /// Takes the cost whatever the limits say, as far as their debt allows.
    Charge,
    Reset,
    /// Stores bytes under the name for some time, unless something is there.
    StoreReceipt(Vec<u8>, Duration),
    /// Deletes the bytes under the name and returns them.
    TakeReceipt,
}

impl OperationKind {
    /// Returns the task of the generic script, or `None` if no script runs.
    pub(crate) fn task(&self) -> Option<ScriptTask> {
        match self {
            Self::Check => Some(ScriptTask::Check),
            Self::Peek => Some(ScriptTask::Peek),
            Self::Refund => Some(ScriptTask::Refund),
            Self::Settle(_) => Some(ScriptTask::Settle),
            Self::Charge => Some(ScriptTask::Charge),
            Self::Reset | Self::StoreReceipt(..) | Self::TakeReceipt => None,
        }
    }
}

impl Operation {
    pub(crate) fn new(plan: &RedisPlan, kind: OperationKind, key: Key<'_>, cost: Cost) -> Self {
        Self {
            plan: plan.clone(),
            kind,
            name: plan.name(key),
            cost,
            beside: None,
        }
    }

    /// Creates a check that is decided together with another one, all or nothing.
    pub(crate) fn together(first: Self, beside: Self) -> Self {
        Self {
            beside: Some(Box::new(beside)),
            ..first
        }
    }

    /// Creates an operation on one of the key's receipts.
    pub(crate) fn on_receipt(
        plan: &RedisPlan,
        kind: OperationKind,
        key: Key<'_>,
        id: &str,
    ) -> Self {
        let mut operation = Self::new(plan, kind, key, Cost::ZERO);
        operation.name.extend_from_slice(b":r:");
        operation.name.extend_from_slice(id.as_bytes());
        operation
    }

    /// Returns the work for Redis, where a check of one limit is 1. A settlement may rewrite a part
    /// of a log, so it takes a whole round trip.
    pub(crate) fn weight(&self) -> usize {
        match self.kind {
            OperationKind::Settle(_) if self.plan.log_count() > 0 => MAX_BATCH_WEIGHT,
            _ => self.plan.weight() + self.beside.as_ref().map_or(0, |beside| beside.weight()),
        }
    }

    /// Returns `true` if one command can execute both operations. Only checks return a result for
    /// each key.
    pub(crate) fn shares_call_with(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.kind == OperationKind::Check
            && self.beside.is_none()
            && other.beside.is_none()
            && self.plan.is_same(&other.plan)
    }
}

/// A clock that replaces the server's, and the time that records are kept then.
#[derive(Clone, Debug)]
pub(crate) struct ManualTime {
    pub(crate) clock: ManualClock,
    pub(crate) keep_ms: u64,
}

impl ManualTime {
    /// Returns the time in microseconds and the time to keep in milliseconds, as scripts expect
    /// them. Both are 0 without a manual time.
    pub(crate) fn numbers(manual_time: Option<&Self>) -> (u64, u64) {
        manual_time.map_or((0, 0), |manual| {
            let micros = manual.clock.now().as_nanos() / 1_000;
            (micros.max(1), manual.keep_ms)
        })
    }
}
