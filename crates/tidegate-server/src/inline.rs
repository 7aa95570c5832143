//! Limits that come with a request. They are parsed once and cached by each thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    AnyStore, BucketLimit, Gate, Limiter, Name, Policy, PolicyError, PolicyLabel, Rate,
};

/// The maximum number of cached limiters of each kind per thread.
const MAX_CACHED: usize = 1_024;
/// The maximum length of limits in a request.
const MAX_TEXT: usize = 512;

/// Limits that came as text.
#[derive(Clone)]
pub(crate) struct Inline {
    pub(crate) label: Arc<PolicyLabel>,
    pub(crate) limiter: Limiter<AnyStore>,
}

/// The numbers of a bucket, as Redis clients send them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BucketArguments {
    pub(crate) burst: u64,
    pub(crate) count: u64,
    pub(crate) period: Duration,
}

#[derive(Default)]
struct LimiterCache {
    texts: HashMap<Box<str>, Inline>,
    /// The limiters of other services, by namespace and text.
    services: HashMap<(&'static str, Box<str>), Limiter<AnyStore>>,
    buckets: HashMap<BucketArguments, Limiter<AnyStore>>,
    /// The last bucket, which is usually used again.
    last: Option<(BucketArguments, Limiter<AnyStore>)>,
    /// The address of the store that the limiters are on.
    of: usize,
}

thread_local! {
    static CACHE: RefCell<LimiterCache> = RefCell::default();
}

impl LimiterCache {
    /// Clears the cache if it belongs to another server, for example of an earlier test on this
    /// thread.
    fn of(&mut self, gate: &Gate<AnyStore>) -> &mut Self {
        let store = std::ptr::from_ref(gate.store()) as usize;
        if self.of != store {
            *self = Self {
                of: store,
                ..Self::default()
            };
        }
        self
    }
}

fn keep<K: Hash + Eq, V: Clone>(kept: &mut HashMap<K, V>, key: K, value: V) -> V {
    if kept.len() >= MAX_CACHED {
        kept.clear();
    }
    kept.insert(key, value.clone());
    value
}

impl Inline {
    /// Returns the limiter of a text.
    pub(crate) fn find(gate: &Gate<AnyStore>, text: &str) -> Result<Self, String> {
        CACHE.with_borrow_mut(|kept| {
            let kept = kept.of(gate);
            if let Some(found) = kept.texts.get(text) {
                return Ok(found.clone());
            }
            if text.len() > MAX_TEXT {
                return Err(format!("too long: expected at most {MAX_TEXT} characters"));
            }
            let policy: Policy = text
                .parse()
                .map_err(|error: PolicyError| error.to_string())?;
            let name = Name::new("limits").map_err(|error| error.to_string())?;
            let label = Arc::new(PolicyLabel::new(name, None, Some(policy.clone())));
            Ok(keep(
                &mut kept.texts,
                text.into(),
                Self {
                    label,
                    limiter: gate.limiter(policy),
                },
            ))
        })
    }
}

/// Returns the limiter of a text in the namespace of a service.
pub(crate) fn service_limiter(
    gate: &Gate<AnyStore>,
    namespace: &'static str,
    text: &str,
) -> Result<Limiter<AnyStore>, String> {
    CACHE.with_borrow_mut(|kept| {
        let kept = kept.of(gate);
        let key = (namespace, Box::from(text));
        if let Some(found) = kept.services.get(&key) {
            return Ok(found.clone());
        }
        let policy: Policy = text.parse().map_err(|error: PolicyError| {
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
            format!("the limit is invalid: {first}")
        })?;
        let limiter = gate.service_limiter(namespace, policy);
        Ok(keep(&mut kept.services, key, limiter))
    })
}

impl BucketArguments {
    /// Returns the limiter of these numbers.
    pub(crate) fn find(self, gate: &Gate<AnyStore>) -> Result<Limiter<AnyStore>, PolicyError> {
        CACHE.with_borrow_mut(|kept| {
            let kept = kept.of(gate);
            if let Some((numbers, limiter)) = &kept.last
                && *numbers == self
            {
                return Ok(limiter.clone());
            }
            let limiter = match kept.buckets.get(&self) {
                Some(limiter) => limiter.clone(),
                None => {
                    let limit = BucketLimit::new(Rate::new(self.count, self.period), self.burst)?;
                    keep(&mut kept.buckets, self, gate.bucket(limit))
                }
            };
            kept.last = Some((self, limiter.clone()));
            Ok(limiter)
        })
    }
}
