//! A Redis Cluster: which node has which slot, and where to go when that has changed.
//!
//! The client library's own cluster connection sends again what it lost the answer to; a check that may have been counted
//! must not be. So the way is found here: one line a node, and redirects, which say that nothing was executed, followed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{RedisResult, Value};
use tidegate_core::Breaker;
use tokio::time::{Instant, sleep_until, timeout};

use crate::command::Ask;
use crate::dial::{Destination, Dialer};
use crate::error::AskError;
use crate::health::Health;
use crate::key::slot;
use crate::line::{Line, NotExecuted, Outcome, Parcel, Trouble};
use crate::reply::Answer;
use crate::url::{Address, known_host};

const SLOTS: usize = 16_384;

/// At most so often the nodes are asked who has which slot.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// So many redirects are followed at once; nodes that send to and fro do not agree yet.
const MAX_REDIRECTS: usize = 4;

/// A node that says that it cannot now is asked so often again.
const MAX_REFUSALS: usize = 2;

/// How long to wait before asking again a node that said to.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Clones share.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Shared>);

struct Shared {
    dialer: Dialer,
    seeds: Vec<Address>,
    health: Arc<Health>,
    runtime: tokio::runtime::Handle,
    lines: Mutex<HashMap<Address, Line>>,
    /// The line of each slot's owner, where it is known.
    owners: ArcSwap<Vec<Option<Line>>>,
    refresh: Mutex<Refresh>,
}

#[derive(Default)]
struct Refresh {
    is_running: bool,
    last: Option<Instant>,
    /// What went wrong the last time.
    error: Option<Arc<str>>,
}

/// Where an ask goes.
enum Target {
    Owner,
    /// A node that is about to become the owner.
    Heir(Address),
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
            lines: Mutex::new(HashMap::new()),
            owners: ArcSwap::from_pointee(vec![None; SLOTS]),
            refresh: Mutex::new(Refresh::default()),
        }))
    }

    /// Finds out who has which slot.
    pub(crate) async fn connect(&self) -> RedisResult<()> {
        self.0.find_owners().await
    }

    /// Finds out in the background who has which slot.
    pub(crate) fn connect_lazily(&self) {
        self.0.refresh();
    }

    /// Asks, and follows redirects until the deadline.
    pub(crate) async fn ask(&self, ask: Ask, deadline: Instant) -> Result<Answer, AskError> {
        self.0.follow(ask, deadline).await
    }

    /// Asks all: what has one owner travels together. What is redirected goes on for itself.
    pub(crate) async fn ask_many(
        &self,
        asks: Vec<Ask>,
        deadline: Instant,
    ) -> Vec<Result<Answer, AskError>> {
        let trips = self.0.by_owner(&asks).into_iter().map(|(line, places)| {
            let parcel = Parcel::of(
                places
                    .iter()
                    .filter_map(|place| asks.get(*place).cloned())
                    .collect(),
            );
            async move { (places, line.send(parcel, deadline).await) }
        });
        let mut outcomes: Vec<Option<Outcome>> = vec![None; asks.len()];
        for (places, answers) in join_all(trips).await {
            for (place, answer) in places.into_iter().zip(answers) {
                if let Some(outcome) = outcomes.get_mut(place) {
                    *outcome = Some(answer);
                }
            }
        }
        let rest = asks.into_iter().zip(outcomes).map(|(ask, outcome)| async {
            match outcome {
                Some(Ok(answer)) => Ok(answer),
                Some(Err(Trouble::Failed(error))) => Err(self.0.failed(error)),
                Some(Err(Trouble::Not(_))) | None => self.0.follow(ask, deadline).await,
            }
        });
        join_all(rest).await
    }

    /// A connection to one of the nodes, if there is any.
    pub(crate) fn any_connection(&self) -> Option<redis::aio::MultiplexedConnection> {
        self.0.lines.lock().values().find_map(Line::connection)
    }

    /// Of all nodes, the worst; trips under way, and asks that wait.
    pub(crate) fn condition(&self) -> (Breaker, usize, usize) {
        let lines = self.0.lines.lock();
        let worst = lines
            .values()
            .map(Line::breaker)
            .max()
            .unwrap_or(Breaker::Open);
        let (flights, waiting) = lines
            .values()
            .map(Line::load)
            .fold((0, 0), |sum, load| (sum.0 + load.0, sum.1 + load.1));
        (worst, flights, waiting)
    }
}

impl Shared {
    /// The line to a node, made if need be.
    fn line(&self, address: &Address) -> Line {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get(address) {
            return line.clone();
        }
        let destination = Destination::Node(address.clone());
        let line = Line::new(
            self.dialer.clone(),
            destination,
            true,
            Arc::clone(&self.health),
            self.runtime.clone(),
        );
        line.connect_lazily();
        lines.insert(address.clone(), line.clone());
        line
    }

    fn owner(&self, slot: u16) -> Option<Line> {
        self.owners.load().get(usize::from(slot)).cloned().flatten()
    }

    /// The places of the asks of each owner. Those without one are left out.
    fn by_owner(&self, asks: &[Ask]) -> Vec<(Line, Vec<usize>)> {
        let mut groups: Vec<(Line, Vec<usize>)> = Vec::new();
        for (place, ask) in asks.iter().enumerate() {
            let Some(owner) = self.owner(slot(&ask.name)) else {
                continue;
            };
            match groups.iter_mut().find(|(line, _)| line.is(&owner)) {
                Some((_, places)) => places.push(place),
                None => groups.push((owner, vec![place])),
            }
        }
        groups
    }

