//! Measures `tidegate serve` against Redis itself and throttlecrab-server: rows B1 to B4. A further
//! row measures the effect of hostile connections on healthy ones.
//!
//! Servers run on one core, the load on the other. Every contender has one sample in each round.

mod contenders;
mod hostile;
mod load;

use crate::spread::Spread;
use contenders::Contenders;
pub(crate) use contenders::{Server, throttlecrab};
pub(crate) use load::{Client, Load, Sample};

/// The options of `bench server`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds, each with one sample per contender
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Only run the rows with names that contain this, such as B2 or hostile
    #[arg(long, default_value = "")]
    only: String,
}

/// One comparison of a row: the figure, the contender it is compared with, and the bound of the
/// ratio.
pub(crate) struct Bar {
    figure: &'static str,
    of: fn(&Sample) -> f64,
    with: &'static str,
    /// A factor for the ratio. For redis-cell, only old ratios to INCR are known.
    factor: f64,
    least: Option<f64>,
    most: Option<f64>,
}

pub(crate) const fn at_least(
    figure: &'static str,
    of: fn(&Sample) -> f64,
    with: &'static str,
    least: f64,
) -> Bar {
    Bar {
        figure,
        of,
        with,
        factor: 1.0,
        least: Some(least),
        most: None,
    }
}

pub(crate) const fn at_most(
    figure: &'static str,
    of: fn(&Sample) -> f64,
    with: &'static str,
    most: f64,
) -> Bar {
    Bar {
        figure,
        of,
        with,
        factor: 1.0,
        least: None,
        most: Some(most),
    }
}

pub(crate) fn rate(sample: &Sample) -> f64 {
    sample.rate
}

pub(crate) fn cpu(sample: &Sample) -> f64 {
    sample.cpu_us
}

pub(crate) fn p99(sample: &Sample) -> f64 {
    sample.p99_ms
}

const INCR: &str = "Redis INCR";
const CRAB: &str = "throttlecrab";

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let contenders = Contenders::start()?;
    println!(
        "Servers on one core, the load on the other, 50 connections, 10,000 keys; \
         median (minimum-maximum) of {} interleaved rounds.\n",
        options.rounds
    );
    let rows: [(&str, Option<u32>, Vec<Bar>); 4] = [
        (
            "B1 RESP",
            Some(1),
            vec![
                at_least("rate", rate, INCR, 0.95),
                at_most("CPU per request", cpu, CRAB, 0.95),
            ],
        ),
        (
            "B2 RESP, pipeline 16",
            Some(16),
            vec![
                at_least("rate", rate, INCR, 0.80),
                at_most("CPU per request", cpu, INCR, 1.0),
                at_least("rate", rate, CRAB, 30.0),
                // redis-cell reached 224k against 718k for INCR, when it could be installed.
                Bar {
                    factor: 718.0 / 224.0,
                    with: INCR,
                    ..at_least("rate by redis-cell's old ratio", rate, INCR, 2.5)
                },
            ],
        ),
        (
            "B3 RESP, pipeline 64",
            Some(64),
            vec![
                at_least("rate", rate, INCR, 1.0),
                // redis-cell reached 270k against 1,080k for INCR.
                Bar {
                    factor: 4.0,
                    with: INCR,
                    ..at_least("rate by redis-cell's old ratio", rate, INCR, 4.0)
                },
            ],
        ),
        (
            "B4 HTTP",
            None,
            vec![
                at_least("rate", rate, CRAB, 1.3),
                at_most("p99", p99, CRAB, 1.0),
            ],
        ),
    ];
    for (name, pipeline, bars) in rows {
        if name.contains(&*options.only) {
            row(options.rounds, name, &contenders.of(pipeline), &bars)?;
        }
    }
    if "hostile".contains(&*options.only) {
        hostile::measure(&contenders, options.rounds)?;
    }
    Ok(())
}

/// Measures a row: one sample per contender in each round. Prints the figures and the bars.
pub(crate) fn row(
    rounds: usize,
    name: &str,
    contenders: &[Load],
    bars: &[Bar],
) -> anyhow::Result<()> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); contenders.len()];
    for contender in contenders {
        contender.sample()?;
    }
    for _ in 0..rounds {
        for (contender, samples) in contenders.iter().zip(&mut samples) {
            samples.push(contender.sample()?);
        }
    }
    let figures =
        |index: usize, of: fn(&Sample) -> f64| samples[index].iter().map(of).collect::<Vec<f64>>();
    println!(
        "| {name} | thousands/s | p50 ms | p99 ms | p99.9 ms | server CPU µs per request |\n|---|---:|---:|---:|---:|---:|"
    );
    for (index, contender) in contenders.iter().enumerate() {
        let spread = |of: fn(&Sample) -> f64| Spread::of(&figures(index, of));
        let [thousands, cpu] = [spread(|sample| sample.rate / 1e3), spread(cpu)];
        let [p50, p99] = [spread(|sample| sample.p50_ms).median, spread(p99).median];
        let p999 = match spread(|sample| sample.p999_ms).median {
            // The load generator does not tell.
            0.0 => "–".to_owned(),
            p999 => format!("{p999:.2}"),
        };
        println!(
            "| {} | {thousands} | {p50:.2} | {p99:.2} | {p999} | {cpu} |",
            contender.name
        );
    }
    println!();
    let place = |name: &str| {
        contenders
            .iter()
            .position(|contender| contender.name == name)
    };
    let Some(ours) = place("tidegate") else {
        return Ok(());
    };
    for bar in bars {
        let Some(theirs) = place(bar.with) else {
            continue;
        };
        let own: Vec<f64> = figures(ours, bar.of)
            .into_iter()
            .map(|figure| figure * bar.factor)
            .collect();
        let ratio = Spread::of_ratios(&own, &figures(theirs, bar.of));
        let is_met = bar.least.is_none_or(|least| ratio.median >= least)
            && bar.most.is_none_or(|most| ratio.median <= most);
        let bound = bar.least.map(|least| format!("at least {least}"));
        let bound = bound
            .or(bar.most.map(|most| format!("at most {most}")))
            .unwrap_or_default();
        let verdict = if is_met { "met" } else { "MISSED" };
        println!(
            "- {} against {}: {ratio}, {bound}: {verdict}",
            bar.figure, bar.with
        );
    }
    println!();
    Ok(())
}
