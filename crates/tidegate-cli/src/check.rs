//! `tidegate check`, `peek` and `reset`: one key, from the shell.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate::{
    AnyStore, Cost, Decision, Degraded, FailurePolicy, Limiter, Outcome, Policy, StoreUrl,
};

use tidegate_http::DecisionJson;

use crate::json::JsonCost;
use crate::remote::{ServerOptions, ServerRequest};

/// The timeout of one decision, unless the URL sets one.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The exit code of a denied request.
const DENIED: u8 = 1;

/// Check a request, and take its cost if it is allowed
///
/// Exit code: 0 allowed, 1 denied, 2 on an error or if the store does not answer.
#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckOptions {
    #[command(flatten)]
    on: KeyOptions,
    /// Cost of the request, with at most three decimals; 0 takes nothing
    #[arg(long, short, default_value = "1", allow_negative_numbers = true)]
    cost: Cost,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  tidegate check user:42 --policy '100/minute' --store redis://127.0.0.1/
  tidegate check deploys -p '1/10 minutes' -s redis://ci/ && ./deploy
  TIDEGATE_STORE=redis://127.0.0.1/ tidegate check user:42 -p '10/s burst=50' --cost 2.5 -o json";

#[derive(Args)]
pub(crate) struct KeyOptions {
    /// Key: the client that is limited, any text
    key: String,
    /// Policy: one or more limits, separated by `;`; with --server also the name of a policy
    #[arg(long, short, value_name = "POLICY")]
    policy: String,
    /// Store of the counters: redis://HOST:PORT/DB, rediss://, unix://PATH,
    /// redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST; memory:// is lost when the
    /// command ends
    #[arg(
        long,
        short,
        default_value = "memory://",
        env = "TIDEGATE_STORE",
        hide_env_values = true,
        value_name = "URL"
    )]
    store: String,
    #[command(flatten)]
    server: ServerOptions,
    /// Output format
    #[arg(long, short, value_enum, default_value = "text", value_name = "FORMAT")]
    output: OutputFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Text,
    Json,
}

/// The JSON output.
#[derive(Serialize)]
struct CheckOutput<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<JsonCost>,
    #[serde(flatten)]
    decision: DecisionJson,
    /// The reason if the failure policy of the URL answered.
    degraded: Option<&'static str>,
}

pub(crate) fn check(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    if options.on.server.is_given() {
        return options
            .on
            .ask_server("check", Some(options.cost.to_string()));
    }
    let connected = options.on.connect()?;
    let decision = connected
        .limiter
        .check(&options.on.key)
        .cost(options.cost)
        .blocking()?;
    options
        .on
        .print(&connected, &decision, Some(options.cost))?;
    Ok(exit_code(decision.is_allowed()))
}

/// `tidegate peek`: takes nothing.
pub(crate) fn peek(options: &KeyOptions) -> anyhow::Result<ExitCode> {
    if options.server.is_given() {
        return options.ask_server("peek", None);
    }
    let connected = options.connect()?;
    let decision = connected
        .limiter
        .check(&options.key)
        .cost(Cost::ZERO)
        .blocking()?;
    options.print(&connected, &decision, None)?;
    // If the remaining amount is unknown, the failure policy's decision counts.
    let is_known = decision.degraded().is_none() || connected.is_local();
    Ok(exit_code(if is_known {
        decision.remaining() > 0
    } else {
        decision.is_allowed()
    }))
}

pub(crate) fn reset(options: &KeyOptions) -> anyhow::Result<ExitCode> {
    if options.server.is_given() {
        return options.ask_server("reset", None);
    }
    let connected = options.connect()?;
    connected.limiter.reset(&options.key).blocking()?;
    let decision = connected
        .limiter
        .check(&options.key)
        .cost(Cost::ZERO)
        .blocking()?;
    options.print(&connected, &decision, None)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn exit_code(is_allowed: bool) -> ExitCode {
    if is_allowed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DENIED)
    }
}

/// A limiter, and whether its URL sets a failure policy.
struct ConnectedLimiter {
    limiter: Limiter<AnyStore>,
    may_degrade: bool,
}

