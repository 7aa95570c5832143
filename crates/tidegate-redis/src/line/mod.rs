//! The line to one node: what may be sent when, what waits, and what is done when it breaks.
//!
//! A check that finds the line idle goes at once, alone, on its caller's own task. What comes while [`MAX_FLIGHTS`] trips
//! are under way waits, and goes together when one of them is back. So a lone caller is never delayed, and the more
//! callers there are, the more of them share a trip.
//!
//! A connection that is lost is made anew at once, in the background, by one task, while checks wait for it; if that
//! fails, or if trips remain unanswered, the breaker opens: checks are answered without Redis, at once, until a
//! connection answers a probe.

mod flight;
mod rejoin;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use redis::aio::MultiplexedConnection;
use tidegate_core::Breaker;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::command::Ask;
use crate::dial::{Destination, Dialer};
use crate::error::AskError;
use crate::health::Health;
use crate::reply::Answer;
use crate::settings::{MAX_BATCH, MAX_FAILURES, MAX_FLIGHTS, Settings};
use crate::url::Address;
use flight::Flight;

/// What became of an ask.
pub(crate) type Outcome = Result<Answer, Trouble>;

/// Why an ask has no answer from this node.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// Not executed, for certain: it may be asked again, elsewhere or later.
    Not(NotExecuted),
    /// It may have been executed, or there is no use in asking again.
    Failed(AskError),
}

/// A node's reason not to execute what it was sent.
#[derive(Clone, Debug)]
pub(crate) enum NotExecuted {
    /// The slot has gone to another node.
    Moved(Address),
    /// This key has gone to another node, the slot is about to.
    Ask(Address),
    /// It is a replica.
    ReadOnly,
    /// Some of the keys have gone to another node, and some have not yet.
    TryAgain,
    /// It is loading, or its cluster is not complete.
    Later(Arc<str>),
}

/// Asks that travel at the same time, and whether they go to a node that is about to take their slot over.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) asks: Vec<Ask>,
    pub(crate) is_asking: bool,
    /// Set if they are decided on all or nothing, in one call.
    pub(crate) is_together: bool,
}

impl Parcel {
    /// Its work for Redis.
    fn weight(&self) -> usize {
        self.asks.iter().map(Ask::weight).sum()
    }

    /// Asks of which each is for itself.
    pub(crate) fn of(asks: Vec<Ask>) -> Self {
        Self {
            asks,
            is_asking: false,
            is_together: false,
        }
    }
}

/// A line to one node. Clones share.
#[derive(Clone)]
pub(crate) struct Line(Arc<Shared>);

struct Shared {
    dialer: Dialer,
    destination: Destination,
    /// Whether a script call may only touch one slot.
    is_cluster: bool,
    runtime: tokio::runtime::Handle,
    health: Arc<Health>,
    state: Mutex<State>,
}

struct State {
    link: Link,
    waiting: VecDeque<Waiting>,
    /// How many asks are in `waiting`.
    waiting_asks: usize,
    flights: usize,
    /// Trips in a row without an answer.
    failures: u32,
    /// Attempts to connect since the last answer.
    attempts: u32,
    /// Which connection the link is, so that news of an old one are told apart.
    generation: u64,
    /// How many connections have been begun.
    dials: u64,
}

/// A connection, and which it is.
type Numbered = (MultiplexedConnection, u64);

enum Link {
    Up(MultiplexedConnection),
    /// Being made: what comes waits.
    Joining,
    /// Not to be had for now: what comes is answered without it.
    Down(Arc<str>),
}

struct Waiting {
    parcel: Parcel,
    answer: oneshot::Sender<Vec<Outcome>>,
}

/// How a parcel gets on its way.
enum Entry {
    Alone(Flight, Parcel),
    Waits(oneshot::Receiver<Vec<Outcome>>),
    Refused(AskError),
}

impl Line {
    pub(crate) fn new(
        dialer: Dialer,
        destination: Destination,
        is_cluster: bool,
        health: Arc<Health>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let state = State {
            link: Link::Down("not connected yet".into()),
            waiting: VecDeque::new(),
            waiting_asks: 0,
            flights: 0,
            failures: 0,
            attempts: 0,
            generation: 0,
            dials: 0,
        };
        Self(Arc::new(Shared {
            dialer,
            destination,
            is_cluster,
            runtime,
            health,
            state: Mutex::new(state),
        }))
    }

