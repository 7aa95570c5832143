//! Store URLs: parsed once, then adjusted and connected.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    FailurePolicy, Gate, Limiter, ManualClock, MemoryStore, Name, Policy, PolicySet, Rules,
};

use crate::any_store::AnyStore;
use crate::connect::ConnectError;

/// A parsed store URL, with the settings of the limiters on the store.
///
/// Use it to adjust settings before connecting; [`Connect`](crate::Connect) is the short way.
///
/// # Examples
///
/// ```
/// use tidegate::{FailurePolicy, StoreUrl};
///
/// let url: StoreUrl = "memory://?max_keys=1000".parse()?;
/// let limiter = url.with_failure_policy(FailurePolicy::Closed).limiter_blocking("1/minute".parse()?)?;
/// assert!(limiter.check("user:42").blocking()?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct StoreUrl {
    location: Location,
    options: LimiterOptions,
    manual_time: Option<(ManualClock, Duration)>,
    snapshot: Option<Arc<[u8]>>,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // There is one per store.
enum Location {
    Memory {
        max_keys: u64,
        /// The byte budget of records, if it is given.
        max_record_bytes: Option<u64>,
    },
    #[cfg(feature = "redis")]
    Redis(tidegate_redis::RedisStoreBuilder),
}

/// The options of a URL that belong to limiters and gates.
#[derive(Clone, Debug, Default)]
struct LimiterOptions {
    failure: Option<FailurePolicy>,
    deny_cache: Option<usize>,
    #[cfg_attr(not(feature = "redis"), allow(dead_code))] // Only Redis can be absent.
    is_lazy: bool,
}

impl FromStr for StoreUrl {
    type Err = ConnectError;

    fn from_str(url: &str) -> Result<Self, ConnectError> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(ConnectError::Url(
                "not a URL: expected one such as memory:// or redis://127.0.0.1/".to_owned(),
            ));
        };
        match scheme {
            "memory" => parse_memory(rest),
            "redis" | "rediss" | "unix" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
            | "redis+cluster" | "rediss+cluster" => parse_redis(url),
            // Not repeated: in a mistyped URL any part may be the password.
            _ => Err(ConnectError::Url(
                "unknown store: expected memory://, redis://, rediss://, unix://, \
                 redis+sentinel:// or redis+cluster://"
                    .to_owned(),
            )),
        }
    }
}

impl StoreUrl {
    fn new(location: Location, options: LimiterOptions) -> Self {
        Self {
            location,
            options,
            manual_time: None,
            snapshot: None,
        }
    }

