//! `tidegate bench`: load on a store or a server, with percentiles.

mod grpc;
mod keys;
mod run;
mod target;

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tidegate::Policy;

use crate::check::OutputFormat;
use crate::interrupt::{Interrupt, Interrupted};
use keys::Distribution;
use run::Measured;
use target::Target;

/// Put load on a store or a server, and measure it
///
/// Callers send one check after the other (closed loop), or together at a fixed rate (--rate, open
/// loop). In an open loop the latency is counted from the time at which a check was due, so a
/// server that stalls cannot hide it. Keys have a prefix of their own (bench:…). The default policy
/// never denies. Ctrl-C prints the results so far.
///
/// Exit code: 0, 2 if the target cannot be reached, 130 after Ctrl-C.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchOptions {
    /// Target: memory://, redis://HOST and related schemes; http://HOST:PORT, resp://HOST:PORT or
    /// grpc://HOST:PORT of a server
    target: String,
    /// Policy: one or more limits. Over RESP one token bucket; over gRPC the rules of the server
    #[arg(long, short, default_value = "1_000_000_000/s", value_name = "POLICY")]
    policy: String,
    /// Number of callers, each with its own connection to a server
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=2000))]
    callers: u64,
    /// Checks per second of all callers together, instead of as many as possible
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Duration of the measurement, after a second to warm up
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Number of keys
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,
    /// Distribution of the keys: uniform, zipf (few are busy), or hot (one key)
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Checks per write and per read, for resp:// only
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pipeline: u64,
    /// Domain of the descriptors, for grpc:// only. The descriptor is (key, KEY)
    #[arg(long, default_value = "bench", value_name = "NAME")]
    domain: String,
    /// Output format
    #[arg(long, short, value_enum, default_value = "text", value_name = "FORMAT")]
    output: OutputFormat,
}

const EXAMPLES: &str = "\
Examples:
  tidegate bench memory:// --callers 2 --distribution zipf --keys 1000000
  tidegate bench redis://127.0.0.1/ --callers 64
  tidegate bench http://127.0.0.1:8080 --rate 5000 --duration 30s
  tidegate bench resp://127.0.0.1:6380 --pipeline 16 --output json";

/// The results, with times in microseconds.
#[derive(Serialize)]
struct BenchReport {
    target: String,
    policy: String,
    callers: u64,
    rate: Option<u64>,
    keys: u64,
    seconds: f64,
    checks: u64,
    checks_per_second: f64,
    denied: u64,
    errors: u64,
    first_error: Option<String>,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    is_partial: bool,
}

pub(crate) fn run(options: &BenchOptions) -> anyhow::Result<()> {
    let interrupt = Interrupt::handled()?;
    let policy: Policy = options.policy.parse().context("--policy")?;
    if options.duration.is_zero() {
        bail!("--duration 0s: expected a time such as 10s");
    }
    let target = Target::parse(options, &policy)?;
    let measured = run::measure(options, &target, &interrupt)?;
    let report = BenchReport::of(options, &policy, &measured);
    let text = match options.output {
        OutputFormat::Json => serde_json::to_string_pretty(&report)? + "\n",
        OutputFormat::Text => report.text(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .context("standard output")?;
    if measured.is_partial {
        return Err(Interrupted.into());
    }
    Ok(())
}

impl BenchReport {
    fn of(options: &BenchOptions, policy: &Policy, measured: &Measured) -> Self {
        let seconds = measured.elapsed.as_secs_f64().max(1e-9);
        let histogram = &measured.histogram;
        let us = |nanos: u64| nanos as f64 / 1e3;
        let at = |quantile: f64| us(histogram.value_at_quantile(quantile));
        Self {
            target: shown_target(&options.target),
            policy: policy.to_string(),
            callers: options.callers,
            rate: options.rate,
            keys: options.keys,
            seconds,
            checks: measured.checks,
            checks_per_second: measured.checks as f64 / seconds,
            denied: measured.denied,
            errors: measured.errors,
            first_error: measured.first_error.clone(),
            mean_us: histogram.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(histogram.max()),
            is_partial: measured.is_partial,
        }
    }

    fn text(&self) -> String {
        let count = tidegate_insight::text::count;
        let loop_kind = match self.rate {
            Some(rate) => format!("open loop at {}/s", count(rate)),
            None => "closed loop".to_owned(),
        };
        let mut text = format!(
            "target    {}, {} callers, {loop_kind}, {} keys\n\
             checks    {} in {:.1} s, {}/s\n\
             denied    {}\n\
             latency   mean {}, p50 {}, p90 {}, p99 {}, p99.9 {}, max {}\n",
            self.target,
            self.callers,
            count(self.keys),
            count(self.checks),
            self.seconds,
            count(self.checks_per_second as u64),
            count(self.denied),
            time(self.mean_us),
            time(self.p50_us),
            time(self.p90_us),
            time(self.p99_us),
            time(self.p999_us),
            time(self.max_us),
        );
        if let Some(error) = &self.first_error {
            text.push_str(&format!(
                "errors    {}, first: {error}\n",
                count(self.errors)
            ));
        }
        text
    }
}

fn time(us: f64) -> String {
    tidegate_insight::text::duration((us * 1e3) as u64)
}

/// Returns the target without a user and a password.
fn shown_target(target: &str) -> String {
    match (target.split_once("://"), target.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => target.to_owned(),
    }
}
