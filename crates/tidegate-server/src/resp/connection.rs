//! One connection: bytes in, commands decided, replies out.

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

use super::batch::Batch;
use super::command::{self, Then};
use super::frame::{self, Frame, Words};
use super::reply::{Replies, Version};
use super::throttle::{Form, Throttle};
use crate::auth::FAILED_AUTH_DELAY;
use crate::config::Scope;
use crate::inline::BucketNumbers;
use crate::metrics::Spoken;
use crate::net::{Drains, Held, Stream};
use crate::server::{Live, Server};

/// What is read at a time, at first and at most.
const FIRST_READ: usize = 4 * 1024;
const MOST_READ: usize = 64 * 1024;
/// Replies that are sent before more is decided.
const MOST_REPLIES: usize = 64 * 1024;

/// Of what a client goes on sending after the last reply, so much is read.
const MOST_UNREAD: usize = 8 << 20;
/// And for so long.
const UNREAD_PATIENCE: Duration = Duration::from_secs(1);

/// Who is at the other end.
pub(super) struct Session {
    pub(super) id: i64,
    pub(super) version: Version,
    pub(super) name: Option<Vec<u8>>,
    pub(super) token: Option<Box<[u8]>>,
    /// Whether it may ask for checks, as long as nothing else is said.
    may_check: bool,
    /// Wrong passwords so far.
    failures: u32,
}

/// A client that has shown so many wrong passwords is disconnected: what it has sent beyond them would keep the connection.
const MOST_FAILURES: u32 = 3;

impl Session {
    pub(super) fn new(id: i64) -> Self {
        Self {
            id,
            version: Version::Two,
            name: None,
            token: None,
            may_check: false,
            failures: 0,
        }
    }
}

/// A connection, as a future that ends when it does.
pub(super) struct Connection {
    talking: Pin<Box<dyn Future<Output = ()> + Send>>,
    ending: Arc<Ending>,
}

/// The end, and who waits for it.
#[derive(Default)]
struct Ending {
    has_begun: AtomicBool,
    begins: Notify,
}

impl Connection {
    pub(super) fn new(server: Arc<Server>, stream: Stream) -> Self {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let ending = Arc::new(Ending::default());
        let session = Session::new(NEXT.fetch_add(1, Ordering::Relaxed));
        let held = server.commands.held();
        let talk = Talk {
            server,
            stream,
            session,
            replies: Replies::default(),
            input: Vec::new(),
            held,
        };
        let known = Arc::clone(&ending);
        Self {
            talking: Box::pin(async move { talk.run(&known).await }),
            ending,
        }
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.talking.as_mut().poll(context)
    }
}

impl Drains for Connection {
    fn drain(&mut self) {
        self.ending.has_begun.store(true, Ordering::Relaxed);
        self.ending.begins.notify_one();
    }
}

struct Talk {
    server: Arc<Server>,
    stream: Stream,
    session: Session,
    input: Vec<u8>,
    /// The part of `input` in the budget for all connections.
    held: Held,
    replies: Replies,
}

/// Bytes that a connection may have of its own. Beyond that they come out of the budget for all.
const FREE: usize = 16 * 1024;

/// Bytes of a command that is read before a client has authenticated.
const MOST_UNAUTHENTICATED: usize = 4 * 1024;

