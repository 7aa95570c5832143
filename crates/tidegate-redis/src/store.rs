//! The store.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate_core::{BlockingError, Cost, Decision, Degraded, Key, Policy, Store, StoreError, StoreHealth, remote};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::command::{Act, Ask};
use crate::error::AskError;
use crate::health::Health;
use crate::line::{Line, NotExecuted, Outcome, Parcel, Trouble};
use crate::plan::RedisPlan;
use crate::runtime::OwnRuntime;
use crate::settings::Settings;
use crate::together::{MOST_TOGETHER, Remembered};

/// Records in Redis: the same decisions for every process that shares it. Clones share.
///
/// Its connections live in the tokio runtime that it was made in, and must not be used after that is gone; a store of
/// [`connect_blocking`](Self::connect_blocking) brings its own along.
///
/// ```no_run
/// use tidegate_core::Limiter;
/// use tidegate_redis::RedisStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// let limiter = Limiter::new(store, "100/minute".parse()?);
/// let decision = limiter.check("user:42").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) route: Route,
    pub(crate) settings: Settings,
    pub(crate) health: Arc<Health>,
    pub(crate) runtime: Handle,
    /// The runtime, where it is the store's own.
    pub(crate) own: Option<OwnRuntime>,
    pub(crate) together: Remembered,
}

/// How the node of a key is found.
pub(crate) enum Route {
    Single(Line),
    Cluster(Cluster),
}

