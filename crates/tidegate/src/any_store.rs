//! A store that is chosen by a URL at run time.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{
    Admission, BlockingError, Charged, Clock, Cost, Decision, Key, MemoryStore, Plan, Policy,
    Settlement, Store, StoreError, StoreHealth, Timestamp,
};
#[cfg(feature = "redis")]
use tidegate_redis::{RedisPlan, RedisStore};

/// A store that is chosen by a URL at run time, see [`Connect`](crate::Connect).
///
/// # Examples
///
/// ```
/// use tidegate::{AnyStore, Connect, Limiter};
///
/// struct Service {
///     limiter: Limiter<AnyStore>,
/// }
///
/// let limiter = Limiter::connect_blocking("memory://", "100/minute".parse()?)?;
/// let service = Service { limiter };
/// assert!(service.limiter.check("user:42").blocking()?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant)] // One per limiter, behind its Arc.
pub enum AnyStore {
    /// A store in memory, for `memory://`.
    Memory(MemoryStore),
    /// A store on Redis, for `redis://` and related schemes.
    #[cfg(feature = "redis")]
    Redis(RedisStore),
}

/// A policy prepared for an [`AnyStore`].
#[derive(Debug)]
pub struct AnyPlan(AnyPlanKind);

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // One per limiter, behind its Arc.
enum AnyPlanKind {
    Memory(Plan),
    #[cfg(feature = "redis")]
    Redis(RedisPlan),
}

/// Calls a method of the store with its own plan. A plan of another store is an error.
macro_rules! with_own_plan {
    ($store:expr, $plan:expr, |$own:ident, $own_plan:ident| $call:expr, $otherwise:expr) => {
        match ($store, &$plan.0) {
            (AnyStore::Memory($own), AnyPlanKind::Memory($own_plan)) => $call,
            #[cfg(feature = "redis")]
            (AnyStore::Redis($own), AnyPlanKind::Redis($own_plan)) => $call,
            #[cfg(feature = "redis")]
            _ => $otherwise,
        }
    };
}

/// Returns the error for every request.
fn refused(count: usize, error: &StoreError) -> Vec<Result<Decision, StoreError>> {
    (0..count)
        .map(|_| Err(StoreError::new(error.reason(), error.to_string())))
        .collect()
}

#[cfg(feature = "redis")]
fn foreign_plan() -> StoreError {
    StoreError::new(
        tidegate_core::Degraded::Refused,
        "the plan belongs to another store",
    )
}

impl Store for AnyStore {
    type Plan = AnyPlan;

    fn plan(&self, policy: &Policy, namespace: &str) -> AnyPlan {
        AnyPlan(match self {
            Self::Memory(store) => AnyPlanKind::Memory(store.plan(policy, namespace)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => AnyPlanKind::Redis(store.plan(policy, namespace)),
        })
    }

    fn plan_without_lease(&self, policy: &Policy, namespace: &str) -> AnyPlan {
        AnyPlan(match self {
            Self::Memory(store) => AnyPlanKind::Memory(store.plan(policy, namespace)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => AnyPlanKind::Redis(store.plan_without_lease(policy, namespace)),
        })
    }

    #[inline]
    fn check_leased(&self, plan: &AnyPlan, key: Key<'_>, cost: Cost) -> Option<Decision> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::check_leased(store, plan, key, cost),
            None
        )
    }

    async fn give_back_leases(&self) {
        match self {
            Self::Memory(_) => {}
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.give_back_leases().await,
        }
    }

    async fn check(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::check(store, plan, key, cost).await,
            Err(foreign_plan())
        )
    }

