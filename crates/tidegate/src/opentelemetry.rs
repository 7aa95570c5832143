//! Exports a gate's counters to [OpenTelemetry](https://docs.rs/opentelemetry), with your own
//! meter.
//!
//! ```
//! use tidegate::{Gate, PolicySet, Rules};
//!
//! let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
//! let meter = opentelemetry::global::meter("my-service");
//! tidegate::opentelemetry::register(&meter, &gate);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The attributes are the policy and the outcome, never a key. The export adds nothing to a check:
//! the counters are read when the meter's reader collects them.

// Its types appear in this API.
pub use ::opentelemetry;
use ::opentelemetry::KeyValue;
use ::opentelemetry::metrics::{AsyncInstrument, Meter};
use tidegate_core::{Gate, Store};

use crate::series::{MetricKind, Point, SERIES, Series, Snapshot};

/// Registers a gate's counters with a meter, under `tidegate_…`. Register a gate once; its clones
/// share its counters.
///
/// # Examples
///
/// ```
/// use tidegate::{Gate, PolicySet, Rules};
///
/// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
/// let meter = opentelemetry::global::meter("my-service");
/// tidegate::opentelemetry::register(&meter, &gate);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn register<S: Store>(meter: &Meter, gate: &Gate<S>) {
    for series in &SERIES {
        let gate = gate.clone();
        let observed = move || {
            let attributes = |labels: Vec<(&'static str, String)>| -> Vec<KeyValue> {
                labels
                    .into_iter()
                    .map(|(label, value)| KeyValue::new(label, value))
                    .collect()
            };
            let points = series.points(&Snapshot::of(&gate)).into_iter();
            points
                .map(|Point { labels, value }| (value, attributes(labels)))
                .collect::<Vec<_>>()
        };
        add(meter, series, observed);
    }
}

fn add(
    meter: &Meter,
    series: &Series,
    observed: impl Fn() -> Vec<(u64, Vec<KeyValue>)> + Send + Sync + 'static,
) {
    if series.kind == MetricKind::Histogram {
        let instrument = meter
            .f64_observable_gauge(series.name)
            .with_description(series.help)
            .with_unit("s");
        let observe = move |observer: &dyn AsyncInstrument<f64>| {
            observed()
                .iter()
                .for_each(|(us, attributes)| observer.observe(*us as f64 / 1e6, attributes));
        };
        let _ = instrument.with_callback(observe).build();
        return;
    }
    let observe = move |observer: &dyn AsyncInstrument<u64>| {
        observed()
            .iter()
            .for_each(|(value, attributes)| observer.observe(*value, attributes));
    };
    match series.kind {
        MetricKind::Counter => {
            let instrument = meter
                .u64_observable_counter(series.name)
                .with_description(series.help);
            let _ = instrument.with_callback(observe).build();
        }
        MetricKind::Gauge | MetricKind::Histogram => {
            let instrument = meter
                .u64_observable_gauge(series.name)
                .with_description(series.help);
            let _ = instrument.with_callback(observe).build();
        }
    }
}
