//! `tidegate replay`: runs access logs through policies, and finds a limit for them.

mod csv;
mod html;
mod input;
mod options;
mod report;
mod table;

use std::io::{IsTerminal, Write};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use tidegate::Policy;
use tidegate_insight::replay::{Curve, KeyFigures, Replay, ReplayReport, find};

use crate::interrupt::{Interrupt, Interrupted};
use input::LogInput;
pub(crate) use options::ReplayOptions;
use options::ReplayOutput;
use report::{JsonReport, Unreadable};

/// Everything that an output shows.
struct Results<'a> {
    options: &'a ReplayOptions,
    report: ReplayReport,
    top: Vec<KeyFigures>,
    unreadable: Unreadable,
    was_spread: bool,
    curve: Option<Curve>,
    found: Option<find::Found>,
    is_partial: bool,
    /// The most keys that may be limited, in millionths.
    touched_ppm: u64,
}

pub(crate) fn run(options: &ReplayOptions) -> anyhow::Result<()> {
    let interrupt = Interrupt::handled()?;
    let parse = |text: &String| text.parse::<Policy>().context("--policy");
    let policies: Vec<Policy> = options.policy.iter().map(parse).collect::<Result<_, _>>()?;
    if policies.is_empty() && !options.find {
        bail!("no policy: expected --policy POLICY, or --find to get a recommendation");
    }
    let goal = options.goal()?;
    let mut input = LogInput::open(options, &interrupt)?;
    let mut replay = Replay::new(&policies, &options.replay_options()).context("replay")?;
    let result = read_all(&mut input, &mut replay, &interrupt);
    let is_partial = match &result {
        Err(error) if error.is::<Interrupted>() => true,
        Err(_) => return result,
        Ok(()) => false,
    };
    let was_spread = input.was_spread();
    let unreadable = input.finish();
    let report = replay.report();
    unreadable.warn();
    if report.requests == 0 {
        bail!("{}", unreadable.nothing_read());
    }
    if let Some((from, to)) = goal.attack_us {
        let overlaps = from <= report.last_us && to > report.first_us;
        if !overlaps {
            bail!(
                "--attack: outside the log: expected a part of {}",
                table::span(&report)
            );
        }
    }
    let top = replay.top(options.sort(), options.keys_shown());
    let charts = html::timelines(&replay);
    let mut results = Results {
        options,
        report,
        top,
        unreadable,
        was_spread,
        curve: None,
        found: None,
        is_partial,
        touched_ppm: goal.touched_ppm,
    };
    if !is_partial {
        results.analyze(replay, &policies, &goal)?;
    }
    results.print()?;
    if let Some(file) = &options.html {
        let page = html::page(&results, &charts);
        std::fs::write(file, page).with_context(|| file.display().to_string())?;
    }
    result
}

/// Replays every request of the logs.
fn read_all(
    input: &mut LogInput,
    replay: &mut Replay,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    loop {
        interrupt.check()?;
        let Some(request) = input.next_request()? else {
            return interrupt.check();
        };
        replay
            .add(request.at_us, &request.key, request.cost)
            .context("the temporary file in TMPDIR")?;
    }
}

impl Results<'_> {
    /// Computes the curve and the recommendation, which read the requests again.
    fn analyze(
        &mut self,
        replay: Replay,
        policies: &[Policy],
        goal: &find::Goal,
    ) -> anyhow::Result<()> {
        let spinner = spinner();
        let mut spool = replay.into_spool();
        if let (Some(policy), false) = (policies.first(), self.options.no_curve) {
            spinner.set_message("computing the curve");
            self.curve = Some(Curve::of(&mut spool, policy)?);
        }
        if self.options.find {
            spinner.set_message("searching for a limit");
            self.found = find::find(&mut spool, goal)?;
            if self.found.is_none() {
                bail!("--find: there are no requests in the first half of the log");
            }
        }
        spinner.finish_and_clear();
        Ok(())
    }

    fn print(&self) -> anyhow::Result<()> {
        let text = match self.options.output {
            ReplayOutput::Table => table::rendered(self),
            ReplayOutput::Json => serde_json::to_string_pretty(&JsonReport::of(self))? + "\n",
            ReplayOutput::Csv => csv::rendered(self),
        };
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes()).context("standard output")
    }
}

fn spinner() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(std::time::Duration::from_millis(200));
    spinner
}
