//! What a connection is at, and since when: so that one timer a connection is enough.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{Clock, Timestamp};
use tokio::sync::Semaphore;

/// How long a connection may be at what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) head: Duration,
    pub(crate) idle: Duration,
    pub(crate) write: Duration,
    /// How long one that asks nothing is kept when the server ends: its client may just be sending something.
    pub(crate) linger: Duration,
    /// Whether many requests may come at a time.
    pub(crate) may_be_http2: bool,
}

/// What a connection is at. Shared by its stream, which sees the bytes, its service, which sees the requests, and its timer.
pub(crate) struct Watch {
    clock: Clock,
    phase: AtomicU8,
    since: AtomicU64,
    /// Since when the client leaves an answer unread; 0 where it does not.
    unread_since: AtomicU64,
    /// Responses that the client has not taken, their bytes, and since when it has taken none.
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    pending_since: AtomicU64,
    /// Whether the client may still be sending what nobody reads any more.
    has_left_unread: AtomicBool,
    /// For questions to a remote store that the connection may have on their way at a time.
    in_flight: Semaphore,
    /// True if the client has connected to a loopback address of this machine.
    is_local: bool,
    times: Times,
}

/// Questions to a remote store that one connection may have on their way at a time.
const MOST_IN_FLIGHT: usize = 64;

/// Nothing is asked.
const IDLE: u8 = 0;
/// A request has begun to come.
const HEAD: u8 = 1;
/// A request is being answered.
const BUSY: u8 = 2;
/// HTTP/2, which has its own ways: only a long time without a request ends it.
const MANY: u8 = 3;
/// No byte has come yet.
const NEW: u8 = 4;

/// Behind this come many requests at a time. Where it comes in pieces, the first request tells.
const HTTP2_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl Watch {
    pub(crate) fn new(times: Times, is_local: bool) -> Self {
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
            has_left_unread: AtomicBool::new(false),
            in_flight: Semaphore::new(MOST_IN_FLIGHT),
            is_local,
            times,
        }
    }

    /// True if the client has connected to a loopback address of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// A permit for each question that the connection has on its way to a remote store.
    pub(crate) fn in_flight(&self) -> &Semaphore {
        &self.in_flight
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.since
            .store(self.clock.now().as_nanos(), Ordering::Relaxed);
    }

    /// Bytes have come.
    pub(super) fn has_read(&self, bytes: &[u8]) {
        match self.phase.load(Ordering::Relaxed) {
            NEW if self.times.may_be_http2 && bytes.starts_with(HTTP2_BEGINS) => self.enter(MANY),
            NEW | IDLE if !bytes.is_empty() => self.enter(HEAD),
            // Of many, other bytes than those of requests: answers to our pings are not asked for by anybody.
            _ => {}
        }
    }

    /// Bytes were taken, or were not, because the client has not read those before them.
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

    /// The bytes of responses that the client has not taken.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Counts `to` bytes of a response in place of `from`. False if that would be more than `most` of all responses.
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

    /// A response is on its way to the client, or will be.
    pub(crate) fn response_pending(&self) {
        if self.pending.fetch_add(1, Ordering::Relaxed) == 0 {
            self.pending_since
                .store(self.clock.now().as_nanos(), Ordering::Relaxed);
        }
    }

    /// The client has taken a response, or it was dropped.
    pub(crate) fn response_taken(&self, bytes: usize) {
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.pending_since
            .store(self.clock.now().as_nanos(), Ordering::Relaxed);
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// A request of HTTP/2 has come, and many more may come at the same time.
    pub(crate) fn begin_one_of_many(&self) {
        self.enter(MANY);
    }

    /// A request has come whole.
    pub(crate) fn begin(&self) {
        if self.has_left_unread() {
            self.has_left_unread.store(false, Ordering::Relaxed);
        }
        if self.phase.load(Ordering::Relaxed) != MANY {
            self.phase.store(BUSY, Ordering::Relaxed);
        }
    }

    /// It is answered, and the next may come.
    pub(crate) fn end(&self) {
        self.enter(if self.is_http2() { MANY } else { IDLE });
    }

    pub(super) fn linger(&self) -> Duration {
        if self.is_http2() {
            Duration::ZERO
        } else {
            self.times.linger
        }
    }

    /// The last request was answered and not read to its end, with which the connection ends. Streams of HTTP/2 end alone.
    pub(crate) fn leave_unread(&self) {
        if !self.is_http2() {
            self.has_left_unread.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the client may still be sending what nobody reads any more.
    pub(crate) fn has_left_unread(&self) -> bool {
        self.has_left_unread.load(Ordering::Relaxed)
    }

    /// The next request has begun to come, together with the end of the last.
    pub(crate) fn has_begun(&self) {
        self.enter(HEAD);
    }

    /// Whether many requests may be on their way at a time.
    pub(crate) fn is_http2(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == MANY
    }

    /// How much longer the connection may be at what it is at; `None` if it has been for too long.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let now = self.clock.now();
        let left = |since: u64, allowed: Duration| {
            let until = Timestamp::from_nanos(since).saturating_add(allowed);
            (until > now).then(|| Duration::from_nanos(until.as_nanos() - now.as_nanos()))
        };
        let since = self.since.load(Ordering::Relaxed);
        let left_of_phase = match self.phase.load(Ordering::Relaxed) {
            IDLE | MANY => left(since, self.times.idle)?,
            // Who has connected and says nothing is idle, too: connections are made ahead of time.
            NEW => left(since, self.times.idle)?,
            HEAD => left(since, self.times.head)?,
            // The service sees to it that this ends. Look again when the next phase may be over.
            _ => self.times.idle,
        };
        // What it will be at next may be over sooner.
        let next = left_of_phase.min(self.times.head).min(self.times.write);
        // A client of HTTP/2 that keeps its windows closed takes nothing, though its socket takes bytes.
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
