//! What a gate counts, by [OpenTelemetry](https://docs.rs/opentelemetry): instruments of a meter that a program has already.
//!
//! ```
//! use tidegate::{Book, Gate, Rules};
//!
//! let gate = Gate::memory(Book::new().with("api", Rules::new("100/minute".parse()?))?);
//! let meter = opentelemetry::global::meter("my-service");
//! tidegate::opentelemetry::register(&meter, &gate);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Attributes are the policy and the outcome, never a key. A check does nothing for it but what the gate counts anyway: the
//! figures are read when the meter's reader collects them.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use tidegate_core::{Gate, Store};

use crate::series::{ALL, Kind, Point, Series, Snapshot};

/// Adds what a gate counts to a meter, under `tidegate_…`. A gate is added to a meter once; its clones are the same.
pub fn register<S: Store>(meter: &Meter, gate: &Gate<S>) {
    for series in &ALL {
        let gate = gate.clone();
        let observe = move |observer: &dyn AsyncInstrument<u64>| {
            for Point { labels, value } in series.points(&Snapshot::of(&gate)) {
                let attributes: Vec<KeyValue> =
                    labels.into_iter().map(|(label, value)| KeyValue::new(label, value)).collect();
                observer.observe(value, &attributes);
            }
        };
        add(meter, series, observe);
    }
}

fn add(meter: &Meter, series: &Series, observe: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static) {
    match series.kind {
        Kind::Counter => {
            let instrument = meter.u64_observable_counter(series.name).with_description(series.help);
            let _ = instrument.with_callback(observe).build();
        }
        Kind::Gauge => {
            let instrument = meter.u64_observable_gauge(series.name).with_description(series.help);
            let _ = instrument.with_callback(observe).build();
        }
    }
}
