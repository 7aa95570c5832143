//! One RESP connection: reads commands, decides them and writes replies.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{CheckError, Key};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::batch::ThrottleBatch;
use super::command::{self, AfterCommand};
use super::frame::{self, Frame, Words};
use super::policy::{PolicyCommand, PolicyOperation};
use super::reply::{Replies, Version};
use super::throttle::{Throttle, ThrottleCommand};
use super::transaction::{QueuedCommand, Transaction, TransactionCommand};
use crate::auth::FAILED_AUTH_DELAY;
use crate::config::Scope;
use crate::inline::BucketArguments;
use crate::log::masked_key;
use crate::metrics::Protocol;
use crate::net::{Drain, Reservation, Stream};
use crate::server::{ActiveConfig, Server};

/// The size of the first read, and the maximum.
const FIRST_READ: usize = 4 * 1024;
const MAX_READ: usize = 64 * 1024;
/// The size of replies that are sent before more commands are decided.
const MAX_REPLIES: usize = 64 * 1024;

/// The maximum time to discard what a client still sends after the last reply.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// The client at the other end.
pub(super) struct Session {
    pub(super) id: i64,
    pub(super) version: Version,
    pub(super) name: Option<Vec<u8>>,
    pub(super) token: Option<Box<[u8]>>,
    /// Set if the client may check.
    may_check: bool,
    /// The number of wrong passwords.
    failures: u32,
    /// The commands since `MULTI`.
    transaction: Option<Transaction>,
}

/// The number of wrong passwords after which a client is disconnected. Commands that it has already
/// sent would keep the connection open.
const MAX_AUTH_FAILURES: u32 = 3;

impl Session {
    pub(super) fn new(id: i64) -> Self {
        Self {
            id,
            version: Version::Two,
            name: None,
            token: None,
            may_check: false,
            failures: 0,
            transaction: None,
        }
    }
}

/// A connection as a future that completes when it ends.
pub(super) struct RespConnection {
    session_future: Pin<Box<dyn Future<Output = ()> + Send>>,
    drain_signal: Arc<DrainSignal>,
}

/// The signal to drain.
#[derive(Default)]
struct DrainSignal {
    is_set: AtomicBool,
    notify: Notify,
}

impl RespConnection {
    pub(super) fn new(server: Arc<Server>, stream: Stream) -> Self {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let drain_signal = Arc::new(DrainSignal::default());
        let session = Session::new(NEXT.fetch_add(1, Ordering::Relaxed));
        let held = server.commands.held();
        let session_loop = RespSession {
            server,
            stream,
            session,
            replies: Replies::default(),
            input: Vec::new(),
            held,
        };
        let known = Arc::clone(&drain_signal);
        Self {
            session_future: Box::pin(async move { session_loop.run(&known).await }),
            drain_signal,
        }
    }
}

impl Future for RespConnection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.session_future.as_mut().poll(context)
    }
}

impl Drain for RespConnection {
    fn drain(&mut self) {
        self.drain_signal.is_set.store(true, Ordering::Relaxed);
        self.drain_signal.notify.notify_one();
    }
}

struct RespSession {
    server: Arc<Server>,
    stream: Stream,
    session: Session,
    input: Vec<u8>,
    /// The reservation of `input` in the budget of all connections.
    held: Reservation,
    replies: Replies,
}

/// The input bytes that a connection may have without using the budget.
const FREE: usize = 16 * 1024;

/// The maximum size of a command before a client is authenticated.
const MAX_UNAUTHENTICATED: usize = 4 * 1024;