    /// Returns the failure policy of the URL, if it has one.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{FailurePolicy, StoreUrl};
    ///
    /// let url: StoreUrl = "redis://127.0.0.1/?failure=closed".parse()?;
    /// assert_eq!(url.failure_policy(), Some(FailurePolicy::Closed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn failure_policy(&self) -> Option<FailurePolicy> {
        self.options.failure
    }

    /// Sets the failure policy, whatever the URL says.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{FailurePolicy, StoreUrl};
    ///
    /// let url: StoreUrl = "redis://127.0.0.1/".parse()?;
    /// let url = url.with_failure_policy(FailurePolicy::Open);
    /// assert_eq!(url.failure_policy(), Some(FailurePolicy::Open));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.options.failure = Some(failure);
        self
    }

    /// Returns `true` if the store is in this process.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::StoreUrl;
    ///
    /// assert!("memory://?max_keys=1000".parse::<StoreUrl>()?.is_memory());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self.location, Location::Memory { .. })
    }

    /// Uses a manual clock instead of the system's or the server's, and keeps records for `keep`.
    /// For simulations and tests.
    pub fn manual_time(mut self, clock: ManualClock, keep: Duration) -> Self {
        self.manual_time = Some((clock, keep));
        // The deny cache uses the time of this process.
        self.options.deny_cache = Some(0);
        self
    }

    /// Connects in the background. Until there is a connection, the failure policy answers.
    pub fn lazily(mut self) -> Self {
        self.options.is_lazy = true;
        self
    }

    /// Restores a memory store from a snapshot. Redis keeps its own data.
    pub fn restore(mut self, snapshot: impl Into<Arc<[u8]>>) -> Self {
        self.snapshot = Some(snapshot.into());
        self
    }

    /// Sets the time within which a check is answered, unless the URL has set one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::StoreUrl;
    ///
    /// // The URL's own timeout has precedence.
    /// let url: StoreUrl = "redis://127.0.0.1/?timeout=20ms".parse()?;
    /// let url = url.default_timeout(Duration::from_secs(1));
    /// # let _ = url;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))] // Memory needs no timeout.
    pub fn default_timeout(self, timeout: Duration) -> Self {
        #[cfg(feature = "redis")]
        return self.map_redis(|redis| redis.default_timeout(timeout));
        #[cfg(not(feature = "redis"))]
        self
    }

    /// Sets the prefix of all keys in Redis, whatever the URL says.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::StoreUrl;
    ///
    /// let url: StoreUrl = "redis://127.0.0.1/".parse()?;
    /// let url = url.prefix("shop");
    /// # let _ = url;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))] // Memory has no prefix.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        #[cfg(feature = "redis")]
        return self.map_redis(|redis| redis.prefix(prefix));
        #[cfg(not(feature = "redis"))]
        self
    }

    #[cfg(feature = "redis")]
    fn map_redis(
        mut self,
        change: impl FnOnce(tidegate_redis::RedisStoreBuilder) -> tidegate_redis::RedisStoreBuilder,
    ) -> Self {
        if let Location::Redis(redis) = self.location {
            self.location = Location::Redis(change(redis));
        }
        self
    }

    /// Connects a limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::StoreUrl;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = "memory://".parse::<StoreUrl>()?.limiter("100/minute".parse()?).await?;
    /// assert!(limiter.check("user:42").await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn limiter(self, policy: Policy) -> Result<Limiter<AnyStore>, ConnectError> {
        self.check_lease(None, &policy)?;
        let store = self.store().await?;
        Ok(self.options.limiter(store, policy))
    }

    /// Connects a limiter, for programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::StoreUrl;
    ///
    /// let limiter = "memory://".parse::<StoreUrl>()?.limiter_blocking("100/minute".parse()?)?;
    /// assert!(limiter.check("user:42").blocking()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limiter_blocking(self, policy: Policy) -> Result<Limiter<AnyStore>, ConnectError> {
        self.check_lease(None, &policy)?;
        let store = self.store_blocking()?;
        Ok(self.options.limiter(store, policy))
    }

    /// Connects a gate.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{PolicySet, Rules, StoreUrl};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policies = PolicySet::new().with("api", Rules::new("100/minute".parse()?))?;
    /// let gate = "memory://".parse::<StoreUrl>()?.gate(policies).await?;
    /// assert!(gate.check("api", "user:42").await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn gate(self, policies: PolicySet) -> Result<Gate<AnyStore>, ConnectError> {
        self.check_policies(&policies)?;
        let store = self.store().await?;
        Ok(self.options.gate(store, policies))
    }

    /// Connects a gate, for programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{PolicySet, Rules, StoreUrl};
    ///
    /// let policies = PolicySet::new().with("api", Rules::new("100/minute".parse()?))?;
    /// let gate = "memory://".parse::<StoreUrl>()?.gate_blocking(policies)?;
    /// assert!(gate.check("api", "user:42").blocking()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gate_blocking(self, policies: PolicySet) -> Result<Gate<AnyStore>, ConnectError> {
        self.check_policies(&policies)?;
        let store = self.store_blocking()?;
        Ok(self.options.gate(store, policies))
    }

    /// Checks that the store supports the policies: with `lease=` in the URL, no sliding windows.
    ///
    /// # Errors
    ///
    /// Returns an error that names the policy and the limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{PolicySet, Rules, StoreUrl};
    ///
    /// let url: StoreUrl = "redis://127.0.0.1/?lease=on".parse()?;
    /// let login = Rules::new("sliding_window_log 5/hour".parse()?);
    /// let policies = |rules: &Rules| PolicySet::new().with("login", rules.clone());
    /// assert!(url.check_policies(&policies(&login)?).is_err());
    /// // A policy can be exempt.
    /// assert!(url.check_policies(&policies(&login.without_leases())?).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_policies(&self, policies: &PolicySet) -> Result<(), ConnectError> {
        for name in policies.names() {
            let rules = policies.rules(name.as_str());
            for policy in rules.into_iter().flat_map(Rules::leased_policies) {
                self.check_lease(Some(name), policy)?;
            }
        }
        Ok(())
    }

    #[cfg_attr(not(feature = "redis"), allow(unused_variables))] // Only Redis has leases.
    fn check_lease(&self, name: Option<&Name>, policy: &Policy) -> Result<(), ConnectError> {
        #[cfg(feature = "redis")]
        if let Location::Redis(redis) = &self.location
            && let Err(reason) = redis.check_lease(policy)
        {
            return Err(ConnectError::Lease(match name {
                Some(name) => format!(
                    "policy `{name}`: {reason}; or a policy without leases (`lease = false`), or a \
                     store without `lease` in its URL"
                ),
                None => format!("{reason}; or a store without `lease` in its URL"),
            }));
        }
        Ok(())
    }

    #[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))] // Memory is ready at once.
    async fn store(&self) -> Result<AnyStore, ConnectError> {
        match &self.location {
            Location::Memory { .. } => self.memory_store(),
            #[cfg(feature = "redis")]
            Location::Redis(redis) => {
                Ok(AnyStore::Redis(self.redis_builder(redis).connect().await?))
            }
        }
    }

    fn store_blocking(&self) -> Result<AnyStore, ConnectError> {
        match &self.location {
            Location::Memory { .. } => self.memory_store(),
            #[cfg(feature = "redis")]
            Location::Redis(redis) => {
                let store = self.redis_builder(redis).connect_blocking()?;
                Ok(AnyStore::Redis(store))
            }
        }
    }

    fn memory_store(&self) -> Result<AnyStore, ConnectError> {
        let mut builder = MemoryStore::builder();
        #[cfg_attr(not(feature = "redis"), allow(irrefutable_let_patterns))]
        if let Location::Memory {
            max_keys,
            max_record_bytes,
        } = self.location
        {
            builder = builder.max_keys(max_keys);
            if let Some(bytes) = max_record_bytes {
                builder = builder.max_record_bytes(bytes);
            }
        }
        if let Some((clock, _)) = &self.manual_time {
            builder = builder.clock(clock.clone());
        }
        Ok(AnyStore::Memory(match &self.snapshot {
            Some(snapshot) => builder.restore(snapshot)?,
            None => builder.build()?,
        }))
    }

    #[cfg(feature = "redis")]
    fn redis_builder(
        &self,
        redis: &tidegate_redis::RedisStoreBuilder,
    ) -> tidegate_redis::RedisStoreBuilder {
        let mut builder = redis.clone();
        if let Some((clock, keep)) = &self.manual_time {
            builder = builder.manual_time(clock.clone(), *keep);
        }
        if self.options.is_lazy {
            builder = builder.lazily();
        }
        builder
    }
}

