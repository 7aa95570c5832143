//! Measures the memory store against governor, on the same keys, in interleaved rounds: rows A1 to
//! A8.

mod contenders;
mod expiry;
mod floor;
mod footprint;
mod measure;
mod paths;
mod stream;

use std::time::Duration;

use contenders::{Contender, GovernorDashMap, GovernorTuned, Harness, Tidegate, TidegateBatch};
use measure::sample;
use stream::{Draw, Stream};

use crate::spread::Spread;

/// The options of `bench memory`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds, each with one sample per contender
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Duration of a sample, in milliseconds
    #[arg(long, default_value_t = 100)]
    sample_ms: u64,
    /// Only run the rows with names that contain this, such as A4 or hot
    #[arg(long, default_value = "")]
    only: String,
    /// Only run the rows that matter, on one thread
    #[arg(long)]
    quick: bool,
    /// Print the bytes per key of one contender filled with this many keys, in this process
    #[arg(long, hide = true, num_args = 2, value_names = ["CONTENDER", "KEYS"])]
    footprint: Vec<String>,
}

/// One row: the keys, their distribution, the threads, and the least ratio to governor's DashMap
/// limiter.
struct Row {
    name: &'static str,
    draw: Draw,
    keys: u64,
    threads: usize,
    bar: f64,
    batch_bar: Option<f64>,
}

const fn row(
    name: &'static str,
    draw: Draw,
    keys: u64,
    threads: usize,
    bar: f64,
    batch_bar: Option<f64>,
) -> Row {
    Row {
        name,
        draw,
        keys,
        threads,
        bar,
        batch_bar,
    }
}

const MILLION: u64 = 1_000_000;
const ROWS: [Row; 9] = [
    row("A4 hot key, 1 thread", Draw::Uniform, 1, 1, 2.2, None),
    row("A4 hot key, 2 threads", Draw::Uniform, 1, 2, 1.5, None),
    row(
        "A3 1k uniform, 1 thread",
        Draw::Uniform,
        1_000,
        1,
        2.0,
        None,
    ),
    row(
        "A3 1k uniform, 2 threads",
        Draw::Uniform,
        1_000,
        2,
        1.6,
        None,
    ),
    row(
        "A1 A5 1M Zipf, 1 thread",
        Draw::Zipf,
        MILLION,
        1,
        4.0,
        Some(8.0),
    ),
    row(
        "A1 A5 1M Zipf, 2 threads",
        Draw::Zipf,
        MILLION,
        2,
        4.0,
        Some(8.0),
    ),
    row(
        "A2 A5 1M uniform, 1 thread",
        Draw::Uniform,
        MILLION,
        1,
        4.0,
        Some(8.0),
    ),
    row(
        "A2 A5 1M uniform, 2 threads",
        Draw::Uniform,
        MILLION,
        2,
        4.0,
        Some(8.0),
    ),
    row(
        "A7 5M uniform, 1 thread",
        Draw::Uniform,
        5 * MILLION,
        1,
        1.0 / 0.3,
        None,
    ),
];

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if let [contender, keys] = options.footprint.as_slice() {
        return footprint::print_own_footprint(contender, keys.parse()?);
    }
    println!(
        "Millions of checks a second: median (minimum-maximum) of {} interleaved rounds.",
        options.rounds
    );
    println!(
        "Policy: {}. Ratios to governor dashmap are computed round by round.\n",
        contenders::POLICY
    );
    println!(
        "| row | contender | Mops | ns per check and thread | ratio | bar |\n|---|---|---:|---:|---:|---:|"
    );
    let is_measured = |row: &&Row| row.name.contains(&options.only) && !options.quick;
    for row in ROWS.iter().filter(is_measured) {
        measure_row(row, options);
    }
    paths::measure(options);
    if "A6 bytes a key".contains(&options.only) && !options.quick {
        footprint::measure()?;
    }
    if "A8 expiry".contains(&options.only) && !options.quick {
        expiry::measure();
    }
    Ok(())
}

fn measure_row(row: &Row, options: &Options) {
    let streams: Vec<Stream> = (0..row.threads)
        .map(|index| Stream::draw(row.draw, row.keys, 42 + index as u64))
        .collect();
    let tidegate = Tidegate::new(row.keys.max(MILLION));
    let (governor, tuned, batch) = (
        GovernorDashMap::new(),
        GovernorTuned::new(),
        TidegateBatch(&tidegate),
    );
    let contenders: [&dyn Contender; 5] = [&governor, &tidegate, &batch, &tuned, &Harness];
    for contender in contenders {
        contender.fill(row.keys);
    }
    let mut figures = vec![Vec::new(); contenders.len()];
    for round in 0..options.rounds {
        for (contender, figures) in contenders.iter().zip(&mut figures) {
            figures.push(sample(
                *contender,
                &streams,
                round,
                Duration::from_millis(options.sample_ms),
            ));
        }
    }
    for (index, (contender, figure)) in contenders.iter().zip(&figures).enumerate() {
        let bar = match index {
            1 => Some(row.bar),
            2 => row.batch_bar,
            _ => None,
        };
        let (rate, ratio) = (Spread::of(figure), Spread::of_ratios(figure, &figures[0]));
        let verdict = bar.map_or(String::new(), |bar| {
            format!(
                "{bar:.1}{}",
                if ratio.median >= bar { "" } else { " missed" }
            )
        });
        let ns = 1e3 * row.threads as f64 / rate.median;
        println!(
            "| {} | {} | {rate} | {ns:.0} | {ratio} | {verdict} |",
            row.name,
            contender.name()
        );
    }
}
