//! The builder of a store.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Clock, ManualClock, Policy, remote};
use tokio::runtime::Handle;

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::dial::{Dialer, describe};
use crate::health::Health;
use crate::lease::{Leases, cannot_be_leased};
use crate::operation::ManualTime;
use crate::runtime::OwnRuntime;
use crate::store::{RedisStore, Route, Shared};
use crate::url::{RedisUrl, RedisUrlError, Topology};

/// The error for a store that cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisConnectError {
    /// The URL is invalid.
    #[error(transparent)]
    Url(#[from] RedisUrlError),
    /// A certificate or key cannot be read, or a thread cannot be started.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Redis cannot be reached, or refuses the credentials.
    #[error("{0}")]
    Redis(String),
    /// There is no tokio runtime.
    #[error("no tokio runtime: expected a call inside one, or connect_blocking()")]
    NoRuntime,
}

/// A builder for [`RedisStore`]. The URL can set everything except the manual time.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tidegate::RedisStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder("redis://127.0.0.1/")
///     .prefix("app")
///     .timeout(Duration::from_millis(20))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisStoreBuilder {
    url: Result<RedisUrl, RedisUrlError>,
    is_lazy: bool,
}

impl RedisStore {
    /// Returns a builder for a store at a URL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tidegate::RedisStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::builder("redis://127.0.0.1/")
    ///     .prefix("shop")
    ///     .timeout(Duration::from_millis(20))
    ///     .connect()
    ///     .await?;
    /// # let _ = store;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url: url.parse(),
            is_lazy: false,
        }
    }

    /// Connects to the Redis at a URL.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid or Redis cannot be reached. Use
    /// [`RedisStoreBuilder::lazily`] to start without Redis.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate::{Limiter, RedisStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect("redis://127.0.0.1/").await?;
    /// let limiter = Limiter::new(store, "100/minute".parse()?);
    /// assert!(limiter.check("user:42").await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, RedisConnectError> {
        Self::builder(url).connect().await
    }

    /// Connects to the Redis at a URL, for programs without an async runtime. The store runs its own
    /// thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid or Redis cannot be reached.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate::{Limiter, RedisStore};
    ///
    /// let store = RedisStore::connect_blocking("redis://127.0.0.1/")?;
    /// let limiter = Limiter::new(store, "100/minute".parse()?);
    /// assert!(limiter.check("user:42").blocking()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_blocking(url: &str) -> Result<Self, RedisConnectError> {
        Self::builder(url).connect_blocking()
    }
}

impl RedisStoreBuilder {
    /// Parses a URL whose options are partly the caller's. `own_option` gets every option that is
    /// not the store's, and returns `Ok(true)` if it is one of the caller's.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid, or if an option is unknown.
    #[doc(hidden)] // For Tidegate's own limiters.
    pub fn parse(
        url: &str,
        own_option: impl FnMut(&str, &str) -> Result<bool, String>,
    ) -> Result<Self, RedisUrlError> {
        Ok(Self {
            url: Ok(RedisUrl::parse(url, own_option)?),
            is_lazy: false,
        })
    }

    fn set(mut self, change: impl FnOnce(&mut RedisUrl)) -> Self {
        if let Ok(url) = &mut self.url {
            change(url);
        }
        self
    }

