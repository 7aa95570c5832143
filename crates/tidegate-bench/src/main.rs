//! Benchmarks that compare Tidegate with its peers: the same work, in the same run, in interleaved
//! rounds. docs/performance.md has the results.
// A benchmark reads the clock itself and panics when something goes wrong.
#![allow(clippy::disallowed_methods, clippy::expect_used)]

mod attack;
mod failures;
mod grpc;
mod insight;
mod memory;
mod redis;
mod server;
mod spread;
mod tower;

use clap::Parser;

/// Measure Tidegate against its peers: the same work, in the same run, in interleaved rounds
#[derive(Parser)]
#[command(bin_name = "cargo xtask bench")]
enum Bench {
    /// Attack a release binary, as `cargo xtask attack` does
    Attack(attack::Options),
    /// Measure how long callers wait when Redis fails, and how soon Redis decides again
    Failures(failures::Options),
    /// Measure Envoy's rate limit service against envoyproxy/ratelimit, gubernator and throttlecrab
    Grpc(grpc::Options),
    /// Measure the cost of the dashboard and the recorder, and the speed of `tidegate replay`
    Insight(insight::Options),
    /// Measure the memory store against governor: rows A1 to A8
    Memory(memory::Options),
    /// Measure the Redis store against raw commands and other limiters: rows C1 to D4
    Redis(redis::Options),
    /// Measure `tidegate serve` against Redis itself and throttlecrab-server: rows B1 to B4
    Server(server::Options),
    /// Measure a layer on a service against the bare service and tower_governor
    Tower(tower::Options),
}

fn main() -> anyhow::Result<()> {
    match Bench::parse() {
        Bench::Attack(options) => attack::run(&options),
        Bench::Failures(options) => failures::run(&options),
        Bench::Grpc(options) => grpc::run(&options),
        Bench::Insight(options) => insight::run(&options),
        Bench::Memory(options) => memory::run(&options),
        Bench::Redis(options) => redis::run(&options),
        Bench::Server(options) => server::run(&options),
        Bench::Tower(options) => tower::run(&options),
    }
}
