//! What all parts of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use rustls::ServerConfig;
use tidegate::{AnyStore, Breaker, Clock, Gate};
use tidegate_http::{Dialect, Written};

use crate::auth::Tokens;
use crate::config::{Config, ConfigError, TlsConfig};
use crate::http::Bodies;
use crate::metrics::Metrics;
use crate::net::Connections;
use crate::tls;

/// What is configured, all of it of one configuration: exchanged whole, or not at all.
pub(crate) struct Live {
    pub(crate) config: Config,
    pub(crate) hash: String,
    pub(crate) gate: Gate<AnyStore>,
    pub(crate) tokens: Tokens,
    pub(crate) dialect: Dialect,
    /// What has been written of its policies.
    pub(crate) written: Written,
    pub(crate) http_tls: Option<Arc<ServerConfig>>,
    pub(crate) resp_tls: Option<Arc<ServerConfig>>,
    pub(crate) admin_tls: Option<Arc<ServerConfig>>,
}

impl Live {
    /// What a configuration means, with all the files that it names, for a gate that has its book.
    pub(crate) fn new(config: Config, gate: Gate<AnyStore>) -> Result<Self, ConfigError> {
        const HTTP: &[&[u8]] = &[b"h2", b"http/1.1"];
        let tls = |config: &Option<TlsConfig>, protocols| {
            config.as_ref().map(|config| tls::read(config, protocols)).transpose()
        };
        Ok(Self {
            hash: config.hash(),
            tokens: Tokens::read(&config)?,
            dialect: config.http.headers.dialect(),
            written: Written::default(),
            http_tls: tls(&config.http.tls, HTTP)?,
            resp_tls: tls(&config.resp.tls, &[])?,
            admin_tls: tls(&config.admin.tls, HTTP)?,
            gate,
            config,
        })
    }
}

impl Live {
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
