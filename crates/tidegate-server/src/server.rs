//! What all parts of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use tidegate::{AnyStore, Breaker, Clock, Gate};
use tidegate_http::{Dialect, Written};

use crate::config::Config;
use crate::http::Bodies;
use crate::metrics::Metrics;
use crate::net::Connections;
use crate::secrets::Secrets;

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
        self.gate.store_health().is_some_and(|health| health.breaker != Breaker::Closed)
    }
}

/// What all parts of a server share.
pub(crate) struct Server {
    live: ArcSwap<Live>,
    pub(crate) metrics: Metrics,
    pub(crate) connections: Arc<Connections>,
    pub(crate) admin_connections: Arc<Connections>,
    /// Bytes of bodies that are on their way.
    pub(crate) bodies: Bodies,
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
            bodies: Bodies::default(),
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

    /// From now on clients are told to go elsewhere.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }
}