impl KeyOptions {
    fn ask_server(&self, what: &'static str, cost: Option<String>) -> anyhow::Result<ExitCode> {
        let Self {
            key,
            policy,
            output,
            ..
        } = self;
        self.server.ask(&ServerRequest {
            what,
            key,
            policy,
            cost,
            output: *output,
        })
    }

    fn connect(&self) -> anyhow::Result<ConnectedLimiter> {
        let policy: Policy = self.policy.parse().context("--policy")?;
        let mut url = self
            .store
            .parse::<StoreUrl>()
            .context("--store")?
            .default_timeout(TIMEOUT);
        let may_degrade = url.failure_policy().is_some();
        if may_degrade {
            url = url.lazily();
        }
        if url.is_memory() {
            eprintln!(
                "tidegate: memory:// is lost when this command ends; --store redis://... keeps the counters"
            );
        }
        Ok(ConnectedLimiter {
            limiter: url.limiter_blocking(policy).context("--store")?,
            may_degrade,
        })
    }

    fn print(
        &self,
        connected: &ConnectedLimiter,
        decision: &Decision,
        cost: Option<Cost>,
    ) -> anyhow::Result<()> {
        let degraded = decision.degraded();
        if let Some(reason) = degraded {
            let health = connected.limiter.counters().store;
            let error = health
                .and_then(|health| health.last_error)
                .unwrap_or_default();
            if reason == Degraded::Unreadable {
                bail!("{error}; `tidegate reset` deletes it");
            }
            if !connected.may_degrade {
                bail!(
                    "{error} (failure=open, failure=closed or failure=local in the store URL decides instead)"
                );
            }
            eprintln!("tidegate: {error}");
        }
        let mut stdout = std::io::stdout().lock();
        let text = match self.output {
            OutputFormat::Json => {
                let output = CheckOutput {
                    key: &self.key,
                    cost: cost.map(JsonCost),
                    decision: DecisionJson::from(decision),
                    degraded: degraded.map(Degraded::name),
                };
                serde_json::to_string(&output)?
            }
            OutputFormat::Text => connected.sentence(decision, cost.is_some()),
        };
        writeln!(stdout, "{text}").context("standard output")
    }
}

impl ConnectedLimiter {
    /// Returns the decision as one line for people.
    fn sentence(&self, decision: &Decision, was_asked: bool) -> String {
        let verdict = match decision.outcome() {
            _ if !was_asked => "",
            Outcome::Allowed { delay } if !delay.is_zero() => {
                &format!("allowed in {}; ", shown(delay))
            }
            Outcome::Allowed { .. } => "allowed; ",
            Outcome::Denied { retry_after } => {
                &format!("denied, retry in {}; ", shown(retry_after))
            }
            Outcome::NeverAllowed => "denied, never allowed: the cost exceeds the limit; ",
        };
        format!("{verdict}{}", self.figures(decision))
    }

    fn is_local(&self) -> bool {
        matches!(
            self.limiter.failure_policy(),
            Some(FailurePolicy::Local { .. })
        )
    }

    /// Returns the remaining amount or, if it is unknown, the reason.
    fn figures(&self, decision: &Decision) -> String {
        let left = format!("{} of {} left", decision.remaining(), decision.limit());
        let reset = match decision.reset_after() {
            Duration::ZERO => String::new(),
            reset => format!(", reset in {}", shown(reset)),
        };
        match decision.degraded() {
            None => format!("{left}{reset}"),
            Some(reason) if self.is_local() => {
                format!("{left}{reset}, counted locally, store unavailable ({reason})")
            }
            Some(reason) => format!("store unavailable ({reason})"),
        }
    }
}

/// Formats a duration to about three digits, rounded up.
pub(crate) fn shown(duration: Duration) -> String {
    let us = duration.as_nanos().div_ceil(1_000);
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{} ms", us.div_ceil(1_000)),
        1_000_000..100_000_000 => {
            let tenths = us.div_ceil(100_000);
            format!("{}.{} s", tenths / 10, tenths % 10)
        }
        _ => format!("{} s", us.div_ceil(1_000_000)),
    }
}
