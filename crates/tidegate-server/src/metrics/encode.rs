//! Writes the server's metrics in the Prometheus text formats.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tidegate::{AnyStore, Degraded, MemoryStats};

use super::{BUCKETS, Metrics, OUTCOMES, PROTOCOLS, Protocol, SUM_NS};
use crate::activity::RecorderStats;
use crate::server::Server;

/// Returns all metrics in the OpenMetrics text format.
pub(crate) fn text(server: &Arc<Server>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    tidegate::prometheus::register(&mut registry, &server.active().gate);
    registry.register_collector(Box::new(ServerCollector(Arc::clone(server))));
    let mut text = String::with_capacity(16 * 1024);
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Converts metrics to the older Prometheus text format, in which the description of a counter has
/// its `_total` suffix too.
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
            if let Some(name) = line.strip_suffix(" unknown") {
                // The older format has no such type. These are other programs' counters.
                classic.push_str(name);
                classic.push_str(" counter\n");
                continue;
            }
            match counter {
                Some(name) => classic.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
                None => classic.push_str(line),
            }
            classic.push('\n');
        }
    }
    classic
}

struct ServerCollector(Arc<Server>);

impl fmt::Debug for ServerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCollector")
    }
}

/// The name, help text and value of a metric without labels.
type Metric = (&'static str, &'static str, u64);

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let server = &*self.0;
        let active = server.active();
        encode_counters(&mut encoder, &counters(&server.metrics))?;
        encode_gauges(&mut encoder, &gauges(server))?;
        if let Some(stats) = server.activity.recorder_stats() {
            encode_counters(&mut encoder, &recorder_counters(stats))?;
        }
        if let AnyStore::Memory(store) = active.gate.store() {
            let stats = store.stats();
            encode_gauges(&mut encoder, &memory_gauges(&stats))?;
            encode_counters(&mut encoder, &memory_counters(&stats))?;
        }
        crate::process::encode(&mut encoder)?;
        encode_info(&mut encoder, &active.hash)?;
        encode_inline(&mut encoder, &server.metrics)?;
        encode_protocols(&mut encoder, &server.metrics)?;
        super::rules::encode(&mut encoder, server)
    }
}

pub(super) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn recorder_counters(stats: RecorderStats) -> [Metric; 2] {
    [
        (
            "tidegate_recorded_checks",
            "Checks written to record.file",
            stats.written,
        ),
        (
            "tidegate_recorded_checks_dropped",
            "Checks that could not be written to record.file",
            stats.dropped,
        ),
    ]
}

