//! Calls: operations that one Redis command executes.

use redis::{Cmd, Value};

use super::{Batch, SendResult};
use crate::command::{command, script};
use crate::error::ReplyError;
use crate::key::slot;
use crate::operation::{ManualTime, Operation};
use crate::reply::{self, Reply};
use crate::script::Script;

/// Operations that one command executes.
pub(super) struct Call<'a> {
    operations: Vec<&'a Operation>,
    /// The indexes of their results.
    indexes: Vec<usize>,
    slot: u16,
    pub(super) is_asking: bool,
    /// The index of the batch, if the call is decided all or nothing.
    atomic_batch: Option<usize>,
}

/// The number of recent calls that an operation may join. On a cluster few share a slot.
const CALLS_SEARCHED: usize = 8;

/// Groups operations into calls: those of one policy and kind and, on a cluster, of one slot.
pub(super) fn group<'a>(batches: &[&'a Batch], is_cluster: bool) -> Vec<Call<'a>> {
    let mut calls: Vec<Call<'a>> = Vec::new();
    let mut index = 0;
    for (batch_index, batch) in batches.iter().enumerate() {
        for operation in &batch.operations {
            let next = Call {
                operations: vec![operation],
                indexes: vec![index],
                slot: if is_cluster && !batch.is_atomic {
                    slot(&operation.name)
                } else {
                    0
                },
                is_asking: batch.is_asking,
                atomic_batch: batch.is_atomic.then_some(batch_index),
            };
            let recent = calls.iter_mut().rev().take(CALLS_SEARCHED);
            match recent.into_iter().find(|call| call.can_join(&next)) {
                Some(call) => call.join(next),
                None => calls.push(next),
            }
            index += 1;
        }
    }
    calls
}

impl<'a> Call<'a> {
    fn can_join(&self, next: &Self) -> bool {
        if self.atomic_batch.is_some() || next.atomic_batch.is_some() {
            return self.atomic_batch == next.atomic_batch;
        }
        let (Some(first), Some(other)) = (self.operations.first(), next.operations.first()) else {
            return false;
        };
        first.shares_call_with(other) && self.slot == next.slot && self.is_asking == next.is_asking
    }

    fn join(&mut self, next: Self) {
        self.operations.extend(next.operations);
        self.indexes.extend(next.indexes);
    }

    /// Returns the check that is decided together with the only operation of this call.
    fn beside(&self) -> Option<&'a Operation> {
        self.operations.first()?.beside.as_deref()
    }

    /// Runs `read` on all operations of the call, with the check beside the only one.
    fn with_operations<T>(&self, read: impl FnOnce(&[&'a Operation]) -> T) -> T {
        match (&self.operations[..], self.beside()) {
            ([first], Some(beside)) => read(&[*first, beside]),
            (operations, _) => read(operations),
        }
    }

    fn is_atomic(&self) -> bool {
        self.atomic_batch.is_some() || self.beside().is_some()
    }

    pub(super) fn script(&self) -> Option<&'a Script> {
        script(&self.operations, self.is_atomic())
    }

    pub(super) fn command(&self, manual_time: Option<&ManualTime>) -> Option<Cmd> {
        self.with_operations(|operations| command(operations, self.is_atomic(), manual_time))
    }

    /// Parses the reply: one result per operation.
    pub(super) fn parse(
        &self,
        value: &Value,
    ) -> Result<Vec<Result<Reply, ReplyError>>, ReplyError> {
        let mut replies =
            self.with_operations(|operations| reply::parse(operations, self.is_atomic(), value))?;
        if self.beside().is_some() {
            let beside = replies.pop().transpose()?.map(|reply| reply.admission);
            if let Some(Ok(first)) = replies.first_mut() {
                first.beside = beside;
            }
        }
        Ok(replies)
    }

    /// Stores one result per operation.
    pub(super) fn store(
        &self,
        results: &mut [Option<SendResult>],
        own: impl IntoIterator<Item = SendResult>,
    ) {
        for (index, result) in self.indexes.iter().zip(own) {
            if let Some(place) = results.get_mut(*index) {
                *place = Some(result);
            }
        }
    }

    /// Stores the same result for every operation.
    pub(super) fn store_all(&self, results: &mut [Option<SendResult>], result: &SendResult) {
        self.store(results, std::iter::repeat(result.clone()));
    }
}
