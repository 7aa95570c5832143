//! The store on Redis.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{
    Admission, BlockingError, Charged, Claims, Clock, Cost, Decision, Degraded, Key, Policy,
    Settlement, Store, StoreError, StoreHealth, remote,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::connection::{Batch, Connection, NotExecuted, SendError, SendResult};
use crate::error::CallError;
use crate::health::Health;
use crate::key;
use crate::lease::{LeasePlan, Leases};
use crate::operation::{Operation, OperationKind};
use crate::plan::RedisPlan;
use crate::reply::Reply;
use crate::runtime::OwnRuntime;
use crate::settings::{MAX_CALLER_WEIGHT, RedisSettings};

/// The maximum number of calls that settle one request. A log has a million entries, and one call
/// rewrites a thousand. The rest is for requests admitted in between.
const MAX_SETTLE_CALLS: usize = 2_000;

/// A store on Redis: the same decisions for every process that shares it. Clones share connections.
///
/// The connections belong to the tokio runtime in which the store was created, and must not be used
/// after it has ended. A store from [`connect_blocking`](Self::connect_blocking) has its own
/// runtime.
///
/// # Examples
///
/// ```no_run
/// use tidegate::Limiter;
/// use tidegate::RedisStore;
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
    pub(crate) settings: RedisSettings,
    pub(crate) health: Arc<Health>,
    pub(crate) runtime: Handle,
    /// The store's own runtime, if it has one.
    pub(crate) own: Option<OwnRuntime>,
    pub(crate) leases: Leases,
}

/// The way to the node of a key.
pub(crate) enum Route {
    Single(Connection),
    Cluster(Cluster),
}

impl RedisStore {
    pub(crate) fn of(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Returns a connection to the server, or to a node of the cluster.
    pub(crate) fn any_connection(&self) -> Option<redis::aio::MultiplexedConnection> {
        match &self.0.route {
            Route::Single(connection) => connection.multiplexed(),
            Route::Cluster(cluster) => cluster.any_connection(),
        }
    }

    pub(crate) fn settings(&self) -> &RedisSettings {
        &self.0.settings
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.0.route, Route::Cluster(_))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.0.settings.timeout
    }

    /// Sends one operation.
    async fn send(&self, operation: Operation) -> Result<Reply, StoreError> {
        self.send_by(self.deadline(), operation).await
    }

    async fn send_by(&self, deadline: Instant, operation: Operation) -> Result<Reply, StoreError> {
        let reply = match &self.0.route {
            Route::Cluster(cluster) => cluster.send(operation, deadline).await,
            Route::Single(connection) => {
                let batch = Batch::single(operation, false);
                let result = connection.send(batch, deadline).await.pop();
                result.map_or(Err(CallError::Timeout), from_single_server)
            }
        };
        reply.map_err(|error| self.failed(error))
    }

    /// Decides in one call, if all keys are on one server.
    async fn send_atomic(
        &self,
        connection: &Connection,
        operations: Vec<Operation>,
    ) -> Result<Vec<Admission>, StoreError> {
        let deadline = self.deadline();
        let results = connection.send(Batch::atomic(operations), deadline).await;
        let replies: Result<Vec<Reply>, CallError> =
            results.into_iter().map(from_single_server).collect();
        let replies = replies.map_err(|error| self.failed(error))?;
        Ok(replies.into_iter().map(|reply| reply.admission).collect())
    }

