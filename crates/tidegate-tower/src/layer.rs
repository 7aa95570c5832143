//! The tower layer.

use tidegate_core::{MemoryStore, Policy, Store};
use tidegate_http::KeyWithCost;
use tower_layer::Layer;

use crate::{Limits, RateLimitService, Tower};

/// A tower layer that limits the requests of a service. Clones share their counters.
///
/// # Examples
///
/// ```
/// use tidegate::{Gate, PolicySet, Rules};
/// use tidegate::tower::{ClientAddress, Limits, RateLimitLayer, key};
///
/// let per_user = Rules::new("100/minute".parse()?).tier("premium", "1_000/minute".parse()?)?;
/// let per_address = Rules::new("sliding_window_counter 500/minute".parse()?);
/// let policies = PolicySet::new().with("per_user", per_user)?.with("per_address", per_address)?;
/// let limits = Limits::new(Gate::memory(policies))
///     .limit("per_user", key::header("x-user-id"))?
///     .limit("per_address", ClientAddress::behind(["10.0.0.0/8"])?)?
///     .tier(|request| request.headers.get("x-tier")?.to_str().ok().map(Into::into));
/// let layer = RateLimitLayer::new(limits);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RateLimitLayer<S: Store = MemoryStore> {
    limits: Limits<S>,
}

impl RateLimitLayer<MemoryStore> {
    /// Creates a layer with one policy in memory and one key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{RateLimitLayer, key};
    ///
    /// let layer = RateLimitLayer::memory("100/minute".parse()?, key::client_address());
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory(policy: Policy, key: impl Into<KeyWithCost<Tower>>) -> Self {
        Self::new(Limits::memory(policy, key))
    }
}

impl<S: Store> RateLimitLayer<S> {
    /// Creates a layer.
    ///
    /// # Panics
    ///
    /// Panics if there are no limits, which is a mistake in the program.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, RateLimitLayer, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).cors();
    /// let layer = RateLimitLayer::new(limits);
    /// # let _: RateLimitLayer = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn new(limits: Limits<S>) -> Self {
        assert!(
            !limits.is_empty(),
            "limits without a limit: expected `.limit(policy, key)`"
        );
        Self { limits }
    }
}

impl<S: Store, Inner> Layer<Inner> for RateLimitLayer<S> {
    type Service = RateLimitService<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        RateLimitService::new(inner, self.limits.clone())
    }
}

impl<S: Store> Clone for RateLimitLayer<S> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
        }
    }
}
