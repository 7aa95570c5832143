//! Log lines, for people or for machines, and spans for a collector. Keys are personal data: none is ever in either.

use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{ConfigError, LogConfig, LogFormat, LogLevel};
#[cfg(feature = "otel")]
use crate::trace::Exporting;

/// Logs for as long as the process runs, and sends spans for as long as this is kept.
#[must_use = "spans are sent for as long as it is kept"]
pub struct Logging {
    #[cfg(feature = "otel")]
    _exporting: Option<Exporting>,
}

/// Starts logging to standard error, as configured. Once in a process, and within an async runtime.
///
/// # Errors
/// If logging was started before, or spans are to be sent and cannot be.
pub fn start(config: &LogConfig) -> Result<Logging, ConfigError> {
    let level = match config.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(is_terminal).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(level));
    let started = |result: Result<(), tracing_subscriber::util::TryInitError>| {
        result.map_err(|error| ConfigError::Values(format!("log: {error}")))
    };
    #[cfg(feature = "otel")]
    {
        let spans = config.otlp.as_ref().map(|endpoint| crate::trace::layer(endpoint)).transpose();
        let spans = spans.map_err(|error| ConfigError::Values(format!("log.otlp: {error}")))?;
        let (layer, exporting) = spans.unzip();
        started(subscriber.with(layer).try_init())?;
        Ok(Logging { _exporting: exporting })
    }
    #[cfg(not(feature = "otel"))]
    {
        started(subscriber.try_init())?;
        Ok(Logging {})
    }
}
