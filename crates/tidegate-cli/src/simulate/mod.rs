//! `tidegate simulate`: runs a trace through a policy, at the trace's own time.

mod answers;
mod input;
mod summary;
mod trace;

use std::io::{IsTerminal, Write};

use anyhow::Context;
use clap::{Args, ValueEnum};
use tidegate::{Decision, Limiter, ManualClock, MemoryStore, Policy};

use crate::store_url::StoreUrl;
use answers::Answers;
use input::Input;
use summary::Summary;
use trace::{Act, Step};

/// Run a trace of requests through a policy, at the trace's own time
///
/// A trace is JSON lines, one request each, in the order they came:
///
///   {"at_us": 1700000000000000, "key": "user:42", "cost": 1}
///
/// at_us is the time in microseconds since 1970, and may step back; cost is optional, a
/// number with at most three decimals; "refund": 1 in its place gives back. Nothing is
/// limited and nothing is kept: the same trace and policy give the same answers every time.
///
/// A policy is one or more limits, all or nothing:
///
///   [ALGORITHM] COUNT/[COUNT] UNIT [burst=COUNT] [anchor=clock|first_hit]
///
/// with the algorithms token_bucket (the default), gcra, leaky_bucket, fixed_window,
/// sliding_window_log and sliding_window_counter, and the units ms, second, minute, hour,
/// day, week, month (30 days) and year (365 days).
#[derive(Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The policy: one or more limits, separated by `;`
    #[arg(long, short, value_name = "POLICY")]
    policy: String,
    /// The trace: a file, or - for standard input
    #[arg(long, short, value_name = "FILE")]
    trace: String,
    /// jsonl: one line a step, with the whole decision; table: a summary by key, for people [default: table on a
    /// terminal, jsonl elsewhere]
    #[arg(long, short, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// Where the counts are kept meanwhile: memory://, or memory://?max_keys=N for traces of more than a million keys
    #[arg(long, default_value = "memory://", value_name = "URL")]
    store: String,
    /// How many of the busiest keys the table shows
    #[arg(long, default_value_t = 10, value_name = "N")]
    top: usize,
}

const EXAMPLES: &str = "\
Examples:
  tidegate simulate --policy '100/minute' --trace requests.jsonl
  tidegate simulate -p '10/s; sliding_window_log 100/minute' -t - -o jsonl < requests.jsonl
  tidegate simulate -p 'gcra 5/s burst=20' -t requests.jsonl -o jsonl | grep allowed.:false

Exit code: 0, or 2 if the policy, the store or a line of the trace is not right.";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Jsonl,
    Table,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let policy: Policy = options.policy.parse().context("--policy")?;
    let store: StoreUrl = options.store.parse().context("--store")?;
    let mut simulation = Simulation::new(policy, &store)?;
    let input = Input::open(&options.trace)?;
    let stdout = std::io::stdout();
    let default = if stdout.is_terminal() { Output::Table } else { Output::Jsonl };
    match options.output.unwrap_or(default) {
        Output::Jsonl => simulation.run(input, &mut Answers::new(stdout.lock()))?,
        Output::Table => {
            let mut summary = Summary::new(options.top);
            let result = simulation.run(input, &mut summary);
            // Also of what came before a line that is not right.
            let text = summary.rendered(simulation.limiter.policy());
            stdout.lock().write_all(text.as_bytes()).context("standard output")?;
            result?;
        }
    }
    simulation.warn_of_evictions();
    Ok(())
}

/// What is done with the answers.
trait Sink {
    fn add(&mut self, step: &Step<'_>, decision: &Decision) -> anyhow::Result<()>;

    /// No more input for the moment, or at all: whoever reads the output should have all of it.
    fn flush(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A limiter whose clock is the trace.
struct Simulation {
    limiter: Limiter,
    clock: ManualClock,
}

impl Simulation {
    fn new(policy: Policy, store: &StoreUrl) -> anyhow::Result<Self> {
        let StoreUrl::Memory { max_keys } = store;
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(*max_keys).clock(clock.clone()).build().context("--store")?;
        Ok(Self { limiter: Limiter::new(store, policy), clock })
    }

    /// Steps through the trace. A line that is not right ends it, named by its number.
    fn run(&mut self, mut input: Input, sink: &mut impl Sink) -> anyhow::Result<()> {
        let result = self.run_all(&mut input, sink);
        sink.flush()?;
        result
    }

    fn run_all(&mut self, input: &mut Input, sink: &mut impl Sink) -> anyhow::Result<()> {
        loop {
            if input.is_drained() {
                sink.flush()?;
            }
            let Some((line, place)) = input.next_line()? else { return Ok(()) };
            let step = Step::read(line).with_context(|| place.to_string())?;
            let decision = self.decide(&step).with_context(|| place.to_string())?;
            sink.add(&step, &decision)?;
        }
    }

    fn decide(&self, step: &Step<'_>) -> anyhow::Result<Decision> {
        self.clock.set(step.at);
        Ok(match step.act {
            Act::Check(cost) => self.limiter.check(&*step.key).cost(cost).now()?,
            Act::Refund(cost) => self.limiter.refund(&*step.key, cost).now()?,
        })
    }

    /// What was dropped would have been counted: the answers are not what they would be with room enough.
    fn warn_of_evictions(&self) {
        let stats = self.limiter.store().stats();
        if stats.evictions > 0 {
            eprintln!(
                "tidegate: the store was full: {} keys were dropped before they had reset; \
                 --store 'memory://?max_keys=N' with more than {} keeps them",
                stats.evictions, stats.max_keys
            );
        }
    }
}
