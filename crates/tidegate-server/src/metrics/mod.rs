//! Metrics of the server, besides those of its gate. None has a label with a key.
//!
//! [`Metrics`] counts; `encode` writes the values for Prometheus.

mod encode;
mod rules;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Decision, Degraded, Outcome};
use tidegate_core::StripedCounters;

pub(crate) use encode::{classic, text};

/// The upper bounds of the latency histogram, in microseconds.
const BUCKETS: [u64; 14] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000,
];

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Resp,
    Admin,
    Grpc,
}

const PROTOCOLS: [(Protocol, &str); 4] = [
    (Protocol::Http, "http"),
    (Protocol::Resp, "resp"),
    (Protocol::Admin, "admin"),
    (Protocol::Grpc, "grpc"),
];
const OUTCOMES: [&str; 4] = ["allowed", "denied", "never_allowed", "outage"];

/// The counters of one protocol: the histogram's buckets, the sum of durations, and refused requests.
const SUM_NS: usize = BUCKETS.len() + 1;
const REFUSED: usize = SUM_NS + 1;
type ProtocolCounters = StripedCounters<{ REFUSED + 1 }>;

/// The counters of the server.
#[derive(Default)]
pub(crate) struct Metrics {
    protocols: [ProtocolCounters; PROTOCOLS.len()],
    /// Decisions under limits from requests: by outcome, then degraded ones by reason.
    inline: StripedCounters<{ OUTCOMES.len() + Degraded::ALL.len() }>,
    /// Degraded decisions of rules for descriptors, and of other services, by reason.
    degraded_rules: StripedCounters<{ Degraded::ALL.len() }>,
    refused_connections: AtomicU64,
    failed_handshakes: AtomicU64,
    failed_accepts: AtomicU64,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    snapshots: AtomicU64,
    failed_snapshots: AtomicU64,
    last_snapshot: AtomicU64,
    panics: AtomicU64,
    /// Requests with descriptors that failed because the store was unavailable.
    failed_descriptors: AtomicU64,
    /// Set if the last configuration was rejected.
    is_rejected: AtomicBool,
}

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Metrics {
    fn protocol(&self, protocol: Protocol) -> &ProtocolCounters {
        &self.protocols[protocol as usize]
    }

    /// Records answered requests and their duration.
    pub(crate) fn answered(&self, protocol: Protocol, count: u64, after: Duration) {
        let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BUCKETS
            .iter()
            .position(|end| nanos <= end * 1_000)
            .unwrap_or(BUCKETS.len());
        let counters = self.protocol(protocol);
        counters.add(bucket, count);
        counters.add(SUM_NS, nanos.saturating_mul(count));
    }

    /// Counts a request that is invalid or not permitted.
    pub(crate) fn refused(&self, protocol: Protocol) {
        self.protocol(protocol).add(REFUSED, 1);
    }

    /// Counts a decision under limits that came with the request.
    pub(crate) fn inline(&self, decision: &Decision) {
        let outcome = match decision.outcome() {
            Outcome::Allowed { .. } => 0,
            Outcome::Denied { .. } if !decision.has_figures() => 3,
            Outcome::Denied { .. } => 1,
            Outcome::NeverAllowed => 2,
        };
        self.inline.add(outcome, 1);
        if let Some(reason) = decision.degraded() {
            self.inline.add(OUTCOMES.len() + reason as usize, 1);
        }
    }

    pub(crate) fn refused_connection(&self) {
        add_one(&self.refused_connections);
    }

    pub(crate) fn failed_handshake(&self) {
        add_one(&self.failed_handshakes);
    }

    /// Counts a failed accept. The first is logged: the cause usually lasts.
    pub(crate) fn accept_failed(&self, error: &std::io::Error) {
        if self.failed_accepts.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(
                %error,
                "accepting connections failed, file descriptors may have run out \
                 (LimitNOFILE, ulimit -n)"
            );
        }
    }

    pub(crate) fn reloaded(&self, is_accepted: bool) {
        self.is_rejected.store(!is_accepted, Ordering::Relaxed);
        add_one(if is_accepted {
            &self.reloads
        } else {
            &self.failed_reloads
        });
    }

    /// Records that the active configuration is up to date.
    pub(crate) fn is_current(&self) {
        self.is_rejected.store(false, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, written_at_s: Option<u64>) {
        match written_at_s {
            Some(at) => {
                add_one(&self.snapshots);
                self.last_snapshot.store(at, Ordering::Relaxed);
            }
            None => add_one(&self.failed_snapshots),
        }
    }

    /// Counts a decision of a rule that the failure policy made.
    pub(crate) fn degraded_rule(&self, reason: Option<Degraded>) {
        if let Some(reason) = reason {
            self.degraded_rules.add(reason as usize, 1);
        }
    }

    /// Counts a request with descriptors that failed because the store was unavailable.
    pub(crate) fn failed_descriptors(&self) {
        add_one(&self.failed_descriptors);
    }

    /// Returns the allowed, denied and degraded decisions under limits from requests.
    pub(crate) fn inline_totals(&self) -> [u64; 3] {
        let sum = |index: usize| self.inline.sum(index);
        let degraded = (0..Degraded::ALL.len()).map(|reason| sum(OUTCOMES.len() + reason));
        [sum(0), sum(1) + sum(2) + sum(3), degraded.sum()]
    }

    /// Returns `true` if the last configuration was rejected.
    pub(crate) fn is_rejected(&self) -> bool {
        self.is_rejected.load(Ordering::Relaxed)
    }

    /// Returns the number of answered requests.
    fn requests(&self, protocol: Protocol) -> u64 {
        let counters = self.protocol(protocol);
        (0..=BUCKETS.len()).map(|bucket| counters.sum(bucket)).sum()
    }

    /// Returns the number of requests that were invalid or not permitted.
    fn refused_requests(&self, protocol: Protocol) -> u64 {
        self.protocol(protocol).sum(REFUSED)
    }

    pub(crate) fn panicked(&self) {
        add_one(&self.panics);
    }
}
