//! What all parts of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use tidegate::{AnyStore, Breaker, Clock, Gate};
use tidegate_http::{Dialect, Written};

use crate::config::{Bounds, Config};
use crate::metrics::Metrics;
use crate::net::{Budget, Connections};
use crate::secrets::Secrets;

/// Bytes that all connections together may have on their way.
const MOST_BODIES: usize = 256 << 20;
const MOST_RESPONSES: usize = 64 << 20;
const MOST_ADMIN_RESPONSES: usize = 16 << 20;
const MOST_COMMANDS: usize = 64 << 20;

/// Connections of the admin listener at a time.
pub(crate) const MOST_ADMIN_CONNECTIONS: usize = 64;

/// File descriptors for what is no connection of a client: the store, files, the admin listener.
const RESERVED_FILES: usize = 64 + MOST_ADMIN_CONNECTIONS;

/// What is configured, all of it of one configuration: exchanged whole, or not at all.
pub(crate) struct Live {
    pub(crate) config: Config,
    pub(crate) hash: String,
    pub(crate) gate: Gate<AnyStore>,
    pub(crate) secrets: Secrets,
    pub(crate) dialect: Dialect,
    /// What has been written of its policies.
    pub(crate) written: Written,
}

impl Live {
    /// What a configuration means, with what the files say that it names, for a gate that has its book.
    pub(crate) fn new(config: Config, secrets: Secrets, gate: Gate<AnyStore>) -> Self {
        Self {
            hash: config.hash(),
            secrets,
            dialect: config.http.headers.dialect(),
            written: Written::default(),
            gate,
            config,
        }
    }

    /// Whether the store is given up at present, and answers are given without it.
    pub(crate) fn is_degraded(&self) -> bool {
        self.gate
            .store_health()
            .is_some_and(|health| health.breaker != Breaker::Closed)
    }
}

/// What all parts of a server share.
pub(crate) struct Server {
    live: ArcSwap<Live>,
    pub(crate) metrics: Metrics,
    pub(crate) connections: Arc<Connections>,
    pub(crate) admin_connections: Arc<Connections>,
    /// Bytes of request bodies that have not come whole.
    pub(crate) bodies: Arc<Budget>,
    /// Bytes of responses that clients have not taken.
    pub(crate) responses: Arc<Budget>,
    pub(crate) admin_responses: Arc<Budget>,
    /// Bytes of RESP commands that have not come whole.
    pub(crate) commands: Arc<Budget>,
    /// The most connections for which there are file descriptors.
    pub(crate) most_connections: usize,
    pub(crate) clock: Clock,
    pub(crate) started_at_s: u64,
    is_ending: AtomicBool,
}

impl Server {
    pub(crate) fn new(live: Live) -> Self {
        let clock = Clock::system();
        Self {
            live: ArcSwap::from_pointee(live),
            metrics: Metrics::default(),
            connections: Arc::default(),
            admin_connections: Arc::default(),
            bodies: Budget::new(MOST_BODIES),
            responses: Budget::new(MOST_RESPONSES),
            admin_responses: Budget::new(MOST_ADMIN_RESPONSES),
            commands: Budget::new(MOST_COMMANDS),
            most_connections: crate::process::max_files().map_or(usize::MAX, |most| {
                usize::try_from(most)
                    .unwrap_or(usize::MAX)
                    .saturating_sub(RESERVED_FILES)
                    .max(1)
            }),
            started_at_s: clock.now().as_nanos() / 1_000_000_000,
            clock,
            is_ending: AtomicBool::new(false),
        }
    }

    /// What is configured at present.
    pub(crate) fn live(&self) -> Guard<Arc<Live>> {
        self.live.load()
    }

    pub(crate) fn exchange(&self, live: Live) {
        self.live.store(Arc::new(live));
    }

    /// Warns if there are not enough file descriptors for as many connections as are configured.
    pub(crate) fn warn_of_few_files(&self) {
        let (wanted, most) = (
            self.live().config.bounds.max_connections,
            self.most_connections,
        );
        // The default is as many as there may be; a few less are no news.
        let is_default = wanted == Bounds::default().max_connections;
        if wanted > most && (!is_default || most < wanted / 10 * 9) {
            tracing::warn!(
                max_connections = wanted,
                connections = most,
                "too few file descriptors for max_connections, accepting fewer (LimitNOFILE, ulimit -n)"
            );
        }
    }

    /// From now on clients are told to go elsewhere.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }
}
