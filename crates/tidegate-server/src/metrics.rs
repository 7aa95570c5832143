//! What the server counts beside its gate: never by key.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tidegate::{AnyStore, Decision, Degraded, Outcome};

use crate::server::Server;

/// Threads that count side by side.
const STRIPES: usize = 8;

/// The upper ends of the latency histogram's buckets, in microseconds.
const BUCKETS: [u64; 14] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000,
];

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoken {
    Http,
    Resp,
    Admin,
}

const SPOKEN: [(Spoken, &str); 3] = [
    (Spoken::Http, "http"),
    (Spoken::Resp, "resp"),
    (Spoken::Admin, "admin"),
];
const OUTCOMES: [&str; 3] = ["allowed", "denied", "never_allowed"];

/// What the server has counted.
#[derive(Default)]
pub(crate) struct Metrics {
    stripes: [Stripe; STRIPES],
    refused_connections: AtomicU64,
    failed_handshakes: AtomicU64,
    failed_accepts: AtomicU64,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    snapshots: AtomicU64,
    failed_snapshots: AtomicU64,
    last_snapshot: AtomicU64,
    panics: AtomicU64,
    /// Whether the last configuration that was looked at is not the one in use.
    is_refused: AtomicBool,
}

/// What one thread counts, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    latency: [Latency; SPOKEN.len()],
    refused: [AtomicU64; SPOKEN.len()],
    inline: [AtomicU64; OUTCOMES.len()],
    inline_degraded: [AtomicU64; Degraded::ALL.len()],
}

#[derive(Default)]
struct Latency {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    sum_ns: AtomicU64,
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Metrics {
    fn stripe(&self) -> &Stripe {
        &self.stripes[STRIPE.get()]
    }

    /// Requests were answered, each after so long.
    pub(crate) fn answered(&self, spoken: Spoken, count: u64, after: Duration) {
        let latency = &self.stripe().latency[spoken as usize];
        let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BUCKETS
            .iter()
            .position(|end| nanos <= end * 1_000)
            .unwrap_or(BUCKETS.len());
        add(&latency.buckets[bucket], count);
        add(&latency.sum_ns, nanos.saturating_mul(count));
    }

    /// A request was refused as it was not one, or not permitted.
    pub(crate) fn refused(&self, spoken: Spoken) {
        add(&self.stripe().refused[spoken as usize], 1);
    }

    /// A decision under limits that came with the request.
    pub(crate) fn inline(&self, decision: &Decision) {
        let outcome = match decision.outcome() {
            Outcome::Allowed { .. } => 0,
            Outcome::Denied { .. } => 1,
            Outcome::NeverAllowed => 2,
        };
        add(&self.stripe().inline[outcome], 1);
        if let Some(count) = decision
            .degraded()
            .and_then(|reason| self.stripe().inline_degraded.get(reason as usize))
        {
            add(count, 1);
        }
    }

    pub(crate) fn refused_connection(&self) {
        add(&self.refused_connections, 1);
    }

    pub(crate) fn failed_handshake(&self) {
        add(&self.failed_handshakes, 1);
    }

    /// Told once: what lacks will lack for a while.
    pub(crate) fn accept_failed(&self, error: &std::io::Error) {
        if self.failed_accepts.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(%error, "connections cannot be taken; file descriptors may have run out (LimitNOFILE, ulimit -n)");
        }
    }

    pub(crate) fn reloaded(&self, is_good: bool) {
        self.is_refused.store(!is_good, Ordering::Relaxed);
        add(
            if is_good {
                &self.reloads
            } else {
                &self.failed_reloads
            },
            1,
        );
    }

    /// The configuration in use is the one there is.
    pub(crate) fn is_current(&self) {
        self.is_refused.store(false, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, written_at_s: Option<u64>) {
        match written_at_s {
            Some(at) => {
                add(&self.snapshots, 1);
                self.last_snapshot.store(at, Ordering::Relaxed);
            }
            None => add(&self.failed_snapshots, 1),
        }
    }

    pub(crate) fn panicked(&self) {
        add(&self.panics, 1);
    }

    fn sum(&self, read: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        self.stripes
            .iter()
            .map(|stripe| read(stripe).load(Ordering::Relaxed))
            .sum()
    }
}

/// All that there is to tell, in the text format of Prometheus.
pub(crate) fn text(server: &Arc<Server>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    tidegate::prometheus::register(&mut registry, &server.live().gate);
    registry.register_collector(Box::new(Collected(Arc::clone(server))));
    let mut text = String::with_capacity(16 * 1024);
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The same in the older format, which Prometheus' own tools and most others read: there a counter's name ends with
/// `_total` in its description, too.
pub(crate) fn classic(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    let mut help: Option<&str> = None;
    for line in text.lines().filter(|line| *line != "# EOF") {
        if line.starts_with("# HELP ") {
            help = Some(line);
            continue;
        }
        let counter = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_suffix(" counter"));
        for line in help.take().into_iter().chain([line]) {
            match counter {
                Some(name) => classic.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
                None => classic.push_str(line),
            }
            classic.push('\n');
        }
    }
    classic
}

struct Collected(Arc<Server>);

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collected")
    }
}