    /// Decides the keys in order, on a task of its own, so that a caller that goes away leaves
    /// nothing half taken.
    async fn admit_in_order(
        &self,
        requests: &[Request<'_>],
    ) -> Result<Vec<Option<Admission>>, StoreError> {
        let store = self.clone();
        let owned: Vec<(RedisPlan, Vec<u8>, Cost)> = requests
            .iter()
            .map(|(plan, key, cost)| ((*plan).clone(), key.as_bytes().to_vec(), *cost))
            .collect();
        let task = self.0.runtime.spawn(async move {
            let requests = owned
                .iter()
                .filter_map(|(plan, key, cost)| Some((plan, Key::new(key).ok()?, *cost)));
            remote::check_in_order(&store, &requests.collect::<Vec<_>>()).await
        });
        match task.await {
            Ok(admissions) => admissions,
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone)),
        }
    }

    /// Sends many operations in consecutive parts. Operations on one key stay in order, and no
    /// caller keeps Redis busy for long. Each part has its own timeout; after one fails, the rest
    /// is not sent.
    async fn send_many(&self, operations: Vec<Operation>) -> Vec<Result<Decision, StoreError>> {
        let mut decisions = Vec::with_capacity(operations.len());
        let mut failure: Option<CallError> = None;
        for part in parts(operations) {
            if let Some(error) = &failure {
                decisions.extend(part.iter().map(|_| Err(self.failed(error.clone()))));
                continue;
            }
            for result in self.send_part(part).await {
                failure = failure.or(result
                    .as_ref()
                    .err()
                    .filter(|error| error.is_outage())
                    .cloned());
                decisions.push(match result {
                    Ok(reply) => Ok(reply.admission.decision),
                    Err(error) => Err(self.failed(error)),
                });
            }
        }
        decisions
    }

    pub(crate) async fn send_part(
        &self,
        operations: Vec<Operation>,
    ) -> Vec<Result<Reply, CallError>> {
        let deadline = self.deadline();
        match &self.0.route {
            Route::Cluster(cluster) => cluster.send_many(operations, deadline).await,
            Route::Single(connection) => {
                let results = connection.send(Batch::new(operations), deadline).await;
                results.into_iter().map(from_single_server).collect()
            }
        }
    }

    /// Settles the rest of a long log in several calls, so that Redis serves other clients in
    /// between. A part that is not reached stays taken.
    async fn settle_rest(
        &self,
        operation: Operation,
        mut reply: Reply,
    ) -> Result<Decision, StoreError> {
        for _ in 0..MAX_SETTLE_CALLS {
            if reply.admission.claims.is_empty() {
                break;
            }
            let rest = Operation {
                kind: OperationKind::Settle(reply.admission.claims),
                ..operation.clone()
            };
            reply = self.send(rest).await?;
        }
        Ok(reply.admission.decision)
    }

    async fn ask(&self, operation: Operation) -> Result<Reply, StoreError> {
        self.in_runtime(self.send(operation)).await
    }

    async fn decide(&self, operation: Operation) -> Result<Decision, StoreError> {
        Ok(self.ask(operation).await?.admission.decision)
    }

    pub(crate) fn failed(&self, error: CallError) -> StoreError {
        self.0.health.failed(&error);
        error.into()
    }

    /// Wraps a future that needs the store's runtime for timers and tasks.
    pub(crate) fn in_runtime<F: Future>(&self, future: F) -> InRuntime<F> {
        InRuntime {
            runtime: self.0.runtime.clone(),
            future: Box::pin(future),
        }
    }
}

/// Splits operations into parts of the weight that one caller may have in flight.
pub(crate) fn parts(operations: Vec<Operation>) -> Vec<Vec<Operation>> {
    let mut parts: Vec<Vec<Operation>> = Vec::new();
    let mut weight = 0;
    for operation in operations {
        weight += operation.weight();
        match parts.last_mut() {
            Some(part) if weight <= MAX_CALLER_WEIGHT => part.push(operation),
            _ => {
                weight = operation.weight();
                parts.push(vec![operation]);
            }
        }
    }
    parts
}

type Request<'a> = (&'a RedisPlan, Key<'a>, Cost);

/// Merges requests on one record. Returns the merged requests, and the index of each request's own.
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

/// Converts the result of a single server. A redirect means that it is part of a cluster.
fn from_single_server(result: SendResult) -> Result<Reply, CallError> {
    result.map_err(|error| match error {
        SendError::Failed(error) => error,
        SendError::NotExecuted(NotExecuted::ReadOnly) => {
            CallError::Refused("it is a replica".into())
        }
        SendError::NotExecuted(
            NotExecuted::Moved(_) | NotExecuted::Ask(_) | NotExecuted::TryAgain,
        ) => CallError::Refused("it is a node of a cluster: expected redis+cluster://".into()),
        SendError::NotExecuted(NotExecuted::Later(reason)) => CallError::Refused(reason),
    })
}

impl Store for RedisStore {
    type Plan = RedisPlan;

    fn plan(&self, policy: &Policy, namespace: &str) -> RedisPlan {
        let (settings, leases) = (&self.0.settings, &self.0.leases);
        let stem = key::stem(&settings.prefix, namespace, policy);
        let lease = LeasePlan::new(&stem, namespace, policy, settings.lease, leases.hasher());
        RedisPlan::with_stem(stem, namespace, policy, lease)
    }

    fn plan_without_lease(&self, policy: &Policy, namespace: &str) -> RedisPlan {
        RedisPlan::new(&self.0.settings.prefix, namespace, policy)
    }

    #[inline]
    fn check_leased(&self, plan: &RedisPlan, key: Key<'_>, cost: Cost) -> Option<Decision> {
        self.take_leased(plan, key, cost)
    }

    async fn give_back_leases(&self) {
        RedisStore::give_back_leases(self).await;
    }

    async fn check(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        if let Some(decision) = self.take_leased(plan, key, cost) {
            return Ok(decision);
        }
        let deadline = self.deadline();
        if let Some(decision) = self.refill_and_take(plan, key, cost).await? {
            return Ok(decision);
        }
        let check = Operation::new(plan, OperationKind::Check, key, cost);
        let reply = self.in_runtime(self.send_by(deadline, check)).await?;
        let decision = reply.admission.decision;
        self.observe(plan, key, cost, &decision);
        Ok(decision)
    }

