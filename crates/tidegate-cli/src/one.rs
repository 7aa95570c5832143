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

use crate::figures::{Figures, Number};
use crate::remote::{Asking, ServerOptions};

/// How long one decision may take, where the URL says nothing of it: somebody is looking on, or a script.
const PATIENCE: Duration = Duration::from_secs(1);

/// A request that may not go on.
const DENIED: u8 = 1;

/// May this request go on? Takes what it costs if it may
///
/// Exit code: 0 allowed, 1 denied, 2 if something is not right or the store does not answer.
#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckOptions {
    #[command(flatten)]
    on: KeyOptions,
    /// What the request costs: at most three decimals; 0 takes nothing
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
    /// Who is limited: any text
    key: String,
    /// The policy: one or more limits, separated by `;`; with --server also the name of one
    #[arg(long, short, value_name = "POLICY")]
    policy: String,
    /// Where it is counted: redis://HOST:PORT/DB, rediss://, unix://PATH, redis+sentinel://HOST,HOST/NAME,
    /// redis+cluster://HOST,HOST; memory:// forgets when the command ends
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
    /// How to print the answer
    #[arg(long, short, value_enum, default_value = "text", value_name = "FORMAT")]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Number>,
    #[serde(flatten)]
    figures: Figures,
    /// Why the answer was given without the store, by the failure policy of its URL.
    degraded: Option<&'static str>,
}

pub(crate) fn check(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    if options.on.server.is_given() {
        return options
            .on
            .ask_server("check", Some(options.cost.to_string()));
    }
    let asked = options.on.connect()?;
    let decision = asked
        .limiter
        .check(&options.on.key)
        .cost(options.cost)
        .wait()?;
    options.on.print(&asked, &decision, Some(options.cost))?;
    Ok(exit_code(decision.is_allowed()))
}

/// `tidegate peek`: looks, and takes nothing.
pub(crate) fn peek(options: &KeyOptions) -> anyhow::Result<ExitCode> {
    if options.server.is_given() {
        return options.ask_server("peek", None);
    }
    let asked = options.connect()?;
    let decision = asked.limiter.check(&options.key).cost(Cost::ZERO).wait()?;
    options.print(&asked, &decision, None)?;
    // Where nobody knows what is left, what the failure policy says.
    let is_known = decision.degraded().is_none() || asked.is_local();
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
    let asked = options.connect()?;
    asked.limiter.reset(&options.key).wait()?;
    let decision = asked.limiter.check(&options.key).cost(Cost::ZERO).wait()?;
    options.print(&asked, &decision, None)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn exit_code(is_allowed: bool) -> ExitCode {
    if is_allowed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DENIED)
    }
}

/// What is asked, and whether its URL says what to answer without the store.
struct Asked {
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
        self.server.ask(&Asking {
            what,
            key,
            policy,
            cost,
            output: *output,
        })
    }

    fn connect(&self) -> anyhow::Result<Asked> {
        let policy: Policy = self.policy.parse().context("--policy")?;
        let mut url = StoreUrl::read(&self.store)
            .context("--store")?
            .patience(PATIENCE);
        let may_degrade = url.failure_policy().is_some();
        if may_degrade {
            url = url.lazily();
        }
        if url.is_memory() {
            eprintln!(
                "tidegate: memory:// forgets when this command ends; --store redis://... remembers"
            );
        }
        Ok(Asked {
            limiter: url.connect_blocking(policy).context("--store")?,
            may_degrade,
        })
    }

    fn print(&self, asked: &Asked, decision: &Decision, cost: Option<Cost>) -> anyhow::Result<()> {
        let degraded = decision.degraded();
        if let Some(reason) = degraded {
            let health = asked.limiter.counters().store;
            let error = health
                .and_then(|health| health.last_error)
                .unwrap_or_default();
            if reason == Degraded::Unreadable {
                bail!("{error}; `tidegate reset` takes it away");
            }
            if !asked.may_degrade {
                bail!(
                    "{error} (failure=open, closed or local in the store's URL says what to answer then)"
                );
            }
            eprintln!("tidegate: {error}");
        }
        let mut stdout = std::io::stdout().lock();
        let text = match self.output {
            Output::Json => {
                let answer = Answer {
                    key: &self.key,
                    cost: cost.map(Number),
                    figures: Figures::of(decision),
                    degraded: degraded.map(Degraded::name),
                };
                serde_json::to_string(&answer)?
            }
            Output::Text => asked.sentence(decision, cost.is_some()),
        };
        writeln!(stdout, "{text}").context("standard output")
    }
}

impl Asked {
    /// The decision as one line for people.
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
            Outcome::NeverAllowed => {
                "denied, and never allowed: it costs more than the whole limit; "
            }
        };
        format!("{verdict}{}", self.figures(decision))
    }

    fn is_local(&self) -> bool {
        matches!(
            self.limiter.failure_policy(),
            Some(FailurePolicy::Local { .. })
        )
    }

    /// What is left; where nobody knows, why.
    fn figures(&self, decision: &Decision) -> String {
        let left = format!("{} of {} left", decision.remaining(), decision.limit());
        let reset = match decision.reset_after() {
            Duration::ZERO => String::new(),
            reset => format!(", all in {}", shown(reset)),
        };
        match decision.degraded() {
            None => format!("{left}{reset}"),
            Some(reason) if self.is_local() => {
                format!("{left}{reset}, counted here alone, without the store ({reason})")
            }
            Some(reason) => format!("decided without the store ({reason})"),
        }
    }
}

/// To three digits or so, rounded up.
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
