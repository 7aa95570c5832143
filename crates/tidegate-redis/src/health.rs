//! Counters of round trips and errors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::{Breaker, Histogram, StoreHealth};
use tokio::time::Instant;

use crate::error::CallError;

#[derive(Debug, Default)]
pub(crate) struct Health {
    breaker_openings: AtomicU64,
    reconnects: AtomicU64,
    failed_connects: AtomicU64,
    round_trips: AtomicU64,
    checks_sent: AtomicU64,
    latency: Histogram,
    last_error: Mutex<Option<CallError>>,
    /// The time of the last refused command, until Redis accepts writes again.
    refused_at: Mutex<Option<Instant>>,
    /// Counts the events after which Redis may have lost its last writes.
    epoch: AtomicU64,
}

/// The time without a refusal after which a write means that Redis accepts writes again.
const QUIET: Duration = Duration::from_secs(1);

impl Health {
    /// Records that a connection was lost, so that Redis may have failed over and lost its last
    /// writes.
    pub(crate) fn connection_lost(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that changes whenever Redis may have lost its last writes.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn breaker_opened(&self) {
        self.breaker_openings.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reconnected(&self) {
        self.reconnects.fetch_add(1, Ordering::Relaxed);
        self.connection_lost();
    }

    pub(crate) fn failed_to_connect(&self) {
        self.failed_connects.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, error: &CallError) {
        *self.last_error.lock() = Some(error.clone());
        if let CallError::Refused(_) = error
            && self.refused_at.lock().replace(Instant::now()).is_none()
        {
            self.breaker_opened();
        }
    }

    /// Records that Redis has executed a write.
    pub(crate) fn wrote(&self) {
        let mut refused_at = self.refused_at.lock();
        if refused_at.is_some_and(|at| at.elapsed() >= QUIET) {
            *refused_at = None;
        }
    }

    pub(crate) fn round_trip(&self, took: Duration, carried: u64) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        self.checks_sent.fetch_add(carried, Ordering::Relaxed);
        self.latency.record(took);
    }

    /// Records a round trip that was not answered in time.
    pub(crate) fn timed_out(&self, after: Duration) {
        self.latency.record(after);
    }

    pub(crate) fn snapshot(
        &self,
        breaker: Breaker,
        in_flight: usize,
        waiting: usize,
    ) -> StoreHealth {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // A server that answers but refuses to write, for lack of memory or replicas, decides
        // nothing.
        let breaker = if self.refused_at.lock().is_some() {
            Breaker::Open
        } else {
            breaker
        };
        let mut health = StoreHealth::new(breaker, self.latency.latency());
        health.breaker_openings = read(&self.breaker_openings);
        health.reconnects = read(&self.reconnects);
        health.failed_connects = read(&self.failed_connects);
        health.round_trips = read(&self.round_trips);
        health.checks_sent = read(&self.checks_sent);
        health.last_error = self.last_error.lock().as_ref().map(ToString::to_string);
        health.in_flight = in_flight as u64;
        health.waiting = waiting as u64;
        health
    }
}
