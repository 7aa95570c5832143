//! The state machine of a connection. No I/O and no lock: see the tables in the parent module.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::sync::oneshot;

use super::breaker::FailureCount;
use super::queue::{Queue, QueuedBatch};
use super::{Batch, SendResult};
use crate::error::CallError;
use crate::settings::MAX_IN_FLIGHT;

/// A connection and its generation, which distinguishes it from earlier ones.
pub(super) type Numbered = (MultiplexedConnection, u64);

/// The state of the connection.
pub(super) enum Link {
    Connected(MultiplexedConnection),
    /// A connection is being established; batches wait for it.
    Connecting,
    /// The breaker is open, for this reason; batches fail at once.
    Open(Arc<str>),
}

pub(super) struct State {
    pub(super) link: Link,
    pub(super) queue: Queue,
    /// The number of round trips in flight.
    pub(super) in_flight: usize,
    failures: FailureCount,
    /// The generation of the current connection; 0 before the first.
    generation: u64,
    /// The number of connections started.
    dials: u64,
}

/// The entry of a batch: sent at once, queued, or failed.
pub(super) enum Entry {
    /// The caller sends it, on a slot that is now taken.
    Alone(Batch, Numbered),
    Queued(oneshot::Receiver<Vec<SendResult>>),
    Rejected(CallError),
}

/// An action that follows a transition.
#[must_use]
pub(super) enum Effect {
    None,
    /// Start a worker on a slot that is now taken.
    StartWorker(Numbered),
    /// Reconnect, trying this connection first: it may answer again.
    Reconnect(Option<Numbered>),
    /// The breaker has opened: count it, and reconnect.
    BreakerOpened(Option<Numbered>),
    /// The breaker has opened while reconnecting: count it.
    BreakerOpenedAgain,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            link: Link::Open("not connected yet".into()),
            queue: Queue::default(),
            in_flight: 0,
            failures: FailureCount::default(),
            generation: 0,
            dials: 0,
        }
    }

    /// A batch arrives.
    pub(super) fn enter(&mut self, batch: Batch, max_waiting: usize) -> Entry {
        match &self.link {
            Link::Open(reason) => {
                return Entry::Rejected(CallError::BreakerOpen(Arc::clone(reason)));
            }
            Link::Connected(connection)
                if self.in_flight < MAX_IN_FLIGHT && self.queue.is_empty() =>
            {
                self.in_flight += 1;
                return Entry::Alone(batch, (connection.clone(), self.generation));
            }
            Link::Connected(_) | Link::Connecting => {}
        }
        match self.queue.push(batch, max_waiting) {
            Some(results) => Entry::Queued(results),
            None => Entry::Rejected(CallError::Overloaded),
        }
    }

    /// A worker takes its next batches. Returns `None` if there are none, or no connection.
    pub(super) fn next_batches(&mut self) -> (Option<(Vec<QueuedBatch>, Numbered)>, Effect) {
        let Link::Connected(connection) = &self.link else {
            return (None, Effect::None);
        };
        let connection = (connection.clone(), self.generation);
        let batches = self.queue.take();
        let next = (!batches.is_empty()).then_some((batches, connection));
        (next, self.start_worker())
    }

    /// A round trip ends. One that was never started belongs to a runtime that is shutting down, so
    /// it starts no other.
    pub(super) fn slot_released(&mut self, was_started: bool) -> Effect {
        self.in_flight -= 1;
        if was_started {
            self.start_worker()
        } else {
            Effect::None
        }
    }

    /// The first connection is to be established in the background.
    pub(super) fn connecting(&mut self) -> Effect {
        self.link = Link::Connecting;
        Effect::Reconnect(None)
    }

    /// A connection is established.
    pub(super) fn connected(&mut self, (connection, generation): Numbered) -> Effect {
        self.link = Link::Connected(connection);
        self.generation = generation;
        self.failures.connected();
        self.start_worker()
    }

    /// A connection is established again. Returns `true` if there was one before.
    pub(super) fn reconnected(&mut self, connection: Numbered) -> (bool, Effect) {
        let had_connection = self.generation > 0;
        self.failures.attempted();
        (had_connection, self.connected(connection))
    }

    /// An attempt to connect has failed.
    pub(super) fn connect_failed(&mut self, reason: Arc<str>) -> Effect {
        self.failures.attempted();
        if self.open(reason) {
            Effect::BreakerOpenedAgain
        } else {
            Effect::None
        }
    }

    /// A round trip was answered.
    pub(super) fn answered(&mut self) {
        self.failures.answered();
    }

    /// A round trip was not answered in time.
    pub(super) fn timed_out(&mut self, generation: u64) -> Effect {
        let must_open = self.failures.timed_out();
        match &self.link {
            Link::Connected(connection) if must_open && self.generation == generation => {
                let old = (connection.clone(), generation);
                self.open_breaker("it did not answer in time", Some(old))
            }
            _ => Effect::None,
        }
    }

    /// The connection is lost.
    pub(super) fn lost(&mut self, generation: u64) -> Effect {
        if !self.is_current(generation) {
            return Effect::None;
        }
        self.link = Link::Connecting;
        Effect::Reconnect(None)
    }

    /// The node has become a replica.
    pub(super) fn demoted(&mut self, generation: u64) -> Effect {
        if !self.is_current(generation) {
            return Effect::None;
        }
        self.open_breaker("it has become a replica", None)
    }

    /// Returns the generation for a connection that is being started.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.dials += 1;
        self.dials
    }

    /// Returns the delay before the next attempt to connect.
    pub(super) fn reconnect_delay(&self) -> Option<std::time::Duration> {
        self.failures.delay()
    }

    fn open_breaker(&mut self, reason: &str, old: Option<Numbered>) -> Effect {
        self.failures.attempted();
        self.open(reason.into());
        Effect::BreakerOpened(old)
    }

    /// Opens the breaker and fails the queue. Returns `false` if it was open.
    fn open(&mut self, reason: Arc<str>) -> bool {
        let was_open = matches!(self.link, Link::Open(_));
        self.queue.fail(&reason);
        self.link = Link::Open(reason);
        !was_open
    }

    /// Takes a slot for a worker, if batches wait and there is room.
    fn start_worker(&mut self) -> Effect {
        match &self.link {
            Link::Connected(connection)
                if self.in_flight < MAX_IN_FLIGHT && !self.queue.is_empty() =>
            {
                self.in_flight += 1;
                Effect::StartWorker((connection.clone(), self.generation))
            }
            _ => Effect::None,
        }
    }

    fn is_current(&self, generation: u64) -> bool {
        self.generation == generation && matches!(self.link, Link::Connected(_))
    }
}
