//! Other limiters on the same Redis. Each is a process in its own language with 64 callers,
//! interleaved with Tidegate.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{Bench, GCRA, KEYS};
use crate::spread::Spread;

/// A peer: the command that runs it, and the least ratio of Tidegate to it.
struct Peer {
    name: &'static str,
    program: &'static str,
    script: &'static str,
    bar: f64,
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "rate-limiter-flexible 11.4.0, ioredis 6.0.0",
        program: "node",
        script: "rate_limiter_flexible.mjs",
        bar: 1.3,
    },
    Peer {
        name: "limits 5.8.0, redis-py 7.4.1",
        program: "python3",
        script: "limits_async.py",
        bar: 8.0,
    },
    Peer {
        name: "throttled-py 3.5.0",
        program: "python3",
        script: "throttled_async.py",
        bar: 8.0,
    },
];

/// The duration of a peer's sample in seconds, after its start.
const SECONDS: &str = "1";

pub(super) fn measure(bench: &Bench<'_>) -> anyhow::Result<()> {
    let folder = installed()?;
    let ours = bench.tidegate(GCRA, "")?;
    println!(
        "\n| C1 64 callers, peer | checks/s (thousands) | tidegate gcra beside it | ratio | bar |\n|---|---:|---:|---:|---:|"
    );
    for peer in PEERS {
        let (mut theirs, mut own) = (Vec::new(), Vec::new());
        for _ in 0..bench.options.rounds.clamp(1, 5) {
            theirs.push(run(&peer, &folder, bench.server.port())? / 1e3);
            own.push(bench.sample(&ours, 64, KEYS).rate / 1e3);
        }
        let ratio = Spread::of_ratios(&own, &theirs);
        let verdict = if ratio.median >= peer.bar {
            ""
        } else {
            " missed"
        };
        let (theirs, own) = (Spread::of(&theirs), Spread::of(&own));
        println!(
            "| {} | {theirs} | {own} | {ratio} | {}{verdict} |",
            peer.name, peer.bar
        );
    }
    Ok(())
}

fn run(peer: &Peer, folder: &Path, port: u16) -> anyhow::Result<f64> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(peer.script);
    let output = Command::new("taskset")
        .args(["-c", "1", peer.program])
        .arg(script)
        .args([&port.to_string(), SECONDS])
        .env("PEERS", folder)
        .env("PYTHONPATH", folder.join("py"))
        .output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        peer.name,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .with_context(|| format!("{}: expected a number", peer.name))
}

/// Installs the peers, once, into the target folder.
fn installed() -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
    std::fs::create_dir_all(&folder)?;
    if !folder.join("node_modules/rate-limiter-flexible").exists() {
        install(
            "npm install --silent --no-fund --prefix . rate-limiter-flexible@11.4.0 ioredis@6.0.0",
            &folder,
        )?;
    }
    if !folder.join("py/throttled").exists() {
        install(
            "python3 -m pip install --quiet --target py limits==5.8.0 redis==7.4.1 throttled-py==3.5.0",
            &folder,
        )?;
    }
    Ok(folder)
}

fn install(command: &str, folder: &Path) -> anyhow::Result<()> {
    eprintln!("> {command}");
    let status = Command::new("sh")
        .args(["-c", command])
        .current_dir(folder)
        .stdout(Stdio::null())
        .status()?;
    ensure!(
        status.success(),
        "failed to install the peers; --no-peers skips them"
    );
    Ok(())
}
