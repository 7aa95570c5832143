//! Measures how long callers wait when Redis fails, and how soon Redis decides again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate::{AnyStore, Breaker, Connect, Limiter};
use tidegate_testkit::redis::{RedisCluster, RedisSentinels, RedisServer, wait_for};

use crate::spread::Spread;

/// The options of `bench failures`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds per failure
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Time that a server hangs, in milliseconds
    #[arg(long, default_value_t = 3_000)]
    hang_ms: u64,
}

const POLICY: &str = "gcra 1_000_000_000/365 days";

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    println!(
        "{} rounds each, 8 callers, about 1,000 checks a second, timeout 50 ms.\n",
        options.rounds
    );
    println!("| failure | measurement | median (minimum-maximum), ms |\n|---|---|---:|");
    hang(options)?;
    restart(options)?;
    sentinel(options)?;
    cluster(options)
}

fn row(failure: &str, measurement: &str, figures: &[Duration]) {
    let ms: Vec<f64> = figures
        .iter()
        .map(|figure| figure.as_secs_f64() * 1e3)
        .collect();
    println!("| {failure} | {measurement} | {} |", Spread::of(&ms));
}

fn limiter(url: &str) -> anyhow::Result<Limiter<AnyStore>> {
    let separator = if url.contains('?') { '&' } else { '?' };
    Ok(Limiter::connect_blocking(
        &format!("{url}{separator}failure=closed"),
        POLICY.parse()?,
    )?)
}

/// The waits that the callers of one round measured.
#[derive(Default)]
struct Seen {
    /// The duration of each check, and true if the breaker was open before it.
    waits: Vec<(Duration, bool)>,
}

/// Runs 8 callers, together about 1,000 checks a second, while `failure` happens.
fn under_load(
    limiter: &Limiter<AnyStore>,
    failure: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Seen> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut waits = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let is_open = limiter
                            .counters()
                            .store
                            .is_some_and(|store| store.breaker == Breaker::Open);
                        let started = Instant::now();
                        let _ = limiter.check(format!("user:{caller}")).blocking();
                        waits.push((started.elapsed(), is_open));
                        std::thread::sleep(Duration::from_millis(8));
                    }
                    waits
                })
            })
            .collect();
        let result = failure();
        is_over.store(true, Ordering::Relaxed);
        let mut seen = Seen::default();
        for caller in callers {
            seen.waits.extend(
                caller
                    .join()
                    .map_err(|_| anyhow::anyhow!("a caller panicked"))?,
            );
        }
        result.map(|()| seen)
    })
}

/// Measures the time until Redis decides a check of each key.
fn until_decided(limiter: &Limiter<AnyStore>, keys: usize) -> anyhow::Result<Duration> {
    let started = Instant::now();
    for key in 0..keys {
        let key = format!("key {key}");
        let is_decided = || {
            limiter
                .check(&key)
                .blocking()
                .is_ok_and(|decision| decision.degraded().is_none())
        };
        anyhow::ensure!(
            wait_for(Duration::from_secs(60), is_decided),
            "Redis did not recover: {:?}",
            limiter.counters()
        );
    }
    Ok(started.elapsed())
}

fn hang(options: &Options) -> anyhow::Result<()> {
    let server = RedisServer::start();
    let limiter = limiter(&server.url())?;
    let (mut longest, mut longest_open, mut recoveries) = (Vec::new(), Vec::new(), Vec::new());
    let before = resident_kib()?;
    for _ in 0..options.rounds {
        let mut recovery = Duration::ZERO;
        let seen = under_load(&limiter, || {
            server.stop();
            std::thread::sleep(Duration::from_millis(options.hang_ms));
            server.go_on();
            recovery = until_decided(&limiter, 1)?;
            Ok(())
        })?;
        longest.push(
            seen.waits
                .iter()
                .map(|(wait, _)| *wait)
                .max()
                .context("no check was made")?,
        );
        let open = seen
            .waits
            .iter()
            .filter(|(_, is_open)| *is_open)
            .map(|(wait, _)| *wait)
            .max();
        longest_open.push(open.context("the breaker did not open")?);
        recoveries.push(recovery);
    }
    row("SIGSTOP", "longest check", &longest);
    row(
        "SIGSTOP",
        "longest check with the breaker open",
        &longest_open,
    );
    row(
        "SIGCONT",
        "until the first decision from Redis",
        &recoveries,
    );
    println!(
        "| SIGSTOP | growth of resident memory over all rounds | {} KiB |",
        resident_kib()?.saturating_sub(before)
    );
    Ok(())
}

fn resident_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("/proc/self/status: expected VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

fn restart(options: &Options) -> anyhow::Result<()> {
    let mut server = RedisServer::start();
    let limiter = limiter(&server.url())?;
    let (mut longest, mut recoveries) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let mut recovery = Duration::ZERO;
        let seen = under_load(&limiter, || {
            server.kill();
            std::thread::sleep(Duration::from_millis(1_000));
            server.restart();
            recovery = until_decided(&limiter, 1)?;
            Ok(())
        })?;
        longest.push(
            seen.waits
                .iter()
                .map(|(wait, _)| *wait)
                .max()
                .context("no check was made")?,
        );
        recoveries.push(recovery);
    }
    row("kill -9", "longest check", &longest);
    row(
        "restart",
        "from accepting connections to the first decision from Redis",
        &recoveries,
    );
    Ok(())
}

fn sentinel(options: &Options) -> anyhow::Result<()> {
    let mut recoveries = Vec::new();
    for _ in 0..options.rounds.min(3) {
        let mut sentinels = RedisSentinels::start();
        let limiter = limiter(&sentinels.url())?;
        until_decided(&limiter, 1)?;
        let mut recovery = Duration::ZERO;
        under_load(&limiter, || {
            sentinels.primary().kill();
            recovery = until_decided(&limiter, 1)?;
            Ok(())
        })?;
        recoveries.push(recovery);
    }
    row(
        "Sentinel, kill -9 of the primary, down-after 1 s",
        "until the new primary decides",
        &recoveries,
    );
    Ok(())
}

fn cluster(options: &Options) -> anyhow::Result<()> {
    let mut recoveries = Vec::new();
    for _ in 0..options.rounds.min(3) {
        let mut cluster = RedisCluster::start_with_failover();
        let limiter = limiter(&cluster.url())?;
        until_decided(&limiter, 30)?;
        let mut recovery = Duration::ZERO;
        under_load(&limiter, || {
            cluster
                .nodes()
                .first_mut()
                .context("the cluster has no nodes")?
                .kill();
            recovery = until_decided(&limiter, 30)?;
            Ok(())
        })?;
        recoveries.push(recovery);
    }
    row(
        "Cluster, kill -9 of a primary, node-timeout 1 s",
        "until every slot is served",
        &recoveries,
    );
    Ok(())
}
