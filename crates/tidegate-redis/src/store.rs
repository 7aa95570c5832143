//! The store.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{
    Admission, BlockingError, Claims, Cost, Decision, Degraded, Key, Policy, Settlement, Store,
    StoreError, StoreHealth, remote,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::command::{Act, Ask};
use crate::error::AskError;
use crate::health::Health;
use crate::line::{Line, NotExecuted, Outcome, Parcel, Trouble};
use crate::plan::RedisPlan;
use crate::reply::Answer;
use crate::runtime::OwnRuntime;
use crate::settings::{MAX_PARCEL, Settings};

/// Calls that settle one request at the most: a log has a million entries, and one call rewrites a thousand. Some more, as
/// requests are admitted in between.
const MOST_SETTLE_CALLS: usize = 2_000;

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

    /// Returns Redis' `maxmemory-policy` if it lets Redis evict counters, which all have an expiry. `None` if it does not, if
    /// there is no `maxmemory`, or if Redis does not say.
    pub async fn evicting_policy(&self) -> Option<String> {
        let mut connection = match &self.0.route {
            Route::Single(line) => line.connection()?,
            Route::Cluster(cluster) => cluster.any_connection()?,
        };
        let info = redis::cmd("INFO").arg("memory").to_owned();
        let asked = info.query_async::<String>(&mut connection);
        let text = tokio::time::timeout(self.0.settings.connect_timeout, asked)
            .await
            .ok()?
            .ok()?;
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let has_maximum = field("maxmemory").is_some_and(|bytes| bytes.trim() != "0");
        let policy = field("maxmemory_policy")?.trim();
        (has_maximum && policy != "noeviction").then(|| policy.to_owned())
    }

    async fn answer(&self, ask: Ask) -> Result<Answer, StoreError> {
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
    async fn answers_together(
        &self,
        line: &Line,
        asks: Vec<Ask>,
    ) -> Result<Vec<Admission>, StoreError> {
        let deadline = Instant::now() + self.0.settings.deadline;
        let outcomes = line
            .send(
                Parcel {
                    is_together: true,
                    ..Parcel::of(asks)
                },
                deadline,
            )
            .await;
        let answers: Result<Vec<Answer>, AskError> = outcomes.into_iter().map(settled).collect();
        let admission = |answer: Answer| (answer.decision, answer.claims);
        Ok(answers
            .map_err(|error| self.failed(error))?
            .into_iter()
            .map(admission)
            .collect())
    }

    /// On a task of its own: a caller that goes away in the middle leaves nothing half taken.
    async fn answers_in_order(
        &self,
        requests: &[Request<'_>],
    ) -> Result<Vec<Option<Admission>>, StoreError> {
        let store = self.clone();
        let owned: Vec<(RedisPlan, Vec<u8>, Cost)> = requests
            .iter()
            .map(|(plan, key, cost)| ((*plan).clone(), key.as_bytes().to_vec(), *cost))
            .collect();
        let task = self.0.runtime.spawn(async move {
            let keyed = owned
                .iter()
                .filter_map(|(plan, key, cost)| Some((plan, Key::new(key).ok()?, *cost)));
            remote::check_in_order(&store, &keyed.collect::<Vec<_>>()).await
        });
        match task.await {
            Ok(answer) => answer,
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone)),
        }
    }

    /// Asks about many keys, in parts that follow one another: what is about one key is decided in order, and no caller keeps
    /// Redis busy for long. Each part has its deadline; once one is not answered, the rest is not asked.
    async fn answers(&self, asks: Vec<Ask>) -> Vec<Result<Decision, StoreError>> {
        let mut decisions = Vec::with_capacity(asks.len());
        let mut lost: Option<AskError> = None;
        for part in parts(asks) {
            if let Some(error) = &lost {
                decisions.extend(part.iter().map(|_| Err(self.failed(error.clone()))));
                continue;
            }
            for answer in self.answer_part(part).await {
                if let Err(
                    error @ (AskError::Timeout
                    | AskError::Disconnected(_)
                    | AskError::BreakerOpen(_)),
                ) = &answer
                {
                    lost = Some(error.clone());
                }
                decisions.push(match answer {
                    Ok(answer) => Ok(answer.decision),
                    Err(error) => Err(self.failed(error)),
                });
            }
        }
        decisions
    }

    async fn answer_part(&self, asks: Vec<Ask>) -> Vec<Result<Answer, AskError>> {
        let deadline = Instant::now() + self.0.settings.deadline;
        match &self.0.route {
            Route::Cluster(cluster) => cluster.ask_many(asks, deadline).await,
            Route::Single(line) => line
                .send(Parcel::of(asks), deadline)
                .await
                .into_iter()
                .map(settled)
                .collect(),
        }
    }

    /// Settles the rest of a long log in several calls, so that Redis answers others in between. What is not reached stays
    /// taken.
    async fn settle_rest(&self, ask: Ask, mut answer: Answer) -> Result<Decision, StoreError> {
        for _ in 0..MOST_SETTLE_CALLS {
            if answer.claims.is_empty() {
                break;
            }
            answer = self
                .answer(Ask {
                    act: Act::Settle(answer.claims),
                    ..ask.clone()
                })
                .await?;
        }
        Ok(answer.decision)
    }

    async fn decide(&self, ask: Ask) -> Result<Decision, StoreError> {
        Ok(self.in_runtime(self.answer(ask)).await?.decision)
    }

    fn failed(&self, error: AskError) -> StoreError {
        self.0.health.failed(&error);
        error.into()
    }

    /// Timers and tasks belong to the store's runtime, whatever polls the future.
    fn in_runtime<F: Future>(&self, future: F) -> InRuntime<F> {
        InRuntime {
            runtime: self.0.runtime.clone(),
            future: Box::pin(future),
        }
    }
}

