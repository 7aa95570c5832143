//! From a URL to a limiter.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Book, FailurePolicy, Gate, Limiter, ManualClock, MemoryStore, MemoryStoreError, Policy,
    RestoreError,
};

use crate::any_store::AnyStore;

/// Why there is no limiter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one, or an option of it is not.
    #[error("{0}")]
    Url(String),
    /// Memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryStoreError),
    /// What was to be restored is not a whole snapshot.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Redis cannot be reached, or does not let us in.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] tidegate_redis::ConnectError),
}

/// Limiters and gates by the URL of their store: in memory today, on Redis tomorrow.
///
/// | URL | store |
/// |---|---|
/// | `memory://`, `memory://?max_keys=1_000_000&max_record_bytes=256_000_000` | this process |
/// | `redis://host:6379/0`, `rediss://…` (TLS), `unix:///path` | one Redis server |
/// | `redis+sentinel://host:26379,host:26379/name` | the primary that sentinels know |
/// | `redis+cluster://host:6379,host:6379` | a Redis Cluster |
///
/// Options stand behind a `?`: `failure=local`, `open` or `closed` and `instances=N` (what is answered when Redis cannot,
/// see [`FailurePolicy`]), `timeout=50ms`, `deny_cache=16384`, `prefix=tg:`, `lazy` (start while Redis is gone), and more:
/// docs/redis.md in the repository has all.
///
/// ```no_run
/// use tidegate::{Book, Connect, Gate, Limiter, Rules};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("redis://127.0.0.1/", "100/minute".parse()?).await?;
/// let decision = limiter.check("user:42").await?;
///
/// let book = Book::new().with("api", Rules::new("100/minute".parse()?))?;
/// let gate = Gate::connect("redis://127.0.0.1/", book).await?;
/// let verdict = gate.check("api", "user:42").await?;
/// # Ok(())
/// # }
/// ```
pub trait Connect: Sized {
    /// What keys are held to: the [`Policy`] of a limiter, the [`Book`] of a gate.
    type Limits;

    /// One on the store at a URL.
    ///
    /// # Errors
    /// If the URL is not one, or the store cannot be reached.
    fn connect(
        url: &str,
        limits: Self::Limits,
    ) -> impl Future<Output = Result<Self, ConnectError>> + Send;

    /// One on the store at a URL, for programs without an async runtime: ask it by `.wait()`.
    ///
    /// # Errors
    /// If the URL is not one, or the store cannot be reached.
    fn connect_blocking(url: &str, limits: Self::Limits) -> Result<Self, ConnectError>;
}

impl Connect for Gate<AnyStore> {
    type Limits = Book;

    async fn connect(url: &str, book: Book) -> Result<Self, ConnectError> {
        StoreUrl::read(url)?.gate(book).await
    }

    fn connect_blocking(url: &str, book: Book) -> Result<Self, ConnectError> {
        StoreUrl::read(url)?.gate_blocking(book)
    }
}

impl Connect for Limiter<AnyStore> {
    type Limits = Policy;

    async fn connect(url: &str, policy: Policy) -> Result<Self, ConnectError> {
        StoreUrl::read(url)?.connect(policy).await
    }

    fn connect_blocking(url: &str, policy: Policy) -> Result<Self, ConnectError> {
        StoreUrl::read(url)?.connect_blocking(policy)
    }
}

/// A store's URL, read and checked, and what else is to be said before it is connected to.
#[derive(Clone)]
#[must_use]
pub struct StoreUrl {
    place: Place,
    failure: Option<FailurePolicy>,
    deny_cache: Option<usize>,
    #[cfg_attr(not(feature = "redis"), allow(dead_code))] // Memory is always there.
    is_lazy: bool,
    prefix: Option<String>,
    given: Option<(ManualClock, Duration)>,
    snapshot: Option<Arc<[u8]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Memory {
        max_keys: u64,
        /// The byte budget of records beside the table, where it is given.
        max_record_bytes: Option<u64>,
    },
    /// Without the options that are the limiter's.
    #[cfg(feature = "redis")]
    Redis { url: String },
}

