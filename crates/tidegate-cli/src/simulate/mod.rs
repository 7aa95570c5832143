//! `tidegate simulate`: runs a trace through a policy, at the trace's own time.

mod input;
mod jsonl;
mod summary;
mod trace;

use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tidegate::store::Store;
use tidegate::{AnyStore, Cost, Decision, Limiter, ManualClock, Policy, Receipt, StoreUrl};

use input::Input;
use jsonl::JsonLines;
use summary::Summary;
use trace::{Step, StepAction};

/// Run a trace of requests through a policy, at the trace's own time
///
/// A trace is JSON lines, one request each, in order:
///
///   {"at_us": 1700000000000000, "key": "user:42", "cost": 1}
///
/// at_us is the time in microseconds since 1970, and may step back. cost is optional, a number with
/// at most three decimals. "refund": 1 instead of it gives back; "charge": 1.5 takes whatever the
/// limit says. "receipt": "r1" beside the cost requests a receipt. A later line with the same key
/// settles it, once, at the actual cost:
///
///   {"at_us": 1700000000500000, "key": "user:42", "settle": "r1", "cost": 0.5}
///
/// A simulation limits no real client and leaves nothing behind. The same trace and policy give the
/// same decisions every time. Ctrl-C ends it with the summary of the steps so far.
///
/// A policy is one or more limits, all or nothing:
///
///   [ALGORITHM] COUNT/[COUNT] UNIT [burst=COUNT] [anchor=clock|first_hit] [debt=COUNT]
///
/// The algorithms are token_bucket (the default), gcra, leaky_bucket, fixed_window,
/// sliding_window_log and sliding_window_counter. The units are ms, second, minute, hour, day,
/// week, month (30 days) and year (365 days).
#[derive(Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct SimulateOptions {
    /// Policy: one or more limits, separated by `;`
    #[arg(long, short, value_name = "POLICY")]
    policy: String,
    /// Trace: a file, or - for standard input
    #[arg(long, short, value_name = "FILE")]
    trace: String,
    /// Output: jsonl, one line per step with the whole decision; table, a summary by key [default:
    /// table on a terminal, jsonl elsewhere]
    #[arg(long, short, value_enum, value_name = "FORMAT")]
    output: Option<SimulateOutput>,
    /// Store of the counters: memory://, memory://?max_keys=N for more than a million keys, or
    /// redis:// and related schemes, under keys that are deleted at the end
    #[arg(long, short, default_value = "memory://", value_name = "URL")]
    store: String,
    /// Number of keys in the table, busiest first
    #[arg(long, default_value_t = 10, value_name = "N")]
    top: usize,
}

const EXAMPLES: &str = "\
Examples:
  tidegate simulate --policy '100/minute' --trace requests.jsonl
  tidegate simulate -p '10/s; sliding_window_log 100/minute' -t - -o jsonl < requests.jsonl
  tidegate simulate -p 'gcra 5/s burst=20' -t requests.jsonl -o jsonl | grep allowed.:false

Exit code: 0, or 2 if the policy, the store or a line of the trace is invalid.";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SimulateOutput {
    Jsonl,
    Table,
}

