//! Exported metrics of a gate. The number of series does not depend on the number of keys.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tidegate::{Connect, Exception, Gate, PolicySet, Rules};
use tidegate_testkit::redis::RedisServer;

fn gate() -> Gate {
    let rules = Rules::new("fixed_window 10/365 days".parse().unwrap())
        .candidate("fixed_window 5/365 days".parse().unwrap())
        .exception("free", Exception::Unlimited)
        .unwrap();
    Gate::memory(PolicySet::new().with("api", rules).unwrap())
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|found| found == *line),
            "{line} is not in\n{text}"
        );
    }
}

#[test]
fn prometheus() {
    let gate = gate();
    let mut registry = Registry::default();
    tidegate::prometheus::register(&mut registry, &gate);
    for _ in 0..12 {
        let _ = gate.check("api", "k").now().unwrap();
    }
    let _ = gate.check("api", "free").now().unwrap();
    let before = text(&registry);
    assert_has(
        &before,
        &[
            r#"tidegate_checks_total{policy="api",outcome="allowed"} 10"#,
            r#"tidegate_checks_total{policy="api",outcome="denied"} 2"#,
            r#"tidegate_checks_total{policy="api",outcome="unlimited"} 1"#,
            r#"tidegate_near_limit_total{policy="api"} 2"#,
            r#"tidegate_candidate_checks_total{policy="api",outcome="denied"} 7"#,
            r#"tidegate_degraded_total{policy="api",reason="timeout"} 0"#,
            "# TYPE tidegate_checks counter",
        ],
    );
    for number in 0..10_000 {
        let _ = gate.check("api", format!("user:{number}")).now().unwrap();
    }
    let after = text(&registry);
    assert_eq!(before.lines().count(), after.lines().count());
    assert!(!after.contains("user:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reports_a_failing_store() {
    let mut redis = RedisServer::start();
    let policies = PolicySet::new()
        .with("api", Rules::new("10/365 days".parse().unwrap()))
        .unwrap();
    let gate = Gate::connect(&redis.url(), policies).await.unwrap();
    let mut registry = Registry::default();
    tidegate::prometheus::register(&mut registry, &gate);
    let _ = gate.check("api", "k").await.unwrap();
    assert_has(
        &text(&registry),
        &[
            "tidegate_store_trips_total 1",
            "tidegate_store_breaker_open 0",
        ],
    );
    redis.kill();
    for _ in 0..20 {
        let _ = gate.check("api", "k").await.unwrap();
    }
    let after = text(&registry);
    let degraded =
        |line: &&str| line.starts_with("tidegate_degraded_total") && !line.ends_with(" 0");
    assert!(after.lines().any(|line| degraded(&line)), "{after}");
    assert!(
        after.contains(r#"tidegate_store_latency_seconds_bucket{le="0.001"}"#)
            && after.contains("tidegate_store_latency_seconds_count 1"),
        "{after}"
    );
}

#[test]
fn opentelemetry() {
    let gate = gate();
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder()
        .with_reader(PeriodicReader::builder(exporter.clone()).build())
        .build();
    tidegate::opentelemetry::register(&provider.meter("test"), &gate);
    for _ in 0..12 {
        let _ = gate.check("api", "k").now().unwrap();
    }
    provider.force_flush().unwrap();
    let exported = exporter.get_finished_metrics().unwrap();
    let metrics = exported
        .iter()
        .flat_map(|resource| resource.scope_metrics())
        .flat_map(|scope| scope.metrics());
    let checks = metrics
        .into_iter()
        .find(|metric| metric.name() == "tidegate_checks")
        .expect("exported");
    let AggregatedMetrics::U64(MetricData::Sum(sum)) = checks.data() else {
        panic!("{:?}", checks.data())
    };
    let denied = sum.data_points().find(|point| {
        point
            .attributes()
            .any(|attribute| attribute.value.as_str() == "denied")
    });
    assert_eq!(denied.unwrap().value(), 2);
    assert!(sum.data_points().all(|point| {
        point
            .attributes()
            .all(|attribute| attribute.key.as_str() != "key")
    }));
}

/// Records the text of all events.
#[derive(Default)]
struct EventRecorder(std::sync::Mutex<Vec<String>>);

impl tracing::Subscriber for EventRecorder {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "tidegate"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn denials_emit_events() {
    use tidegate::tower::{Limits, RateLimitLayer, key};
    use tower::{Layer, ServiceExt, service_fn};
    let layer = RateLimitLayer::new(Limits::memory("1/365 days".parse().unwrap(), key::global()));
    let service = layer.layer(service_fn(|_: axum::http::Request<()>| async {
        Ok::<_, std::convert::Infallible>(axum::http::Response::new(axum::body::Body::empty()))
    }));
    let recorder = std::sync::Arc::new(EventRecorder::default());
    tracing::subscriber::with_default(std::sync::Arc::clone(&recorder), || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for _ in 0..3 {
            runtime
                .block_on(service.clone().oneshot(axum::http::Request::new(())))
                .unwrap();
        }
    });
    let events = recorder.0.lock().unwrap();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(
        events[0].contains(r#"policy="default""#) && events[0].contains("message=request denied"),
        "{events:?}"
    );
}
