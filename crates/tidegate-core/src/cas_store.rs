//! A store over any database with compare-and-swap: PostgreSQL, SQLite, memcached, DynamoDB.
//!
//! The database keeps the bytes of a [`Record`] under a key, and replaces them only if they have not
//! changed since they were read. [`CasStore`] reads, decides, writes, and starts again if another
//! process was faster.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::blocking;
use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::identity::identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::record::{Record, Settlement};
use crate::store::{Admission, BlockingError, Charged, Store, StoreError};

/// The number of times that an operation is tried while other processes change the same key.
const MAX_ATTEMPTS: usize = 64;

/// The minimum time that a value is kept, so that a decision in flight finds it.
const MIN_KEPT: Duration = Duration::from_secs(1);

/// A database with compare-and-swap. [`CasStore`] makes a store of it.
///
/// `examples/sqlite_store.rs` implements it in 60 lines.
pub trait CasBackend: Send + Sync + 'static {
    /// The version of a value, as the database knows it: a counter, a token, or the value itself.
    type Version: Send + Sync;
    /// The error of the database.
    type Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send;

    /// Returns the value of a key and its version, or `None` if there is none. A value that has
    /// expired may be returned as well.
    #[allow(clippy::type_complexity)] // A value with its version, if there is one.
    fn load(
        &self,
        key: &[u8],
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Self::Version)>, Self::Error>> + Send;

    /// Stores a value if the key still has the expected version, or still has none. Returns `false`
    /// if it has changed.
    ///
    /// The value may be deleted from `expires_at` on.
    fn swap(
        &self,
        key: &[u8],
        expected: Option<&Self::Version>,
        value: &[u8],
        expires_at: Timestamp,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Deletes a key if it still has the expected version. Returns `false` if it has changed.
    fn remove(
        &self,
        key: &[u8],
        expected: &Self::Version,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Returns the time of the database. The default is the clock of this process.
    ///
    /// Processes with different clocks should share the database's.
    fn now(&self) -> impl Future<Output = Result<Timestamp, Self::Error>> + Send {
        let now = self.clock().now();
        std::future::ready(Ok(now))
    }

    /// Returns the clock of this process, for waits. The default is the system's.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Runs a future in the background. The default starts a thread.
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // Without a thread, the future is run here.
        let shared = Arc::new(parking_lot::Mutex::new(Some(future)));
        let own = Arc::clone(&shared);
        let run = move || {
            let future = own.lock().take();
            future.into_iter().for_each(blocking::wait);
        };
        if std::thread::Builder::new().spawn(run).is_err() {
            let future = shared.lock().take();
            future.into_iter().for_each(blocking::wait);
        }
    }
}

/// A store over a database with compare-and-swap.
///
/// Every decision is that of the other stores. Several keys of one request are taken in order and
/// given back on a denial.
///
/// # Examples
///
/// A database in memory, with the value itself as the version:
///
/// ```
/// use std::collections::HashMap;
/// use std::convert::Infallible;
/// use std::sync::Mutex;
/// use tidegate::store::{CasBackend, CasStore};
/// use tidegate::{Limiter, Timestamp};
///
/// #[derive(Default)]
/// struct Map(Mutex<HashMap<Vec<u8>, Vec<u8>>>);
///
/// impl CasBackend for Map {
///     type Version = Vec<u8>;
///     type Error = Infallible;
///
///     async fn load(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>, Infallible> {
///         let map = self.0.lock().unwrap();
///         Ok(map.get(key).map(|value| (value.clone(), value.clone())))
///     }
///
///     async fn swap(
///         &self,
///         key: &[u8],
///         expected: Option<&Vec<u8>>,
///         value: &[u8],
///         _expires_at: Timestamp,
///     ) -> Result<bool, Infallible> {
///         let mut map = self.0.lock().unwrap();
///         let is_current = map.get(key) == expected;
///         if is_current {
///             map.insert(key.to_vec(), value.to_vec());
///         }
///         Ok(is_current)
///     }
///
///     async fn remove(&self, key: &[u8], expected: &Vec<u8>) -> Result<bool, Infallible> {
///         let mut map = self.0.lock().unwrap();
///         let is_current = map.get(key) == Some(expected);
///         if is_current {
///             map.remove(key);
///         }
///         Ok(is_current)
///     }
/// }
///
/// let limiter = Limiter::new(CasStore::new(Map::default()), "2/minute".parse()?);
/// assert!(limiter.check("user:42").cost(2).blocking()?.is_allowed());
/// assert!(limiter.check("user:42").blocking()?.is_denied());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CasStore<B> {
    backend: Arc<B>,
}

/// A policy prepared for a [`CasStore`].
#[derive(Clone, Debug)]
pub struct CasPlan {
    policy: Policy,
    /// The namespace and the identity, which contain no `:`.
    prefix: Arc<str>,
}

/// The loaded state of a key.
struct Loaded<V> {
    record: Record,
    /// The stored bytes with their version, or `None` if there are none.
    stored: Option<(Vec<u8>, V)>,
}

impl<B: CasBackend> CasStore<B> {
    /// Creates a store over a database.
    pub fn new(backend: B) -> Self {
        Self {
            backend: Arc::new(backend),
        }
    }

