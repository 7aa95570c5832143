//! Logs changes of state once, however many requests they affect.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::Severity;
use tidegate::{AnyStore, MemoryStats};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::{ActiveConfig, Server};

const EVERY: Duration = Duration::from_millis(250);
/// The time for an examination of Redis at the start.
const EXAMINATION: Duration = Duration::from_secs(5);
/// The time after which a lasting state is logged again.
const AGAIN: Duration = Duration::from_secs(60);

/// Logs when the store becomes unavailable or available, when memory is full, and when denied keys
/// are evicted.
pub(crate) async fn watch(server: Arc<Server>, ended: CancellationToken) {
    let active = server.active();
    tokio::select! {
        () = warn_of_findings(&active) => {}
        () = tokio::time::sleep(EXAMINATION) => {}
        () = ended.cancelled() => return,
    }
    drop(active);
    let mut was_degraded = false;
    let mut memory = Memory::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = ended.cancelled() => return,
        }
        let active = server.active();
        let is_degraded = active.is_degraded();
        if is_degraded != was_degraded {
            was_degraded = is_degraded;
            let health = active.gate.store_health();
            // A store that is connected lazily may never have been reached.
            let is_new = health
                .as_ref()
                .is_some_and(|health| health.round_trips == 0);
            let error = health.and_then(|health| health.last_error);
            let cause = if is_new {
                "not reached yet"
            } else {
                "connection lost"
            };
            let error = error.as_deref().unwrap_or(cause);
            match is_degraded {
                true => tracing::warn!(error, "store unavailable, applying the failure policy"),
                false => tracing::info!("store available again"),
            }
        }
        if let AnyStore::Memory(store) = active.gate.store() {
            memory.log(store.stats());
        }
    }
}

/// Logs the serious findings about Redis. `tidegate doctor` prints all of them.
async fn warn_of_findings(active: &ActiveConfig) {
    let AnyStore::Redis(store) = active.gate.store() else {
        return;
    };
    let findings = store.diagnose(false).await;
    for finding in findings
        .iter()
        .filter(|finding| finding.severity == Severity::Serious)
    {
        let (what, fix) = (&finding.what, &finding.fix);
        tracing::warn!(finding = finding.code, fix, "Redis: {what}");
    }
}

/// The memory store's states that have been logged.
#[derive(Default)]
struct Memory {
    was_full: bool,
    denied_evictions: u64,
    logged_at: Option<Instant>,
}

impl Memory {
    fn log(&mut self, stats: MemoryStats) {
        let is_full = stats.keys >= stats.max_keys || stats.record_bytes >= stats.max_record_bytes;
        if is_full && !self.was_full {
            let (max_keys, max_record_bytes) = (stats.max_keys, stats.max_record_bytes);
            tracing::warn!(
                max_keys,
                max_record_bytes,
                "memory store full, evicting keys"
            );
        }
        // Not for every key that comes and goes.
        let is_nearly_full = stats.keys > stats.max_keys / 10 * 9
            || stats.record_bytes > stats.max_record_bytes / 10 * 9;
        self.was_full = is_full || self.was_full && is_nearly_full;
        let evicted = stats.denied_evictions.saturating_sub(self.denied_evictions);
        if evicted > 0 && self.logged_at.is_none_or(|at| at.elapsed() >= AGAIN) {
            tracing::warn!(
                evicted,
                "evicting denied keys because all candidates are denied, their limits are reset (raise max_keys)"
            );
            self.denied_evictions = stats.denied_evictions;
            self.logged_at = Some(Instant::now());
        }
    }
}