impl StoreUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// If it is not one of a store, or an option is not known.
    pub fn read(url: &str) -> Result<Self, ConnectError> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(ConnectError::Url(
                "not a URL: expected one such as memory:// or redis://127.0.0.1/".to_owned(),
            ));
        };
        match scheme {
            "memory" => memory(rest),
            "redis" | "rediss" | "unix" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster" => redis(url),
            // Not repeated: in a mistyped URL any part may be the password.
            _ => Err(ConnectError::Url(
                "unknown store: expected memory://, redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
                    .to_owned(),
            )),
        }
    }

    fn of(place: Place) -> Self {
        Self {
            place,
            failure: None,
            deny_cache: None,
            is_lazy: false,
            prefix: None,
            given: None,
            snapshot: None,
        }
    }

    /// What the URL says is to be answered when the store cannot; `None` where it says nothing.
    #[must_use]
    pub fn failure_policy(&self) -> Option<FailurePolicy> {
        self.failure
    }

    /// Says what is to be answered when the store cannot, whatever the URL says.
    pub fn failure(mut self, failure: FailurePolicy) -> Self {
        self.failure = Some(failure);
        self
    }

    /// Whether what is kept there is gone when this process is.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self.place, Place::Memory { .. })
    }

    /// Takes the time from a clock in place of the system's or the server's, and keeps what is written for `keep`: for
    /// simulations and tests.
    pub fn given_time(mut self, clock: ManualClock, keep: Duration) -> Self {
        self.given = Some((clock, keep));
        // Denials are remembered by the time of this process.
        self.deny_cache = Some(0);
        self
    }

    /// Does not wait for the store, and does not fail without it: until it is there, the failure policy answers.
    pub fn lazily(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// Goes on where a memory store was when it wrote this down. Redis keeps its own.
    pub fn restore(mut self, snapshot: impl Into<Arc<[u8]>>) -> Self {
        self.snapshot = Some(snapshot.into());
        self
    }

    /// Within what time a check is answered, where the URL says nothing of it.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables, unused_mut))] // Memory answers at once.
    pub fn patience(mut self, timeout: Duration) -> Self {
        #[cfg(feature = "redis")]
        if let Place::Redis { url } = &mut self.place {
            let query = url.split_once('?').map_or("", |(_, query)| query);
            if !query
                .split('&')
                .any(|option| option.starts_with("timeout="))
            {
                let separator = if url.contains('?') { '&' } else { '?' };
                url.push_str(&format!("{separator}timeout={}ms", timeout.as_millis()));
            }
        }
        self
    }

    /// What every name in Redis begins with, whatever the URL says.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub async fn connect(self, policy: Policy) -> Result<Limiter<AnyStore>, ConnectError> {
        let store = self.store().await?;
        Ok(self.limiter(store, policy))
    }

    /// Connects, for programs without an async runtime.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub fn connect_blocking(self, policy: Policy) -> Result<Limiter<AnyStore>, ConnectError> {
        let store = self.store_blocking()?;
        Ok(self.limiter(store, policy))
    }

    /// Connects a gate.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub async fn gate(self, book: Book) -> Result<Gate<AnyStore>, ConnectError> {
        let store = self.store().await?;
        Ok(self.gate_on(store, book))
    }

    /// Connects a gate, for programs without an async runtime.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub fn gate_blocking(self, book: Book) -> Result<Gate<AnyStore>, ConnectError> {
        let store = self.store_blocking()?;
        Ok(self.gate_on(store, book))
    }

    #[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))] // Memory is there at once.
    async fn store(&self) -> Result<AnyStore, ConnectError> {
        match &self.place {
            Place::Memory {
                max_keys,
                max_record_bytes,
            } => self.memory_store(*max_keys, *max_record_bytes),
            #[cfg(feature = "redis")]
            Place::Redis { url } => Ok(AnyStore::Redis(self.redis_builder(url).connect().await?)),
        }
    }

    fn store_blocking(&self) -> Result<AnyStore, ConnectError> {
        match &self.place {
            Place::Memory {
                max_keys,
                max_record_bytes,
            } => self.memory_store(*max_keys, *max_record_bytes),
            #[cfg(feature = "redis")]
            Place::Redis { url } => {
                Ok(AnyStore::Redis(self.redis_builder(url).connect_blocking()?))
            }
        }
    }

    fn gate_on(self, store: AnyStore, book: Book) -> Gate<AnyStore> {
        let mut builder =
            Gate::builder(store, book).failure_policy(self.failure.unwrap_or_default());
        if let Some(keys) = self.deny_cache {
            builder = builder.deny_cache(keys);
        }
        builder.build()
    }

    fn memory_store(
        &self,
        max_keys: u64,
        max_record_bytes: Option<u64>,
    ) -> Result<AnyStore, ConnectError> {
        let mut builder = MemoryStore::builder().max_keys(max_keys);
        if let Some(bytes) = max_record_bytes {
            builder = builder.max_record_bytes(bytes);
        }
        if let Some((clock, _)) = &self.given {
            builder = builder.clock(clock.clone());
        }
        Ok(AnyStore::Memory(match &self.snapshot {
            Some(snapshot) => builder.restore(snapshot)?,
            None => builder.build()?,
        }))
    }

    #[cfg(feature = "redis")]
    fn redis_builder(&self, url: &str) -> tidegate_redis::RedisStoreBuilder {
        let mut builder = tidegate_redis::RedisStore::builder(url);
        if let Some((clock, keep)) = &self.given {
            builder = builder.given_time(clock.clone(), *keep);
        }
        if self.is_lazy {
            builder = builder.lazily();
        }
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        builder
    }

    fn limiter(self, store: AnyStore, policy: Policy) -> Limiter<AnyStore> {
        let mut builder =
            Limiter::builder(store, policy).failure_policy(self.failure.unwrap_or_default());
        if let Some(keys) = self.deny_cache {
            builder = builder.deny_cache(keys);
        }
        builder.build()
    }
}

