//! One round trip to a node: sends calls in one write, handles NOSCRIPT, and parses the replies.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, timeout_at};

use super::Batch;
use super::call::{Call, group};
use super::send_error::{SendError, SendResult, from_server};
use crate::dial::Destination;
use crate::operation::ManualTime;
use crate::script::Script;
use std::sync::Arc;

/// The number of times that missing scripts are loaded. Another client may be flushing them.
const MAX_SCRIPT_LOADS: usize = 5;

/// A round trip on a connection.
pub(super) struct RoundTrip<'a> {
    pub(super) connection: &'a mut MultiplexedConnection,
    pub(super) is_cluster: bool,
    pub(super) destination: &'a Destination,
    pub(super) manual_time: Option<&'a ManualTime>,
}

/// The end of a round trip.
pub(super) enum TripEnd {
    Answered,
    /// The connection broke. It is unknown whether operations without a result were executed.
    Disconnected(Arc<str>),
    /// There was no answer in time. It is unknown whether operations without a result were executed.
    TimedOut,
}

impl RoundTrip<'_> {
    /// Sends batches and stores one result per operation, as far as they are known.
    pub(super) async fn run(
        &mut self,
        batches: &[&Batch],
        deadline: Instant,
        results: &mut [Option<SendResult>],
    ) -> TripEnd {
        let calls = group(batches, self.is_cluster);
        match timeout_at(deadline, self.execute(calls, results)).await {
            Ok(Ok(())) => TripEnd::Answered,
            Ok(Err(error)) => TripEnd::Disconnected(error.to_string().into()),
            Err(_) => TripEnd::TimedOut,
        }
    }

    /// Executes calls. A call that fails with NOSCRIPT was not executed: its script is loaded, and
    /// the call is repeated.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection broke.
    async fn execute(
        &mut self,
        mut calls: Vec<Call<'_>>,
        results: &mut [Option<SendResult>],
    ) -> Result<(), RedisError> {
        for load in 0..=MAX_SCRIPT_LOADS {
            let replies = self.exchange(&calls, load > 0).await?;
            let mut without_script = Vec::new();
            for (call, reply) in calls.into_iter().zip(replies) {
                if load < MAX_SCRIPT_LOADS && reply.as_ref().is_err_and(is_noscript) {
                    without_script.push(call);
                } else {
                    self.store(&call, reply, results);
                }
            }
            if without_script.is_empty() {
                break;
            }
            calls = without_script;
        }
        Ok(())
    }

    fn store(
        &self,
        call: &Call<'_>,
        reply: Result<Value, RedisError>,
        results: &mut [Option<SendResult>],
    ) {
        let failed = |error: crate::error::ReplyError| SendError::Failed(error.into());
        match reply {
            Err(error) => {
                call.store_all(results, &Err(from_server(&error, self.destination)));
            }
            Ok(value) => match call.parse(&value) {
                Ok(own) => {
                    call.store(results, own.into_iter().map(|one| one.map_err(failed)));
                }
                Err(error) => call.store_all(results, &Err(failed(error))),
            },
        }
    }

    /// Sends calls in one write and returns one reply each.
    async fn exchange(
        &mut self,
        calls: &[Call<'_>],
        loads_scripts: bool,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        let commands: Vec<Cmd> = calls
            .iter()
            .filter_map(|call| call.command(self.manual_time))
            .collect();
        if let ([command], [call]) = (&commands[..], calls)
            && !loads_scripts
            && !call.is_asking
        {
            let reply = self.connection.send_packed_command(command).await;
            return Ok(vec![server_error_as_reply(reply)?]);
        }
        // Some commands precede a call, and their replies say nothing that the call's does not.
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
        let connection = &mut self.connection;
        let values = connection
            .send_packed_commands(&pipeline, 0, is_call.len())
            .await?;
        let replies = is_call
            .into_iter()
            .zip(values)
            .filter(|(is_call, _)| *is_call);
        replies
            .map(|(_, value)| server_error_as_reply(Ok(value)))
            .collect()
    }
}

/// Returns the scripts of some calls, each once.
fn scripts<'a>(calls: &[Call<'a>]) -> Vec<&'a Script> {
    let mut scripts: Vec<&Script> = Vec::new();
    for script in calls.iter().filter_map(Call::script) {
        if scripts.iter().all(|known| known.sha != script.sha) {
            scripts.push(script);
        }
    }
    scripts
}

/// Separates an error that the server sent, which is a reply, from a broken connection.
fn server_error_as_reply(
    result: Result<Value, RedisError>,
) -> Result<Result<Value, RedisError>, RedisError> {
    match result.and_then(Value::extract_error) {
        Ok(value) => Ok(Ok(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
            Ok(Err(error))
        }
        Err(error) => Err(error),
    }
}

fn is_noscript(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