    /// Returns the database.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    async fn load(&self, key: &[u8]) -> Result<Loaded<B::Version>, StoreError> {
        let stored = self.backend.load(key).await.map_err(failed)?;
        let record = match &stored {
            Some((bytes, _)) => Record::from_bytes(bytes)
                .map_err(|error| StoreError::new(Degraded::Unreadable, error))?,
            None => Record::default(),
        };
        Ok(Loaded { record, stored })
    }

    /// Runs a step on the record of a key until no other process has changed it in between.
    async fn run<T>(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        mut step: impl FnMut(&Policy, &mut Record, Timestamp) -> T + Send,
    ) -> Result<T, StoreError>
    where
        T: Send,
    {
        let name = plan.name(key);
        for _ in 0..MAX_ATTEMPTS {
            let Loaded { mut record, stored } = self.load(&name).await?;
            let now = self.backend.now().await.map_err(failed)?;
            let result = step(&plan.policy, &mut record, now);
            let bytes = record.to_bytes();
            let is_unchanged = match &stored {
                Some((before, _)) => *before == bytes,
                None => plan.policy.expires_at(&mut record, now) <= now,
            };
            if is_unchanged {
                return Ok(result);
            }
            let expires_at = plan.policy.expires_at(&mut record, now);
            let expires_at = expires_at.max(now.saturating_add(MIN_KEPT));
            let version = stored.as_ref().map(|(_, version)| version);
            let swap = self.backend.swap(&name, version, &bytes, expires_at);
            if swap.await.map_err(failed)? {
                return Ok(result);
            }
        }
        Err(StoreError::new(
            Degraded::Overloaded,
            "too many processes change this key at the same time",
        ))
    }
}

impl CasPlan {
    fn name(&self, key: Key<'_>) -> Vec<u8> {
        [self.prefix.as_bytes(), key.as_bytes()].concat()
    }

    /// Returns the name of a receipt. A key may contain `:`, so its length comes first.
    fn receipt_name(&self, key: Key<'_>, id: &str) -> Vec<u8> {
        let length = key.as_bytes().len();
        let head = format!("r:{length}:{}", self.prefix);
        [head.as_bytes(), key.as_bytes(), id.as_bytes()].concat()
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::new(Degraded::Disconnected, error)
}

impl<B: CasBackend> Store for CasStore<B> {
    type Plan = CasPlan;

    fn plan(&self, policy: &Policy, namespace: &str) -> CasPlan {
        CasPlan {
            policy: policy.clone(),
            prefix: format!("c:{namespace}:{}:", identity(policy, namespace)).into(),
        }
    }

    async fn check(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        let step = |policy: &Policy, record: &mut Record, now| policy.decide(record, now, cost);
        self.run(plan, key, step).await
    }

    async fn check_many(
        &self,
        plan: &CasPlan,
        requests: &[(Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        let mut decisions = Vec::with_capacity(requests.len());
        for (key, cost) in requests {
            decisions.push(self.check(plan, *key, *cost).await);
        }
        decisions
    }

    async fn admit_one(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        let step = |policy: &Policy, record: &mut Record, now| policy.admit(record, now, cost);
        self.run(plan, key, step).await
    }

    async fn peek(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        let step =
            |policy: &Policy, record: &mut Record, now| policy.peek_with_limits(record, now, cost);
        self.run(plan, key, step).await
    }

    async fn charge(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Charged, StoreError> {
        let step = |policy: &Policy, record: &mut Record, now| policy.charge(record, now, cost);
        self.run(plan, key, step).await
    }

    async fn settle(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
    ) -> Result<Charged, StoreError> {
        let step =
            |policy: &Policy, record: &mut Record, now| policy.settle(record, now, settlement);
        self.run(plan, key, step).await
    }

    async fn refund(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        let step = |policy: &Policy, record: &mut Record, now| policy.refund(record, now, cost);
        self.run(plan, key, step).await
    }

    async fn reset(&self, plan: &CasPlan, key: Key<'_>) -> Result<bool, StoreError> {
        let name = plan.name(key);
        for _ in 0..MAX_ATTEMPTS {
            let Some((_, version)) = self.backend.load(&name).await.map_err(failed)? else {
                return Ok(false);
            };
            if self.backend.remove(&name, &version).await.map_err(failed)? {
                return Ok(true);
            }
        }
        Err(StoreError::new(
            Degraded::Overloaded,
            "too many processes change this key at the same time",
        ))
    }

    async fn keep_receipt(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        id: &str,
        receipt: &[u8],
        keep_for: Duration,
    ) -> Result<(), StoreError> {
        let now = self.backend.now().await.map_err(failed)?;
        let (name, until) = (plan.receipt_name(key, id), now.saturating_add(keep_for));
        let swap = self.backend.swap(&name, None, receipt, until);
        swap.await.map(drop).map_err(failed)
    }

    async fn take_receipt(
        &self,
        plan: &CasPlan,
        key: Key<'_>,
        id: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let name = plan.receipt_name(key, id);
        let Some((receipt, version)) = self.backend.load(&name).await.map_err(failed)? else {
            return Ok(None);
        };
        // Another process may have taken it.
        let is_taken = self.backend.remove(&name, &version).await.map_err(failed)?;
        Ok(is_taken.then_some(receipt))
    }

    fn clock(&self) -> Clock {
        self.backend.clock()
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError> {
        blocking::ensure_no_runtime()?;
        Ok(blocking::wait(future))
    }

    fn detach(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.backend.spawn(Box::pin(future));
    }
}

impl<B> Clone for CasStore<B> {
    fn clone(&self) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
        }
    }
}

impl<B> fmt::Debug for CasStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CasStore").finish_non_exhaustive()
    }
}