impl LimiterOptions {
    fn limiter(&self, store: AnyStore, policy: Policy) -> Limiter<AnyStore> {
        let mut builder = Limiter::builder(store, policy);
        builder = builder.failure_policy(self.failure.unwrap_or_default());
        if let Some(keys) = self.deny_cache {
            builder = builder.deny_cache(keys);
        }
        builder.build()
    }

    fn gate(&self, store: AnyStore, policies: PolicySet) -> Gate<AnyStore> {
        let mut builder = Gate::builder(store, policies);
        builder = builder.failure_policy(self.failure.unwrap_or_default());
        if let Some(keys) = self.deny_cache {
            builder = builder.deny_cache(keys);
        }
        builder.build()
    }
}

/// Omits the URL, which may contain a password.
impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreUrl")
            .field("is_memory", &self.is_memory())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn parse_memory(rest: &str) -> Result<StoreUrl, ConnectError> {
    let (host, query) = rest.split_once('?').unwrap_or((rest, ""));
    let error = |message: String| Err(ConnectError::Url(message));
    if !host.trim_end_matches('/').is_empty() {
        return error(
            "memory:// has no host or path: expected memory:// or memory://?max_keys=N".to_owned(),
        );
    }
    let (mut max_keys, mut max_record_bytes) = (MemoryStore::DEFAULT_MAX_KEYS, None);
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or(("…", ""));
        match name {
            "max_keys" => max_keys = number(name, value).map_err(ConnectError::Url)?,
            "max_record_bytes" => {
                max_record_bytes = Some(number(name, value).map_err(ConnectError::Url)?);
            }
            _ => {
                return error(format!(
                    "unknown option `{name}` of memory://: expected max_keys=N or \
                     max_record_bytes=N"
                ));
            }
        }
    }
    if max_keys == 0 {
        return error("max_keys=0: expected at least 1".to_owned());
    }
    let location = Location::Memory {
        max_keys,
        max_record_bytes,
    };
    Ok(StoreUrl::new(location, LimiterOptions::default()))
}

