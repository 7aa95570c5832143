//! The shared part of a connection: the state behind its lock, and the effects of transitions.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::state::{Effect, Entry, Numbered, State};
use super::{Batch, reconnect, worker};
use crate::dial::{Destination, Dialer};
use crate::health::Health;
use crate::settings::RedisSettings;

pub(super) struct Node {
    dialer: Dialer,
    destination: Destination,
    /// Set if a script call may only touch one slot.
    pub(super) is_cluster: bool,
    runtime: tokio::runtime::Handle,
    pub(super) health: Arc<Health>,
    state: Mutex<State>,
}

impl Node {
    pub(super) fn new(
        dialer: Dialer,
        destination: Destination,
        is_cluster: bool,
        health: Arc<Health>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            dialer,
            destination,
            is_cluster,
            runtime,
            health,
            state: Mutex::new(State::new()),
        }
    }

    pub(super) fn settings(&self) -> &RedisSettings {
        self.dialer.settings()
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Reads the state.
    pub(super) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock())
    }

    pub(super) fn enter(&self, batch: Batch) -> Entry {
        let max_waiting = self.settings().max_waiting;
        self.state.lock().enter(batch, max_waiting)
    }

    /// Changes the state, and runs the effect.
    pub(super) fn transition(self: &Arc<Self>, change: impl FnOnce(&mut State) -> Effect) {
        self.transition_with(|state| ((), change(state)));
    }

    /// Changes the state, runs the effect, and returns the result.
    pub(super) fn transition_with<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State) -> (T, Effect),
    ) -> T {
        // The lock is released first: a runtime that is shutting down drops a spawned task at once,
        // and dropping a worker's slot takes the lock.
        let (result, effect) = change(&mut self.state.lock());
        self.run(effect);
        result
    }

    /// Runs the effect of a transition.
    fn run(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::StartWorker(connection) => {
                let slot = worker::Slot::new(Arc::clone(self), connection);
                self.runtime.spawn(worker::run(slot));
            }
            Effect::Reconnect(old) => {
                self.health.connection_lost();
                self.spawn_reconnect(old);
            }
            Effect::BreakerOpened(old) => {
                self.health.connection_lost();
                self.health.breaker_opened();
                self.spawn_reconnect(old);
            }
            Effect::BreakerOpenedAgain => self.health.breaker_opened(),
        }
    }

    fn spawn_reconnect(self: &Arc<Self>, old: Option<Numbered>) {
        self.runtime
            .spawn(reconnect::run(Arc::downgrade(self), old));
    }

    /// Establishes a connection.
    pub(super) async fn dial(self: &Arc<Self>) -> redis::RedisResult<Numbered> {
        let generation = self.state.lock().next_generation();
        let node = Arc::downgrade(self);
        let on_loss = move || {
            if let Some(node) = Weak::upgrade(&node) {
                node.transition(|state| state.lost(generation));
            }
        };
        let connection = self.dialer.dial(&self.destination, Arc::new(on_loss));
        Ok((connection.await?, generation))
    }
}