/// Asks in parts of a weight that one caller may have on its way at a time.
fn parts(asks: Vec<Ask>) -> Vec<Vec<Ask>> {
    let mut parts: Vec<Vec<Ask>> = vec![Vec::new()];
    let mut weight = 0;
    for ask in asks {
        weight += ask.weight();
        if weight > MAX_PARCEL {
            weight = ask.weight();
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push(ask);
        }
    }
    parts
}

type Request<'a> = (&'a RedisPlan, Key<'a>, Cost);

/// Requests about one record as one of the summed cost, and for each request which one that is.
fn merged<'a>(requests: &[Request<'a>]) -> (Vec<Request<'a>>, Vec<usize>) {
    let (mut merged, mut names, mut places) = (Vec::<Request<'a>>::new(), Vec::new(), Vec::new());
    for (plan, key, cost) in requests {
        let name = plan.name(*key);
        let place = names
            .iter()
            .position(|other| *other == name)
            .unwrap_or(merged.len());
        places.push(place);
        match merged.get_mut(place) {
            Some((_, _, sum)) => *sum = sum.plus(*cost),
            None => {
                merged.push((*plan, *key, *cost));
                names.push(name);
            }
        }
    }
    (merged, places)
}

/// What a server that is alone answered. Where it sends elsewhere, it is not alone.
fn settled(outcome: Outcome) -> Result<Answer, AskError> {
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

    async fn check(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        self.decide(Ask::new(plan, Act::Check, key, cost)).await
    }

    async fn check_many(
        &self,
        plan: &RedisPlan,
        requests: &[(Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        let asks = requests
            .iter()
            .map(|(key, cost)| Ask::new(plan, Act::Check, *key, *cost))
            .collect();
        self.in_runtime(self.answers(asks)).await
    }

    async fn admit(
        &self,
        requests: &[(&RedisPlan, Key<'_>, Cost)],
    ) -> Result<Vec<Option<Admission>>, StoreError> {
        let (requests, places) = merged(requests);
        let admissions = match &self.0.route {
            Route::Single(line) => {
                let asks = requests
                    .iter()
                    .map(|(plan, key, cost)| Ask::new(plan, Act::Check, *key, *cost))
                    .collect();
                let admissions = self.in_runtime(self.answers_together(line, asks)).await?;
                admissions.into_iter().map(Some).collect()
            }
            // The keys may be on different nodes.
            Route::Cluster(_) => self.answers_in_order(&requests).await?,
        };
        Ok(places
            .into_iter()
            .map(|place| admissions.get(place).cloned().flatten())
            .collect())
    }

    async fn admit_one(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        let answer = self
            .in_runtime(self.answer(Ask::new(plan, Act::Check, key, cost)))
            .await?;
        Ok((answer.decision, answer.claims))
    }

    async fn settle(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
    ) -> Result<Decision, StoreError> {
        let Settlement {
            claims,
            taken,
            actual,
        } = settlement;
        let Some(given_back) = taken.checked_sub(*actual) else {
            let extra = actual.checked_sub(*taken).unwrap_or(Cost::ZERO);
            return self.decide(Ask::new(plan, Act::Charge, key, extra)).await;
        };
        let claims: Claims = claims.iter().copied().collect();
        let ask = Ask::new(plan, Act::Settle(claims), key, given_back);
        let answer = self.in_runtime(self.answer(ask.clone())).await?;
        if answer.claims.is_empty() {
            return Ok(answer.decision);
        }
        // On a task of its own: a caller that goes away leaves nothing unsettled.
        let store = self.clone();
        match self
            .0
            .runtime
            .spawn(async move { store.settle_rest(ask, answer).await })
            .await
        {
            Ok(decision) => decision,
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone)),
        }
    }

    async fn refund(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        self.decide(Ask::new(plan, Act::Refund, key, cost)).await
    }

    async fn reset(&self, plan: &RedisPlan, key: Key<'_>) -> Result<(), StoreError> {
        self.decide(Ask::new(plan, Act::Reset, key, Cost::ZERO))
            .await
            .map(drop)
    }

    async fn keep_receipt(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        id: &str,
        receipt: &[u8],
        keep_for: Duration,
    ) -> Result<(), StoreError> {
        let ask = Ask::new(plan, Act::Put(receipt.to_vec(), keep_for), key, Cost::ZERO);
        self.decide(ask.for_receipt(id)).await.map(drop)
    }

    async fn take_receipt(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        id: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let ask = Ask::new(plan, Act::Take, key, Cost::ZERO).for_receipt(id);
        Ok(self.in_runtime(self.answer(ask)).await?.bytes)
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
        f.debug_struct("RedisStore")
            .field("health", &self.health())
            .finish_non_exhaustive()
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
