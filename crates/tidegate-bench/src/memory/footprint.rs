//! A6: measures bytes per key, by the resident memory of a new process.

use std::process::Command;

use anyhow::{Context, bail};

use tidegate::Cost;

use super::contenders::{Contender, GovernorDashMap, GovernorTuned, Outcome, Tidegate};

const KEYS: [u64; 2] = [1_000_000, 5_000_000];

pub(super) fn measure() -> anyhow::Result<()> {
    println!(
        "\nA6: bytes per key (resident memory of a new process; every key has a live limit). Bars at 5M: 46, and 100 for two limits.\n"
    );
    println!("| contender | 1M | 5M |\n|---|---:|---:|");
    for contender in [
        "tidegate",
        "tidegate-two-limits",
        "governor",
        "governor-tuned",
    ] {
        let figures: Vec<String> = KEYS
            .iter()
            .map(|keys| in_own_process(contender, *keys))
            .collect::<Result<_, _>>()?;
        println!("| {contender} | {} |", figures.join(" | "));
    }
    Ok(())
}

fn in_own_process(contender: &str, keys: u64) -> anyhow::Result<String> {
    let program = std::env::current_exe()?;
    let output = Command::new(program)
        .args(["memory", "--footprint", contender, &keys.to_string()])
        .output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Fills a contender and prints the bytes per key.
pub(super) fn print_own_footprint(contender: &str, keys: u64) -> anyhow::Result<()> {
    let before = resident()?;
    let contender: Box<dyn Contender> = match contender {
        "tidegate" => Box::new(Tidegate::new(keys)),
        "tidegate-two-limits" => {
            let policy = "token_bucket 2/minute burst=100_000_000; fixed_window 100/day";
            Box::new(Tidegate::with(
                2 * keys,
                policy,
                Cost::ONE,
                Outcome::Admitted,
            ))
        }
        "governor" => Box::new(GovernorDashMap::new()),
        "governor-tuned" => Box::new(GovernorTuned::new()),
        other => {
            bail!("unknown contender {other:?}: expected one of those that the benchmark prints")
        }
    };
    contender.fill(keys);
    println!("{:.1}", (resident()? - before) as f64 / keys as f64);
    Ok(())
}

fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .context("/proc/self/status: resident memory can be read on Linux only")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("/proc/self/status: expected VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1_024)
}