    /// Makes the first connection.
    pub(crate) async fn connect(&self) -> redis::RedisResult<()> {
        let connection = Shared::dial(&self.0).await?;
        self.0.joined(connection);
        Ok(())
    }

    /// Makes the first connection in the background. What is asked meanwhile waits for it.
    pub(crate) fn connect_lazily(&self) {
        self.0.state.lock().link = Link::Joining;
        self.0
            .runtime
            .spawn(rejoin::rejoin(Arc::downgrade(&self.0), None));
    }

    /// Sends a parcel and waits for the answers, one an ask, until the deadline at the latest.
    pub(crate) async fn send(&self, parcel: Parcel, deadline: Instant) -> Vec<Outcome> {
        let count = parcel.asks.len();
        let all = |error: AskError| vec![Err(Trouble::Failed(error)); count];
        match Shared::enter(&self.0, parcel) {
            Entry::Alone(flight, parcel) => flight.fly_alone(&parcel, deadline).await,
            Entry::Waits(answer) => match timeout_at(deadline, answer).await {
                Ok(Ok(outcomes)) => outcomes,
                // The flight it was on came to nothing before it was sent, or the store is being taken down.
                Ok(Err(_)) => all(AskError::Disconnected("the line was closed".into())),
                Err(_) => all(AskError::Timeout),
            },
            Entry::Refused(error) => all(error),
        }
    }

    pub(crate) fn destination(&self) -> &Destination {
        &self.0.destination
    }

    /// The connection, if there is one.
    pub(crate) fn connection(&self) -> Option<MultiplexedConnection> {
        match &self.0.state.lock().link {
            Link::Up(connection) => Some(connection.clone()),
            Link::Joining | Link::Down(_) => None,
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn breaker(&self) -> Breaker {
        match &self.0.state.lock().link {
            Link::Up(_) => Breaker::Closed,
            Link::Joining => Breaker::HalfOpen,
            Link::Down(_) => Breaker::Open,
        }
    }

    /// Trips under way, and asks that wait for one.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.flights, state.waiting_asks)
    }
}

impl Shared {
    fn settings(&self) -> &Settings {
        &self.dialer.url().settings
    }

    async fn dial(shared: &Arc<Self>) -> redis::RedisResult<Numbered> {
        let generation = {
            let mut state = shared.state.lock();
            state.dials += 1;
            state.dials
        };
        let weak = Arc::downgrade(shared);
        let on_loss = move || {
            if let Some(shared) = Weak::upgrade(&weak) {
                shared.lost(generation);
            }
        };
        Ok((
            shared
                .dialer
                .dial(&shared.destination, Arc::new(on_loss))
                .await?,
            generation,
        ))
    }

    fn enter(shared: &Arc<Self>, parcel: Parcel) -> Entry {
        let mut state = shared.state.lock();
        match &state.link {
            Link::Down(why) => return Entry::Refused(AskError::BreakerOpen(Arc::clone(why))),
            Link::Up(connection) if state.flights < MAX_FLIGHTS && state.waiting.is_empty() => {
                let flight = Flight::new(Arc::clone(shared), connection.clone(), state.generation);
                state.flights += 1;
                return Entry::Alone(flight, parcel);
            }
            Link::Up(_) | Link::Joining => {}
        }
        state.drop_abandoned();
        let count = parcel.asks.len();
        // However many are asked at once: alone they always may.
        if state.waiting_asks > 0 && state.waiting_asks + count > shared.settings().max_waiting {
            return Entry::Refused(AskError::Overloaded);
        }
        let (answer, receiver) = oneshot::channel();
        state.waiting_asks += count;
        state.waiting.push_back(Waiting { parcel, answer });
        Entry::Waits(receiver)
    }

    /// The next flight's load and connection. `None` if there is nothing to carry, or nothing to carry it.
    fn next_load(self: &Arc<Self>) -> Option<(Vec<Waiting>, Numbered)> {
        let mut state = self.state.lock();
        let Link::Up(connection) = &state.link else {
            return None;
        };
        let (connection, generation) = (connection.clone(), state.generation);
        let load = state.take_load();
        self.launch(state);
        (!load.is_empty()).then_some((load, (connection, generation)))
    }

