//! A Redis Cluster: which node owns which slot, and redirects.
//!
//! The client library's cluster connection sends a command again if its reply was lost. A check
//! that may have been counted must not be sent again, so slots are tracked here: one connection per
//! node, and only redirects, which mean that nothing was executed, are followed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{RedisResult, Value};
use tidegate_core::Breaker;
use tokio::time::{Instant, sleep_until, timeout};

use crate::connection::{Batch, Connection, NotExecuted, SendError, SendResult};
use crate::dial::{Destination, Dialer};
use crate::error::CallError;
use crate::health::Health;
use crate::key::slot;
use crate::operation::Operation;
use crate::reply::Reply;
use crate::url::{Address, host_or};

const SLOTS: usize = 16_384;

/// The minimum time between two queries of the slot owners.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// The number of redirects followed at once. Nodes that keep redirecting do not agree yet.
const MAX_REDIRECTS: usize = 4;

/// The number of times that a node which cannot execute now is asked again.
const MAX_REFUSALS: usize = 2;

/// The delay before a node is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A cluster. Clones share its connections.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Shared>);

struct Shared {
    dialer: Dialer,
    seeds: Vec<Address>,
    health: Arc<Health>,
    runtime: tokio::runtime::Handle,
    connections: Mutex<HashMap<Address, Connection>>,
    /// The connection to each slot's owner, if it is known.
    owners: ArcSwap<Vec<Option<Connection>>>,
    refresh: Mutex<Refresh>,
}

#[derive(Default)]
struct Refresh {
    is_running: bool,
    last: Option<Instant>,
    /// The error of the last query.
    error: Option<Arc<str>>,
}

/// The redirects of one operation so far.
struct RedirectPath {
    slot: u16,
    /// The node that is about to own the slot, if the last reply named one.
    next_owner: Option<Address>,
    redirects: usize,
    refusals: usize,
    last_error: Arc<str>,
}

impl RedirectPath {
    fn new(slot: u16) -> Self {
        Self {
            slot,
            next_owner: None,
            redirects: 0,
            refusals: 0,
            last_error: "no node answered in time".into(),
        }
    }

    /// Records why a node did not execute the operation.
    fn redirected(&mut self, reason: NotExecuted) {
        self.next_owner = None;
        match reason {
            NotExecuted::Moved(_) => {
                self.last_error = "the nodes do not agree on the owner of this slot".into();
                self.redirects += 1;
            }
            NotExecuted::Ask(address) => {
                self.next_owner = Some(address);
                self.redirects += 1;
            }
            NotExecuted::TryAgain => {
                self.last_error = "the slot is moving from one node to another".into();
                self.redirects = MAX_REDIRECTS;
            }
            NotExecuted::ReadOnly => {
                self.last_error = "the owner of the slot has become a replica".into();
                self.refusals += 1;
            }
            NotExecuted::Later(reason) => {
                self.last_error = reason;
                self.refusals += 1;
            }
        }
    }

    fn must_wait(&self) -> bool {
        self.redirects >= MAX_REDIRECTS || self.refusals > 0
    }
}

impl Cluster {
    pub(crate) fn new(
        dialer: Dialer,
        seeds: Vec<Address>,
        health: Arc<Health>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self(Arc::new(Shared {
            dialer,
            seeds,
            health,
            runtime,
            connections: Mutex::new(HashMap::new()),
            owners: ArcSwap::from_pointee(vec![None; SLOTS]),
            refresh: Mutex::new(Refresh::default()),
        }))
    }

    /// Queries the slot owners.
    pub(crate) async fn connect(&self) -> RedisResult<()> {
        self.0.find_owners().await
    }

    /// Queries the slot owners in the background.
    pub(crate) fn connect_lazily(&self) {
        self.0.refresh();
    }

    /// Sends an operation, and follows redirects until the deadline.
    pub(crate) async fn send(
        &self,
        operation: Operation,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        self.0.follow(operation, deadline).await
    }