#[cfg(not(feature = "redis"))]
fn parse_redis(_url: &str) -> Result<StoreUrl, ConnectError> {
    Err(ConnectError::Url(
        "this program was built without Redis: expected memory://, or the feature `redis`"
            .to_owned(),
    ))
}

/// Parses a Redis URL. Options that are not the store's belong to the limiter.
#[cfg(feature = "redis")]
fn parse_redis(url: &str) -> Result<StoreUrl, ConnectError> {
    let mut options = LimiterOptions::default();
    let (mut failure, mut instances) = (None, None);
    let redis = tidegate_redis::RedisStoreBuilder::parse(url, |name, value| {
        match name {
            "failure" => failure = Some(value.to_owned()),
            "instances" => instances = Some(number(name, value)?),
            "deny_cache" => options.deny_cache = Some(number(name, value)?),
            "lazy" => {
                options.is_lazy = match value {
                    "" | "true" | "1" => true,
                    "false" | "0" => false,
                    other => return Err(format!("lazy={other}: expected true or false")),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    });
    let redis = redis.map_err(tidegate_redis::RedisConnectError::from)?;
    options.failure = parse_failure(failure.as_deref(), instances).map_err(ConnectError::Url)?;
    Ok(StoreUrl::new(Location::Redis(redis), options))
}

#[cfg(feature = "redis")]
fn parse_failure(
    failure: Option<&str>,
    instances: Option<u32>,
) -> Result<Option<FailurePolicy>, String> {
    match (failure, instances) {
        (_, Some(0)) => Err("instances=0: expected at least 1".to_owned()),
        (None, None) => Ok(None),
        (Some("open"), None) => Ok(Some(FailurePolicy::Open)),
        (Some("closed"), None) => Ok(Some(FailurePolicy::Closed)),
        (Some("local") | None, instances) => Ok(Some(FailurePolicy::local(instances.unwrap_or(1)))),
        (Some("open" | "closed"), Some(_)) => {
            Err("`instances` divides local limits: expected it with failure=local".to_owned())
        }
        (Some(other), _) => Err(format!("failure={other}: expected open, closed or local")),
    }
}

fn number<N: FromStr>(name: &str, text: &str) -> Result<N, String> {
    let number = text.replace('_', "").parse();
    number.map_err(|_| format!("{name}={text}: expected a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<StoreUrl, ConnectError> {
        url.parse()
    }

    fn memory(url: &str) -> (u64, Option<u64>) {
        #[cfg_attr(not(feature = "redis"), allow(irrefutable_let_patterns))]
        if let Location::Memory {
            max_keys,
            max_record_bytes,
        } = parse(url).unwrap().location
        {
            return (max_keys, max_record_bytes);
        }
        panic!("{url} is not memory");
    }

    #[test]
    fn memory_urls() {
        assert_eq!(memory("memory://"), (1_000_000, None));
        assert_eq!(memory("memory:///"), (1_000_000, None));
        let sized = "memory://?max_keys=5&max_record_bytes=1_000";
        assert_eq!(memory(sized), (5, Some(1_000)));
        assert_eq!(memory("memory://?max_keys=20_000_000"), (20_000_000, None));
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
            assert!(parse(url).is_err(), "{url:?}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn options_of_the_limiter_and_of_the_store() {
        let url = "redis://h/?failure=local&timeout=20ms&instances=4&deny_cache=0&lazy";
        let LimiterOptions {
            failure,
            deny_cache,
            is_lazy,
        } = parse(url).unwrap().options;
        assert_eq!(
            (failure, deny_cache, is_lazy),
            (Some(FailurePolicy::local(4)), Some(0), true)
        );
        assert_eq!(parse("redis://h").unwrap().failure_policy(), None);
        let closed = parse("redis+cluster://h?failure=closed").unwrap();
        assert_eq!(closed.failure_policy(), Some(FailurePolicy::Closed));
        for bad in [
            "redis://h?failure=maybe",
            "redis://h?failure=open&instances=2",
            "redis://h?deny_cache=x",
            "redis://h?instances=0",
            "redis://h?lazy=perhaps",
            "redis://h?colour=1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_default_timeout_does_not_override_the_urls() {
        let timeout = |url: &str| {
            let url = parse(url).unwrap().default_timeout(Duration::from_secs(2));
            match url.location {
                Location::Redis(redis) => format!("{redis:?}"),
                Location::Memory { .. } => String::new(),
            }
        };
        assert!(timeout("redis://h").contains(" timeout: 2s"));
        assert!(timeout("redis://h?timeout=20ms").contains(" timeout: 20ms"));
    }
}
