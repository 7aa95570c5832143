//! One trip to a node and back.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tidegate_core::Cost;
use tokio::time::{Instant, timeout_at};

use super::{NotExecuted, Outcome, Parcel, Shared, Trouble, Waiting};
use crate::command::{Ask, GivenTime, command, script};
use crate::dial::Destination;
use crate::error::{AskError, ReplyError};
use crate::key::slot;
use crate::reply::{self, Answer};
use crate::script::Script;
use crate::url::{Address, known_host};

/// How often a script that is not there is loaded and called again. Somebody may be flushing.
const MAX_LOADS: usize = 5;

/// One of the places on a line. Given back when it is dropped, whatever happened.
pub(super) struct Flight {
    line: Arc<Shared>,
    connection: MultiplexedConnection,
    generation: u64,
    has_started: bool,
    /// Since when a trip is under way.
    under_way: Option<Instant>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Given up by its caller, who has less patience than the deadline: that says something of Redis, too.
        let patience = self.line.settings().deadline / 2;
        if self
            .under_way
            .is_some_and(|since| since.elapsed() >= patience)
        {
            self.line.unanswered(self.generation);
        }
        self.line.landed(self.has_started);
    }
}

/// Asks that one command does.
struct Call<'a> {
    asks: Vec<&'a Ask>,
    /// Where their answers belong.
    places: Vec<usize>,
    slot: u16,
    is_asking: bool,
    /// The number of a parcel that is decided on all or nothing.
    together: Option<usize>,
}

impl Flight {
    pub(super) fn new(
        line: Arc<Shared>,
        connection: MultiplexedConnection,
        generation: u64,
    ) -> Self {
        Self {
            line,
            connection,
            generation,
            has_started: false,
            under_way: None,
        }
    }

    /// Carries one parcel, on its sender's own task.
    pub(super) async fn fly_alone(mut self, parcel: &Parcel, deadline: Instant) -> Vec<Outcome> {
        self.has_started = true;
        self.carry(&[parcel], deadline).await
    }

    /// Carries what waits, until nothing does.
    pub(super) async fn fly(mut self) {
        self.has_started = true;
        while let Some((load, (connection, generation))) = self.line.next_load() {
            (self.connection, self.generation) = (connection, generation);
            let deadline = Instant::now() + self.line.settings().deadline;
            let parcels: Vec<&Parcel> = load.iter().map(|waiting| &waiting.parcel).collect();
            let mut outcomes = self.carry(&parcels, deadline).await.into_iter();
            for Waiting { parcel, answer } in load {
                // Who has gone away needs no answer.
                let _ = answer.send(outcomes.by_ref().take(parcel.asks.len()).collect());
            }
            // Who has just been answered may have the next one ready: it comes along.
            tokio::task::yield_now().await;
        }
    }

