//! The builder of limiters.

use std::sync::Arc;

use super::counters::AtomicCounters;
use super::guard::{RemoteGuard, RemoteSettings};
use super::{FailurePolicy, Limiter};
use crate::clock::Clock;
use crate::name::Name;
use crate::policy::Policy;
use crate::store::Store;

/// A builder for [`Limiter`]. In memory only the namespace has an effect.
///
/// # Examples
///
/// ```
/// use tidegate::{FailurePolicy, Limiter, MemoryStore};
///
/// let limiter = Limiter::builder(MemoryStore::builder().build()?, "100/minute".parse()?)
///     .namespace("api".parse()?)
///     .failure_policy(FailurePolicy::Closed)
///     .build();
/// assert!(limiter.check("user:42").now()?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct LimiterBuilder<S: Store> {
    pub(super) store: S,
    pub(super) policy: Policy,
    pub(super) namespace: Option<Name>,
    pub(super) settings: RemoteSettings,
}

impl<S: Store> LimiterBuilder<S> {
    /// Names the policy. It has its own counters on the store, and keeps the counts of its windows
    /// and logs when their limits change.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limiter, MemoryStore};
    ///
    /// let store = MemoryStore::builder().build()?;
    /// let limiter = Limiter::builder(store, "1/minute".parse()?).namespace("api".parse()?).build();
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn namespace(mut self, name: Name) -> Self {
        self.namespace = Some(name);
        self
    }

    /// Sets the failure policy. The default is [`FailurePolicy::Local`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{FailurePolicy, Limiter, MemoryStore};
    ///
    /// let store = MemoryStore::builder().build()?;
    /// let limiter = Limiter::builder(store, "1/minute".parse()?)
    ///     .failure_policy(FailurePolicy::local(4))
    ///     .build();
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.settings.failure = failure;
        self
    }

    /// Sets the number of denials that are cached for up to a second, so that the store is not
    /// asked again. The default is 16,384; 0 disables the cache.
    pub fn deny_cache(mut self, keys: usize) -> Self {
        self.settings.deny_cache = keys;
        self
    }

    /// Sets the clock for the deny cache and for local decisions. The default is the system's.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// Creates the limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S> {
        let namespace = self
            .namespace
            .map_or_else(|| Arc::from(""), |name| name.shared());
        let (store, settings) = (Arc::new(self.store), self.settings);
        let counters = Arc::new(AtomicCounters::default());
        let guard = store
            .is_remote()
            .then(|| RemoteGuard::new(settings, &self.policy, &namespace, Arc::clone(&counters)));
        Limiter::guarded(store, self.policy, namespace, guard, Some(counters))
    }
}
