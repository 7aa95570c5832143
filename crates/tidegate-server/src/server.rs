//! The state that all parts of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tidegate::{AnyStore, Breaker, Clock, Gate};
use tidegate_http::{ClientAddress, HeaderFormat, PolicyHeaderCache};

use crate::activity::Activity;
use crate::config::{Bounds, Config};
use crate::descriptors::Domains;
#[cfg(feature = "limitador")]
use crate::limitador::Limitador;
use crate::metrics::Metrics;
use crate::net::{ByteBudget, Connections};
use crate::secrets::Secrets;

/// The byte budgets of all connections together.
const MAX_BODY_BYTES: usize = 256 << 20;
const MAX_RESPONSE_BYTES: usize = 64 << 20;
const MAX_ADMIN_RESPONSE_BYTES: usize = 16 << 20;
const MAX_COMMAND_BYTES: usize = 64 << 20;

/// The maximum number of connections to the admin listener.
pub(crate) const MAX_ADMIN_CONNECTIONS: usize = 64;

/// File descriptors that are not for clients' connections: the store, files, the admin listener.
const RESERVED_FILES: usize = 64 + MAX_ADMIN_CONNECTIONS;

/// Everything that belongs to one configuration. It is replaced as a whole.
pub(crate) struct ActiveConfig {
    pub(crate) config: Config,
    pub(crate) hash: String,
    pub(crate) gate: Gate<AnyStore>,
    pub(crate) secrets: Secrets,
    pub(crate) header_format: HeaderFormat,
    /// The rules for the address of a client behind a gateway.
    pub(crate) client_address: ClientAddress,
    /// The last policy header.
    pub(crate) policy_headers: PolicyHeaderCache,
}

impl ActiveConfig {
    /// Creates the active configuration from its files, for a gate with its policies.
    pub(crate) fn new(config: Config, secrets: Secrets, gate: Gate<AnyStore>) -> Self {
        Self {
            hash: config.hash(),
            secrets,
            // The configuration was validated.
            client_address: config
                .client_address()
                .unwrap_or_else(|_| ClientAddress::peer()),
            header_format: config.http.headers.format(),
            policy_headers: PolicyHeaderCache::default(),
            gate,
            config,
        }
    }

    /// Returns `true` if the store is unavailable and the failure policy answers.
    pub(crate) fn is_degraded(&self) -> bool {
        self.gate
            .store_health()
            .is_some_and(|health| health.breaker != Breaker::Closed)
    }
}

/// The state that all parts of a server share.
pub(crate) struct Server {
    active: ArcSwap<ActiveConfig>,
    /// The rules for descriptors, once there are some.
    rules: ArcSwapOption<Domains>,
    /// The limits in limitador's format.
    #[cfg(feature = "limitador")]
    pub(crate) limitador: ArcSwapOption<Limitador>,
    pub(crate) metrics: Metrics,
    pub(crate) activity: Activity,
    /// Open streams of events to dashboards.
    pub(crate) event_streams: Arc<AtomicUsize>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) admin_connections: Arc<Connections>,
    /// Bytes of request bodies that have not arrived completely.
    pub(crate) bodies: Arc<ByteBudget>,
    /// Bytes of responses that clients have not read.
    pub(crate) responses: Arc<ByteBudget>,
    pub(crate) admin_responses: Arc<ByteBudget>,
    /// Bytes of RESP commands that have not arrived completely.
    pub(crate) commands: Arc<ByteBudget>,
    /// The maximum number of connections for which there are file descriptors.
    pub(crate) max_connections: usize,
    pub(crate) clock: Clock,
    pub(crate) started_at_s: u64,
    /// Set from the signal to shut down on.
    is_leaving: AtomicBool,
    is_draining: AtomicBool,
}

impl Server {
    pub(crate) fn new(active: ActiveConfig, activity: Activity) -> Self {
        let clock = Clock::system();
        Self {
            active: ArcSwap::from_pointee(active),
            rules: ArcSwapOption::empty(),
            #[cfg(feature = "limitador")]
            limitador: ArcSwapOption::empty(),
            metrics: Metrics::default(),
            activity,
            event_streams: Arc::default(),
            connections: Arc::default(),
            admin_connections: Arc::default(),
            bodies: ByteBudget::new(MAX_BODY_BYTES),
            responses: ByteBudget::new(MAX_RESPONSE_BYTES),
            admin_responses: ByteBudget::new(MAX_ADMIN_RESPONSE_BYTES),
            commands: ByteBudget::new(MAX_COMMAND_BYTES),
            max_connections: crate::process::max_files().map_or(usize::MAX, |most| {
                usize::try_from(most)
                    .unwrap_or(usize::MAX)
                    .saturating_sub(RESERVED_FILES)
                    .max(1)
            }),
            started_at_s: clock.now().as_nanos() / 1_000_000_000,
            clock,
            is_leaving: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
        }
    }

    /// Returns the active configuration.
    pub(crate) fn active(&self) -> Guard<Arc<ActiveConfig>> {
        self.active.load()
    }

    pub(crate) fn activate(&self, active: ActiveConfig) {
        self.active.store(Arc::new(active));
    }

    /// Returns the rules for descriptors, or `None` if none were loaded yet.
    pub(crate) fn rules(&self) -> Guard<Option<Arc<Domains>>> {
        self.rules.load()
    }

    /// Replaces all rules for descriptors at once.
    pub(crate) fn set_rules(&self, rules: Domains) {
        self.rules.store(Some(Arc::new(rules)));
    }

    /// Warns if there are too few file descriptors for the configured number of connections.
    pub(crate) fn warn_of_few_files(&self) {
        let (wanted, most) = (
            self.active().config.bounds.max_connections,
            self.max_connections,
        );
        // The default is the maximum, so a few less need no warning.
        let is_default = wanted == Bounds::default().max_connections;
        if wanted > most && (!is_default || most < wanted / 10 * 9) {
            tracing::warn!(
                max_connections = wanted,
                connections = most,
                "too few file descriptors for max_connections, accepting fewer (LimitNOFILE, ulimit -n)"
            );
        }
    }

    /// Returns `true` if clients should send requests here: the server is not shutting down, and
    /// has rules for descriptors if it must.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.is_leaving() && self.has_rules()
    }

    /// Returns `true` unless rules for descriptors are configured and have not arrived yet.
    pub(crate) fn has_rules(&self) -> bool {
        let active = self.active();
        let envoy = &active.config.envoy;
        if !envoy.is_enabled() {
            return true;
        }
        match self.rules().as_deref() {
            Some(rules) => !(envoy.unhealthy_without_config && rules.is_empty()),
            None => envoy.start_without_config && !envoy.unhealthy_without_config,
        }
    }

    /// Marks the server as not ready.
    pub(crate) fn start_leaving(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// Returns `true` if the server is shutting down.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Marks the server as draining.
    pub(crate) fn start_draining(&self) {
        self.start_leaving();
        self.is_draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}
