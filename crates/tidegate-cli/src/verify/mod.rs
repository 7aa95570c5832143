//! `tidegate verify`: runs the conformance vectors and a concurrent test on the user's own store.

mod concurrent;

use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::Value;
use tidegate::{ManualClock, Policy, StoreUrl};
use tidegate_http::DecisionJson;

use crate::interrupt::Interrupt;
use crate::simulate::{Simulation, Step};

/// The vectors of this version, compressed.
const VECTORS: &[u8] = include_bytes!("vectors.jsonl.gz");

/// Verify that a store decides exactly, with the conformance vectors
///
/// Runs all worked cases on the store, and then many callers at once, which must admit exactly the
/// limit. Keys are in a namespace of their own (tg:verify:…), are deleted at the end, and expire
/// within an hour if that fails. Nothing else is read or changed. On Redis it takes up to a minute.
///
/// Exit code: 0 if every decision is right, 1 if one is wrong or fails, 2 if the store cannot be
/// reached.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyOptions {
    /// URL of the store: redis://HOST:PORT/DB, rediss://, unix://PATH,
    /// redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST, or memory://
    url: String,
    /// Number of concurrent callers
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    callers: u64,
    /// Number of checks of each caller
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    checks: u64,
}

const EXAMPLES: &str = "\
Examples:
  tidegate verify redis://127.0.0.1:6379/
  tidegate verify 'redis+cluster://10.0.0.1,10.0.0.2' --callers 64";

/// The time after which keys expire if they could not be deleted.
const KEEP: Duration = Duration::from_secs(3_600);
/// The timeout of one step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A worked case: the steps with their expected decisions.
#[derive(Deserialize)]
struct Case {
    policy: String,
    steps: Vec<Value>,
}

pub(crate) fn run(options: &VerifyOptions) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::handled()?;
    let prefix = format!("tg:verify:{}-{:08x}", std::process::id(), fastrand::u32(..));
    let vectors = verify_vectors(&options.url, &prefix, &interrupt)?;
    println!("vectors     {vectors}");
    let concurrent = concurrent::verify(options, &prefix, &interrupt)?;
    println!("concurrent  {concurrent}");
    let is_right = vectors.is_right && concurrent.is_right;
    println!(
        "{}",
        if is_right {
            "every decision is right"
        } else {
            "the store decides wrongly"
        }
    );
    Ok(ExitCode::from(u8::from(!is_right)))
}

/// The result of one part.
struct Outcome {
    is_right: bool,
    text: String,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn verify_vectors(url: &str, prefix: &str, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut unpacked = BufReader::new(flate2::read::GzDecoder::new(VECTORS));
    let mut all = String::new();
    unpacked
        .read_to_string(&mut all)
        .context("the vectors in this program")?;
    let clock = ManualClock::new();
    let url: StoreUrl = url.parse()?;
    let url = url
        .manual_time(clock.clone(), KEEP)
        .prefix(prefix.to_owned())
        .default_timeout(TIMEOUT);
    let limiter = url.limiter_blocking("1/s".parse()?)?;
    let (mut cases, mut steps) = (0_u64, 0_u64);
    let progress = progress(all.lines().count() as u64);
    for line in all.as_bytes().lines() {
        interrupt.check()?;
        let case: Case = serde_json::from_str(&line?).context("the vectors in this program")?;
        let policy: Policy = case.policy.parse()?;
        let mut simulation = Simulation::on(limiter.with_policy(policy), clock.clone());
        let wrong = first_wrong(&mut simulation, &case, cases);
        simulation.clean_up();
        steps += case.steps.len() as u64;
        cases += 1;
        progress.inc(1);
        match wrong {
            Ok(None) => {}
            Ok(Some(text)) => {
                progress.finish_and_clear();
                return Ok(Outcome {
                    is_right: false,
                    text,
                });
            }
            Err(error) => {
                progress.finish_and_clear();
                let policy = &case.policy;
                let text = format!("wrong: case {cases} ({policy}) failed: {error:#}");
                return Ok(Outcome {
                    is_right: false,
                    text,
                });
            }
        }
    }
    progress.finish_and_clear();
    let text = format!("{cases} cases, {steps} steps, all right");
    Ok(Outcome {
        is_right: true,
        text,
    })
}

/// Returns the first step whose decision differs, as text.
fn first_wrong(
    simulation: &mut Simulation,
    case: &Case,
    number: u64,
) -> anyhow::Result<Option<String>> {
    for (index, expected) in case.steps.iter().enumerate() {
        // Each case has keys of its own.
        let mut own = expected.clone();
        let key = format!("{number}:{}", expected["key"].as_str().unwrap_or_default());
        own["key"] = key.into();
        let line = own.to_string();
        let step = Step::read(line.as_bytes())?;
        let decision = simulation.decide(&step)?;
        let found = serde_json::to_value(DecisionJson::from(&decision))?;
        let fields = found.as_object().context("a decision")?;
        for (name, value) in fields {
            if expected[name] != *value {
                let (policy, wanted) = (&case.policy, &expected[name]);
                let step = index + 1;
                return Ok(Some(format!(
                    "wrong: case {} ({policy}), step {step}: {name} is {value}, expected {wanted}",
                    number + 1
                )));
            }
        }
    }
    Ok(None)
}

fn progress(cases: u64) -> ProgressBar {
    use std::io::IsTerminal;
    if std::io::stderr().is_terminal() {
        ProgressBar::new(cases)
    } else {
        ProgressBar::hidden()
    }
}
