//! The steps of a simulation: a trace, or generated traffic.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use anyhow::Context;
use tidegate::{Cost, Policy, Timestamp};

use super::SimulateOptions;
use super::input::{Input, LinePosition};
use super::trace::{Step, StepAction};

/// The start of generated traffic, 2026-01-01 00:00 UTC: windows of whole days begin there.
const START_NS: u64 = 1_767_225_600_000_000_000;
/// The number of samples of the remaining units.
const SAMPLES: u64 = 240;
/// The shortest default duration.
const LEAST_NS: u64 = 10_000_000_000;

pub(super) enum Source {
    Trace(Input),
    Generated(Generated),
}

/// The position of a step, for errors.
pub(super) enum StepPosition<'a> {
    Line(LinePosition<'a>),
    Generated,
}

impl fmt::Display for StepPosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(position) => position.fmt(f),
            Self::Generated => f.write_str("--traffic"),
        }
    }
}

impl Source {
    /// Returns `true` if reading the next step may block.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Trace(input) => input.is_drained(),
            Self::Generated(_) => false,
        }
    }

    pub(super) fn next_step(&mut self) -> anyhow::Result<Option<(Step<'_>, StepPosition<'_>)>> {
        match self {
            Self::Trace(input) => {
                let Some((line, position)) = input.next_line()? else {
                    return Ok(None);
                };
                let step = Step::read(line).with_context(|| position.to_string())?;
                Ok(Some((step, StepPosition::Line(position))))
            }
            Self::Generated(generated) => Ok(generated
                .next_step()
                .map(|step| (step, StepPosition::Generated))),
        }
    }
}

/// The requests of generated clients, in the order of time.
pub(super) struct Generated {
    clients: Vec<(String, Box<dyn Iterator<Item = u64>>)>,
    next: BinaryHeap<Reverse<(u64, usize)>>,
    end_ns: u64,
    next_sample_ns: u64,
    sample_every_ns: u64,
}

impl Generated {
    pub(super) fn new(options: &SimulateOptions, policies: &[Policy]) -> Self {
        let limits = policies.iter().flat_map(Policy::limits);
        let longest = limits.map(|limit| limit.period().as_nanos() as u64).max();
        let of_traffic = options
            .traffic
            .iter()
            .map(|traffic| traffic.for_policy(&policies[0]));
        let of_traffic = of_traffic.map(|traffic| traffic.period_ns()).max();
        let slowest = longest.max(of_traffic).unwrap_or(0);
        let default = slowest.saturating_mul(5).max(LEAST_NS);
        let duration = options.duration.map_or(default, |given| {
            u64::try_from(given.as_nanos()).unwrap_or(u64::MAX)
        });
        // The start is an edge of the longest windows, too.
        let start = START_NS.next_multiple_of(longest.unwrap_or(1).max(1));
        let named = options.traffic.iter().enumerate().map(|(index, traffic)| {
            let traffic = traffic.for_policy(&policies[0]);
            let arrivals = traffic.arrivals(start, options.seed.wrapping_add(index as u64));
            let arrivals: Box<dyn Iterator<Item = u64>> = Box::new(arrivals);
            let name = match options.traffic.len() {
                1 => traffic.name().to_owned(),
                _ => format!("{}-{}", traffic.name(), index + 1),
            };
            (name, arrivals)
        });
        let mut generated = Self {
            clients: named.collect(),
            next: BinaryHeap::new(),
            end_ns: start.saturating_add(duration),
            next_sample_ns: start,
            sample_every_ns: (duration / SAMPLES).max(1_000),
        };
        for index in 0..generated.clients.len() {
            generated.advance(index);
        }
        generated
    }

    fn advance(&mut self, index: usize) {
        let at = self.clients[index].1.next().filter(|at| *at < self.end_ns);
        self.next.extend(at.map(|at| Reverse((at, index))));
    }

    fn next_step(&mut self) -> Option<Step<'_>> {
        let request = self.next.peek().map(|Reverse((at_ns, _))| *at_ns);
        let is_sample = request.unwrap_or(self.end_ns) > self.next_sample_ns;
        let (at_ns, index, action) = if is_sample {
            let at_ns = self.next_sample_ns;
            self.next_sample_ns = self.next_sample_ns.saturating_add(self.sample_every_ns);
            (at_ns, 0, StepAction::Sample)
        } else {
            let Reverse((at_ns, index)) = self.next.pop()?;
            self.advance(index);
            (at_ns, index, StepAction::Check(Cost::ONE))
        };
        Some(Step {
            at_us: at_ns / 1_000,
            at: Timestamp::from_nanos(at_ns),
            key: Cow::Borrowed(&self.clients[index].0),
            action,
        })
    }
}
