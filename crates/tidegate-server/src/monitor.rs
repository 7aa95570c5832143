//! One line a change of state, however many requests it touches.

use std::sync::Arc;
use std::time::Duration;

use tidegate::AnyStore;
use tokio_util::sync::CancellationToken;

use crate::server::Server;

const EVERY: Duration = Duration::from_millis(250);

/// Says when the store is given up and when it is back, and when memory is full.
pub(crate) async fn watch(server: Arc<Server>, ended: CancellationToken) {
    let mut was_degraded = false;
    let mut was_full = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = ended.cancelled() => return,
        }
        let live = server.live();
        let is_degraded = live.is_degraded();
        if is_degraded != was_degraded {
            was_degraded = is_degraded;
            let error = live.gate.store_health().and_then(|health| health.last_error);
            let error = error.as_deref().unwrap_or("the connection was lost");
            match is_degraded {
                true => tracing::error!(error, "the store does not answer: the failure policy does"),
                false => tracing::info!("the store answers again"),
            }
        }
        if let AnyStore::Memory(store) = live.gate.store() {
            let stats = store.stats();
            let is_full = stats.keys >= stats.max_keys;
            if is_full && !was_full {
                tracing::warn!(
                    max_keys = stats.max_keys,
                    "the memory store is full: keys are dropped for others (max_keys)"
                );
            }
            // Not at every key that comes and goes.
            was_full = is_full || was_full && stats.keys > stats.max_keys / 10 * 9;
        }
    }
}
