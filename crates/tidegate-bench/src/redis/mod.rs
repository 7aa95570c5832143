//! Measures the Redis store against raw commands on the same server, and against other limiters:
//! rows C1 to D4.
//!
//! The server runs on one core, the client on the other. Every contender has one sample in each
//! round.

mod bytes;
mod contenders;
mod load;
mod peers;

use std::time::Duration;

use tidegate_testkit::redis::RedisServer;

use crate::spread::Spread;
use contenders::Contender;
use load::{Sample, sample};

/// The options of `bench redis`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds, each with one sample per contender
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Duration of a sample, in milliseconds
    #[arg(long, default_value_t = 500)]
    sample_ms: u64,
    /// Only run the rows with names that contain this, such as C2 or D1
    #[arg(long, default_value = "")]
    only: String,
    /// Skip the peers, which npm and pip have to install first
    #[arg(long)]
    no_peers: bool,
}

/// Policies that allow every request, so that only the cost of a call is measured.
const GENEROUS: [&str; 6] = [
    "fixed_window 1_000_000/minute",
    "sliding_window_counter 1_000_000/minute",
    "sliding_window_log 1_000_000/minute",
    "token_bucket 1_000_000/minute",
    "leaky_bucket 1_000_000/minute",
    "gcra 1_000_000/minute",
];

/// The policy of rows that do not depend on the algorithm.
const GCRA: &str = "gcra 1_000_000/minute";

const KEYS: usize = 10_000;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let server = RedisServer::start();
    pin(&server)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if let Some(core) = core_affinity::get_core_ids().unwrap_or_default().get(1) {
        core_affinity::set_for_current(*core);
    }
    let bench = Bench {
        options,
        server: &server,
        runtime,
    };
    // Each row starts with an empty Redis. Otherwise it would pay for the expiry of other rows'
    // keys.
    let wants = |row: &str| {
        let is_wanted = row.contains(&*options.only);
        if is_wanted {
            server.command(&["FLUSHALL"]);
        }
        is_wanted
    };
    println!(
        "Redis on one core, the client on the other; median (minimum-maximum) of {} interleaved rounds.\n",
        options.rounds
    );
    println!(
        "| row | contender | checks/s (thousands) | p50 µs | p99 µs | ratio | bar |\n|---|---|---:|---:|---:|---:|---:|"
    );
    for policy in GENEROUS {
        let name = format!(
            "C1 64 callers, {}",
            policy.split(' ').next().unwrap_or_default()
        );
        if wants(&name) {
            let contenders = [bench.raw(policy)?, bench.tidegate(policy, "")?];
            bench.row(&name, &contenders, 64, KEYS, By::Rate, Some(0.95));
        }
    }
    if wants("C2 a lone caller") {
        let contenders = [bench.incr()?, bench.raw(GCRA)?, bench.tidegate(GCRA, "")?];
        bench.row(
            "C2 a lone caller",
            &contenders,
            1,
            KEYS,
            By::Latency,
            Some(1.25),
        );
    }
    if wants("D1 256 callers") {
        let contenders = [bench.raw(GCRA)?, bench.tidegate(GCRA, "")?];
        bench.row(
            "D1 256 callers",
            &contenders,
            256,
            KEYS,
            By::Rate,
            Some(2.0),
        );
    }
    for (callers, keys) in [(1, 1_000), (64, 1_000), (64, KEYS)] {
        let name = format!("D3 90 % denied, {callers} callers, {keys} keys");
        if wants(&name) {
            let policy = contenders::MOSTLY_DENIED;
            let contenders = [
                bench.tidegate(policy, "&deny_cache=0")?,
                bench.tidegate(policy, "")?,
            ];
            bench.row(&name, &contenders, callers, keys, By::Rate, Some(6.0));
        }
    }
    for (policy, keys, bar) in [
        (GENEROUS[0], 1_000, Some(40.0)),
        (GCRA, 1_000, Some(40.0)),
        (GCRA, 1, None),
        (GCRA, KEYS, None),
    ] {
        let algorithm = policy.split(' ').next().unwrap_or_default();
        let name = format!("D5 leases, {algorithm}, 64 callers, {keys} keys");
        if wants(&name) {
            let contenders = [bench.raw(policy)?, bench.tidegate(policy, "&lease=on")?];
            bench.row(&name, &contenders, 64, keys, By::Rate, bar);
        }
    }
    if wants("D4 bytes") {
        bytes::measure(&server)?;
    }
    if !options.no_peers && wants("C1 peers") {
        peers::measure(&bench)?;
    }
    Ok(())
}

