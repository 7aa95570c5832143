//! Spans of requests for OpenTelemetry, without keys. Built with the feature `otel` only.

use http::HeaderMap;
use opentelemetry::global;
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::metrics::Protocol;

/// The target of the spans.
const TARGET: &str = "tidegate_server::trace";

/// Exports spans until it is dropped; the rest is sent then.
pub(crate) struct SpanExport(SdkTracerProvider);

impl Drop for SpanExport {
    fn drop(&mut self) {
        // An error can no longer be reported.
        let _ = self.0.shutdown();
    }
}

/// Returns a layer that exports spans by OTLP over gRPC. Call it within an async runtime.
pub(crate) fn layer<S>(
    endpoint: &str,
) -> Result<(impl Layer<S>, SpanExport), opentelemetry_otlp::ExporterBuildError>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()?;
    let resource = Resource::builder().with_service_name("tidegate").build();
    let provider = SdkTracerProvider::builder()
        .with_resource(resource)
        .with_batch_exporter(exporter)
        .build();
    global::set_text_map_propagator(TraceContextPropagator::new());
    let tracer = provider.tracer("tidegate");
    let spans = Targets::new().with_target(TARGET, LevelFilter::DEBUG);
    Ok((
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_filter(spans),
        SpanExport(provider),
    ))
}

/// Returns the span of an HTTP request, as a child of the caller's if there is a `traceparent`.
pub(crate) fn request(protocol: Protocol, path: &str, fields: &HeaderMap) -> tracing::Span {
    let listener = if protocol == Protocol::Admin {
        "admin"
    } else {
        "http"
    };
    // Only known paths: a client can send anything else.
    let known = [
        "/v1/check",
        "/v1/check:batch",
        "/v1/peek",
        "/v1/refund",
        "/v1/reset",
        "/healthz",
        "/readyz",
        "/metrics",
    ];
    let route = known
        .iter()
        .find(|known| **known == path)
        .copied()
        .unwrap_or("other");
    let span = tracing::debug_span!(
        target: TARGET,
        "request",
        otel.kind = "server",
        otel.name = route,
        tidegate.listener = listener,
        http.response.status_code = tracing::field::Empty,
    );
    let parent = global::get_text_map_propagator(|propagator| propagator.extract(&Fields(fields)));
    // Without a subscriber there is no span to set a parent on.
    let _ = span.set_parent(parent);
    span
}

/// Returns the span of a RESP pipeline.
pub(crate) fn pipeline() -> tracing::Span {
    tracing::debug_span!(target: TARGET, "pipeline", otel.kind = "server", tidegate.listener = "resp")
}

struct Fields<'a>(&'a HeaderMap);

impl Extractor for Fields<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
