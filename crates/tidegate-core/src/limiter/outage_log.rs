//! Logs the start and the end of an outage, once each.
//!
//! Without the feature `tracing` nothing is logged.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::StoreError;

/// The state of the store as it was logged. Limiters on one store share it.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    is_out: AtomicBool,
    is_silent: AtomicBool,
}

impl OutageLog {
    /// Turns the log off, for a server that logs outages itself.
    pub(crate) fn silence(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Records that the store could not answer.
    pub(super) fn failed(&self, error: &StoreError) {
        if !self.is_out.swap(true, Ordering::Relaxed) && !self.is_silent.load(Ordering::Relaxed) {
            log_start(error);
        }
    }

    /// Records an answer of the store.
    #[inline]
    pub(super) fn answered(&self) {
        if self.is_out.load(Ordering::Relaxed)
            && self.is_out.swap(false, Ordering::Relaxed)
            && !self.is_silent.load(Ordering::Relaxed)
        {
            log_end();
        }
    }
}

#[cfg(feature = "tracing")]
fn log_start(error: &StoreError) {
    let cause = std::error::Error::source(error).map_or_else(String::new, ToString::to_string);
    let reason = error.reason().name();
    tracing::warn!(
        target: "tidegate",
        reason,
        error = cause,
        "store unavailable, applying the failure policy"
    );
}

#[cfg(feature = "tracing")]
fn log_end() {
    tracing::info!(target: "tidegate", "store available again");
}

#[cfg(not(feature = "tracing"))]
fn log_start(_: &StoreError) {}

#[cfg(not(feature = "tracing"))]
fn log_end() {}
