//! Measures Tidegate against its peers: the same work, in the same run, interleaved.
// A measurement reads the clock itself, and stops where something is amiss.
#![allow(clippy::disallowed_methods, clippy::expect_used)]

mod attack;
mod failures;
mod memory;
mod redis;
mod server;
mod spread;
mod tower;

use clap::Parser;

/// Measures Tidegate against its peers: the same work, in the same run, interleaved.
#[derive(Parser)]
#[command(bin_name = "cargo xtask bench")]
enum Bench {
    /// A campaign against a release binary, run by `cargo xtask attack`.
    Attack(attack::Options),
    /// How long callers wait when Redis fails, and how soon it is asked again.
    Failures(failures::Options),
    /// The memory store against governor: rows A1 to A8.
    Memory(memory::Options),
    /// The Redis store against raw commands and other limiters: rows C1 to D4.
    Redis(redis::Options),
    /// `tidegate serve` against Redis itself and throttlecrab-server: rows B1 to B4.
    Server(server::Options),
    /// A layer on a service against the bare service and tower_governor.
    Tower(tower::Options),
}

fn main() -> anyhow::Result<()> {
    match Bench::parse() {
        Bench::Attack(options) => attack::run(&options),
        Bench::Failures(options) => failures::run(&options),
        Bench::Memory(options) => memory::run(&options),
        Bench::Redis(options) => redis::run(&options),
        Bench::Server(options) => server::run(&options),
        Bench::Tower(options) => tower::run(&options),
    }
}