    /// Sends many operations. Those with one owner share a round trip; redirected ones continue on
    /// their own.
    pub(crate) async fn send_many(
        &self,
        operations: Vec<Operation>,
        deadline: Instant,
    ) -> Vec<Result<Reply, CallError>> {
        let owners = self.0.by_owner(&operations).into_iter();
        let trips = owners.map(|(connection, indexes)| {
            let own = indexes
                .iter()
                .filter_map(|index| operations.get(*index).cloned());
            let batch = Batch::new(own.collect());
            async move { (indexes, connection.send(batch, deadline).await) }
        });
        let mut results: Vec<Option<SendResult>> = vec![None; operations.len()];
        for (indexes, own) in join_all(trips).await {
            for (index, result) in indexes.into_iter().zip(own) {
                if let Some(place) = results.get_mut(index) {
                    *place = Some(result);
                }
            }
        }
        let rest = operations
            .into_iter()
            .zip(results)
            .map(|(operation, result)| async {
                match result {
                    Some(Ok(reply)) => Ok(reply),
                    Some(Err(SendError::Failed(error))) => Err(self.0.failed(error)),
                    Some(Err(SendError::NotExecuted(_))) | None => {
                        self.0.follow(operation, deadline).await
                    }
                }
            });
        join_all(rest).await
    }

    /// Returns a connection to any node.
    pub(crate) fn any_connection(&self) -> Option<redis::aio::MultiplexedConnection> {
        self.0
            .connections
            .lock()
            .values()
            .find_map(Connection::multiplexed)
    }

    /// Returns the worst breaker state of all nodes, the round trips in flight, and the operations
    /// waiting.
    pub(crate) fn condition(&self) -> (Breaker, usize, usize) {
        let connections = self.0.connections.lock();
        let worst = connections
            .values()
            .map(Connection::breaker)
            .max()
            .unwrap_or(Breaker::Open);
        let (in_flight, waiting) = connections
            .values()
            .map(Connection::load)
            .fold((0, 0), |sum, load| (sum.0 + load.0, sum.1 + load.1));
        (worst, in_flight, waiting)
    }
}

impl Shared {
    /// Returns the connection to a node, and creates it if necessary.
    fn connection(&self, address: &Address) -> Connection {
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(address) {
            return connection.clone();
        }
        let destination = Destination::Node(address.clone());
        let connection = Connection::new(
            self.dialer.clone(),
            destination,
            true,
            Arc::clone(&self.health),
            self.runtime.clone(),
        );
        connection.connect_lazily();
        connections.insert(address.clone(), connection.clone());
        connection
    }

    fn owner(&self, slot: u16) -> Option<Connection> {
        self.owners.load().get(usize::from(slot)).cloned().flatten()
    }

