//! Exports a gate's counters to a [prometheus-client](https://docs.rs/prometheus-client) registry.
//!
//! ```
//! use prometheus_client::registry::Registry;
//! use tidegate::{Gate, PolicySet, Rules};
//!
//! let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
//! let mut registry = Registry::default();
//! tidegate::prometheus::register(&mut registry, &gate);
//!
//! gate.check("api", "user:42").now()?;
//! let mut text = String::new();
//! prometheus_client::encoding::text::encode(&mut text, &registry)?;
//! assert!(text.contains(r#"tidegate_checks_total{policy="api",outcome="allowed"} 1"#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The labels are the policy and the outcome, never a key, so the number of series does not depend
//! on the number of keys. The export adds nothing to a check.

// Its types appear in this API.
pub use prometheus_client;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tidegate_core::{Gate, LATENCY_BOUNDS, Latency, Store};

use crate::series::{MetricKind, Point, SERIES, Snapshot};

/// Registers a gate's counters under `tidegate_…`. Register a gate once; its clones share its
/// counters.
///
/// # Examples
///
/// ```
/// use prometheus_client::registry::Registry;
/// use tidegate::{Gate, PolicySet, Rules};
///
/// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
/// let mut registry = Registry::default();
/// tidegate::prometheus::register(&mut registry, &gate);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn register<S: Store>(registry: &mut Registry, gate: &Gate<S>) {
    registry.register_collector(Box::new(GateCollector(gate.clone())));
}

struct GateCollector<S: Store>(Gate<S>);

impl<S: Store> std::fmt::Debug for GateCollector<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GateCollector").field(&self.0).finish()
    }
}

impl<S: Store> Collector for GateCollector<S> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let snapshot = Snapshot::of(&self.0);
        for series in &SERIES {
            let points = series.points(&snapshot);
            if points.is_empty() {
                continue;
            }
            let kind = match series.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(series.name, series.help, None, kind)?;
            if series.kind == MetricKind::Histogram {
                if let Some(latency) = snapshot.latency() {
                    encode_histogram(&mut metric, latency)?;
                }
                continue;
            }
            for Point { labels, value } in points {
                if labels.is_empty() {
                    encode(&mut metric, series.kind, value)?;
                } else {
                    encode(&mut metric.encode_family(&labels)?, series.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn encode(
    metric: &mut MetricEncoder<'_>,
    kind: MetricKind,
    value: u64,
) -> Result<(), std::fmt::Error> {
    match kind {
        MetricKind::Counter => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        MetricKind::Gauge | MetricKind::Histogram => {
            metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
        }
    }
}

fn encode_histogram(
    metric: &mut MetricEncoder<'_>,
    latency: &Latency,
) -> Result<(), std::fmt::Error> {
    let bounds = LATENCY_BOUNDS.iter().map(std::time::Duration::as_secs_f64);
    let buckets: Vec<(f64, u64)> = bounds.chain([f64::INFINITY]).zip(latency.buckets).collect();
    let count = latency.buckets.iter().sum();
    metric.encode_histogram::<NoLabelSet>(latency.sum.as_secs_f64(), count, &buckets, None)
}