impl Talk {
    async fn run(mut self, ending: &Ending) {
        let mut chunk = FIRST_READ;
        let mut ended = std::pin::pin!(ending.begins.notified());
        loop {
            // Where there is no room for more at a time, commands are read in smaller parts.
            if chunk > FREE
                && !self
                    .held
                    .resize((self.input.len() + chunk).saturating_sub(FREE))
            {
                chunk = FREE;
            }
            self.input.reserve(chunk);
            let room = self.input.capacity() - self.input.len();
            // What has come by the end is answered, and no more, however much is sent.
            let is_last = ending.has_begun.load(Ordering::Relaxed);
            let read = tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => read,
                () = &mut ended => return self.end().await,
            };
            match read {
                Ok(0) | Err(_) => return,
                Ok(read) if read == room && self.session.may_check => {
                    chunk = MOST_READ.min(chunk * 2)
                }
                Ok(_) => {}
            }
            let answered = self.answer();
            #[cfg(feature = "otel")]
            let answered = tracing::Instrument::instrument(answered, crate::trace::pipeline());
            match answered.await {
                Then::Close => return self.end().await,
                Then::CloseUnread => return self.end_unread().await,
                Then::GoOn if is_last => return self.end_unread().await,
                Then::GoOn => {}
            }
        }
    }

    /// Ends the connection so that what was answered arrives.
    async fn end(mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// The same for a client that is still sending: that is read, up to a bound, as a connection that is closed over bytes
    /// that nobody has read is reset, and takes replies with it.
    async fn end_unread(mut self) {
        let reading = async {
            self.stream.shutdown().await?;
            let mut left = MOST_UNREAD;
            while left > 0 {
                self.input.clear();
                match self.stream.read_buf(&mut self.input).await? {
                    0 => break,
                    read => left = left.saturating_sub(read),
                }
            }
            Ok::<(), std::io::Error>(())
        };
        let _ = tokio::time::timeout(UNREAD_PATIENCE, reading).await;
    }

    /// Answers all commands that have come whole.
    async fn answer(&mut self) -> Then {
        let server = Arc::clone(&self.server);
        let live = Arc::clone(&server.live());
        let begun = server.clock.now();
        let input = std::mem::take(&mut self.input);
        self.session.may_check = self.session.may(&live, Scope::Check);
        let mut batch = Batch {
            server: &server,
            asked: SmallVec::new(),
        };
        let (mut at, mut count) = (0, 0);
        let then = loop {
            match frame::read(&input[at..]) {
                Frame::Partial => break Then::GoOn,
                Frame::Nothing(length) => at += length,
                Frame::Command(words, length) => {
                    let begin = at;
                    at += length;
                    count += 1;
                    self.stream.watch().begin();
                    let is_line = input.get(begin) != Some(&b'*');
                    match self.command(words, is_line, &mut batch, &live).await {
                        Then::GoOn => {}
                        then => break then,
                    }
                }
                Frame::Bad(text) => {
                    batch.flush(&mut self.replies).await;
                    server.metrics.refused(Spoken::Resp);
                    self.replies.error(&format!("ERR {text}"));
                    break Then::CloseUnread;
                }
            }
            if self.replies.bytes.len() + batch.expected() > MOST_REPLIES {
                batch.flush(&mut self.replies).await;
                if self.send().await.is_err() {
                    return Then::Close;
                }
            }
        };
        batch.flush(&mut self.replies).await;
        if at > 0 {
            self.stream.watch().end();
        }
        drop(batch);
        let after = server
            .clock
            .now()
            .as_nanos()
            .saturating_sub(begun.as_nanos());
        server
            .metrics
            .answered(Spoken::Resp, count, Duration::from_nanos(after));
        let is_sent = self.send().await.is_ok();
        // Who is slow to read these has not begun to be slow to ask.
        self.keep_rest(input, at);
        match then {
            _ if !is_sent => Then::Close,
            Then::GoOn => self.bound().await,
            then => then,
        }
    }

    /// Ends a connection whose command takes more room than there is for it.
    async fn bound(&mut self) -> Then {
        let text = if !self.session.may_check && self.input.len() >= MOST_UNAUTHENTICATED {
            "ERR Protocol error: too big request before authentication"
        } else if !self.has_room() {
            "ERR too many commands are on their way at a time"
        } else {
            return Then::GoOn;
        };
        self.server.metrics.refused(Spoken::Resp);
        self.replies.error(text);
        let _ = self.send().await;
        Then::CloseUnread
    }

    /// Returns true if there is room for what has come of the next command.
    fn has_room(&mut self) -> bool {
        if self.held.resize(self.input.capacity().saturating_sub(FREE)) {
            return true;
        }
        self.input.shrink_to(FREE);
        self.held.resize(self.input.capacity().saturating_sub(FREE))
    }

    /// What has come of the next command.
    fn keep_rest(&mut self, mut input: Vec<u8>, at: usize) {
        if at == input.len() {
            input.clear();
            // Who has asked for much is not kept room for while they ask for nothing.
            if input.capacity() > FIRST_READ {
                input = Vec::new();
            }
        } else if at > 0 {
            input.drain(..at);
            self.stream.watch().has_begun();
        }
        self.input = input;
    }

    async fn command<'i>(
        &mut self,
        words: Words<'i>,
        is_line: bool,
        batch: &mut Batch<'_, 'i>,
        live: &Live,
    ) -> Then {
        if is_line && !is_typed(&words) {
            batch.flush(&mut self.replies).await;
            self.server.metrics.refused(Spoken::Resp);
            self.replies
                .error("ERR this is neither RESP nor a command: expected a Redis client");
            return Then::CloseUnread;
        }
        if let Some(form) = Form::of(words[0]) {
            let read = match self.session.may_check {
                true => Throttle::read(form, &words, &live.gate),
                false => Err(self.session.not_for_checks().to_owned()),
            };
            match read {
                Ok(throttle) => batch.asked.push(throttle),
                Err(text) => {
                    batch.flush(&mut self.replies).await;
                    self.server.metrics.refused(Spoken::Resp);
                    self.replies.error(&text);
                }
            }
            return Then::GoOn;
        }
        batch.flush(&mut self.replies).await;
        let at = self.replies.bytes.len();
        let then = if words[0].eq_ignore_ascii_case(b"DEL") {
            self.delete(&words[1..], live).await;
            Then::GoOn
        } else {
            command::answer(&words, &mut self.session, live, &mut self.replies)
        };
        // It may have said who is there.
        self.session.may_check = self.session.may(live, Scope::Check);
        if self.replies.bytes.get(at) == Some(&b'-') {
            self.server.metrics.refused(Spoken::Resp);
        }
        if is_line
            && self
                .replies
                .bytes
                .get(at..)
                .is_some_and(|reply| reply.starts_with(b"-ERR unknown command"))
        {
            return Then::CloseUnread;
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
        if self.session.failures >= MOST_FAILURES {
            Then::CloseUnread
        } else {
            then
        }
    }

    /// `DEL key …`: forgets what keys have used.
    async fn delete(&mut self, keys: &[&[u8]], live: &Live) {
        if let Err(text) = self.session.may_reset(live) {
            return self.replies.error(text);
        }
        if keys.is_empty() {
            return self
                .replies
                .error("ERR wrong number of arguments for 'del' command");
        }
        match forget(keys, live).await {
            Ok(()) => {
                tracing::info!(keys = keys.len(), "keys were reset by DEL");
                self.replies
                    .integer(i64::try_from(keys.len()).unwrap_or(i64::MAX));
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

/// Returns false for a line that no person types: HTTP or TLS, which a web page makes a browser speak to this port. The lines
/// after it may look like commands, so the connection is closed, as it is after a line with an unknown command.
fn is_typed(words: &Words<'_>) -> bool {
    let is_http = words.len() > 2 && words.last().is_some_and(|word| word.starts_with(b"HTTP/"));
    let is_text = |word: &&[u8]| {
        word.iter()
            .all(|byte| !byte.is_ascii_control() && byte.is_ascii())
    };
    !is_http && words.iter().all(is_text)
}

async fn forget(keys: &[&[u8]], live: &Live) -> Result<(), CheckError> {
    for key in keys {
        Key::new(key)?;
    }
    // A key has one bucket, whatever its rate: any will do.
    let any = BucketNumbers {
        burst: 1,
        count: 1,
        period: Duration::from_secs(1),
    };
    let Ok(limiter) = any.find(&live.gate) else {
        return Ok(());
    };
    for key in keys {
        limiter.reset(key).await?;
    }
    Ok(())
}
