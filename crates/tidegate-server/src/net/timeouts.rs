//! The phase of a connection and its start, so that one timer per connection is enough.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{Clock, Timestamp};
use tokio::sync::Semaphore;

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeoutSettings {
    pub(crate) head: Duration,
    pub(crate) idle: Duration,
    pub(crate) write: Duration,
    /// The time that an idle connection is kept at shutdown: its client may be sending a request.
    pub(crate) linger: Duration,
    /// Set if the connection may be HTTP/2.
    pub(crate) may_be_http2: bool,
    /// The age at which the connection is asked to end.
    pub(crate) max_age: Option<Duration>,
}

/// The phase of a connection. Shared by its stream, which sees bytes, its service, which sees
/// requests, and its timer.
pub(crate) struct Timeouts {
    clock: Clock,
    phase: AtomicU8,
    since: AtomicU64,
    /// The time since when the client has left a response unread; 0 if it has not.
    unread_since: AtomicU64,
    /// Responses that the client has not read, their bytes, and the time since when it has read
    /// none.
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    pending_since: AtomicU64,
    /// Set if the client may still be sending a request that is no longer read.
    is_discarding: AtomicBool,
    /// Permits for operations on a remote store that are in flight.
    in_flight: Semaphore,
    /// Set if the client is connected to a loopback address.
    is_local: bool,
    /// The address of the client.
    peer: SocketAddr,
    times: TimeoutSettings,
}

/// The maximum number of operations on a remote store that one connection may have in flight.
const MAX_IN_FLIGHT: usize = 64;

/// No request.
const IDLE: u8 = 0;
/// A request has started to arrive.
const HEAD: u8 = 1;
/// A request is being answered.
const BUSY: u8 = 2;
/// HTTP/2: only a long time without a request ends the connection.
const MANY: u8 = 3;
/// No byte has arrived.
const NEW: u8 = 4;

/// The HTTP/2 preface. If it arrives in pieces, the first request tells.
const HTTP2_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl Timeouts {
    pub(crate) fn new(times: TimeoutSettings, is_local: bool, peer: SocketAddr) -> Self {
        let clock = Clock::system();
        let since = AtomicU64::new(clock.now().as_nanos());
        Self {
            clock,
            phase: AtomicU8::new(NEW),
            since,
            unread_since: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            pending_bytes: AtomicUsize::new(0),
            pending_since: AtomicU64::new(0),
            is_discarding: AtomicBool::new(false),
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            is_local,
            peer,
            times,
        }
    }

    /// Returns the address of the client.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns `true` if the client is connected to a loopback address.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns the permits for operations on a remote store.
    pub(crate) fn in_flight(&self) -> &Semaphore {
        &self.in_flight
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.since
            .store(self.clock.now().as_nanos(), Ordering::Relaxed);
    }

    /// Records bytes that were read.
    pub(super) fn has_read(&self, bytes: &[u8]) {
        match self.phase.load(Ordering::Relaxed) {
            NEW if self.times.may_be_http2 && bytes.starts_with(HTTP2_BEGINS) => self.enter(MANY),
            NEW | IDLE if !bytes.is_empty() => self.enter(HEAD),
            // Other bytes on HTTP/2, such as replies to pings, are not requests.
            _ => {}
        }
    }

    /// Records whether a write was accepted, or blocked because the client has not read earlier
    /// bytes.
    pub(super) fn has_written(&self, is_taken: bool) {
        let unread = &self.unread_since;
        if is_taken {
            if unread.load(Ordering::Relaxed) != 0 {
                unread.store(0, Ordering::Relaxed);
            }
        } else if unread.load(Ordering::Relaxed) == 0 {
            unread.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        }
    }

    /// Returns the bytes of responses that the client has not read.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Changes the bytes of a response. Returns `false` if all responses together would exceed
    /// `most`.
    pub(crate) fn resize_pending(&self, from: usize, to: usize, most: usize) -> bool {
        let resized = |bytes: usize| {
            bytes
                .checked_sub(from)?
                .checked_add(to)
                .filter(|bytes| *bytes <= most)
        };
        self.pending_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, resized)
            .is_ok()
    }

    /// Records a response that is about to be sent.
    pub(crate) fn response_pending(&self) {
        if self.pending.fetch_add(1, Ordering::Relaxed) == 0 {
            self.pending_since
                .store(self.clock.now().as_nanos(), Ordering::Relaxed);
        }
    }

    /// Records that the client has read a response, or that it was dropped.
    pub(crate) fn response_taken(&self, bytes: usize) {
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.pending_since
            .store(self.clock.now().as_nanos(), Ordering::Relaxed);
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records a request on HTTP/2.
    pub(crate) fn begin_http2(&self) {
        self.enter(MANY);
    }

    /// Records that a request has arrived completely.
    pub(crate) fn begin(&self) {
        if self.is_discarding() {
            self.is_discarding.store(false, Ordering::Relaxed);
        }
        if self.phase.load(Ordering::Relaxed) != MANY {
            self.phase.store(BUSY, Ordering::Relaxed);
        }
    }

    /// Records that the request is answered.
    pub(crate) fn end(&self) {
        self.enter(if self.is_http2() { MANY } else { IDLE });
    }

    pub(super) fn max_age(&self) -> Option<Duration> {
        self.times.max_age
    }

    pub(super) fn linger(&self) -> Duration {
        if self.is_http2() {
            Duration::ZERO
        } else {
            self.times.linger
        }
    }

    /// Records that a request was answered before all of it was read. An HTTP/1.1 connection ends
    /// then; an HTTP/2 stream ends on its own.
    pub(crate) fn start_discarding(&self) {
        if !self.is_http2() {
            self.is_discarding.store(true, Ordering::Relaxed);
        }
    }

    /// Returns `true` if the client may still be sending a request that is no longer read.
    pub(crate) fn is_discarding(&self) -> bool {
        self.is_discarding.load(Ordering::Relaxed)
    }

    /// Records that the next request has started to arrive, together with the end of the last.
    pub(crate) fn next_request_started(&self) {
        self.enter(HEAD);
    }

    /// Returns `true` for an HTTP/2 connection.
    pub(crate) fn is_http2(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == MANY
    }

    /// Returns the time left in the current phase, or `None` if it has run out.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let now = self.clock.now();
        let left = |since: u64, allowed: Duration| {
            let until = Timestamp::from_nanos(since).saturating_add(allowed);
            (until > now).then(|| Duration::from_nanos(until.as_nanos() - now.as_nanos()))
        };
        let since = self.since.load(Ordering::Relaxed);
        let left_of_phase = match self.phase.load(Ordering::Relaxed) {
            IDLE | MANY => left(since, self.times.idle)?,
            // A new connection without a request is idle too: clients connect ahead of time.
            NEW => left(since, self.times.idle)?,
            HEAD => left(since, self.times.head)?,
            // The service limits this phase. Check again when the next one could run out.
            _ => self.times.idle,
        };
        // The next phase may run out sooner.
        let next = left_of_phase.min(self.times.head).min(self.times.write);
        // An HTTP/2 client that keeps its window closed reads nothing, although its socket accepts
        // bytes.
        let next = match self.pending.load(Ordering::Relaxed) {
            0 => next,
            _ => next.min(left(
                self.pending_since.load(Ordering::Relaxed),
                self.times.write,
            )?),
        };
        match self.unread_since.load(Ordering::Relaxed) {
            0 => Some(next),
            unread => Some(next.min(left(unread, self.times.write)?)),
        }
    }
}
