//! `tidegate simulate`: runs a trace through a policy, at the trace's own time.

pub(crate) mod input;
mod jsonl;
mod most;
mod output;
mod source;
mod summary;
mod trace;

use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal, StdoutLock, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgGroup, Args, ValueEnum};
use tidegate::store::Store;
use tidegate::{AnyStore, Cost, Decision, Limiter, ManualClock, Policy, Receipt, StoreUrl};
use tidegate_insight::{Timeline, Traffic};

use crate::interrupt::Interrupt;
use crate::plot_file::PlotTarget;
use input::Input;
use jsonl::JsonLines;
use most::MostInPeriod;
use source::{Generated, Source};
use summary::Summary;
pub(crate) use summary::printable;
pub(crate) use trace::Step;
use trace::StepAction;

/// Run recorded or generated requests through policies, at their own time
///
/// --traffic generates requests. --trace reads recorded ones. A trace is JSON lines, one request each, in order:
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
#[command(
    verbatim_doc_comment,
    after_help = EXAMPLES,
    group = ArgGroup::new("source").required(true).args(["trace", "traffic"])
)]
pub(crate) struct SimulateOptions {
    /// Policy: one or more limits, separated by `;`. Several policies decide the same requests side
    /// by side
    #[arg(long, short, required = true, value_name = "POLICY")]
    policy: Vec<String>,
    /// Trace: a file, or - for standard input
    #[arg(long, short, value_name = "FILE")]
    trace: Option<String>,
    /// Generated traffic instead of a trace: steady:5/s, poisson:5/s, burst:20/10s (20 at once every
    /// 10 seconds) or boundary (a whole limit before and after the edge of a window). Each one is a
    /// client of its own
    #[arg(long, value_name = "SHAPE")]
    traffic: Vec<Traffic>,
    /// With --traffic: simulated time, such as 90s or 2h [default: five of the
    /// longest period, at least 10s]
    #[arg(long, requires = "traffic", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// With --traffic: seed of the random numbers
    #[arg(long, requires = "traffic", default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Draw requests and remaining units over time: FILE.svg, FILE.png, FILE.html, or - for the
    /// terminal, which is the default for --traffic on a terminal
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Output: jsonl, one line per step with the whole decision; table, a summary [default: table on
    /// a terminal, with --traffic or with --plot; jsonl elsewhere]
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
  tidegate simulate --policy 'fixed_window 100/minute' --traffic boundary
  tidegate simulate -p '10/s burst=20' -p 'sliding_window_log 10/s' --traffic poisson:12/s --plot out.svg
  tidegate simulate --policy '100/minute' --trace requests.jsonl
  tidegate simulate -p '10/s; sliding_window_log 100/minute' -t - -o jsonl < requests.jsonl
  tidegate simulate -p 'gcra 5/s burst=20' -t requests.jsonl -o jsonl | grep allowed.:false

Exit code: 0, 2 if the policy, the store or a line of the trace is invalid, 130 after Ctrl-C.";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SimulateOutput {
    Jsonl,
    Table,
}

pub(crate) fn run(options: &SimulateOptions) -> anyhow::Result<()> {
    let interrupt = Interrupt::handled()?;
    let parse = |text: &String| text.parse::<Policy>().context("--policy");
    let policies: Vec<Policy> = options.policy.iter().map(parse).collect::<Result<_, _>>()?;
    let plot = options.plot.as_deref().map(PlotTarget::of).transpose()?;
    let lane = |policy: &Policy| Lane::new(policy, options);
    let mut lanes: Vec<Lane> = policies.iter().map(lane).collect::<Result<_, _>>()?;
    let mut source = match &options.trace {
        Some(path) => Source::Trace(Input::open(path, &interrupt)?),
        None => Source::Generated(Generated::new(options, &policies)),
    };
    let stdout = std::io::stdout();
    let is_table = match options.output {
        Some(output) => output == SimulateOutput::Table,
        None => stdout.is_terminal() || plot.is_some() || options.trace.is_none(),
    };
    let mut lines = (!is_table).then(|| JsonLines::new(stdout.lock(), policies.len() > 1));
    let result = run_all(&mut lanes, &mut source, lines.as_mut(), &interrupt);
    // The progress bar ends before anything is printed.
    drop(source);
    lanes.iter_mut().for_each(|lane| lane.simulation.clean_up());
    if let Some(lines) = &mut lines {
        lines.flush()?;
    }
    drop(lines);
    if is_table {
        // Also summarizes the steps before an invalid line.
        let mut text = output::summary(&lanes, options);
        if plot.is_none() && options.trace.is_none() && stdout.is_terminal() {
            text.push_str(&output::terminal(&lanes));
        }
        let mut stdout = stdout.lock();
        stdout
            .write_all(text.as_bytes())
            .context("standard output")?;
    }
    if let Some(plot) = plot {
        output::plot(&lanes, &plot)?;
    }
    result?;
    let is_idle = |lane: &Lane| lane.timeline.bins().iter().all(|bin| bin.offered == 0);
    if options.trace.is_none() && lanes.iter().all(is_idle) {
        bail!("--traffic: no request in this time: expected a longer --duration");
    }
    lanes
        .iter()
        .for_each(|lane| lane.simulation.warn_of_evictions());
    Ok(())
}

/// Runs every step through every policy. An invalid line ends it, with the line's number.
fn run_all(
    lanes: &mut [Lane],
    source: &mut Source,
    mut lines: Option<&mut JsonLines<StdoutLock<'_>>>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    loop {
        if let (true, Some(lines)) = (source.is_drained(), lines.as_mut()) {
            lines.flush()?;
        }
        interrupt.check()?;
        let Some((step, position)) = source.next_step()? else {
            return interrupt.check();
        };
        for lane in &mut *lanes {
            let decided = lane.simulation.decide(&step);
            let decision = decided.with_context(|| position.to_string())?;
            match &mut lines {
                _ if step.action == StepAction::Sample => {}
                Some(lines) => lines.add(&step, &decision, lane.simulation.limiter.policy())?,
                None => lane.summary.add(&step, &decision),
            }
            lane.observe(&step, &decision);
        }
    }
}