    async fn check_many(
        &self,
        plan: &AnyPlan,
        requests: &[(Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::check_many(store, plan, requests).await,
            requests.iter().map(|_| Err(foreign_plan())).collect()
        )
    }

    fn check_allowed(
        &self,
        requests: &[(&AnyPlan, Key<'_>, Cost)],
    ) -> Option<SmallVec<[Decision; 4]>> {
        match self {
            Self::Memory(store) => {
                let own = requests.iter().map(|(plan, key, cost)| match &plan.0 {
                    AnyPlanKind::Memory(plan) => Some((plan, *key, *cost)),
                    #[cfg(feature = "redis")]
                    AnyPlanKind::Redis(_) => None,
                });
                store.check_allowed(&own.collect::<Option<SmallVec<[_; 4]>>>()?)
            }
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    async fn check_each(
        &self,
        requests: &[(&AnyPlan, Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        match self {
            Self::Memory(store) => {
                let own = requests.iter().map(|(plan, key, cost)| match &plan.0 {
                    AnyPlanKind::Memory(plan) => Ok((plan, *key, *cost)),
                    #[cfg(feature = "redis")]
                    AnyPlanKind::Redis(_) => Err(foreign_plan()),
                });
                match own.collect::<Result<Vec<_>, StoreError>>() {
                    Ok(own) => Store::check_each(store, &own).await,
                    Err(error) => refused(requests.len(), &error),
                }
            }
            #[cfg(feature = "redis")]
            Self::Redis(store) => {
                let own = requests.iter().map(|(plan, key, cost)| match &plan.0 {
                    AnyPlanKind::Redis(plan) => Ok((plan, *key, *cost)),
                    AnyPlanKind::Memory(_) => Err(foreign_plan()),
                });
                match own.collect::<Result<Vec<_>, StoreError>>() {
                    Ok(own) => store.check_each(&own).await,
                    Err(error) => refused(requests.len(), &error),
                }
            }
        }
    }

    async fn admit(
        &self,
        requests: &[(&AnyPlan, Key<'_>, Cost)],
    ) -> Result<Vec<Option<Admission>>, StoreError> {
        match self {
            Self::Memory(store) => {
                let own = requests.iter().map(|(plan, key, cost)| match &plan.0 {
                    AnyPlanKind::Memory(plan) => Ok((plan, *key, *cost)),
                    #[cfg(feature = "redis")]
                    AnyPlanKind::Redis(_) => Err(foreign_plan()),
                });
                Store::admit(store, &own.collect::<Result<Vec<_>, StoreError>>()?).await
            }
            #[cfg(feature = "redis")]
            Self::Redis(store) => {
                let own = requests.iter().map(|(plan, key, cost)| match &plan.0 {
                    AnyPlanKind::Redis(plan) => Ok((plan, *key, *cost)),
                    AnyPlanKind::Memory(_) => Err(foreign_plan()),
                });
                store
                    .admit(&own.collect::<Result<Vec<_>, StoreError>>()?)
                    .await
            }
        }
    }

    async fn admit_one(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::admit_one(store, plan, key, cost).await,
            Err(foreign_plan())
        )
    }

    async fn settle(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
    ) -> Result<Charged, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::settle(store, plan, key, settlement).await,
            Err(foreign_plan())
        )
    }

    async fn peek(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::peek(store, plan, key, cost).await,
            Err(foreign_plan())
        )
    }

    async fn charge(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Charged, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::charge(store, plan, key, cost).await,
            Err(foreign_plan())
        )
    }

    async fn keep_receipt(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        id: &str,
        receipt: &[u8],
        keep_for: Duration,
    ) -> Result<(), StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::keep_receipt(store, plan, key, id, receipt, keep_for).await,
            Err(foreign_plan())
        )
    }

    async fn take_receipt(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        id: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::take_receipt(store, plan, key, id).await,
            Err(foreign_plan())
        )
    }

    async fn refund(
        &self,
        plan: &AnyPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::refund(store, plan, key, cost).await,
            Err(foreign_plan())
        )
    }

    async fn reset(&self, plan: &AnyPlan, key: Key<'_>) -> Result<bool, StoreError> {
        with_own_plan!(
            self,
            plan,
            |store, plan| Store::reset(store, plan, key).await,
            Err(foreign_plan())
        )
    }

    fn is_remote(&self) -> bool {
        match self {
            Self::Memory(store) => store.is_remote(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.is_remote(),
        }
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError> {
        match self {
            Self::Memory(store) => store.block_on(future),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.block_on(future),
        }
    }

    fn detach(&self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Memory(store) => store.detach(future),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.detach(future),
        }
    }

    fn clock(&self) -> Clock {
        match self {
            Self::Memory(store) => Store::clock(store),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.clock(),
        }
    }

    fn now(&self) -> Timestamp {
        match self {
            Self::Memory(store) => Store::now(store),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.now(),
        }
    }

    fn health(&self) -> Option<StoreHealth> {
        match self {
            Self::Memory(store) => store.health(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.health(),
        }
    }
}