pub(crate) fn run(options: &SimulateOptions) -> anyhow::Result<()> {
    let policy: Policy = options.policy.parse().context("--policy")?;
    let mut simulation = Simulation::new(policy, &options.store)?;
    let input = Input::open(&options.trace, &simulation.is_interrupted)?;
    let stdout = std::io::stdout();
    let default = if stdout.is_terminal() {
        SimulateOutput::Table
    } else {
        SimulateOutput::Jsonl
    };
    match options.output.unwrap_or(default) {
        SimulateOutput::Jsonl => simulation.run(input, &mut JsonLines::new(stdout.lock()))?,
        SimulateOutput::Table => {
            let mut summary = Summary::new(options.top);
            let result = simulation.run(input, &mut summary);
            // Also summarizes the lines before an invalid one.
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

/// The time after which the keys of a simulation expire in Redis if it could not delete them.
const KEEP: Duration = Duration::from_secs(86_400);

/// The exit code after Ctrl-C, as shells expect it.
pub(crate) const INTERRUPTED: u8 = 130;

/// The error of a simulation that Ctrl-C ended.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// The timeout of one step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of open receipts.
const MAX_RECEIPTS: usize = 1_000_000;

/// A consumer of the decisions.
trait Sink {
    fn add(&mut self, step: &Step<'_>, decision: &Decision) -> anyhow::Result<()>;

    /// Flushes the output: there is no more input for the moment, or at all.
    fn flush(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A limiter whose clock is the trace.
struct Simulation {
    limiter: Limiter<AnyStore>,
    clock: ManualClock,
    /// The keys to delete at the end from a store that outlives the simulation.
    left_behind: Option<HashSet<String>>,
    /// Open receipts with their keys, by name.
    receipts: HashMap<String, (String, Receipt<AnyStore>)>,
    is_interrupted: Arc<AtomicBool>,
}

impl Simulation {
    fn new(policy: Policy, url: &str) -> anyhow::Result<Self> {
        let clock = ManualClock::new();
        let url = url.parse::<StoreUrl>().context("--store")?;
        let is_memory = url.is_memory();
        let prefix = format!(
            "tg:simulation:{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let url = url
            .manual_time(clock.clone(), KEEP)
            .prefix(prefix)
            .default_timeout(TIMEOUT);
        let limiter = url.limiter_blocking(policy).context("--store")?;
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let interrupted = Arc::clone(&is_interrupted);
        let handler = move || {
            // The second Ctrl-C ends at once. Keys on Redis expire by themselves.
            if interrupted.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED.into());
            }
        };
        ctrlc::set_handler(handler).context("Ctrl-C")?;
        Ok(Self {
            limiter,
            clock,
            left_behind: (!is_memory).then(HashSet::new),
            receipts: HashMap::new(),
            is_interrupted,
        })
    }

    /// Runs the trace. An invalid line ends it, with the line's number.
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
                return Err(Interrupted.into());
            }
            let Some((line, position)) = input.next_line()? else {
                if self.is_interrupted.load(Ordering::Relaxed) {
                    return Err(Interrupted.into());
                }
                return Ok(());
            };
            let step = Step::read(line).with_context(|| position.to_string())?;
            let decision = self.decide(&step).with_context(|| position.to_string())?;
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
        let decision = match &step.action {
            StepAction::Check(cost) => self.limiter.check(&*step.key).cost(*cost).blocking()?,
            StepAction::Refund(cost) => {
                let refund = self.limiter.refund(&*step.key, *cost);
                refund.blocking()?.into()
            }
            StepAction::Charge(cost) => {
                let charge = self.limiter.charge(&*step.key, *cost);
                charge.blocking()?.into()
            }
            StepAction::Admit(cost, name) => {
                let (decision, receipt) = self
                    .limiter
                    .check(&*step.key)
                    .cost(*cost)
                    .with_receipt()
                    .blocking()?;
                if self.receipts.len() >= MAX_RECEIPTS {
                    bail!("{MAX_RECEIPTS} receipts are open: expected fewer at a time");
                }
                let kept = (step.key.clone().into_owned(), receipt);
                if self
                    .receipts
                    .insert(name.clone().into_owned(), kept)
                    .is_some()
                {
                    bail!("receipt `{name}` is still open: expected a new name");
                }
                decision
            }
            StepAction::Settle(name, cost) => self.settle(&step.key, name, *cost)?,
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
            bail!("receipt `{name}` is unknown or settled: expected an open one");
        };
        if own_key != key {
            bail!("receipt `{name}` belongs to another key: expected the key of its check");
        }
        let settled = self
            .limiter
            .store()
            .block_on(receipt.settle_and_peek(actual))??;
        // A denied request has nothing to settle.
        match settled.first() {
            Some(decision) => Ok(*decision),
            None => Ok(self.limiter.check(key).cost(0).blocking()?),
        }
    }

    /// Deletes the keys of the simulation. Keys that cannot be reached expire by themselves.
    fn clean_up(&mut self) {
        for key in self.left_behind.take().into_iter().flatten() {
            if self.limiter.reset(&key).blocking().is_err() {
                return;
            }
        }
    }

    /// Warns about evicted keys, because the decisions would differ with enough room.
    fn warn_of_evictions(&self) {
        let AnyStore::Memory(store) = self.limiter.store() else {
            return;
        };
        let stats = store.stats();
        if stats.evictions > 0 {
            eprintln!(
                "tidegate: the store was full: {} keys were evicted before they had reset; \
                 --store 'memory://?max_keys=N' with more than {} keeps them",
                stats.evictions, stats.max_keys
            );
        }
    }
}
