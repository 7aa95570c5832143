//! The layer.

use tidegate_core::{MemoryStore, Policy, Store};
use tower_layer::Layer;

use crate::key::Key;
use crate::{Limits, RateLimit};

/// Puts limits before a service. Clones share.
///
/// ```
/// use tidegate_core::{Book, Gate, Rules};
/// use tidegate_tower::{ClientAddress, Limits, RateLimitLayer, key};
///
/// let book = Book::new()
///     .with("per_user", Rules::new("100/minute".parse()?).tier("premium", "1_000/minute".parse()?)?)?
///     .with("per_address", Rules::new("sliding_window_counter 500/minute".parse()?))?;
/// let limits = Limits::new(Gate::memory(book))
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
    /// One policy, in memory, by one key.
    #[must_use]
    pub fn memory(policy: Policy, key: impl Into<Key>) -> Self {
        Self::new(Limits::memory(policy, key))
    }
}

impl<S: Store> RateLimitLayer<S> {
    /// A layer of these limits.
    ///
    /// # Panics
    /// If there are none, which would limit nobody: a mistake in the program, found when it starts.
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
    type Service = RateLimit<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        RateLimit::new(inner, self.limits.clone())
    }
}

impl<S: Store> Clone for RateLimitLayer<S> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
        }
    }
}