/// Without the URL: a password may stand in it.
impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreUrl")
            .field("is_memory", &self.is_memory())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

fn memory(rest: &str) -> Result<StoreUrl, ConnectError> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let error = |message: &str| Err(ConnectError::Url(message.to_owned()));
    if !place.trim_end_matches('/').is_empty() {
        return error(
            "memory:// is in this process and has no host or path: expected memory:// or memory://?max_keys=N",
        );
    }
    let (mut max_keys, mut max_record_bytes) = (MemoryStore::DEFAULT_MAX_KEYS, None);
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("max_keys", count)) => max_keys = number("max_keys", count)?,
            Some(("max_record_bytes", count)) => {
                max_record_bytes = Some(number("max_record_bytes", count)?)
            }
            _ => {
                let name = option.split_once('=').map_or("…", |(name, _)| name);
                return error(&format!(
                    "unknown option `{name}` of memory://: expected max_keys=N or max_record_bytes=N"
                ));
            }
        }
    }
    if max_keys == 0 {
        return error("max_keys is 0: expected at least 1");
    }
    Ok(StoreUrl::of(Place::Memory {
        max_keys,
        max_record_bytes,
    }))
}

#[cfg(not(feature = "redis"))]
fn redis(_url: &str) -> Result<StoreUrl, ConnectError> {
    Err(ConnectError::Url(
        "this program was built without Redis: expected memory://, or the feature `redis`"
            .to_owned(),
    ))
}