    /// One outcome an ask, in their order.
    async fn carry(&mut self, parcels: &[&Parcel], deadline: Instant) -> Vec<Outcome> {
        let count = parcels.iter().map(|parcel| parcel.asks.len()).sum();
        let mut outcomes: Vec<Option<Outcome>> = vec![None; count];
        let calls = self.calls(parcels);
        let started = Instant::now();
        self.under_way = Some(started);
        let made = timeout_at(deadline, self.make(calls, &mut outcomes)).await;
        self.under_way = None;
        let error = match made {
            Ok(Ok(())) => {
                let asks = parcels.iter().flat_map(|parcel| &parcel.asks);
                let has_written = |(ask, outcome): (&Ask, &Option<Outcome>)| {
                    ask.cost > Cost::ZERO
                        && matches!(outcome, Some(Ok(answer)) if answer.decision.is_allowed())
                };
                if asks.zip(&outcomes).any(has_written) {
                    self.line.health.wrote();
                }
                self.answered(&outcomes);
                self.line.health.trip(started.elapsed(), count as u64);
                AskError::Reply(ReplyError::NotAnAnswer)
            }
            Ok(Err(error)) => {
                self.line.lost(self.generation);
                AskError::Disconnected(error.to_string().into())
            }
            Err(_) => {
                self.line.unanswered(self.generation);
                AskError::Timeout
            }
        };
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| Err(Trouble::Failed(error.clone()))))
            .collect()
    }

    /// A server that has become a replica is left: on a cluster for the slot's new owner, else until there is a primary.
    fn answered(&self, outcomes: &[Option<Outcome>]) {
        let is_replica = |outcome: &Option<Outcome>| {
            matches!(outcome, Some(Err(Trouble::Not(NotExecuted::ReadOnly))))
        };
        if !self.line.is_cluster && outcomes.iter().any(is_replica) {
            self.line
                .trip(self.generation, "it has become a replica".into(), None);
        } else {
            self.line.answered();
        }
    }

    /// Puts asks together that one command can do: of one policy and kind, and on a cluster of one slot.
    fn calls<'a>(&self, parcels: &[&'a Parcel]) -> Vec<Call<'a>> {
        let mut calls: Vec<Call<'a>> = Vec::new();
        let numbered = parcels.iter().enumerate();
        let asks = numbered
            .flat_map(|(number, parcel)| parcel.asks.iter().map(move |ask| (ask, number, *parcel)));
        for (place, (ask, number, parcel)) in asks.enumerate() {
            let is_asking = parcel.is_asking;
            let together = parcel.is_together.then_some(number);
            if together.is_some() {
                match calls.last_mut().filter(|call| call.together == together) {
                    Some(call) => {
                        call.asks.push(ask);
                        call.places.push(place);
                    }
                    None => calls.push(Call {
                        asks: vec![ask],
                        places: vec![place],
                        slot: 0,
                        is_asking,
                        together,
                    }),
                }
                continue;
            }
            let slot = if self.line.is_cluster {
                slot(&ask.name)
            } else {
                0
            };
            let fits = |call: &&mut Call<'a>| {
                let goes = call.asks.first().is_some_and(|first| first.goes_with(ask));
                goes && call.together.is_none() && call.slot == slot && call.is_asking == is_asking
            };
            // On a cluster hardly any two share a slot: only the last few calls are looked at.
            match calls.iter_mut().rev().take(8).find(fits) {
                Some(call) => {
                    call.asks.push(ask);
                    call.places.push(place);
                }
                None => calls.push(Call {
                    asks: vec![ask],
                    places: vec![place],
                    slot,
                    is_asking,
                    together,
                }),
            }
        }
        calls
    }

    /// Makes the calls, and those again that found no script, which was not executed then. An error means that nothing is
    /// known of what is still without an outcome.
    async fn make(
        &mut self,
        mut calls: Vec<Call<'_>>,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), RedisError> {
        for attempt in 0..=MAX_LOADS {
            let answers = self.exchange(&calls, attempt > 0).await?;
            let mut without_script = Vec::new();
            for (call, answer) in calls.into_iter().zip(answers) {
                match answer {
                    Err(error) if is(&error, ServerErrorKind::NoScript) && attempt < MAX_LOADS => {
                        without_script.push(call)
                    }
                    Err(error) => call.fill(outcomes, &Err(self.trouble(&error))),
                    Ok(value) => match call.read(&value) {
                        Ok(answers) => {
                            for (place, answer) in call.places.iter().zip(answers) {
                                let outcome = answer.map_err(|error| Trouble::Failed(error.into()));
                                if let Some(slot) = outcomes.get_mut(*place) {
                                    *slot = Some(outcome);
                                }
                            }
                        }
                        Err(error) => call.fill(outcomes, &Err(Trouble::Failed(error.into()))),
                    },
                }
            }
            if without_script.is_empty() {
                break;
            }
            calls = without_script;
        }
        Ok(())
    }

    /// What a server's error means for who asked.
    fn trouble(&self, error: &RedisError) -> Trouble {
        let ErrorKind::Server(kind) = error.kind() else {
            return refused(error);
        };
        let redirect = |how: fn(Address) -> NotExecuted| {
            self.redirected_to(error)
                .map_or_else(|| refused(error), |address| Trouble::Not(how(address)))
        };
        match kind {
            ServerErrorKind::Moved => redirect(NotExecuted::Moved),
            ServerErrorKind::Ask => redirect(NotExecuted::Ask),
            ServerErrorKind::ReadOnly => Trouble::Not(NotExecuted::ReadOnly),
            ServerErrorKind::TryAgain => Trouble::Not(NotExecuted::TryAgain),
            ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading => {
                Trouble::Not(NotExecuted::Later(error.to_string().into()))
            }
            // Before Redis 7 an error of a command in a script comes as one of the script.
            ServerErrorKind::ResponseError
                if error
                    .detail()
                    .is_some_and(|detail| detail.contains("-READONLY")) =>
            {
                Trouble::Not(NotExecuted::ReadOnly)
            }
            _ => refused(error),
        }
    }

    fn redirected_to(&self, error: &RedisError) -> Option<Address> {
        let (node, _slot) = error.redirect_node()?;
        let (host, port) = node.rsplit_once(':')?;
        let asked = match &self.line.destination {
            Destination::Node(asked) => &*asked.host,
            Destination::Unix(_) | Destination::Primary { .. } => host,
        };
        Some(Address {
            host: known_host(host, asked).to_owned(),
            port: port.parse().ok()?,
        })
    }

    /// Sends the calls in one write and reads one answer each.
    async fn exchange(
        &mut self,
        calls: &[Call<'_>],
        loads_scripts: bool,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        let given = self.line.settings().given.as_ref();
        let commands: Vec<Cmd> = calls
            .iter()
            .filter_map(|call| call.command(given))
            .collect();
        if let ([command], [call]) = (&commands[..], calls)
            && !loads_scripts
            && !call.is_asking
        {
            return Ok(vec![told_apart(
                self.connection.send_packed_command(command).await,
            )?]);
        }
        // What is sent before a call, and whose answer says nothing that the call's does not.
        let mut pipeline = Pipeline::with_capacity(2 * commands.len());
        let mut is_call = Vec::with_capacity(2 * commands.len());
        if loads_scripts {
            for script in scripts(calls) {
                pipeline.cmd("SCRIPT").arg("LOAD").arg(&*script.text);
                is_call.push(false);
            }
        }
        for (call, command) in calls.iter().zip(commands) {
            if call.is_asking {
                pipeline.cmd("ASKING");
                is_call.push(false);
            }
            pipeline.add_command(command);
            is_call.push(true);
        }
        let values = self
            .connection
            .send_packed_commands(&pipeline, 0, is_call.len())
            .await?;
        let answers = is_call
            .into_iter()
            .zip(values)
            .filter(|(is_call, _)| *is_call);
        answers.map(|(_, value)| told_apart(Ok(value))).collect()
    }
}

