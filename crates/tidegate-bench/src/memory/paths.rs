//! Measures every path of a check: each algorithm, whole and general rates, admitted and denied
//! requests, several costs and limits.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::Cost;

use super::contenders::{Contender, GovernorDashMap, GovernorTuned, Outcome, Tidegate};
use super::floor::Floor;
use super::measure::sample;
use super::stream::{Draw, Stream};
use super::{MILLION, Options};
use crate::spread::Spread;

/// The keys of a table of results.
struct Keys {
    name: &'static str,
    draw: Draw,
    count: u64,
    is_quick: bool,
}

const KEYS: [Keys; 4] = [
    Keys {
        name: "hot key",
        draw: Draw::Uniform,
        count: 1,
        is_quick: true,
    },
    Keys {
        name: "1k uniform",
        draw: Draw::Uniform,
        count: 1_000,
        is_quick: false,
    },
    Keys {
        name: "1M Zipf",
        draw: Draw::Zipf,
        count: MILLION,
        is_quick: false,
    },
    Keys {
        name: "1M uniform",
        draw: Draw::Uniform,
        count: MILLION,
        is_quick: true,
    },
];

/// The limits of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Whole,
    General,
    Leaky,
    Gcra,
    FixedWindow,
    Counter,
    Log,
    Two,
    Three,
}

const PATHS: [Path; 9] = [
    Path::Whole,
    Path::General,
    Path::Leaky,
    Path::Gcra,
    Path::FixedWindow,
    Path::Counter,
    Path::Log,
    Path::Two,
    Path::Three,
];

impl Path {
    fn name(self) -> &'static str {
        match self {
            Self::Whole => "token_bucket, whole",
            Self::General => "token_bucket, general",
            Self::Leaky => "leaky_bucket",
            Self::Gcra => "gcra",
            Self::FixedWindow => "fixed_window",
            Self::Counter => "sliding_window_counter",
            Self::Log => "sliding_window_log",
            Self::Two => "two limits",
            Self::Three => "three limits",
        }
    }

    /// Returns limits that a run does not use up. A key that has used them up stays denied.
    fn policy(self, keys: u64, outcome: Outcome) -> &'static str {
        let is_admitted = outcome == Outcome::Admitted;
        let is_hot = keys == 1 && is_admitted;
        match self {
            Self::Whole if is_admitted => "token_bucket 2/minute burst=100_000_000",
            Self::Whole => "token_bucket 1/day burst=30_000",
            Self::General if is_admitted => "token_bucket 1_000_000_000/second",
            // A denominator of 7.
            Self::General => "token_bucket 7/day burst=100_000",
            Self::Leaky if is_admitted => "leaky_bucket 2/minute burst=100_000_000",
            Self::Leaky => "leaky_bucket 1/day burst=30_000",
            Self::Gcra if is_admitted => "gcra 2/minute burst=100_000_000",
            Self::Gcra => "gcra 1/day burst=30_000",
            Self::FixedWindow => "fixed_window 1_000_000_000/day",
            Self::Counter if is_hot => "sliding_window_counter 8_000_000 per 50 ms",
            Self::Counter => "sliding_window_counter 8_000_000/day",
            Self::Log if is_hot => "sliding_window_log 1_000_000 per 10 ms",
            Self::Log => "sliding_window_log 100_000/day",
            Self::Two if is_admitted => {
                "token_bucket 2/minute burst=100_000_000; fixed_window 1_000_000_000/day"
            }
            Self::Two => "token_bucket 1/day burst=30_000; fixed_window 1_000_000_000/day",
            Self::Three if is_admitted => {
                "token_bucket 2/minute burst=100_000_000; fixed_window 1_000_000_000/day; \
                 sliding_window_counter 8_000_000 per 50 ms"
            }
            Self::Three => {
                "token_bucket 1/day burst=30_000; fixed_window 1_000_000_000/day; \
                 sliding_window_counter 8_000_000/day"
            }
        }
    }

    /// Returns the number of limits.
    fn limits(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Three => 3,
            _ => 1,
        }
    }
}

/// One row of a table.
struct Row {
    path: Path,
    outcome: Outcome,
    cost: Cost,
}

impl Row {
    fn name(&self) -> String {
        let outcome = match self.outcome {
            Outcome::Admitted => "admitted",
            Outcome::Denied => "denied",
            Outcome::Mixed => "mixed",
        };
        format!("{}, {outcome}, cost {}", self.path.name(), self.cost)
    }

    fn is_fastest(&self) -> bool {
        self.path == Path::Whole && self.outcome == Outcome::Admitted && self.cost == Cost::ONE
    }
}

