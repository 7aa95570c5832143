//! Logs, and spans for a collector. Neither contains a key, which is personal data.
//!
//! Only Tidegate's own events are logged: libraries log client input, as often as clients send it.
//! A separate thread writes. If it cannot keep up, or nothing reads standard error, lines are
//! dropped and counted. An event that repeats is logged at most ten times a second.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Limiter, MemoryStore};
use tracing::{Event, Metadata, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{ConfigError, LogConfig, LogFormat, LogLevel};
#[cfg(feature = "otel")]
use crate::trace::SpanExport;

/// The maximum number of lines waiting to be written.
const MAX_WAITING_LINES: usize = 4_096;

/// The limit on a single event.
const EVENT_LIMIT: &str = "token_bucket 10/second";

/// Keeps logging and span export running. Lines and spans are flushed when it is dropped.
#[must_use = "lines are written and spans are sent for as long as it is kept"]
pub struct Logging {
    _writing: WorkerGuard,
    #[cfg(feature = "otel")]
    _exporting: Option<SpanExport>,
}

static DROPPED: std::sync::OnceLock<ErrorCounter> = std::sync::OnceLock::new();
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines that were dropped or suppressed.
pub(crate) fn dropped_lines() -> u64 {
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
    u64::try_from(dropped)
        .unwrap_or(u64::MAX)
        .saturating_add(SUPPRESSED.load(Ordering::Relaxed))
}

/// A filter that limits each event, identified by its place in the source.
struct EventLimit(Option<Limiter<MemoryStore>>);

impl EventLimit {
    fn new() -> Self {
        let store = MemoryStore::builder().max_keys(1_024).build().ok();
        Self(
            store
                .zip(EVENT_LIMIT.parse().ok())
                .map(|(store, policy)| Limiter::new(store, policy)),
        )
    }
}

impl<S: Subscriber> Filter<S> for EventLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let place = std::ptr::from_ref(event.metadata()) as usize;
        let is_allowed = |limiter: &Limiter<MemoryStore>| {
            limiter
                .check(&place.to_ne_bytes())
                .now()
                .is_ok_and(|decision| decision.is_allowed())
        };
        let passes = self.0.as_ref().is_none_or(is_allowed);
        if !passes {
            SUPPRESSED.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }
}

/// Starts logging to standard error. Call it once per process, within an async runtime.
///
/// # Errors
///
/// Returns an error if logging was started before, or if spans cannot be exported.
pub fn start(config: &LogConfig) -> Result<Logging, ConfigError> {
    let level = match config.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // https://no-color.org: any value but an empty one.
    let is_colorless = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_colored = std::io::IsTerminal::is_terminal(&std::io::stderr()) && !is_colorless;
    let builder = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_WAITING_LINES);
    let (writer, writing) = builder
        .thread_name("tidegate-log")
        .finish(std::io::stderr());
    DROPPED.get_or_init(|| writer.error_counter());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_target(false);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(is_colored).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let own = Targets::new().with_target("tidegate", level);
    let subscriber =
        tracing_subscriber::registry().with(lines.with_filter(EventLimit::new()).with_filter(own));
    let started = |result: Result<(), tracing_subscriber::util::TryInitError>| {
        result.map_err(|error| ConfigError::Values(format!("log: {error}")))
    };
    #[cfg(feature = "otel")]
    {
        let spans = config
            .otlp
            .as_ref()
            .map(|endpoint| crate::trace::layer(endpoint))
            .transpose();
        let spans = spans.map_err(|error| ConfigError::Values(format!("log.otlp: {error}")))?;
        let (layer, exporting) = spans.unzip();
        started(subscriber.with(layer).try_init())?;
        Ok(Logging {
            _writing: writing,
            _exporting: exporting,
        })
    }
    #[cfg(not(feature = "otel"))]
    {
        started(subscriber.try_init())?;
        Ok(Logging { _writing: writing })
    }
}

/// Returns the start of a key and its length, for logs: enough to recognize it, not to use it.
pub(crate) fn masked_key(key: &[u8]) -> String {
    masked(key, key.len())
}

/// Returns the start of a key of which only a part is known, and the length of the whole key.
pub(crate) fn masked(key: &[u8], bytes: usize) -> String {
    let text = String::from_utf8_lossy(key);
    let shown: String = text
        .chars()
        .filter(|c| !c.is_control())
        .take((text.chars().count() / 2).min(4))
        .collect();
    format!("{shown}*** ({bytes} bytes)")
}
