//! The connection to one node: a queue, up to four round trips, a circuit breaker and reconnecting.
//!
//! # States
//!
//! [`state::Link`] is the state of a connection. [`state::State`] has one method for each event.
//!
//! | State | Breaker | A new batch |
//! |---|---|---|
//! | `Connected` | closed | is sent at once if fewer than four round trips are in flight and none waits; otherwise queued |
//! | `Connecting` | half open | is queued |
//! | `Open` | open | fails at once, and the failure policy answers |
//!
//! | From | Event | To | Effect |
//! |---|---|---|---|
//! | `Open` (new) | `connecting` | `Connecting` | start reconnecting |
//! | any | `connected` | `Connected` | send the queue |
//! | `Connected` | `lost`: the connection broke | `Connecting` | reconnect at once; the queue waits |
//! | `Connected` | `timed_out`, three times in a row | `Open` | fail the queue; reconnect, trying the old connection first |
//! | `Connected` | `demoted`: the node has become a replica | `Open` | fail the queue; reconnect |
//! | `Connecting`, `Open` | `connect_failed` | `Open` | fail the queue; retry with backoff |
//!
//! Events carry the generation of the connection that they are about, so an event of an old
//! connection changes nothing.
//!
//! # Files
//!
//! Calls go downwards; only [`node::Node::run`] goes up, by spawning the two tasks.
//!
//! - `mod.rs`: [`Connection`], the interface for the store and the cluster.
//! - `node.rs`: the shared state behind its lock, and the effects of transitions.
//! - `worker.rs` and `reconnect.rs`: the tasks that send the queue, and that reconnect.
//! - `state.rs`, `queue.rs`, `breaker.rs`: the state machine, without I/O.
//! - `round_trip.rs`, `call.rs`, `send_error.rs`: one round trip. NOSCRIPT is handled in `round_trip.rs`.

mod breaker;
mod call;
mod node;
mod queue;
mod reconnect;
mod round_trip;
mod send_error;
mod state;
mod worker;

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tidegate_core::Breaker;
use tokio::time::{Instant, timeout_at};

use crate::dial::{Destination, Dialer};
use crate::error::CallError;
use crate::health::Health;
use crate::operation::Operation;
use node::Node;
pub(crate) use send_error::{NotExecuted, SendError, SendResult};
use state::{Entry, Link};

/// Operations that are sent together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) operations: Vec<Operation>,
    /// Set if the node is about to take over the slot: `ASKING` is sent first.
    pub(crate) is_asking: bool,
    /// Set if the operations are decided in one call, all or nothing.
    pub(crate) is_atomic: bool,
}

impl Batch {
    /// Creates a batch of independent operations.
    pub(crate) fn new(operations: Vec<Operation>) -> Self {
        Self {
            operations,
            is_asking: false,
            is_atomic: false,
        }
    }

    /// Creates a batch that is decided all or nothing.
    pub(crate) fn atomic(operations: Vec<Operation>) -> Self {
        Self {
            is_atomic: true,
            ..Self::new(operations)
        }
    }

    /// Creates a batch of one operation.
    pub(crate) fn single(operation: Operation, is_asking: bool) -> Self {
        Self {
            is_asking,
            ..Self::new(vec![operation])
        }
    }

    /// Returns the work for Redis.
    fn weight(&self) -> usize {
        self.operations.iter().map(Operation::weight).sum()
    }
}

/// The connection to one node. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Node>);

impl Connection {
    pub(crate) fn new(
        dialer: Dialer,
        destination: Destination,
        is_cluster: bool,
        health: Arc<Health>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let node = Node::new(dialer, destination, is_cluster, health, runtime);
        Self(Arc::new(node))
    }

    /// Connects for the first time.
    pub(crate) async fn connect(&self) -> redis::RedisResult<()> {
        let connection = self.0.dial().await?;
        self.0.transition(|state| state.connected(connection));
        Ok(())
    }

    /// Connects in the background. Batches wait for it.
    pub(crate) fn connect_lazily(&self) {
        self.0.transition(|state| state.connecting());
    }

    /// Sends a batch and waits for the results, one per operation, until the deadline.
    pub(crate) async fn send(&self, batch: Batch, deadline: Instant) -> Vec<SendResult> {
        let count = batch.operations.len();
        let all = |error: CallError| vec![Err(SendError::Failed(error)); count];
        match self.0.enter(batch) {
            Entry::Alone(batch, connection) => {
                worker::send_alone(&self.0, connection, &batch, deadline).await
            }
            Entry::Queued(results) => match timeout_at(deadline, results).await {
                Ok(Ok(results)) => results,
                // The worker was dropped before it sent the batch, or the store is shutting down.
                Ok(Err(_)) => all(CallError::Disconnected("the connection was closed".into())),
                Err(_) => all(CallError::Timeout),
            },
            Entry::Rejected(error) => all(error),
        }
    }

    pub(crate) fn destination(&self) -> &Destination {
        self.0.destination()
    }

    /// Returns the underlying connection, if there is one.
    pub(crate) fn multiplexed(&self) -> Option<MultiplexedConnection> {
        self.0.read(|state| match &state.link {
            Link::Connected(connection) => Some(connection.clone()),
            Link::Connecting | Link::Open(_) => None,
        })
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn breaker(&self) -> Breaker {
        self.0.read(|state| match &state.link {
            Link::Connected(_) => Breaker::Closed,
            Link::Connecting => Breaker::HalfOpen,
            Link::Open(_) => Breaker::Open,
        })
    }

    /// Returns the round trips in flight, and the operations waiting for one.
    pub(crate) fn load(&self) -> (usize, usize) {
        self.0.read(|state| (state.in_flight, state.queue.len()))
    }
}