/// Reserves the first core for the server.
fn pin(server: &RedisServer) -> anyhow::Result<()> {
    let pid = server.pid().to_string();
    let output = std::process::Command::new("taskset")
        .args(["-a", "-cp", "0", &pid])
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "taskset: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The figure that a row compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// Checks a second: more is better.
    Rate,
    /// The median latency: less is better.
    Latency,
}

struct Bench<'a> {
    options: &'a Options,
    server: &'a RedisServer,
    runtime: tokio::runtime::Runtime,
}

impl Bench<'_> {
    fn tidegate(&self, policy: &str, query: &str) -> anyhow::Result<Contender> {
        self.runtime.block_on(Contender::tidegate(
            &format!("{}?timeout=10s{query}", self.server.url()),
            policy,
        ))
    }

    fn raw(&self, policy: &str) -> anyhow::Result<Contender> {
        self.runtime
            .block_on(Contender::raw(&self.server.url(), policy))
    }

    fn incr(&self) -> anyhow::Result<Contender> {
        self.runtime.block_on(Contender::incr(&self.server.url()))
    }

    fn sample(&self, contender: &Contender, callers: usize, keys: usize) -> Sample {
        let duration = Duration::from_millis(self.options.sample_ms);
        self.runtime
            .block_on(sample(contender, callers, keys, duration))
    }

    /// Measures and prints a row. The others are compared with the first contender.
    fn row(
        &self,
        name: &str,
        contenders: &[Contender],
        callers: usize,
        keys: usize,
        by: By,
        bar: Option<f64>,
    ) {
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); contenders.len()];
        for contender in contenders {
            self.sample(contender, callers, keys);
        }
        for _ in 0..self.options.rounds {
            for (contender, samples) in contenders.iter().zip(&mut samples) {
                samples.push(self.sample(contender, callers, keys));
            }
        }
        let figure = |samples: &[Sample], of: fn(&Sample) -> f64| {
            samples.iter().map(of).collect::<Vec<f64>>()
        };
        let compared: fn(&Sample) -> f64 = if by == By::Rate {
            |sample| sample.rate
        } else {
            |sample| sample.p50
        };
        let base = samples
            .first()
            .map(|samples| figure(samples, compared))
            .unwrap_or_default();
        for (index, (contender, samples)) in contenders.iter().zip(&samples).enumerate() {
            let rate = Spread::of(&figure(samples, |sample| sample.rate / 1e3));
            let ratio = Spread::of_ratios(&figure(samples, compared), &base);
            let p50 = Spread::of(&figure(samples, |sample| sample.p50)).median;
            let p99 = Spread::of(&figure(samples, |sample| sample.p99)).median;
            let is_met = |bar: f64| {
                if by == By::Rate {
                    ratio.median >= bar
                } else {
                    ratio.median <= bar
                }
            };
            let bar = bar.filter(|_| index + 1 == contenders.len());
            let verdict = bar.map_or(String::new(), |bar| {
                format!("{bar}{}", if is_met(bar) { "" } else { " missed" })
            });
            println!(
                "| {name} | {} | {rate} | {p50:.0} | {p99:.0} | {ratio} | {verdict} |",
                contender.name()
            );
        }
    }
}