/// Returns the rows on these keys.
fn rows(keys: &Keys, options: &Options) -> Vec<Row> {
    let dear = Cost::from_thousandths(2_500).expect("2.5 is a cost");
    let outcomes: &[Outcome] = match keys.count {
        MILLION => &[Outcome::Admitted, Outcome::Denied, Outcome::Mixed],
        _ => &[Outcome::Admitted, Outcome::Denied],
    };
    let costs: &[Cost] = if options.quick {
        &[Cost::ONE]
    } else {
        &[Cost::ONE, dear]
    };
    let mut rows = Vec::new();
    for path in PATHS {
        for outcome in outcomes {
            for cost in costs {
                let is_measured = path.limits() == 1 || *cost == Cost::ONE;
                if is_measured && (*outcome != Outcome::Mixed || !options.quick) {
                    rows.push(Row {
                        path,
                        outcome: *outcome,
                        cost: *cost,
                    });
                }
            }
        }
    }
    rows
}

/// Measures all paths.
pub(super) fn measure(options: &Options) {
    println!(
        "\nP: every path, nanoseconds per check and thread. governor is asked for the same outcome \
         and number of limits. Bars: a hot key or 1k keys, 1.0 of governor and at most 1.6 of \
         the first row; 1M keys, 3 of governor and 1.0 of tuned governor; several limits, 1.5 of \
         as many governors."
    );
    for keys in &KEYS {
        for threads in [1, 2] {
            let name = format!("P {}, {threads} threads", keys.name);
            let is_quick = keys.is_quick && threads == 1;
            if name.contains(&options.only) && (is_quick || !options.quick) {
                measure_keys(&name, keys, threads, options);
            }
        }
    }
}

const OUTCOMES: [Outcome; 3] = [Outcome::Admitted, Outcome::Denied, Outcome::Mixed];

fn measure_keys(name: &str, keys: &Keys, threads: usize, options: &Options) {
    let streams: Vec<Stream> = (0..threads)
        .map(|index| Stream::draw(keys.draw, keys.count, 42 + index as u64))
        .collect();
    let rows: Vec<Row> = rows(keys, options);
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(Floor::new(keys.count))];
    for outcome in OUTCOMES {
        contenders.push(Box::new(GovernorTuned::with(outcome)));
        for limits in 1..=3 {
            contenders.push(Box::new(GovernorDashMap::with(limits, outcome)));
        }
    }
    let first_row = contenders.len();
    for row in &rows {
        let policy = row.path.policy(keys.count, row.outcome);
        let max_keys = keys.count.max(10_000) * row.path.limits() as u64;
        contenders.push(Box::new(Tidegate::with(
            max_keys,
            policy,
            row.cost,
            row.outcome,
        )));
    }
    for contender in &contenders {
        contender.fill(keys.count);
    }
    let duration = Duration::from_millis(options.sample_ms / 2);
    let mut figures = vec![Vec::new(); contenders.len()];
    for round in 0..options.rounds {
        for (contender, figures) in contenders.iter().zip(&mut figures) {
            figures.push(sample(&**contender, &streams, round, duration));
        }
    }
    let ns = |index: usize| 1e3 * threads as f64 / Spread::of(&figures[index]).median;
    let peer = |outcome: Outcome, kind: usize| {
        let outcome = OUTCOMES.iter().position(|other| *other == outcome);
        1 + outcome.unwrap_or(0) * 4 + kind
    };
    println!("\n| {name} | ns | to governor | to tuned | to the first row | |");
    println!(
        "|---|---:|---:|---:|---:|---|\n| floor | {:.0} | | | | |",
        ns(0)
    );
    for outcome in &OUTCOMES[..2] {
        let [tuned, governor] = [0, 1].map(|kind| ns(peer(*outcome, kind)));
        println!("| governor, {outcome:?} | {governor:.0} | | | | |");
        println!("| tuned governor, {outcome:?} | {tuned:.0} | | | | |");
    }
    let fastest = rows.iter().position(Row::is_fastest).unwrap_or(0);
    for (index, row) in rows.iter().enumerate() {
        let own = &figures[first_row + index];
        let to = |other: usize| Spread::of_ratios(own, &figures[other]);
        let governor = to(peer(row.outcome, row.path.limits()));
        let tuned = to(peer(row.outcome, 0));
        // Higher is slower, unlike the other ratios.
        let fastest = 1.0 / to(first_row + fastest).median;
        let bars: &[(f64, f64)] = match (row.path.limits(), keys.count) {
            (1, MILLION) => &[(governor.median, 3.0), (tuned.median, 1.0)],
            (1, _) => &[(governor.median, 1.0), (1.0 / fastest, 1.0 / 1.6)],
            _ => &[(governor.median, 1.5)],
        };
        let mut line = format!("| {} | {:.0} ", row.name(), ns(first_row + index));
        let _ = write!(line, "| {governor} | {:.2} | {fastest:.2} ", tuned.median);
        let is_met = bars.iter().all(|(ratio, bar)| ratio >= bar);
        println!("{line}| {} |", if is_met { "" } else { "missed" });
    }
}
