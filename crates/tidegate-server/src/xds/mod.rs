//! Rules from a management server over xDS, as Envoy Gateway sends them: one stream of the
//! aggregated discovery service, state of the world.
//!
//! `stream` runs one stream, `connect` opens it. A rejected configuration and a lost connection
//! change nothing: the last good rules stay.

mod connect;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::XdsConfig;
use crate::server::Server;

/// Receives rules until the server ends. Reconnects with backoff.
pub(crate) async fn watch(server: Arc<Server>, ended: CancellationToken) {
    let Some(config) = server.active().config.envoy.xds.clone() else {
        return;
    };
    tokio::select! {
        () = ended.cancelled() => {}
        () = receive(&server, &config) => {}
    }
}

async fn receive(server: &Arc<Server>, config: &XdsConfig) {
    let mut backoff = Backoff::new(config);
    let mut version = String::new();
    let mut last_error = None;
    loop {
        let mut session = stream::Session {
            server,
            config,
            version: &mut version,
            has_answered: false,
        };
        let error = session.run().await;
        if session.has_answered {
            backoff.reset();
            last_error = None;
        }
        // Logged once, not at every attempt.
        if last_error.as_ref() != Some(&error) {
            let server = &config.server;
            tracing::warn!(server, error, "management server unavailable, reconnecting");
        }
        last_error = Some(error);
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Delays that double up to a maximum, with jitter, so that servers do not reconnect together.
struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    fn new(config: &XdsConfig) -> Self {
        let (first, max) = (config.retry_delay.0, config.max_retry_delay.0);
        Self {
            first,
            max,
            next: first,
        }
    }

    fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns a random delay between half and all of the current one.
    fn next_delay(&mut self) -> Duration {
        let delay = self.next.min(self.max);
        self.next = delay.saturating_mul(2).min(self.max);
        let share = getrandom::u32().unwrap_or(u32::MAX) >> 16;
        delay / 2 + delay / 2 * share / 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(&XdsConfig::default());
        let mut expected = Duration::from_millis(500);
        for _ in 0..20 {
            let delay = backoff.next_delay();
            assert!(
                delay >= expected / 2 && delay <= expected,
                "{delay:?} of {expected:?}"
            );
            expected = (expected * 2).min(Duration::from_secs(30));
        }
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_millis(500));
    }
}