impl RespSession {
    async fn run(mut self, drain_signal: &DrainSignal) {
        let mut chunk = FIRST_READ;
        let mut ended = std::pin::pin!(drain_signal.notify.notified());
        loop {
            // Without room in the budget, commands are read in smaller parts.
            if chunk > FREE
                && !self
                    .held
                    .resize((self.input.len() + chunk).saturating_sub(FREE))
            {
                chunk = FREE;
            }
            self.input.reserve(chunk);
            let room = self.input.capacity() - self.input.len();
            // Commands that have arrived are answered, and no more, however much the client sends.
            let is_last = drain_signal.is_set.load(Ordering::Relaxed);
            let read = tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => read,
                () = &mut ended => return self.end().await,
            };
            match read {
                Ok(0) | Err(_) => return,
                Ok(read) if read == room && self.session.may_check => {
                    chunk = MAX_READ.min(chunk * 2)
                }
                Ok(_) => {}
            }
            let answered = self.answer();
            #[cfg(feature = "otel")]
            let answered = tracing::Instrument::instrument(answered, crate::trace::pipeline());
            match answered.await {
                AfterCommand::Close => return self.end().await,
                AfterCommand::DrainAndClose => return self.drain_and_close().await,
                AfterCommand::Continue if is_last => return self.drain_and_close().await,
                AfterCommand::Continue => {}
            }
        }
    }

    /// Ends the connection so that the replies arrive.
    async fn end(mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Like [`end`](Self::end), for a client that is still sending.
    async fn drain_and_close(mut self) {
        self.stream.timeouts().start_discarding();
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, self.stream.shutdown()).await;
    }

    /// Answers all commands that have arrived completely.
    async fn answer(&mut self) -> AfterCommand {
        let server = Arc::clone(&self.server);
        let active = Arc::clone(&server.active());
        let begun = server.clock.now();
        let input = std::mem::take(&mut self.input);
        self.session.may_check = self.session.may(&active, Scope::Check);
        let mut batch = ThrottleBatch {
            server: &server,
            commands: SmallVec::new(),
        };
        let (mut at, mut count) = (0, 0);
        let then = loop {
            match frame::read(&input[at..]) {
                Frame::Partial => break AfterCommand::Continue,
                Frame::Nothing(length) => at += length,
                Frame::Command(words, length) => {
                    let begin = at;
                    at += length;
                    count += 1;
                    self.stream.timeouts().begin();
                    let is_line = input.get(begin) != Some(&b'*');
                    match self.command(words, is_line, &mut batch, &active).await {
                        AfterCommand::Continue => {}
                        then => break then,
                    }
                }
                Frame::Bad(text) => {
                    batch.flush(&mut self.replies).await;
                    server.metrics.refused(Protocol::Resp);
                    self.replies.error(&format!("ERR {text}"));
                    break AfterCommand::DrainAndClose;
                }
            }
            if self.replies.bytes.len() + batch.expected() > MAX_REPLIES {
                batch.flush(&mut self.replies).await;
                if self.send().await.is_err() {
                    return AfterCommand::Close;
                }
            }
        };
        batch.flush(&mut self.replies).await;
        if at > 0 {
            self.stream.timeouts().end();
        }
        drop(batch);
        let after = server
            .clock
            .now()
            .as_nanos()
            .saturating_sub(begun.as_nanos());
        server
            .metrics
            .answered(Protocol::Resp, count, Duration::from_nanos(after));
        let is_sent = self.send().await.is_ok();
        // A client that reads slowly has not started to send slowly.
        self.keep_rest(input, at);
        match then {
            _ if !is_sent => AfterCommand::Close,
            AfterCommand::Continue => self.bound().await,
            then => then,
        }
    }

    /// Rejects a command that is too large.
    async fn bound(&mut self) -> AfterCommand {
        let text = if !self.session.may_check && self.input.len() >= MAX_UNAUTHENTICATED {
            "ERR Protocol error: too big request before authentication"
        } else if !self.has_room() {
            "ERR too many commands are in progress"
        } else {
            return AfterCommand::Continue;
        };
        self.server.metrics.refused(Protocol::Resp);
        self.replies.error(text);
        let _ = self.send().await;
        AfterCommand::DrainAndClose
    }

    /// Returns `true` if there is room for the next command so far.
    fn has_room(&mut self) -> bool {
        if self.held.resize(self.input.capacity().saturating_sub(FREE)) {
            return true;
        }
        self.input.shrink_to(FREE);
        self.held.resize(self.input.capacity().saturating_sub(FREE))
    }

    /// Keeps the start of the next command.
    fn keep_rest(&mut self, mut input: Vec<u8>, at: usize) {
        if at == input.len() {
            input.clear();
            // A client that sent much keeps no room while it is idle.
            if input.capacity() > FIRST_READ {
                input = Vec::new();
            }
        } else if at > 0 {
            input.drain(..at);
            self.stream.timeouts().next_request_started();
        }
        self.input = input;
    }

    async fn command<'i>(
        &mut self,
        words: Words<'i>,
        is_line: bool,
        batch: &mut ThrottleBatch<'_, 'i>,
        active: &ActiveConfig,
    ) -> AfterCommand {
        if is_line && !is_plain_command(&words) {
            batch.flush(&mut self.replies).await;
            self.server.metrics.refused(Protocol::Resp);
            self.replies
                .error("ERR Protocol error: expected a Redis client");
            return AfterCommand::DrainAndClose;
        }
        if let Some(command) = TransactionCommand::of(words[0]) {
            batch.flush(&mut self.replies).await;
            self.transact(command, &words, active).await;
            return AfterCommand::Continue;
        }
        let is_ending = [&b"QUIT"[..], b"RESET"]
            .iter()
            .any(|name| name.eq_ignore_ascii_case(words[0]));
        if self.session.transaction.is_some() && !is_ending {
            self.queue(&words, active);
            return AfterCommand::Continue;
        }
        self.run_command(words, is_line, batch, active).await
    }

    /// Runs `MULTI`, `EXEC` or `DISCARD`.
    async fn transact(
        &mut self,
        command: TransactionCommand,
        words: &Words<'_>,
        active: &ActiveConfig,
    ) {
        let at = self.replies.bytes.len();
        let transaction = self.session.transaction.take();
        match (command, transaction) {
            _ if !self.session.may_check => self.replies.error(self.session.not_for_checks()),
            (_, open) if words.len() > 1 => {
                self.session.transaction = open;
                self.replies.error("ERR wrong number of arguments");
            }
            (TransactionCommand::Multi, None) => {
                self.session.transaction = Some(Transaction::default());
                self.replies.ok();
            }
            (TransactionCommand::Multi, open) => {
                self.session.transaction = open;
                self.replies.error("ERR MULTI calls can not be nested");
            }
            (TransactionCommand::Discard, Some(_)) => self.replies.ok(),
            (TransactionCommand::Discard, None) => self.replies.error("ERR DISCARD without MULTI"),
            (TransactionCommand::Exec, None) => self.replies.error("ERR EXEC without MULTI"),
            (TransactionCommand::Exec, Some(open)) => match open.into_commands() {
                None => self
                    .replies
                    .error("EXECABORT Transaction discarded because of previous errors."),
                Some(commands) => return self.execute(&commands, active).await,
            },
        }
        if self.replies.bytes.get(at) == Some(&b'-') {
            self.server.metrics.refused(Protocol::Resp);
        }
    }

    /// Runs the commands of a transaction in order.
    async fn execute(&mut self, commands: &[QueuedCommand], active: &ActiveConfig) {
        self.replies.array(commands.len());
        let server = Arc::clone(&self.server);
        for command in commands {
            let words: Words<'_> = command.iter().map(|word| &**word).collect();
            let mut batch = ThrottleBatch {
                server: &server,
                commands: SmallVec::new(),
            };
            self.run_command(words, false, &mut batch, active).await;
            batch.flush(&mut self.replies).await;
        }
    }

    /// Queues a command of a transaction, or aborts the transaction if the command is invalid.
    fn queue(&mut self, words: &Words<'_>, active: &ActiveConfig) {
        let checked = if let Some(command) = ThrottleCommand::of(words[0]) {
            Throttle::read(command, words, &active.gate).map(drop)
        } else if let Some(operation) = PolicyOperation::of(words[0]) {
            PolicyCommand::read(operation, words, &active.gate).map(drop)
        } else if command::is_known(words[0]) || words[0].eq_ignore_ascii_case(b"DEL") {
            Ok(())
        } else {
            Err(command::unknown_text(words))
        };
        let queued = match (&mut self.session.transaction, checked) {
            (None, _) => return,
            (Some(transaction), Err(text)) => {
                transaction.abort();
                Err(text)
            }
            (Some(transaction), Ok(())) => transaction.queue(words).map_err(str::to_owned),
        };
        match queued {
            Ok(()) => self.replies.simple("QUEUED"),
            Err(text) => {
                self.server.metrics.refused(Protocol::Resp);
                self.replies.error(&text);
            }
        }
    }

    /// Runs a command outside or at the end of a transaction.
    async fn run_command<'i>(
        &mut self,
        words: Words<'i>,
        is_line: bool,
        batch: &mut ThrottleBatch<'_, 'i>,
        active: &ActiveConfig,
    ) -> AfterCommand {
        if let Some(command) = ThrottleCommand::of(words[0]) {
            let read = match self.session.may_check {
                true => Throttle::read(command, &words, &active.gate),
                false => Err(self.session.not_for_checks().to_owned()),
            };
            match read {
                Ok(throttle) => batch.commands.push(throttle),
                Err(text) => {
                    batch.flush(&mut self.replies).await;
                    self.server.metrics.refused(Protocol::Resp);
                    self.replies.error(&text);
                }
            }
            return AfterCommand::Continue;
        }
        batch.flush(&mut self.replies).await;
        let at = self.replies.bytes.len();
        let then = if words[0].eq_ignore_ascii_case(b"DEL") {
            self.delete(&words[1..], active).await;
            AfterCommand::Continue
        } else if let Some(operation) = PolicyOperation::of(words[0]) {
            self.on_policy(operation, &words, active).await;
            AfterCommand::Continue
        } else {
            command::answer(&words, &mut self.session, active, &mut self.replies)
        };
        // The command may have authenticated the client.
        self.session.may_check = self.session.may(active, Scope::Check);
        if self.replies.bytes.get(at) == Some(&b'-') {
            self.server.metrics.refused(Protocol::Resp);
        }
        if is_line
            && self
                .replies
                .bytes
                .get(at..)
                .is_some_and(|reply| reply.starts_with(b"-ERR unknown command"))
        {
            return AfterCommand::DrainAndClose;
        }
        if self
            .replies
            .bytes
            .get(at..)
            .is_some_and(|reply| reply.starts_with(b"-WRONGPASS"))
        {
            tokio::time::sleep(FAILED_AUTH_DELAY).await;
            self.session.failures += 1;
        }
        if self.session.failures >= MAX_AUTH_FAILURES {
            AfterCommand::DrainAndClose
        } else {
            then
        }
    }

    /// Runs a command on a named policy.
    async fn on_policy(
        &mut self,
        operation: PolicyOperation,
        words: &Words<'_>,
        active: &ActiveConfig,
    ) {
        let permitted = match operation {
            PolicyOperation::Reset => self.session.may_reset(active),
            PolicyOperation::Refund if !self.session.may(active, Scope::Refund) => {
                Err(self.session.not_for_refunds())
            }
            _ if !self.session.may_check => Err(self.session.not_for_checks()),
            _ => Ok(()),
        };
        if let Err(text) = permitted {
            return self.replies.error(text);
        }
        let command = match PolicyCommand::read(operation, words, &active.gate) {
            Ok(command) => command,
            Err(text) => return self.replies.error(&text),
        };
        let version = self.session.version;
        match command
            .run(&self.server, &active.gate, version, &mut self.replies)
            .await
        {
            Ok(was_used) if operation == PolicyOperation::Reset => {
                let (policy, key) = (command.policy, masked_key(command.key));
                let caller = self.stream.timeouts().peer();
                tracing::info!(policy, key, %caller, was_used, "key reset");
            }
            Ok(_) => {}
            Err(error) => self.replies.error(&format!("ERR {error}")),
        }
    }

    /// `DEL key …`: deletes the usage of keys.
    async fn delete(&mut self, keys: &[&[u8]], active: &ActiveConfig) {
        if let Err(text) = self.session.may_reset(active) {
            return self.replies.error(text);
        }
        if keys.is_empty() {
            return self
                .replies
                .error("ERR wrong number of arguments for 'del' command");
        }
        match reset_keys(keys, active).await {
            Ok(reset) => {
                let key = keys.first().map(|key| masked_key(key)).unwrap_or_default();
                let caller = self.stream.timeouts().peer();
                tracing::info!(keys = keys.len(), reset, key, %caller, "keys reset by DEL");
                self.replies.integer(reset);
            }
            Err(error) => self.replies.error(&format!("ERR {error}")),
        }
    }

    async fn send(&mut self) -> std::io::Result<()> {
        if self.replies.bytes.is_empty() {
            return Ok(());
        }
        self.stream.write_all(&self.replies.bytes).await?;
        self.replies.bytes.clear();
        if self.replies.bytes.capacity() > FIRST_READ {
            self.replies.bytes = Vec::new();
        }
        self.stream.flush().await
    }
}

/// Returns `false` for a line that no person types: HTTP or TLS, which a web page makes a browser
/// send to this port. The lines after it may look like commands, so the connection is closed, as it
/// is after a line with an unknown command.
fn is_plain_command(words: &Words<'_>) -> bool {
    let is_http = words.len() > 2 && words.last().is_some_and(|word| word.starts_with(b"HTTP/"));
    let is_text = |word: &&[u8]| {
        word.iter()
            .all(|byte| !byte.is_ascii_control() && byte.is_ascii())
    };
    !is_http && words.iter().all(is_text)
}

async fn reset_keys(keys: &[&[u8]], active: &ActiveConfig) -> Result<i64, CheckError> {
    for key in keys {
        Key::new(key)?;
    }
    // A key has one bucket, whatever its rate, so any numbers will do.
    let any = BucketArguments {
        burst: 1,
        count: 1,
        period: Duration::from_secs(1),
    };
    let Ok(limiter) = any.find(&active.gate) else {
        return Ok(0);
    };
    let mut reset = 0;
    for key in keys {
        reset += i64::from(limiter.reset(key).await?);
    }
    Ok(reset)
}