/// One of the policies, with the figures of its decisions.
struct Lane {
    simulation: Simulation,
    summary: Summary,
    timeline: Timeline,
    most: MostInPeriod,
}

impl Lane {
    fn new(policy: &Policy, options: &SimulateOptions) -> anyhow::Result<Self> {
        let periods = policy.limits().iter().map(|limit| limit.period());
        Ok(Self {
            simulation: Simulation::new(policy.clone(), &options.store)?,
            summary: Summary::new(options.top),
            timeline: Timeline::default(),
            most: MostInPeriod::new(periods.max().unwrap_or_default()),
        })
    }

    fn observe(&mut self, step: &Step<'_>, decision: &Decision) {
        if step.action == StepAction::Sample {
            self.timeline.sample(step.at_us, decision.remaining());
        }
        if matches!(step.action, StepAction::Check(_) | StepAction::Admit(..)) {
            let remaining = decision.remaining();
            self.timeline
                .add(step.at_us, decision.is_allowed(), remaining);
            if decision.is_allowed() {
                self.most.add(step.at, &step.key);
            }
        }
    }
}

/// The time after which the keys of a simulation expire in Redis if it could not delete them.
const KEEP: Duration = Duration::from_secs(86_400);

/// The timeout of one step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of open receipts.
const MAX_RECEIPTS: usize = 1_000_000;

/// A limiter whose clock is the trace.
pub(crate) struct Simulation {
    limiter: Limiter<AnyStore>,
    clock: ManualClock,
    /// The keys to delete at the end from a store that outlives the simulation.
    left_behind: Option<HashSet<String>>,
    /// Open receipts with their keys, by name.
    receipts: HashMap<String, (String, Receipt<AnyStore>)>,
}

impl Simulation {
    /// Creates a simulation on a store with this manual clock. Its keys are deleted at the end.
    pub(crate) fn on(limiter: Limiter<AnyStore>, clock: ManualClock) -> Self {
        Self {
            limiter,
            clock,
            left_behind: Some(HashSet::new()),
            receipts: HashMap::new(),
        }
    }

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
        Ok(Self {
            limiter,
            clock,
            left_behind: (!is_memory).then(HashSet::new),
            receipts: HashMap::new(),
        })
    }

    pub(crate) fn decide(&mut self, step: &Step<'_>) -> anyhow::Result<Decision> {
        self.clock.set(step.at);
        if let Some(keys) = &mut self.left_behind
            && !keys.contains(&*step.key)
        {
            keys.insert(step.key.clone().into_owned());
        }
        let decision = match &step.action {
            StepAction::Sample => self.limiter.check(&*step.key).cost(Cost::ZERO).blocking()?,
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
    pub(crate) fn clean_up(&mut self) {
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