    /// Sets the prefix of all keys in Redis. The default is `tg`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::RedisStore;
    ///
    /// // Keys start with `shop:` instead of `tg:`.
    /// let builder = RedisStore::builder("redis://127.0.0.1/").prefix("shop");
    /// # let _ = builder;
    /// ```
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.set(|url| url.settings.prefix = prefix.into())
    }

    /// Sets the time within which a check is answered, by Redis or by the failure policy. The
    /// default is 50 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::RedisStore;
    ///
    /// let builder = RedisStore::builder("redis://127.0.0.1/").timeout(Duration::from_millis(20));
    /// # let _ = builder;
    /// ```
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(|url| {
            url.settings.timeout = timeout;
            url.settings.has_timeout = true;
        })
    }

    /// Sets the timeout, unless the URL has set one.
    #[doc(hidden)] // For Tidegate's own commands.
    pub fn default_timeout(self, timeout: Duration) -> Self {
        self.set(|url| {
            if !url.settings.has_timeout {
                url.settings.timeout = timeout;
            }
        })
    }

    /// Uses a manual clock instead of the server's, and keeps records for `keep`. For simulations
    /// and tests.
    ///
    /// All processes that share the records must share the clock. A limiter on this store needs
    /// `deny_cache(0)`, because the deny cache uses this process's own time.
    pub fn manual_time(self, clock: ManualClock, keep: Duration) -> Self {
        let keep_ms = u64::try_from(keep.as_millis())
            .unwrap_or(u64::MAX)
            .clamp(1, 1 << 52);
        self.set(|url| url.settings.manual_time = Some(ManualTime { clock, keep_ms }))
    }

    /// Leases quota of hot keys: this process takes a slice of a key's limit from Redis, and admits
    /// requests from it without a round trip. The slice of a bucket is spent within `lifetime`,
    /// from 10 ms to a minute, in whole milliseconds.
    ///
    /// Fixed windows are never exceeded. A bucket can exceed its burst by the
    /// [share](Self::lease_share) that may be leased. Policies with sliding windows cannot be
    /// leased, and are decided by Redis.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::RedisStore;
    ///
    /// let builder = RedisStore::builder("redis://127.0.0.1/")
    ///     .lease(Duration::from_millis(100))
    ///     .lease_share(20);
    /// # let _ = builder;
    /// ```
    pub fn lease(self, lifetime: Duration) -> Self {
        self.set(|url| {
            let millis = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
            let lease = &mut url.settings.lease;
            (lease.is_on, lease.lifetime) = (true, Duration::from_millis(millis));
        })
    }

    /// Sets the most of a limit that all processes together may have leased, in per cent. The
    /// default is 10.
    pub fn lease_share(self, per_cent: u8) -> Self {
        self.set(|url| {
            url.settings.lease.share = u64::from(per_cent);
        })
    }

    /// Checks that the store can lease a policy, if it uses leases.
    ///
    /// # Errors
    ///
    /// Returns an error if a limit of the policy is a sliding window.
    #[doc(hidden)] // For Tidegate's own limiters.
    pub fn check_lease(&self, policy: &Policy) -> Result<(), String> {
        let has_leases = self.url.as_ref().is_ok_and(|url| url.settings.lease.is_on);
        match cannot_be_leased(policy) {
            Some(reason) if has_leases => Err(reason),
            _ => Ok(()),
        }
    }

    /// Connects in the background, for programs that should start while Redis is unavailable. Until
    /// there is a connection, the failure policy answers.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::RedisStore;
    ///
    /// // Connects in the background: the failure policy decides until Redis is available.
    /// let builder = RedisStore::builder("redis://127.0.0.1/").lazily();
    /// # let _ = builder;
    /// ```
    pub fn lazily(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid or Redis cannot be reached.
    pub async fn connect(self) -> Result<RedisStore, RedisConnectError> {
        let runtime = Handle::try_current().map_err(|_| RedisConnectError::NoRuntime)?;
        let is_lazy = self.is_lazy;
        self.unconnected(runtime, None)?.connect(is_lazy).await
    }

    /// Connects, for programs without an async runtime. The store runs its own thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid or Redis cannot be reached.
    pub fn connect_blocking(self) -> Result<RedisStore, RedisConnectError> {
        let own = OwnRuntime::start()?;
        let (handle, is_lazy) = (own.handle().clone(), self.is_lazy);
        let store = self.unconnected(handle.clone(), Some(own))?;
        let connecting = handle.spawn(store.connect(is_lazy));
        remote::wait(connecting)
            .map_err(|error| RedisConnectError::Io(std::io::Error::other(error)))?
    }

    fn unconnected(
        self,
        runtime: Handle,
        own: Option<OwnRuntime>,
    ) -> Result<UnconnectedStore, RedisConnectError> {
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
            (None, _) => {
                return Err(RedisConnectError::Redis(
                    "the URL names no server".to_owned(),
                ));
            }
            (Some(destination), _) => Route::Single(Connection::new(
                dialer.clone(),
                destination,
                false,
                Arc::clone(&health),
                runtime.clone(),
            )),
        };
        let clock = settings.manual_time.as_ref();
        let clock = clock.map_or_else(Clock::system, |manual| manual.clock.clone().into());
        Ok(UnconnectedStore(Shared {
            leases: Leases::new(clock, Arc::clone(&health)),
            route,
            settings,
            health,
            runtime,
            own,
        }))
    }
}

/// A store that has not connected yet.
struct UnconnectedStore(Shared);

impl UnconnectedStore {
    async fn connect(self, is_lazy: bool) -> Result<RedisStore, RedisConnectError> {
        match &self.0.route {
            Route::Single(connection) if is_lazy => connection.connect_lazily(),
            Route::Cluster(cluster) if is_lazy => cluster.connect_lazily(),
            Route::Single(connection) => {
                connection.connect().await.map_err(|error| {
                    RedisConnectError::Redis(format!(
                        "{}: {}",
                        connection.destination(),
                        describe(&error)
                    ))
                })?;
            }
            Route::Cluster(cluster) => {
                cluster.connect().await.map_err(|error| {
                    RedisConnectError::Redis(format!("cluster: {}", describe(&error)))
                })?;
            }
        }
        Ok(RedisStore::of(self.0))
    }
}
