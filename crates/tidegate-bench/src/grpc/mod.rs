//! Measures Envoy's rate limit service against envoyproxy/ratelimit, gubernator and throttlecrab:
//! rows E1 to E4. A further row sends requests through a real Envoy with its default timeout.
//!
//! Servers and Redis run on one core, the load on the other. Every contender has one sample in each
//! round.

mod contenders;
mod envoy;
mod load;
mod messages;

use crate::server::{at_least, at_most, cpu, p99, rate, row};
use contenders::Contenders;
pub(crate) use load::{GrpcLoad, grpc};

/// The options of `bench grpc`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds, each with one sample per contender
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Only run the rows with names that contain this, such as E1 or Envoy
    #[arg(long, default_value = "")]
    only: String,
    /// Number of calls in flight
    #[arg(long, default_value_t = 64)]
    callers: usize,
}

const RATELIMIT: &str = "ratelimit on Redis";
const PIPELINED: &str = "ratelimit on Redis, pipelining";
const GUBERNATOR: &str = "gubernator";
const CRAB: &str = "throttlecrab";
const OURS: &str = "tidegate";

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let contenders = Contenders::start(options.callers)?;
    println!(
        "Servers and Redis on one core, the load on the other, {} calls in flight on 4 \
         connections, 10,000 keys; median (minimum-maximum) of {} interleaved rounds.\n",
        options.callers, options.rounds
    );
    let rows = [
        (
            "E1 ShouldRateLimit on Redis",
            vec![
                contenders.ratelimit(RATELIMIT, false),
                contenders.ratelimit(PIPELINED, true),
                contenders.tidegate(true),
            ],
            vec![
                at_least("rate", rate, RATELIMIT, 3.0),
                at_least("rate", rate, PIPELINED, 3.0),
                at_most("CPU per request", cpu, PIPELINED, 1.0),
                at_most("p99", p99, PIPELINED, 1.0),
            ],
        ),
        (
            "E2 ShouldRateLimit in memory",
            vec![
                contenders.ratelimit(RATELIMIT, false),
                contenders.ratelimit(PIPELINED, true),
                contenders.tidegate(false),
            ],
            vec![
                at_least("rate", rate, RATELIMIT, 10.0),
                at_least("rate", rate, PIPELINED, 10.0),
                at_most("p99", p99, PIPELINED, 1.0),
            ],
        ),
        (
            "E3 one check against throttlecrab",
            vec![contenders.crab(), contenders.tidegate(false)],
            vec![
                at_least("rate", rate, CRAB, 1.1),
                at_most("CPU per request", cpu, CRAB, 1.0),
                at_most("p99", p99, CRAB, 1.0),
            ],
        ),
        (
            "E4 GetRateLimits",
            vec![contenders.gubernator(), contenders.own_gubernator()],
            vec![
                at_least("rate", rate, GUBERNATOR, 1.0),
                at_most("p99", p99, GUBERNATOR, 1.0),
            ],
        ),
    ];
    for (name, loads, bars) in rows {
        if name.contains(&*options.only) {
            row(options.rounds, name, &loads, &bars)?;
        }
    }
    if "Envoy".contains(&*options.only) {
        envoy::measure(&contenders, options.rounds)?;
    }
    Ok(())
}
