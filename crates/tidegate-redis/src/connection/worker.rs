//! The senders of batches: a caller that sends its own batch, and the task that sends the queue.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tidegate_core::Cost;
use tokio::time::Instant;

use super::node::Node;
use super::queue::QueuedBatch;
use super::round_trip::{RoundTrip, TripEnd};
use super::state::Numbered;
use super::{Batch, NotExecuted, SendError, SendResult};
use crate::error::{CallError, ReplyError};
use crate::operation::{Operation, OperationKind};

/// Sends one batch on its caller's own task, so a lone caller needs no other task.
pub(super) async fn send_alone(
    node: &Arc<Node>,
    connection: Numbered,
    batch: &Batch,
    deadline: Instant,
) -> Vec<SendResult> {
    let mut slot = Slot::new(Arc::clone(node), connection);
    slot.was_started = true;
    slot.send(&[batch], deadline).await
}

/// Sends the queue until it is empty.
pub(super) async fn run(mut slot: Slot) {
    slot.was_started = true;
    while let Some((queued, (connection, generation))) =
        slot.node.transition_with(|state| state.next_batches())
    {
        (slot.connection, slot.generation) = (connection, generation);
        let deadline = Instant::now() + slot.node.settings().timeout;
        let batches: Vec<&Batch> = queued.iter().map(|queued| &queued.batch).collect();
        let mut sent = slot.send(&batches, deadline).await.into_iter();
        for QueuedBatch { batch, results } in queued {
            // A caller that is gone needs no result.
            let _ = results.send(sent.by_ref().take(batch.operations.len()).collect());
        }
        // Callers that have just been answered may have their next batch ready for this trip.
        tokio::task::yield_now().await;
    }
}

/// One of the round trips that a connection may have in flight. Released when it is dropped.
pub(super) struct Slot {
    node: Arc<Node>,
    connection: MultiplexedConnection,
    generation: u64,
    was_started: bool,
    /// The start of the round trip in flight.
    in_flight_since: Option<Instant>,
}

impl Slot {
    pub(super) fn new(node: Arc<Node>, (connection, generation): Numbered) -> Self {
        Self {
            node,
            connection,
            generation,
            was_started: false,
            in_flight_since: None,
        }
    }

    /// Sends batches in one round trip. Returns one result per operation, in order.
    async fn send(&mut self, batches: &[&Batch], deadline: Instant) -> Vec<SendResult> {
        let count = batches.iter().map(|batch| batch.operations.len()).sum();
        let mut results: Vec<Option<SendResult>> = vec![None; count];
        let started = Instant::now();
        self.in_flight_since = Some(started);
        let mut trip = RoundTrip {
            connection: &mut self.connection,
            is_cluster: self.node.is_cluster,
            destination: self.node.destination(),
            manual_time: self.node.settings().manual_time.as_ref(),
        };
        let end = trip.run(batches, deadline, &mut results).await;
        self.in_flight_since = None;
        let error = match end {
            TripEnd::Answered => {
                self.record_answer(batches, &results);
                let health = &self.node.health;
                health.round_trip(started.elapsed(), count as u64);
                CallError::Reply(ReplyError::Malformed)
            }
            TripEnd::Disconnected(reason) => {
                self.node.transition(|state| state.lost(self.generation));
                CallError::Disconnected(reason)
            }
            TripEnd::TimedOut => {
                self.node.health.timed_out(started.elapsed());
                self.node
                    .transition(|state| state.timed_out(self.generation));
                CallError::Timeout
            }
        };
        let missing = || Err(SendError::Failed(error.clone()));
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(missing))
            .collect()
    }

    /// Updates health and state after an answered round trip. A node that has become a replica is
    /// left until there is a primary; on a cluster the redirect leads to the slot's new owner.
    fn record_answer(&self, batches: &[&Batch], results: &[Option<SendResult>]) {
        let operations = batches.iter().flat_map(|batch| &batch.operations);
        let is_write = |(operation, result): (&Operation, &Option<SendResult>)| {
            let Some(Ok(reply)) = result else {
                return false;
            };
            let is_written = match operation.kind {
                OperationKind::Peek => false,
                OperationKind::Charge => true,
                _ => reply.admission.decision.is_allowed(),
            };
            operation.cost > Cost::ZERO && is_written
        };
        if operations.zip(results).any(is_write) {
            self.node.health.wrote();
        }
        let is_replica = |result: &Option<SendResult>| {
            matches!(
                result,
                Some(Err(SendError::NotExecuted(NotExecuted::ReadOnly)))
            )
        };
        if !self.node.is_cluster && results.iter().any(is_replica) {
            self.node.transition(|state| state.demoted(self.generation));
        } else {
            self.node
                .transition_with(|state| (state.answered(), super::state::Effect::None));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A caller with a shorter timeout dropped the round trip. A long wait counts against Redis.
        let long_wait = self.node.settings().timeout / 2;
        if self
            .in_flight_since
            .is_some_and(|since| since.elapsed() >= long_wait)
        {
            self.node
                .transition(|state| state.timed_out(self.generation));
        }
        self.node
            .transition(|state| state.slot_released(self.was_started));
    }
}
