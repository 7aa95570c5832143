//! `tidegate simulate`: runs a trace through a policy, at the trace's own time.

mod answers;
mod input;
mod summary;
mod trace;

use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tidegate::{AnyStore, Cost, Decision, Limiter, ManualClock, Policy, Receipt, Store, StoreUrl};

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
/// number with at most three decimals; "refund": 1 in its place gives back. "receipt": "r1"
/// beside the cost asks for a receipt. A later line with the same key settles it, once, at
/// the actual cost:
///
///   {"at_us": 1700000000500000, "key": "user:42", "settle": "r1", "cost": 0.5}
///
/// Nothing is limited and nothing is kept: the same trace and policy give the same answers
/// every time.
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
    /// Where the counts are kept meanwhile: memory://, memory://?max_keys=N for traces of more than a million keys, or
    /// redis:// and its relatives, under names of their own that are taken away at the end
    #[arg(long, short, default_value = "memory://", value_name = "URL")]
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
    let mut simulation = Simulation::new(policy, &options.store)?;
    let input = Input::open(&options.trace)?;
    let stdout = std::io::stdout();
    let default = if stdout.is_terminal() {
        Output::Table
    } else {
        Output::Jsonl
    };
    match options.output.unwrap_or(default) {
        Output::Jsonl => simulation.run(input, &mut Answers::new(stdout.lock()))?,
        Output::Table => {
            let mut summary = Summary::new(options.top);
            let result = simulation.run(input, &mut summary);
            // Also of what came before a line that is not right.
            let text = summary.rendered(simulation.limiter.policy());
            stdout
                .lock()
                .write_all(text.as_bytes())
                .context("standard output")?;
            result?;
        }
    }
    simulation.warn_of_evictions();
    Ok(())
}

/// What a simulation writes to Redis is gone after this long at the latest, should nobody be left to take it away.
const KEEP: Duration = Duration::from_secs(86_400);

/// What shells take for the end by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// How long one step may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most receipts that are open at a time.
const MOST_RECEIPTS: usize = 1_000_000;

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
    limiter: Limiter<AnyStore>,
    clock: ManualClock,
    /// What is to be taken away at the end: keys in a store that outlives us.
    left_behind: Option<HashSet<String>>,
    /// Receipts that were not settled yet with their keys, by name.
    receipts: HashMap<String, (String, Receipt<AnyStore>)>,
    is_interrupted: Arc<AtomicBool>,
}

impl Simulation {
    fn new(policy: Policy, url: &str) -> anyhow::Result<Self> {
        let clock = ManualClock::new();
        let url = StoreUrl::read(url).context("--store")?;
        let is_memory = url.is_memory();
        let prefix = format!(
            "tg:simulation:{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let url = url
            .given_time(clock.clone(), KEEP)
            .prefix(prefix)
            .patience(PATIENCE);
        let limiter = url.connect_blocking(policy).context("--store")?;
        let is_interrupted = Arc::new(AtomicBool::new(false));
        if !is_memory {
            let interrupted = Arc::clone(&is_interrupted);
            let handler = move || {
                // The second time somebody means it: we may be waiting for input. What is left behind expires by itself.
                if interrupted.swap(true, Ordering::Relaxed) {
                    std::process::exit(INTERRUPTED);
                }
            };
            ctrlc::set_handler(handler).context("Ctrl-C")?;
        }
        Ok(Self {
            limiter,
            clock,
            left_behind: (!is_memory).then(HashSet::new),
            receipts: HashMap::new(),
            is_interrupted,
        })
    }

    /// Steps through the trace. A line that is not right ends it, named by its number.
    fn run(&mut self, mut input: Input, sink: &mut impl Sink) -> anyhow::Result<()> {
        let result = self.run_all(&mut input, sink);
        self.clean_up();
        sink.flush()?;
        result
    }

    fn run_all(&mut self, input: &mut Input, sink: &mut impl Sink) -> anyhow::Result<()> {
        loop {
            if input.is_drained() {
                sink.flush()?;
            }
            if self.is_interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let Some((line, place)) = input.next_line()? else {
                return Ok(());
            };
            let step = Step::read(line).with_context(|| place.to_string())?;
            let decision = self.decide(&step).with_context(|| place.to_string())?;
            sink.add(&step, &decision)?;
        }
    }

    fn decide(&mut self, step: &Step<'_>) -> anyhow::Result<Decision> {
        self.clock.set(step.at);
        if let Some(keys) = &mut self.left_behind
            && !keys.contains(&*step.key)
        {
            keys.insert(step.key.clone().into_owned());
        }
        let decision = match &step.act {
            Act::Check(cost) => self.limiter.check(&*step.key).cost(*cost).wait()?,
            Act::Refund(cost) => self.limiter.refund(&*step.key, *cost).wait()?,
            Act::Admit(cost, name) => {
                let (decision, receipt) = self
                    .limiter
                    .check(&*step.key)
                    .cost(*cost)
                    .with_receipt()
                    .wait()?;
                if self.receipts.len() >= MOST_RECEIPTS {
                    bail!("{MOST_RECEIPTS} receipts are not settled yet: expected fewer at a time");
                }
                let kept = (step.key.clone().into_owned(), receipt);
                if self
                    .receipts
                    .insert(name.clone().into_owned(), kept)
                    .is_some()
                {
                    bail!("receipt `{name}` is not settled yet: expected a new name");
                }
                decision
            }
            Act::Settle(name, cost) => self.settle(&step.key, name, *cost)?,
        };
        match decision.degraded() {
            Some(_) => {
                let health = self.limiter.counters().store;
                bail!(
                    "{}",
                    health
                        .and_then(|health| health.last_error)
                        .unwrap_or_default()
                )
            }
            None => Ok(decision),
        }
    }

    fn settle(&mut self, key: &str, name: &str, actual: Cost) -> anyhow::Result<Decision> {
        let Some((own_key, receipt)) = self.receipts.remove(name) else {
            bail!("there is no receipt `{name}`, or it was settled: a receipt settles once");
        };
        if own_key != key {
            bail!("receipt `{name}` is of another key: expected the key of its check");
        }
        let settled = self
            .limiter
            .store()
            .block_on(receipt.settle_and_look(actual))??;
        // A denied request has nothing to settle.
        match settled.first() {
            Some(decision) => Ok(*decision),
            None => Ok(self.limiter.check(key).cost(0).wait()?),
        }
    }

    /// Takes away what is left in a store that outlives us. What cannot be reached expires by itself.
    fn clean_up(&mut self) {
        for key in self.left_behind.take().into_iter().flatten() {
            if self.limiter.reset(&key).wait().is_err() {
                return;
            }
        }
    }

    /// What was dropped would have been counted: the answers are not what they would be with room enough.
    fn warn_of_evictions(&self) {
        let AnyStore::Memory(store) = self.limiter.store() else {
            return;
        };
        let stats = store.stats();
        if stats.evictions > 0 {
            eprintln!(
                "tidegate: the store was full: {} keys were dropped before they had reset; \
                 --store 'memory://?max_keys=N' with more than {} keeps them",
                stats.evictions, stats.max_keys
            );
        }
    }
}