    /// Groups the indexes of operations by owner. Operations without a known owner are left out.
    fn by_owner(&self, operations: &[Operation]) -> Vec<(Connection, Vec<usize>)> {
        let mut groups: Vec<(Connection, Vec<usize>)> = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let Some(owner) = self.owner(slot(&operation.name)) else {
                continue;
            };
            match groups
                .iter_mut()
                .find(|(connection, _)| connection.is_same(&owner))
            {
                Some((_, indexes)) => indexes.push(index),
                None => groups.push((owner, vec![index])),
            }
        }
        groups
    }

    /// Sends an operation, and follows redirects until the deadline.
    async fn follow(
        self: &Arc<Self>,
        operation: Operation,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        let mut path = RedirectPath::new(slot(&operation.name));
        while Instant::now() < deadline && path.refusals <= MAX_REFUSALS {
            let Some(connection) = self.target(&path) else {
                if let Some(reason) = self.refresh_failed() {
                    self.refresh();
                    return Err(CallError::BreakerOpen(reason));
                }
                self.wait_for_owners(deadline).await;
                continue;
            };
            let batch = Batch::single(operation.clone(), path.next_owner.is_some());
            match connection.send(batch, deadline).await.pop() {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(SendError::Failed(error))) => return Err(self.failed(error)),
                Some(Err(SendError::NotExecuted(reason))) => {
                    if let NotExecuted::Moved(address) = &reason {
                        self.moved(path.slot, address);
                    }
                    path.redirected(reason);
                }
                None => break,
            }
            if path.must_wait() {
                self.wait_for_owners(deadline).await;
            }
        }
        Err(CallError::Refused(path.last_error))
    }

    /// Returns the connection that an operation is sent to next.
    fn target(&self, path: &RedirectPath) -> Option<Connection> {
        match &path.next_owner {
            Some(address) => Some(self.connection(address)),
            None => self.owner(path.slot),
        }
    }

    async fn wait_for_owners(self: &Arc<Self>, deadline: Instant) {
        self.refresh();
        sleep_until(deadline.min(Instant::now() + AGAIN_AFTER)).await;
    }

    /// Returns why a slot has no known owner, if the owners have been queried.
    fn refresh_failed(&self) -> Option<Arc<str>> {
        let refresh = self.refresh.lock();
        refresh.last?;
        Some(
            refresh
                .error
                .clone()
                .unwrap_or_else(|| "no node has this slot".into()),
        )
    }

    /// Queries the owners again after a failure: the node may have been replaced.
    fn failed(self: &Arc<Self>, error: CallError) -> CallError {
        if error.is_outage() {
            self.refresh();
        }
        error
    }

    fn moved(self: &Arc<Self>, slot: u16, to: &Address) {
        let connection = self.connection(to);
        if self
            .owner(slot)
            .is_some_and(|owner| owner.is_same(&connection))
        {
            return;
        }
        // The new owner may be a replica that has not received the last writes.
        self.health.connection_lost();
        self.owners.rcu(|owners| {
            let mut owners = (**owners).clone();
            if let Some(owner) = owners.get_mut(usize::from(slot)) {
                *owner = Some(connection.clone());
            }
            owners
        });
        self.refresh();
    }

    /// Queries the owners in the background, unless that is running or was done just now.
    fn refresh(self: &Arc<Self>) {
        let mut refresh = self.refresh.lock();
        if refresh.is_running
            || refresh
                .last
                .is_some_and(|last| last.elapsed() < REFRESH_INTERVAL)
        {
            return;
        }
        refresh.is_running = true;
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            // A caller that needs the owners starts another query.
            let error = shared
                .find_owners()
                .await
                .err()
                .map(|error| error.to_string().into());
            *shared.refresh.lock() = Refresh {
                is_running: false,
                last: Some(Instant::now()),
                error,
            };
        });
    }

    /// Asks the known nodes, and then those of the URL, until one returns the owners.
    async fn find_owners(self: &Arc<Self>) -> RedisResult<()> {
        let mut known: Vec<(Address, Connection)> = self
            .connections
            .lock()
            .iter()
            .map(|(at, connection)| (at.clone(), connection.clone()))
            .collect();
        // An isolated node has an old view, so not always the same one is asked first.
        fastrand::shuffle(&mut known);
        for (address, connection) in known {
            if let Some(connection) = connection.multiplexed()
                && let Ok(ranges) = self.ranges(connection, &address).await
            {
                self.set_owners(&ranges);
                return Ok(());
            }
        }
        let mut last = None;
        for address in &self.seeds {
            let dialled = self
                .dialer
                .dial(&Destination::Node(address.clone()), Arc::new(|| {}))
                .await;
            let ranges = match dialled {
                Ok(connection) => self.ranges(connection, address).await,
                Err(error) => Err(error),
            };
            match ranges {
                Ok(ranges) => {
                    self.set_owners(&ranges);
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(()), Err)
    }

    async fn ranges(
        &self,
        mut connection: redis::aio::MultiplexedConnection,
        asked: &Address,
    ) -> RedisResult<Vec<SlotRange>> {
        let command = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let answer = timeout(
            self.dialer.settings().connect_timeout,
            command.query_async::<Vec<Value>>(&mut connection),
        );
        let invalid = |message| redis::RedisError::from((redis::ErrorKind::Client, message));
        let values = answer
            .await
            .map_err(|_| invalid("a node did not return the slot owners in time"))??;
        let ranges: Vec<SlotRange> = values
            .iter()
            .filter_map(|value| SlotRange::parse(value, asked))
            .collect();
        if ranges.is_empty() {
            return Err(invalid("no slot has an owner: expected a complete cluster"));
        }
        Ok(ranges)
    }

    fn set_owners(&self, ranges: &[SlotRange]) {
        let mut owners = vec![None; SLOTS];
        for range in ranges {
            let connection = self.connection(&range.owner);
            for owner in owners
                .iter_mut()
                .take(usize::from(range.last) + 1)
                .skip(usize::from(range.first))
            {
                *owner = Some(connection.clone());
            }
        }
        self.owners.store(Arc::new(owners));
        // Nodes without slots are dropped. A node that is about to get one is found by its
        // redirects.
        self.connections
            .lock()
            .retain(|address, _| ranges.iter().any(|range| range.owner == *address));
    }
}

/// The slots that one node owns.
struct SlotRange {
    first: u16,
    last: u16,
    owner: Address,
}

impl SlotRange {
    /// Parses `[first, last, [host, port, …], …]`. The owner comes first, then the replicas.
    fn parse(value: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(parts) = value else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &node[..] else {
            return None;
        };
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            _ => String::new(),
        };
        let host = host_or(&host, &asked.host).to_owned();
        let owner = Address {
            host,
            port: u16::try_from(*port).ok()?,
        };
        Some(Self {
            first: u16::try_from(*first).ok()?,
            last: u16::try_from(*last).ok()?,
            owner,
        })
    }
}
