//! Making a store.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{ManualClock, remote};
use tokio::runtime::Handle;

use crate::cluster::Cluster;
use crate::command::GivenTime;
use crate::dial::{Dialer, told};
use crate::health::Health;
use crate::line::Line;
use crate::runtime::OwnRuntime;
use crate::store::{RedisStore, Route, Shared};
use crate::url::{RedisUrl, Topology, UrlError};

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// A certificate or key cannot be read, or a thread not be started.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Redis cannot be reached, or does not let us in.
    #[error("{0}")]
    Redis(String),
    /// There is no tokio runtime here.
    #[error("no tokio runtime here: connect inside one, or with connect_blocking()")]
    NoRuntime,
}

/// What configures a [`RedisStore`]. All but the time can stand in the URL as well.
#[must_use]
pub struct RedisStoreBuilder {
    url: Result<RedisUrl, UrlError>,
    is_lazy: bool,
}

impl RedisStore {
    /// What configures a store at a URL.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url: url.parse(),
            is_lazy: false,
        }
    }

    /// Whether a URL is one that a store can be at.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_url(url: &str) -> Result<(), UrlError> {
        url.parse::<RedisUrl>().map(drop)
    }

    /// Connects to the Redis at a URL.
    ///
    /// # Errors
    /// If the URL is not one, or Redis cannot be reached. [`RedisStoreBuilder::lazily`] goes on without.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Connects to the Redis at a URL, for programs without an async runtime: a thread does what there is to do.
    ///
    /// # Errors
    /// If the URL is not one, or Redis cannot be reached.
    pub fn connect_blocking(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect_blocking()
    }
}

impl RedisStoreBuilder {
    fn set(mut self, change: impl FnOnce(&mut RedisUrl)) -> Self {
        if let Ok(url) = &mut self.url {
            change(url);
        }
        self
    }

    /// What every name in Redis begins with; `tg:` where not given.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.set(|url| url.settings.prefix = prefix.into())
    }

    /// Within what time a check is answered, by Redis or by the failure policy; 50 ms where not given.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(|url| url.settings.deadline = timeout)
    }

    /// Gives the script the time of a clock in place of the server's, and keeps what it writes for `keep`: for
    /// simulations and tests. Whoever shares the records must share the clock; a limiter on it needs `deny_cache(0)`, as
    /// denials are remembered by this process' own time.
    pub fn given_time(self, clock: ManualClock, keep: Duration) -> Self {
        let keep_ms = u64::try_from(keep.as_millis())
            .unwrap_or(u64::MAX)
            .clamp(1, 1 << 52);
        self.set(|url| url.settings.given = Some(GivenTime { clock, keep_ms }))
    }

    /// Does not wait for Redis, and does not fail without it: for programs that should start while Redis is gone. The
    /// connection is made in the background; until there is one, the failure policy answers.
    pub fn lazily(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// If the URL is not one, or Redis cannot be reached.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let is_lazy = self.is_lazy;
        self.prepared(runtime, None)?.joined(is_lazy).await
    }

    /// Connects, for programs without an async runtime: a thread does what there is to do.
    ///
    /// # Errors
    /// If the URL is not one, or Redis cannot be reached.
    pub fn connect_blocking(self) -> Result<RedisStore, ConnectError> {
        let own = OwnRuntime::start()?;
        let (handle, is_lazy) = (own.handle().clone(), self.is_lazy);
        let prepared = self.prepared(handle.clone(), Some(own))?;
        let joining = handle.spawn(prepared.joined(is_lazy));
        remote::wait(joining).map_err(|error| ConnectError::Io(std::io::Error::other(error)))?
    }

    fn prepared(self, runtime: Handle, own: Option<OwnRuntime>) -> Result<Prepared, ConnectError> {
        let url = self.url?.checked()?;
        let settings = url.settings.clone();
        let dialer = Dialer::new(url)?;
        let health = Arc::new(Health::default());
        let route = match (dialer.destination(), &dialer.url().topology) {
            (None, Topology::Cluster(seeds)) => Route::Cluster(Cluster::new(
                dialer.clone(),
                seeds.clone(),
                Arc::clone(&health),
                runtime.clone(),
            )),
            (None, _) => return Err(ConnectError::Redis("the URL leads nowhere".to_owned())),
            (Some(destination), _) => Route::Single(Line::new(
                dialer.clone(),
                destination,
                false,
                Arc::clone(&health),
                runtime.clone(),
            )),
        };
        Ok(Prepared(Shared {
            route,
            settings,
            health,
            runtime,
            own,
        }))
    }
}

/// A store that has not connected yet.
struct Prepared(Shared);

impl Prepared {
    async fn joined(self, is_lazy: bool) -> Result<RedisStore, ConnectError> {
        match &self.0.route {
            Route::Single(line) if is_lazy => line.connect_lazily(),
            Route::Cluster(cluster) if is_lazy => cluster.connect_lazily(),
            Route::Single(line) => {
                line.connect().await.map_err(|error| {
                    ConnectError::Redis(format!("{}: {}", line.destination(), told(&error)))
                })?;
            }
            Route::Cluster(cluster) => {
                cluster
                    .connect()
                    .await
                    .map_err(|error| ConnectError::Redis(format!("cluster: {}", told(&error))))?;
            }
        }
        Ok(RedisStore::of(self.0))
    }
}
