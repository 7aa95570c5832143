//! `tidegate check`, `peek`, `charge`, `refund` and `reset`: one key, from the shell.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate::{
    AnyStore, CheckError, Cost, Decision, Degraded, DenialReason, FailurePolicy, Limiter, Name,
    Outcome, Policy, StoreUrl,
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
    /// Cost, with at most three decimals; a check of cost 0 takes nothing
    #[arg(long, short, default_value = "1", allow_negative_numbers = true)]
    cost: Cost,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  tidegate check user:42 --policy '100/minute' --store redis://127.0.0.1/
  tidegate check deploys -p '1/10 minutes' -s redis://ci/ && ./deploy
  tidegate peek user:42 --policy api --cost 5 --server http://127.0.0.1:8080
  tidegate charge user:42 -p '1000/minute debt=5000' -s redis://127.0.0.1/ --cost 1500
  TIDEGATE_STORE=redis://127.0.0.1/ tidegate check user:42 -p '10/s burst=50' --cost 2.5 -o json";

#[derive(Args)]
pub(crate) struct KeyOptions {
    /// Key: the client that is limited, any text
    key: String,
    /// Policy: one or more limits, separated by `;`; with --server also the name of a policy
    #[arg(long, short, value_name = "POLICY")]
    policy: String,
    /// Name of the policy, whose counters are then those of a server or library with this policy.
    /// --policy must have the same limits
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    policy_name: Option<Name>,
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
    /// The reason for a denial.
    reason: Option<&'static str>,
    /// The limit that denied the request.
    denied_by: Option<String>,
    /// Set by a reset: whether there was anything to reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<bool>,
}

pub(crate) fn check(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    options.run("check", |limiter, key, cost| {
        limiter.check(key).cost(cost).blocking()
    })
}

/// `tidegate peek`: takes nothing.
pub(crate) fn peek(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    options.run("peek", |limiter, key, cost| {
        limiter.peek(key).cost(cost).blocking()
    })
}

/// `tidegate charge`: takes whatever the limit says.
pub(crate) fn charge(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    options.run("charge", |limiter, key, cost| {
        limiter.charge(key, cost).blocking().map(Into::into)
    })
}

/// `tidegate refund`: gives back.
pub(crate) fn refund(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    let code = options.run("refund", |limiter, key, cost| {
        limiter.refund(key, cost).blocking().map(Into::into)
    })?;
    // A key that stays in debt was refunded all the same.
    let _ = code;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn reset(options: &KeyOptions) -> anyhow::Result<ExitCode> {
    if options.server.is_given() {
        return options.ask_server("reset", None);
    }
    let connected = options.connect()?;
    let was_used = connected.limiter.reset(&options.key).blocking()?;
    let look = connected.limiter.check(&options.key).cost(Cost::ZERO);
    options.print(&connected, &look.blocking()?, Printed::Reset(was_used))?;
    Ok(ExitCode::SUCCESS)
}

/// The operation whose decision is printed.
#[derive(Clone, Copy)]
enum Printed {
    /// A check or peek of this cost.
    Decision(Cost),
    /// A charge or refund of this cost: only the usage matters.
    Usage(Cost),
    /// A reset, and whether there was anything to reset.
    Reset(bool),
}

impl CheckOptions {
    /// Runs an operation on the server or in the store, and prints its decision.
    fn run(
        &self,
        what: &'static str,
        operation: impl FnOnce(&Limiter<AnyStore>, &str, Cost) -> Result<Decision, CheckError>,
    ) -> anyhow::Result<ExitCode> {
        if self.on.server.is_given() {
            return self.on.ask_server(what, Some(self.cost.to_string()));
        }
        let connected = self.on.connect()?;
        let decision = operation(&connected.limiter, &self.on.key, self.cost)?;
        let printed = match what {
            "check" | "peek" => Printed::Decision(self.cost),
            _ => Printed::Usage(self.cost),
        };
        self.on.print(&connected, &decision, printed)?;
        Ok(exit_code(decision.is_allowed()))
    }
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
        let mut limiter = url.limiter_blocking(policy.clone()).context("--store")?;
        if let Some(name) = &self.policy_name {
            limiter = limiter.in_namespace(name, policy);
        }
        Ok(ConnectedLimiter {
            limiter,
            may_degrade,
        })
    }

    fn print(
        &self,
        connected: &ConnectedLimiter,
        decision: &Decision,
        printed: Printed,
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
                let (cost, reset) = match printed {
                    Printed::Decision(cost) | Printed::Usage(cost) => (Some(cost), None),
                    Printed::Reset(was_used) => (None, Some(was_used)),
                };
                let output = CheckOutput {
                    key: &self.key,
                    cost: cost.map(JsonCost),
                    decision: DecisionJson::from(decision),
                    degraded: degraded.map(Degraded::name),
                    reason: decision.reason().map(DenialReason::name),
                    denied_by: connected.denied_by(decision),
                    reset,
                };
                serde_json::to_string(&output)?
            }
            OutputFormat::Text => connected.sentence(decision, printed),
        };
        writeln!(stdout, "{text}").context("standard output")
    }
}

impl ConnectedLimiter {
    /// Returns the decision as one line for people.
    fn sentence(&self, decision: &Decision, printed: Printed) -> String {
        match printed {
            Printed::Decision(_) => {}
            Printed::Usage(_) => {
                let debt = match decision.retry_after() {
                    Some(wait) => format!("in debt for {}; ", shown(wait)),
                    None => String::new(),
                };
                return format!("{debt}{}", self.figures(decision));
            }
            Printed::Reset(was_used) => {
                let done = if was_used {
                    "reset"
                } else {
                    "nothing to reset"
                };
                return format!("{done}; {}", self.figures(decision));
            }
        }
        let by = self
            .denied_by(decision)
            .filter(|_| self.limiter.policy().limits().len() > 1)
            .map_or_else(String::new, |limit| format!(" by {limit}"));
        let verdict = match decision.outcome() {
            Outcome::Allowed { delay } if !delay.is_zero() => {
                &format!("allowed in {}; ", shown(delay))
            }
            Outcome::Allowed { .. } => "allowed; ",
            Outcome::Denied { retry_after } => {
                &format!("denied{by}, retry in {}; ", shown(retry_after))
            }
            Outcome::NeverAllowed => {
                &format!("denied{by}, never allowed: the cost exceeds the limit; ")
            }
        };
        format!("{verdict}{}", self.figures(decision))
    }

    /// Returns the limit that denied a request, or `None` if the failure policy did.
    fn denied_by(&self, decision: &Decision) -> Option<String> {
        let limits = self.limiter.policy().limits();
        let is_limit = decision.is_denied() && decision.has_figures();
        let limit = limits.get(decision.limit_index()).filter(|_| is_limit)?;
        Some(limit.to_string())
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