/// A name, what it means, and the figure.
type Figure = (&'static str, &'static str, u64);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let server = &*self.0;
        let metrics = &server.metrics;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters: [Figure; 9] = [
            (
                "tidegate_connections_refused",
                "Connections beyond what there may be",
                read(&metrics.refused_connections),
            ),
            (
                "tidegate_tls_handshakes_failed",
                "Connections that did not agree on TLS",
                read(&metrics.failed_handshakes),
            ),
            (
                "tidegate_accepts_failed",
                "Connections that could not be taken",
                read(&metrics.failed_accepts),
            ),
            (
                "tidegate_config_reloads",
                "Configurations that were taken over",
                read(&metrics.reloads),
            ),
            (
                "tidegate_config_reload_errors",
                "Configurations that were refused",
                read(&metrics.failed_reloads),
            ),
            (
                "tidegate_snapshots",
                "Snapshots that were written",
                read(&metrics.snapshots),
            ),
            (
                "tidegate_snapshot_errors",
                "Snapshots that could not be written",
                read(&metrics.failed_snapshots),
            ),
            (
                "tidegate_panics",
                "Panics while handling requests",
                read(&metrics.panics),
            ),
            (
                "tidegate_log_lines_dropped",
                "Log lines that were dropped or suppressed",
                crate::log::dropped_lines(),
            ),
        ];
        for (name, help, value) in counters {
            let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        let mut gauges: Vec<Figure> = vec![
            (
                "tidegate_connections",
                "Connections at present",
                (server.connections.count() + server.admin_connections.count()) as u64,
            ),
            (
                "tidegate_start_time_seconds",
                "When the server started, since 1970",
                server.started_at_s,
            ),
            (
                "tidegate_snapshot_time_seconds",
                "When the last snapshot was written, since 1970",
                read(&metrics.last_snapshot),
            ),
        ];
        gauges.push((
            "tidegate_config_last_reload_successful",
            "Whether the configuration in use is the last that there was: 1 if so",
            u64::from(!metrics.is_refused.load(Ordering::Relaxed)),
        ));
        let mut evictions = Vec::new();
        if let AnyStore::Memory(store) = server.live().gate.store() {
            let stats = store.stats();
            gauges.extend([
                (
                    "tidegate_memory_keys",
                    "Keys that the memory store keeps",
                    stats.keys,
                ),
                (
                    "tidegate_memory_max_keys",
                    "The most keys that the memory store keeps",
                    stats.max_keys,
                ),
                (
                    "tidegate_memory_table_bytes",
                    "Bytes reserved for the memory store's table",
                    stats.table_bytes as u64,
                ),
                (
                    "tidegate_memory_record_bytes",
                    "Bytes of records beside the table",
                    stats.record_bytes,
                ),
                (
                    "tidegate_memory_max_record_bytes",
                    "Byte budget for records beside the table",
                    stats.max_record_bytes,
                ),
            ]);
            evictions.extend([
                (
                    "tidegate_memory_evictions",
                    "Keys dropped before they had expired, for others",
                    stats.evictions,
                ),
                (
                    "tidegate_memory_denied_evictions",
                    "Evicted keys that were being denied",
                    stats.denied_evictions,
                ),
                (
                    "tidegate_memory_record_evictions",
                    "Keys evicted to keep records within their byte budget",
                    stats.record_evictions,
                ),
                (
                    "tidegate_memory_expiries",
                    "Keys forgotten because they had expired",
                    stats.expiries,
                ),
            ]);
        }
        for (name, help, value) in gauges {
            let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            encoder.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        for (name, help, value) in evictions {
            let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        crate::process::encode(&mut encoder)?;
        self.encode_labelled(&mut encoder)
    }
}

impl Collected {
    fn encode_labelled(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let server = &*self.0;
        let metrics = &server.metrics;
        let help = "The configuration in use, by its hash, and the version of the server";
        let mut info =
            encoder.encode_descriptor("tidegate_config_info", help, None, MetricType::Gauge)?;
        let labels = [
            ("hash", server.live().hash.clone()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        info.encode_family(&labels)?.encode_gauge(&1_i64)?;

        let help = "Decisions under limits that came with the request, by outcome";
        let mut inline =
            encoder.encode_descriptor("tidegate_inline_checks", help, None, MetricType::Counter)?;
        for (index, outcome) in OUTCOMES.iter().enumerate() {
            let count = metrics.sum(|stripe| &stripe.inline[index]);
            inline
                .encode_family(&[("outcome", *outcome)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let help =
            "Decisions under limits that came with the request, made without the store, by reason";
        let mut degraded = encoder.encode_descriptor(
            "tidegate_inline_degraded",
            help,
            None,
            MetricType::Counter,
        )?;
        for reason in Degraded::ALL {
            let count = metrics.sum(|stripe| &stripe.inline_degraded[reason as usize]);
            degraded
                .encode_family(&[("reason", reason.name())])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let help = "Requests that were not understood or not permitted";
        let mut refused = encoder.encode_descriptor(
            "tidegate_requests_refused",
            help,
            None,
            MetricType::Counter,
        )?;
        for (spoken, name) in SPOKEN {
            let count = metrics.sum(|stripe| &stripe.refused[spoken as usize]);
            refused
                .encode_family(&[("protocol", name)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let help = "How long requests took from being read to being answered";
        let mut latency = encoder.encode_descriptor(
            "tidegate_request_duration_seconds",
            help,
            None,
            MetricType::Histogram,
        )?;
        for (spoken, name) in SPOKEN {
            let ends = BUCKETS
                .iter()
                .map(|us| *us as f64 / 1e6)
                .chain([f64::INFINITY]);
            let count = |bucket: usize| {
                metrics.sum(|stripe| &stripe.latency[spoken as usize].buckets[bucket])
            };
            let buckets: Vec<(f64, u64)> = ends
                .enumerate()
                .map(|(bucket, end)| (end, count(bucket)))
                .collect();
            let sum = metrics.sum(|stripe| &stripe.latency[spoken as usize].sum_ns) as f64 / 1e9;
            let total = buckets.iter().map(|(_, count)| count).sum();
            latency
                .encode_family(&[("protocol", name)])?
                .encode_histogram::<NoLabelSet>(sum, total, &buckets, None)?;
        }
        Ok(())
    }
}