fn counters(metrics: &Metrics) -> [Metric; 9] {
    [
        (
            "tidegate_connections_refused",
            "Connections beyond the maximum",
            read(&metrics.refused_connections),
        ),
        (
            "tidegate_tls_handshakes_failed",
            "Failed TLS handshakes",
            read(&metrics.failed_handshakes),
        ),
        (
            "tidegate_accepts_failed",
            "Connections that could not be accepted",
            read(&metrics.failed_accepts),
        ),
        (
            "tidegate_config_reloads",
            "Configurations that were activated",
            read(&metrics.reloads),
        ),
        (
            "tidegate_config_reload_errors",
            "Configurations that were rejected",
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
    ]
}

fn gauges(server: &Server) -> [Metric; 4] {
    let connections = server.connections.count() + server.admin_connections.count();
    let is_rejected = server.metrics.is_rejected.load(Ordering::Relaxed);
    [
        (
            "tidegate_connections",
            "Open connections",
            connections as u64,
        ),
        (
            "tidegate_start_time_seconds",
            "Start time of the server in seconds since 1970",
            server.started_at_s,
        ),
        (
            "tidegate_snapshot_time_seconds",
            "Time of the last snapshot in seconds since 1970",
            read(&server.metrics.last_snapshot),
        ),
        (
            "tidegate_config_last_reload_successful",
            "1 if the last configuration is active, 0 if it was rejected",
            u64::from(!is_rejected),
        ),
    ]
}

fn memory_gauges(stats: &MemoryStats) -> [Metric; 5] {
    [
        (
            "tidegate_memory_keys",
            "Keys in the memory store",
            stats.keys,
        ),
        (
            "tidegate_memory_max_keys",
            "Maximum number of keys in the memory store",
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
    ]
}

fn memory_counters(stats: &MemoryStats) -> [Metric; 4] {
    [
        (
            "tidegate_memory_evictions",
            "Keys evicted before they expired",
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
            "Keys deleted after they expired",
            stats.expiries,
        ),
    ]
}

fn encode_counters(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric]) -> fmt::Result {
    for (name, help, value) in metrics {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        encode_count(&mut metric, *value)?;
    }
    Ok(())
}

fn encode_gauges(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric]) -> fmt::Result {
    for (name, help, value) in metrics {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

pub(super) fn encode_count(metric: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

fn encode_info(encoder: &mut DescriptorEncoder<'_>, hash: &str) -> fmt::Result {
    let help = "Hash of the active configuration and version of the server";
    let mut info =
        encoder.encode_descriptor("tidegate_config_info", help, None, MetricType::Gauge)?;
    let labels = [("hash", hash), ("version", env!("CARGO_PKG_VERSION"))];
    info.encode_family(&labels)?.encode_gauge(&1_i64)
}

fn encode_inline(encoder: &mut DescriptorEncoder<'_>, metrics: &Metrics) -> fmt::Result {
    let help = "Decisions with inline limits by outcome";
    let name = "tidegate_inline_checks";
    let mut checks = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (index, outcome) in OUTCOMES.iter().enumerate() {
        let labels = [("outcome", *outcome)];
        encode_count(
            &mut checks.encode_family(&labels)?,
            metrics.inline.sum(index),
        )?;
    }
    let name = "tidegate_inline_degraded";
    let help = "Degraded decisions with inline limits by reason";
    encode_degraded(encoder, name, help, |reason| {
        metrics.inline.sum(OUTCOMES.len() + reason)
    })?;
    let name = "tidegate_rule_degraded";
    let help = "Degraded decisions of rules for descriptors by reason";
    encode_degraded(encoder, name, help, |reason| {
        metrics.degraded_rules.sum(reason)
    })
}

fn encode_degraded(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    count: impl Fn(usize) -> u64,
) -> fmt::Result {
    let mut degraded = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for reason in Degraded::ALL {
        let labels = [("reason", reason.name())];
        encode_count(
            &mut degraded.encode_family(&labels)?,
            count(reason as usize),
        )?;
    }
    Ok(())
}

fn encode_protocols(encoder: &mut DescriptorEncoder<'_>, metrics: &Metrics) -> fmt::Result {
    let help = "Requests that were invalid or not permitted";
    let name = "tidegate_requests_refused";
    let mut refused = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (protocol, name) in PROTOCOLS {
        let labels = [("protocol", name)];
        let count = metrics.refused_requests(protocol);
        encode_count(&mut refused.encode_family(&labels)?, count)?;
    }
    let help = "Duration of requests from their arrival to their response";
    let name = "tidegate_request_duration_seconds";
    let mut latency = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (protocol, name) in PROTOCOLS {
        let labels = [("protocol", name)];
        encode_latency(&mut latency.encode_family(&labels)?, metrics, protocol)?;
    }
    Ok(())
}

pub(super) fn encode_latency(
    metric: &mut MetricEncoder<'_>,
    metrics: &Metrics,
    protocol: Protocol,
) -> fmt::Result {
    let counters = metrics.protocol(protocol);
    let bounds = BUCKETS.iter().map(|us| *us as f64 / 1e6);
    let buckets: Vec<(f64, u64)> = bounds
        .chain([f64::INFINITY])
        .enumerate()
        .map(|(bucket, bound)| (bound, counters.sum(bucket)))
        .collect();
    let sum = counters.sum(SUM_NS) as f64 / 1e9;
    let total = buckets.iter().map(|(_, count)| count).sum();
    metric.encode_histogram::<NoLabelSet>(sum, total, &buckets, None)
}
