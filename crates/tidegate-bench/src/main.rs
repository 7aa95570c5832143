//! Measures Tidegate against its peers: the same work, in the same run, interleaved.
// A measurement reads the clock itself, and stops where something is amiss.
#![allow(clippy::disallowed_methods, clippy::expect_used)]

mod memory;
mod redis;
mod spread;

use clap::Parser;

/// Measures Tidegate against its peers: the same work, in the same run, interleaved.
#[derive(Parser)]
#[command(bin_name = "cargo xtask bench")]
enum Bench {
    /// The memory store against governor: rows A1 to A8.
    Memory(memory::Options),
    /// The Redis store against raw commands and other limiters: rows C1 to D4.
    Redis(redis::Options),
}

fn main() -> anyhow::Result<()> {
    match Bench::parse() {
        Bench::Memory(options) => memory::run(&options),
        Bench::Redis(options) => redis::run(&options),
    }
}
