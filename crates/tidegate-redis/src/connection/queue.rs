//! The queue of batches that wait for a round trip.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Batch, SendError, SendResult};
use crate::error::CallError;
use crate::settings::MAX_BATCH_WEIGHT;

/// A batch that waits, and the channel for its results.
pub(super) struct QueuedBatch {
    pub(super) batch: Batch,
    pub(super) results: oneshot::Sender<Vec<SendResult>>,
}

/// Batches that wait for a round trip, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    batches: VecDeque<QueuedBatch>,
    operations: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the number of operations that wait.
    pub(super) fn len(&self) -> usize {
        self.operations
    }

    /// Adds a batch, or returns `None` if the queue is full. An empty queue takes a batch of any
    /// size.
    pub(super) fn push(
        &mut self,
        batch: Batch,
        max_operations: usize,
    ) -> Option<oneshot::Receiver<Vec<SendResult>>> {
        self.drop_abandoned();
        let count = batch.operations.len();
        if self.operations > 0 && self.operations + count > max_operations {
            return None;
        }
        let (results, receiver) = oneshot::channel();
        self.operations += count;
        self.batches.push_back(QueuedBatch { batch, results });
        Some(receiver)
    }

    /// Removes the batches of the next round trip, up to its maximum weight. A heavier batch goes
    /// alone: others would have to wait for all of it.
    pub(super) fn take(&mut self) -> Vec<QueuedBatch> {
        let mut taken = Vec::new();
        let mut weight = 0;
        while weight < MAX_BATCH_WEIGHT {
            let next = self.batches.front().map_or(0, |next| next.batch.weight());
            if weight > 0 && weight + next > MAX_BATCH_WEIGHT {
                break;
            }
            let Some(queued) = self.pop() else {
                break;
            };
            if !queued.results.is_closed() {
                weight += next;
                taken.push(queued);
            }
        }
        taken
    }

    /// Fails every batch.
    pub(super) fn fail(&mut self, reason: &Arc<str>) {
        while let Some(QueuedBatch { batch, results }) = self.pop() {
            let error = SendError::Failed(CallError::Disconnected(Arc::clone(reason)));
            // A caller that is gone needs no result.
            let _ = results.send(vec![Err(error); batch.operations.len()]);
        }
    }

    /// Drops batches whose callers are gone, from the oldest on.
    fn drop_abandoned(&mut self) {
        while self
            .batches
            .front()
            .is_some_and(|oldest| oldest.results.is_closed())
        {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<QueuedBatch> {
        let queued = self.batches.pop_front()?;
        self.operations -= queued.batch.operations.len();
        Some(queued)
    }
}