impl RedisStore {
    pub(crate) fn of(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    fn ask(&self, plan: &RedisPlan, act: Act, key: Key<'_>, cost: Cost) -> Ask {
        Ask { plan: plan.clone(), act, name: plan.name(key), cost }
    }

    async fn answer(&self, ask: Ask) -> Result<Decision, StoreError> {
        let deadline = Instant::now() + self.0.settings.deadline;
        let answered = match &self.0.route {
            Route::Cluster(cluster) => cluster.ask(ask, deadline).await,
            Route::Single(line) => {
                let outcome = line.send(Parcel::of(vec![ask]), deadline).await.pop();
                outcome.map_or(Err(AskError::Timeout), settled)
            }
        };
        answered.map_err(|error| self.failed(error))
    }

    /// In one call, where all keys are on one server.
    async fn answers_together(&self, line: &Line, asks: Vec<Ask>) -> Result<Vec<Decision>, StoreError> {
        let deadline = Instant::now() + self.0.settings.deadline;
        let together = Some(self.0.together.script(&asks));
        let outcomes = line.send(Parcel { together, ..Parcel::of(asks) }, deadline).await;
        let decisions: Result<Vec<Decision>, AskError> = outcomes.into_iter().map(settled).collect();
        decisions.map_err(|error| self.failed(error))
    }

    /// On a task of its own: who goes away in the middle leaves nothing half taken.
    async fn answers_in_order(
        &self,
        requests: &[(&RedisPlan, Key<'_>, Cost)],
    ) -> Result<Vec<Option<Decision>>, StoreError> {
        let store = self.clone();
        let owned: Vec<(RedisPlan, Vec<u8>, Cost)> =
            requests.iter().map(|(plan, key, cost)| ((*plan).clone(), key.as_bytes().to_vec(), *cost)).collect();
        let task = self.0.runtime.spawn(async move {
            let keyed = owned.iter().filter_map(|(plan, key, cost)| Some((plan, Key::new(key).ok()?, *cost)));
            let requests: Vec<(&RedisPlan, Key<'_>, Cost)> = keyed.collect();
            remote::check_in_order(&store, &requests).await
        });
        match task.await {
            Ok(answer) => answer,
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone)),
        }
    }

    async fn answers(&self, asks: Vec<Ask>) -> Vec<Result<Decision, StoreError>> {
        let deadline = Instant::now() + self.0.settings.deadline;
        let answered: Vec<Result<Decision, AskError>> = match &self.0.route {
            Route::Cluster(cluster) => cluster.ask_many(asks, deadline).await,
            Route::Single(line) => {
                let outcomes = line.send(Parcel::of(asks), deadline).await;
                outcomes.into_iter().map(settled).collect()
            }
        };
        answered.into_iter().map(|answer| answer.map_err(|error| self.failed(error))).collect()
    }

    fn failed(&self, error: AskError) -> StoreError {
        self.0.health.failed(&error);
        error.into()
    }

    /// Timers and tasks belong to the store's runtime, whatever polls the future.
    fn in_runtime<F: Future>(&self, future: F) -> InRuntime<F> {
        InRuntime { runtime: self.0.runtime.clone(), future: Box::pin(future) }
    }
}

/// What a server that is alone answered. Where it sends elsewhere, it is not alone.
fn settled(outcome: Outcome) -> Result<Decision, AskError> {
    outcome.map_err(|trouble| match trouble {
        Trouble::Failed(error) => error,
        Trouble::Not(NotExecuted::ReadOnly) => AskError::Refused("it is a replica".into()),
        Trouble::Not(NotExecuted::Moved(_) | NotExecuted::Ask(_) | NotExecuted::TryAgain) => {
            AskError::Refused("this is a node of a cluster: use redis+cluster://".into())
        }
        Trouble::Not(NotExecuted::Later(why)) => AskError::Refused(why),
    })
}

impl Store for RedisStore {
    type Plan = RedisPlan;

    fn plan(&self, policy: &Policy, namespace: &str) -> RedisPlan {
        RedisPlan::new(&self.0.settings.prefix, namespace, policy)
    }

    async fn check(&self, plan: &RedisPlan, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        self.in_runtime(self.answer(self.ask(plan, Act::CHECK, key, cost))).await
    }

    async fn check_many(&self, plan: &RedisPlan, requests: &[(Key<'_>, Cost)]) -> Vec<Result<Decision, StoreError>> {
        let asks = requests.iter().map(|(key, cost)| self.ask(plan, Act::CHECK, *key, *cost)).collect();
        self.in_runtime(self.answers(asks)).await
    }

    async fn check_together(
        &self,
        requests: &[(&RedisPlan, Key<'_>, Cost)],
    ) -> Result<Vec<Option<Decision>>, StoreError> {
        match &self.0.route {
            Route::Single(line) if requests.len() <= MOST_TOGETHER => {
                let ask = |(plan, key, cost): &(&RedisPlan, Key<'_>, Cost)| self.ask(plan, Act::CHECK, *key, *cost);
                let asks = requests.iter().map(ask).collect();
                let decisions = self.in_runtime(self.answers_together(line, asks)).await?;
                Ok(decisions.into_iter().map(Some).collect())
            }
            // The keys may be on different nodes.
            _ => self.answers_in_order(requests).await,
        }
    }

    async fn refund(&self, plan: &RedisPlan, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        self.in_runtime(self.answer(self.ask(plan, Act::REFUND, key, cost))).await
    }

    async fn reset(&self, plan: &RedisPlan, key: Key<'_>) -> Result<(), StoreError> {
        self.in_runtime(self.answer(self.ask(plan, Act::Reset, key, Cost::ZERO))).await.map(drop)
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError> {
        // On a thread of the runtime that is to do the work nothing would ever be done, nor by a runtime that only runs
        // while somebody blocks on it.
        let is_driven = self.0.runtime.runtime_flavor() != RuntimeFlavor::CurrentThread;
        if self.0.own.is_none() && (Handle::try_current().is_ok() || !is_driven) {
            return Err(BlockingError::new());
        }
        Ok(remote::wait(future))
    }

    fn detach(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.0.runtime.spawn(future);
    }

    fn health(&self) -> Option<StoreHealth> {
        let (breaker, flights, waiting) = match &self.0.route {
            Route::Single(line) => {
                let (flights, waiting) = line.load();
                (line.breaker(), flights, waiting)
            }
            Route::Cluster(cluster) => cluster.condition(),
        };
        Some(self.0.health.snapshot(breaker, flights, waiting))
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("health", &self.health()).finish_non_exhaustive()
    }
}

/// A future that finds the store's runtime around it, whoever polls it.
struct InRuntime<F> {
    runtime: Handle,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for InRuntime<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _entered = this.runtime.enter();
        this.future.as_mut().poll(context)
    }
}