/// Takes the limiter's own options out of the URL, and leaves the rest to the store.
#[cfg(feature = "redis")]
fn redis(url: &str) -> Result<StoreUrl, ConnectError> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let mut read = StoreUrl::of(Place::Redis { url: String::new() });
    let (mut failure, mut instances, mut rest) = (None, None, Vec::new());
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "failure" => failure = Some(value),
            "instances" => instances = Some(number("instances", value)?),
            "deny_cache" => read.deny_cache = Some(number("deny_cache", value)?),
            "lazy" => {
                read.is_lazy = match value {
                    "" | "true" | "1" => true,
                    "false" | "0" => false,
                    other => {
                        return Err(ConnectError::Url(format!(
                            "lazy={other}: expected true or false"
                        )));
                    }
                }
            }
            _ => rest.push(option),
        }
    }
    if instances == Some(0) {
        return Err(ConnectError::Url(
            "instances=0: expected at least 1".to_owned(),
        ));
    }
    read.failure = match (failure, instances) {
        (None, None) => None,
        (Some("open"), None) => Some(FailurePolicy::Open),
        (Some("closed"), None) => Some(FailurePolicy::Closed),
        (Some("local") | None, instances) => Some(FailurePolicy::local(instances.unwrap_or(1))),
        (Some("open" | "closed"), Some(_)) => {
            return Err(ConnectError::Url(
                "`instances` divides local limits: expected it with failure=local".to_owned(),
            ));
        }
        (Some(other), _) => {
            return Err(ConnectError::Url(format!(
                "failure={other}: expected open, closed or local"
            )));
        }
    };
    let rest = if rest.is_empty() {
        String::new()
    } else {
        format!("?{}", rest.join("&"))
    };
    read.place = Place::Redis {
        url: format!("{place}{rest}"),
    };
    tidegate_redis::RedisStore::check_url(&format!("{place}{rest}"))
        .map_err(tidegate_redis::ConnectError::from)?;
    Ok(read)
}

fn number<N: std::str::FromStr>(name: &str, text: &str) -> Result<N, ConnectError> {
    text.replace('_', "")
        .parse()
        .map_err(|_| ConnectError::Url(format!("{name}={text}: expected a whole number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let place = |url: &str| StoreUrl::read(url).unwrap().place;
        assert_eq!(
            place("memory://"),
            Place::Memory {
                max_keys: 1_000_000,
                max_record_bytes: None
            }
        );
        assert_eq!(
            place("memory:///"),
            Place::Memory {
                max_keys: 1_000_000,
                max_record_bytes: None
            }
        );
        let sized = Place::Memory {
            max_keys: 5,
            max_record_bytes: Some(1_000),
        };
        assert_eq!(place("memory://?max_keys=5&max_record_bytes=1_000"), sized);
        assert_eq!(
            place("memory://?max_keys=20_000_000"),
            Place::Memory {
                max_keys: 20_000_000,
                max_record_bytes: None
            }
        );
        let bad = [
            "",
            "memory",
            "memory:/",
            "mem://",
            "memory://host",
            "memory://?max_keys=",
            "memory://?keys=1",
            "memory://?max_keys=-1",
            "memory://?max_keys=0",
        ];
        for url in bad {
            assert!(StoreUrl::read(url).is_err(), "{url:?}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn options_of_the_limiter_and_of_the_store() {
        let read =
            StoreUrl::read("redis://h/?failure=local&timeout=20ms&instances=4&deny_cache=0&lazy")
                .unwrap();
        assert_eq!(
            read.place,
            Place::Redis {
                url: "redis://h/?timeout=20ms".to_owned()
            }
        );
        assert_eq!(
            (read.failure, read.deny_cache, read.is_lazy),
            (Some(FailurePolicy::local(4)), Some(0), true)
        );
        assert_eq!(StoreUrl::read("redis://h").unwrap().failure, None);
        assert_eq!(
            StoreUrl::read("redis+cluster://h?failure=closed")
                .unwrap()
                .failure,
            Some(FailurePolicy::Closed)
        );
        for bad in [
            "redis://h?failure=maybe",
            "redis://h?failure=open&instances=2",
            "redis://h?deny_cache=x",
            "redis://h?instances=0",
            "redis://h?lazy=perhaps",
            "redis://h?colour=1",
        ] {
            assert!(StoreUrl::read(bad).is_err(), "{bad}");
        }
    }
}
