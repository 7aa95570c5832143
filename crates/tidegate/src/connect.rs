//! Limiters and gates by the URL of their store.

use tidegate_core::{Gate, Limiter, MemoryStoreError, Policy, PolicySet, RestoreError};

use crate::any_store::AnyStore;
use crate::store_url::StoreUrl;

/// The error for a limiter or gate that cannot be created from a URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL, or one of its options, is invalid.
    #[error("{0}")]
    Url(String),
    /// The memory store cannot be created.
    #[error(transparent)]
    Memory(#[from] MemoryStoreError),
    /// The snapshot cannot be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// A policy cannot be leased, and the URL has `lease=`.
    #[error("{0}")]
    Lease(String),
    /// Redis cannot be reached, or refuses the login.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] tidegate_redis::RedisConnectError),
}

/// Creates limiters and gates from the URL of their store: in memory today, on Redis tomorrow.
///
/// | URL | Store |
/// |---|---|
/// | `memory://`, `memory://?max_keys=1_000_000&max_record_bytes=256_000_000` | this process |
/// | `redis://host:6379/0`, `rediss://…` (TLS), `unix:///path` | one Redis server |
/// | `redis+sentinel://host:26379,host:26379/name` | the primary that sentinels report |
/// | `redis+cluster://host:6379,host:6379` | a Redis Cluster |
///
/// Options follow a `?`: `failure=local`, `open` or `closed` and `instances=N` (see
/// [`FailurePolicy`](crate::FailurePolicy)), `timeout=50ms`, `deny_cache=16384`, `prefix=tg`, `lazy`
/// (start while Redis is unavailable) and more. [`guide::redis`](crate::guide::redis) lists all.
///
/// # Examples
///
/// ```no_run
/// use tidegate::{Connect, Gate, Limiter, PolicySet, Rules};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("redis://127.0.0.1/", "100/minute".parse()?).await?;
/// let decision = limiter.check("user:42").await?;
///
/// let policies = PolicySet::new().with("api", Rules::new("100/minute".parse()?))?;
/// let gate = Gate::connect("redis://127.0.0.1/", policies).await?;
/// let verdict = gate.check("api", "user:42").await?;
/// # Ok(())
/// # }
/// ```
pub trait Connect: Sized {
    /// The limits: the [`Policy`] of a limiter, the [`PolicySet`] of a gate.
    type Limits;

    /// Connects to the store at a URL.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid, or if the store cannot be reached.
    fn connect(
        url: &str,
        limits: Self::Limits,
    ) -> impl Future<Output = Result<Self, ConnectError>> + Send;

    /// Connects to the store at a URL, for programs without an async runtime. Run its operations
    /// with `.blocking()`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid, or if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Connect, Limiter};
    ///
    /// let limiter = Limiter::connect_blocking("memory://", "1/minute".parse()?)?;
    /// assert!(limiter.check("user:42").blocking()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn connect_blocking(url: &str, limits: Self::Limits) -> Result<Self, ConnectError>;
}

impl Connect for Gate<AnyStore> {
    type Limits = PolicySet;

    async fn connect(url: &str, policies: PolicySet) -> Result<Self, ConnectError> {
        url.parse::<StoreUrl>()?.gate(policies).await
    }

    fn connect_blocking(url: &str, policies: PolicySet) -> Result<Self, ConnectError> {
        url.parse::<StoreUrl>()?.gate_blocking(policies)
    }
}

impl Connect for Limiter<AnyStore> {
    type Limits = Policy;

    async fn connect(url: &str, policy: Policy) -> Result<Self, ConnectError> {
        url.parse::<StoreUrl>()?.limiter(policy).await
    }

    fn connect_blocking(url: &str, policy: Policy) -> Result<Self, ConnectError> {
        url.parse::<StoreUrl>()?.limiter_blocking(policy)
    }
}