/// The scripts of some calls, each once.
fn scripts<'a>(calls: &[Call<'a>]) -> Vec<&'a Script> {
    let mut scripts: Vec<&Script> = Vec::new();
    for script in calls.iter().filter_map(Call::script) {
        if scripts.iter().all(|known| known.sha != script.sha) {
            scripts.push(script);
        }
    }
    scripts
}

impl<'a> Call<'a> {
    fn script(&self) -> Option<&'a Script> {
        script(&self.asks, self.together.is_some())
    }

    fn command(&self, given: Option<&GivenTime>) -> Option<Cmd> {
        command(&self.asks, self.together.is_some(), given)
    }

    /// The answers, one an ask.
    fn read(&self, value: &Value) -> Result<Vec<Result<Answer, ReplyError>>, ReplyError> {
        reply::answers(&self.asks, self.together.is_some(), value)
    }

    fn fill(&self, outcomes: &mut [Option<Outcome>], outcome: &Outcome) {
        for place in &self.places {
            if let Some(slot) = outcomes.get_mut(*place) {
                *slot = Some(outcome.clone());
            }
        }
    }
}

/// A server's error is an answer; any other is none.
fn told_apart(result: Result<Value, RedisError>) -> Result<Result<Value, RedisError>, RedisError> {
    match result.and_then(Value::extract_error) {
        Ok(value) => Ok(Ok(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
            Ok(Err(error))
        }
        Err(error) => Err(error),
    }
}

fn is(error: &RedisError, kind: ServerErrorKind) -> bool {
    error.kind() == ErrorKind::Server(kind)
}

fn refused(error: &RedisError) -> Trouble {
    Trouble::Failed(AskError::Refused(error.to_string().into()))
}