    async fn follow(self: &Arc<Self>, ask: Ask, deadline: Instant) -> Result<Answer, AskError> {
        let slot = slot(&ask.name);
        let mut target = Target::Owner;
        let mut last: Arc<str> = "no node answered in time".into();
        let (mut redirects, mut refusals) = (0, 0);
        while Instant::now() < deadline && refusals <= MAX_REFUSALS {
            let (line, is_asking) = match &target {
                Target::Owner => (self.owner(slot), false),
                Target::Heir(address) => (Some(self.line(address)), true),
            };
            let Some(line) = line else {
                if let Some(why) = self.refresh_failed() {
                    self.refresh();
                    return Err(AskError::BreakerOpen(why));
                }
                self.wait_for_owners(deadline).await;
                continue;
            };
            let outcome = line
                .send(
                    Parcel {
                        is_asking,
                        ..Parcel::of(vec![ask.clone()])
                    },
                    deadline,
                )
                .await
                .pop();
            target = Target::Owner;
            match outcome {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(Trouble::Failed(error))) => return Err(self.failed(error)),
                Some(Err(Trouble::Not(NotExecuted::Moved(address)))) => {
                    last = "the nodes do not agree who has this slot".into();
                    self.moved(slot, &address);
                    redirects += 1;
                }
                Some(Err(Trouble::Not(NotExecuted::Ask(address)))) => {
                    target = Target::Heir(address);
                    redirects += 1;
                }
                Some(Err(Trouble::Not(NotExecuted::TryAgain))) => {
                    last = "the key's slot is on its way from one node to another".into();
                    redirects = MAX_REDIRECTS;
                }
                Some(Err(Trouble::Not(NotExecuted::ReadOnly))) => {
                    last = "the owner of the slot has become a replica".into();
                    refusals += 1;
                }
                Some(Err(Trouble::Not(NotExecuted::Later(why)))) => {
                    last = why;
                    refusals += 1;
                }
                None => break,
            }
            if redirects >= MAX_REDIRECTS || refusals > 0 {
                self.wait_for_owners(deadline).await;
            }
        }
        Err(AskError::Refused(last))
    }

    async fn wait_for_owners(self: &Arc<Self>, deadline: Instant) {
        self.refresh();
        sleep_until(deadline.min(Instant::now() + AGAIN_AFTER)).await;
    }

    /// Why nobody is known to have a slot, if that has been asked for.
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

    /// A node that fails may have been replaced.
    fn failed(self: &Arc<Self>, error: AskError) -> AskError {
        if matches!(
            error,
            AskError::Disconnected(_) | AskError::BreakerOpen(_) | AskError::Timeout
        ) {
            self.refresh();
        }
        error
    }

    fn moved(self: &Arc<Self>, slot: u16, to: &Address) {
        let line = self.line(to);
        if self.owner(slot).is_some_and(|owner| owner.is(&line)) {
            return;
        }
        self.owners.rcu(|owners| {
            let mut owners = (**owners).clone();
            if let Some(owner) = owners.get_mut(usize::from(slot)) {
                *owner = Some(line.clone());
            }
            owners
        });
        self.refresh();
    }

    /// Asks who has which slot, in the background; not while that is being done, nor right after.
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
            // Who needs it will trigger it again.
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

    /// Asks the nodes that answer, and then those of the URL, until one has told all.
    async fn find_owners(self: &Arc<Self>) -> RedisResult<()> {
        let mut known: Vec<(Address, Line)> = self
            .lines
            .lock()
            .iter()
            .map(|(at, line)| (at.clone(), line.clone()))
            .collect();
        // A node that is cut off from the others knows how things were: not always the same one is asked first.
        fastrand::shuffle(&mut known);
        for (address, line) in known {
            if let Some(connection) = line.connection()
                && let Ok(ranges) = self.ranges(connection, &address).await
            {
                self.take_over(&ranges);
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
                    self.take_over(&ranges);
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
    ) -> RedisResult<Vec<Range>> {
        let command = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let answer = timeout(
            self.dialer.url().settings.connect_timeout,
            command.query_async::<Vec<Value>>(&mut connection),
        );
        let invalid = |message| redis::RedisError::from((redis::ErrorKind::Client, message));
        let values = answer
            .await
            .map_err(|_| invalid("a node did not say in time who has which slot"))??;
        let ranges: Vec<Range> = values
            .iter()
            .filter_map(|value| Range::read(value, asked))
            .collect();
        if ranges.is_empty() {
            return Err(invalid(
                "no slot has an owner: is this a cluster, and complete?",
            ));
        }
        Ok(ranges)
    }

    fn take_over(&self, ranges: &[Range]) {
        let mut owners = vec![None; SLOTS];
        for range in ranges {
            let line = self.line(&range.owner);
            for owner in owners
                .iter_mut()
                .take(usize::from(range.last) + 1)
                .skip(usize::from(range.first))
            {
                *owner = Some(line.clone());
            }
        }
        self.owners.store(Arc::new(owners));
        // Nodes that have nothing any more are left alone; one that is about to get something is found by its redirects.
        self.lines
            .lock()
            .retain(|address, _| ranges.iter().any(|range| range.owner == *address));
    }
}

/// Slots that one node has.
struct Range {
    first: u16,
    last: u16,
    owner: Address,
}

impl Range {
    /// `[first, last, [host, port, …], …]`: the owner comes first, replicas after it.
    fn read(value: &Value, asked: &Address) -> Option<Self> {
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
        let host = known_host(&host, &asked.host).to_owned();
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