    /// A flight is over: the next one goes, if anything waits. One that has not even started is of a runtime that is
    /// shutting down: there will be no next.
    fn landed(self: &Arc<Self>, has_started: bool) {
        let mut state = self.state.lock();
        state.flights -= 1;
        if has_started {
            self.launch(state);
        }
    }

    /// Sends off what waits, as far as there is room. Not under the lock: a runtime that is shutting down drops what it is
    /// to run at once, and a flight that is dropped needs the lock.
    fn launch(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if let Link::Up(connection) = &state.link
            && state.flights < MAX_FLIGHTS
            && !state.waiting.is_empty()
        {
            let flight = Flight::new(Arc::clone(self), connection.clone(), state.generation);
            state.flights += 1;
            drop(state);
            self.runtime.spawn(flight.fly());
        }
    }

    fn joined(self: &Arc<Self>, (connection, generation): Numbered) {
        let mut state = self.state.lock();
        state.link = Link::Up(connection);
        state.generation = generation;
        state.failures = 0;
        self.launch(state);
    }

    fn count_attempt(&self) {
        let attempts = &mut self.state.lock().attempts;
        *attempts = attempts.saturating_add(1);
    }

    /// A trip was answered.
    fn answered(&self) {
        let mut state = self.state.lock();
        state.failures = 0;
        state.attempts = 0;
    }

    /// A trip was not answered in time. Several in a row, and the line is taken for dead.
    fn unanswered(self: &Arc<Self>, generation: u64) {
        let mut state = self.state.lock();
        state.failures += 1;
        if state.failures >= MAX_FAILURES && state.generation == generation {
            let old = match &state.link {
                Link::Up(connection) => Some((connection.clone(), generation)),
                Link::Joining | Link::Down(_) => None,
            };
            drop(state);
            self.trip(generation, "it did not answer in time".into(), old);
        }
    }

    /// A connection is lost. A new one is made at once; what waits, waits for it.
    fn lost(self: &Arc<Self>, generation: u64) {
        let mut state = self.state.lock();
        if state.generation != generation || !matches!(state.link, Link::Up(_)) {
            return;
        }
        state.link = Link::Joining;
        drop(state);
        self.runtime
            .spawn(rejoin::rejoin(Arc::downgrade(self), None));
    }

    /// Opens the breaker. `old` is a connection that may still come to life.
    fn trip(self: &Arc<Self>, generation: u64, why: Arc<str>, old: Option<Numbered>) {
        let mut state = self.state.lock();
        if state.generation != generation || !matches!(state.link, Link::Up(_)) {
            return;
        }
        state.attempts += 1;
        self.take_down(&mut state, why);
        drop(state);
        self.runtime
            .spawn(rejoin::rejoin(Arc::downgrade(self), old));
    }

    /// What waits is answered, at once, and so is what comes.
    fn take_down(&self, state: &mut State, why: Arc<str>) {
        if !matches!(state.link, Link::Down(_)) {
            self.health.breaker_opened();
        }
        state.link = Link::Down(Arc::clone(&why));
        state.waiting_asks = 0;
        for Waiting { parcel, answer } in state.waiting.drain(..) {
            let error = Trouble::Failed(AskError::Disconnected(Arc::clone(&why)));
            // Who has gone away needs no answer.
            let _ = answer.send(vec![Err(error); parcel.asks.len()]);
        }
    }
}

impl State {
    /// Lets go of what nobody waits for any more: the oldest first.
    fn drop_abandoned(&mut self) {
        while self
            .waiting
            .front()
            .is_some_and(|waiting| waiting.answer.is_closed())
        {
            if let Some(waiting) = self.waiting.pop_front() {
                self.waiting_asks -= waiting.parcel.asks.len();
            }
        }
    }

    fn take_load(&mut self) -> Vec<Waiting> {
        let mut load = Vec::new();
        let mut weight = 0;
        while weight < MAX_BATCH {
            // A large parcel goes alone: others would have to wait for all of it.
            let next = self
                .waiting
                .front()
                .map_or(0, |waiting| waiting.parcel.weight());
            if weight > 0 && weight + next > MAX_BATCH {
                break;
            }
            let Some(waiting) = self.waiting.pop_front() else {
                break;
            };
            self.waiting_asks -= waiting.parcel.asks.len();
            if !waiting.answer.is_closed() {
                weight += next;
                load.push(waiting);
            }
        }
        load
    }
}