    async fn check_many(
        &self,
        plan: &RedisPlan,
        requests: &[(Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        let check =
            |(key, cost): &(Key<'_>, Cost)| Operation::new(plan, OperationKind::Check, *key, *cost);
        if plan.lease().is_none() {
            let operations = requests.iter().map(check).collect();
            return self.in_runtime(self.send_many(operations)).await;
        }
        let leased: Vec<Option<Decision>> = requests
            .iter()
            .map(|(key, cost)| self.take_leased(plan, *key, *cost))
            .collect();
        let asked = requests.iter().zip(&leased);
        let asked = asked.filter(|(_, leased)| leased.is_none());
        let operations: Vec<Operation> = asked.map(|(request, _)| check(request)).collect();
        // Without an operation nothing is sent.
        let mut answers = self
            .in_runtime(self.send_many(operations))
            .await
            .into_iter();
        let answers = requests
            .iter()
            .zip(leased)
            .filter_map(|((key, cost), leased)| {
                if let Some(decision) = leased {
                    return Some(Ok(decision));
                }
                let answer = answers.next()?;
                if let Ok(decision) = &answer {
                    self.observe(plan, *key, *cost, decision);
                }
                Some(answer)
            });
        answers.collect()
    }

    async fn admit(
        &self,
        requests: &[(&RedisPlan, Key<'_>, Cost)],
    ) -> Result<Vec<Option<Admission>>, StoreError> {
        let (requests, places) = merged(requests);
        let admissions = match &self.0.route {
            Route::Single(connection) => {
                let operations = requests
                    .iter()
                    .map(|(plan, key, cost)| {
                        Operation::new(plan, OperationKind::Check, *key, *cost)
                    })
                    .collect();
                let admissions = self
                    .in_runtime(self.send_atomic(connection, operations))
                    .await?;
                admissions.into_iter().map(Some).collect()
            }
            // The keys may be on different nodes.
            Route::Cluster(_) => self.admit_in_order(&requests).await?,
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
        let check = Operation::new(plan, OperationKind::Check, key, cost);
        Ok(self.ask(check).await?.admission)
    }

    async fn peek(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        let peek = Operation::new(plan, OperationKind::Peek, key, cost);
        Ok(self.ask(peek).await?.admission)
    }

    async fn charge(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Charged, StoreError> {
        self.give_back_key(plan, key).await;
        let charge = Operation::new(plan, OperationKind::Charge, key, cost);
        let reply = self.ask(charge).await?;
        Ok(Charged {
            decision: reply.admission.decision,
            dropped: reply.dropped,
        })
    }

    async fn settle(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
    ) -> Result<Charged, StoreError> {
        let Settlement {
            claims,
            taken,
            actual,
        } = settlement;
        let Some(given_back) = taken.checked_sub(*actual) else {
            let extra = actual.checked_sub(*taken).unwrap_or(Cost::ZERO);
            return self.charge(plan, key, extra).await;
        };
        let claims: Claims = claims.iter().copied().collect();
        let operation = Operation::new(plan, OperationKind::Settle(claims), key, given_back);
        let reply = self.ask(operation.clone()).await?;
        if reply.admission.claims.is_empty() {
            return Ok(Charged::whole(reply.admission.decision));
        }
        // On a task of its own, so that a caller that goes away leaves nothing unsettled.
        let store = self.clone();
        let rest = async move { store.settle_rest(operation, reply).await };
        match self.0.runtime.spawn(rest).await {
            Ok(decision) => decision.map(Charged::whole),
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone)),
        }
    }

    async fn refund(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        self.decide(Operation::new(plan, OperationKind::Refund, key, cost))
            .await
    }

    async fn reset(&self, plan: &RedisPlan, key: Key<'_>) -> Result<bool, StoreError> {
        self.0.leases.forget(plan, key);
        let reset = Operation::new(plan, OperationKind::Reset, key, Cost::ZERO);
        let deleted = self.ask(reset).await?.deleted;
        // A slice may have been taken before the reset was executed.
        self.0.leases.forget(plan, key);
        Ok(deleted > 0)
    }

    async fn keep_receipt(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        id: &str,
        receipt: &[u8],
        keep_for: Duration,
    ) -> Result<(), StoreError> {
        let kind = OperationKind::StoreReceipt(receipt.to_vec(), keep_for);
        let operation = Operation::on_receipt(plan, kind, key, id);
        self.ask(operation).await.map(drop)
    }

    async fn take_receipt(
        &self,
        plan: &RedisPlan,
        key: Key<'_>,
        id: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let operation = Operation::on_receipt(plan, OperationKind::TakeReceipt, key, id);
        Ok(self.ask(operation).await?.bytes)
    }

    fn clock(&self) -> Clock {
        let manual = self.0.settings.manual_time.as_ref();
        manual.map_or_else(Clock::system, |manual| manual.clock.clone().into())
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError> {
        // Blocking would deadlock on a thread of the runtime that does the work, and with a runtime
        // that only runs while a thread blocks on it.
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
        let (breaker, in_flight, waiting) = match &self.0.route {
            Route::Single(connection) => {
                let (in_flight, waiting) = connection.load();
                (connection.breaker(), in_flight, waiting)
            }
            Route::Cluster(cluster) => cluster.condition(),
        };
        let mut health = self.0.health.snapshot(breaker, in_flight, waiting);
        health.leases = self.0.leases.health();
        Some(health)
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore")
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

/// A future that enters the store's runtime whenever it is polled.
pub(crate) struct InRuntime<F> {
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
