//! How long callers wait when Redis fails, and how soon it is asked again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate::{AnyStore, Breaker, Connect, Limiter};
use tidegate_testkit::redis::{RedisCluster, RedisSentinels, RedisServer, wait_for};

use crate::spread::Spread;

/// How often, and for how long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How often each failure is brought about.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long a server hangs, in milliseconds.
    #[arg(long, default_value_t = 3_000)]
    hang_ms: u64,
}

const POLICY: &str = "gcra 1_000_000_000/365 days";

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    println!(
        "{} rounds each; 8 callers, about 1,000 checks a second; the deadline is 50 ms.\n",
        options.rounds
    );
    println!("| failure | what | median (least-most), ms |\n|---|---|---:|");
    hang(options)?;
    restart(options)?;
    sentinel(options)?;
    cluster(options)
}

fn row(failure: &str, what: &str, figures: &[Duration]) {
    let ms: Vec<f64> = figures
        .iter()
        .map(|figure| figure.as_secs_f64() * 1e3)
        .collect();
    println!("| {failure} | {what} | {} |", Spread::of(&ms));
}

fn limiter(url: &str) -> anyhow::Result<Limiter<AnyStore>> {
    let separator = if url.contains('?') { '&' } else { '?' };
    Ok(Limiter::connect_blocking(
        &format!("{url}{separator}failure=closed"),
        POLICY.parse()?,
    )?)
}

/// What the callers of one round saw.
#[derive(Default)]
struct Seen {
    /// How long each answer took, and whether the breaker had opened before it was asked for.
    waits: Vec<(Duration, bool)>,
}

/// Lets 8 callers ask, about 1,000 times a second together, while `failure` happens.
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
                        let asked = Instant::now();
                        let _ = limiter.check(&format!("user:{caller}")).wait();
                        waits.push((asked.elapsed(), is_open));
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

/// How long until Redis answers a check that writes.
fn until_answered(limiter: &Limiter<AnyStore>, keys: usize) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    for key in 0..keys {
        let key = format!("key {key}");
        let answers = || {
            limiter
                .check(&key)
                .wait()
                .is_ok_and(|decision| decision.degraded().is_none())
        };
        anyhow::ensure!(
            wait_for(Duration::from_secs(60), answers),
            "Redis did not come back: {:?}",
            limiter.counters()
        );
    }
    Ok(begun.elapsed())
}

fn hang(options: &Options) -> anyhow::Result<()> {
    let server = RedisServer::start();
    let limiter = limiter(&server.url())?;
    let (mut longest, mut longest_open, mut backs) = (Vec::new(), Vec::new(), Vec::new());
    let before = resident_kib()?;
    for _ in 0..options.rounds {
        let mut back = Duration::ZERO;
        let seen = under_load(&limiter, || {
            server.stop();
            std::thread::sleep(Duration::from_millis(options.hang_ms));
            server.go_on();
            back = until_answered(&limiter, 1)?;
            Ok(())
        })?;
        longest.push(
            seen.waits
                .iter()
                .map(|(wait, _)| *wait)
                .max()
                .context("somebody asked")?,
        );
        let open = seen
            .waits
            .iter()
            .filter(|(_, is_open)| *is_open)
            .map(|(wait, _)| *wait)
            .max();
        longest_open.push(open.context("the breaker opened")?);
        backs.push(back);
    }
    row("SIGSTOP", "longest wait for an answer", &longest);
    row(
        "SIGSTOP",
        "longest wait once the breaker is open",
        &longest_open,
    );
    row("SIGCONT", "until Redis answers again", &backs);
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
        .context("the system tells VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

fn restart(options: &Options) -> anyhow::Result<()> {
    let mut server = RedisServer::start();
    let limiter = limiter(&server.url())?;
    let (mut longest, mut backs) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let mut back = Duration::ZERO;
        let seen = under_load(&limiter, || {
            server.kill();
            std::thread::sleep(Duration::from_millis(1_000));
            server.restart();
            back = until_answered(&limiter, 1)?;
            Ok(())
        })?;
        longest.push(
            seen.waits
                .iter()
                .map(|(wait, _)| *wait)
                .max()
                .context("somebody asked")?,
        );
        backs.push(back);
    }
    row("kill -9", "longest wait for an answer", &longest);
    row(
        "restart",
        "from when Redis accepts until it answers us",
        &backs,
    );
    Ok(())
}

fn sentinel(options: &Options) -> anyhow::Result<()> {
    let mut backs = Vec::new();
    for _ in 0..options.rounds.min(3) {
        let mut sentinels = RedisSentinels::start();
        let limiter = limiter(&sentinels.url())?;
        until_answered(&limiter, 1)?;
        let mut back = Duration::ZERO;
        under_load(&limiter, || {
            sentinels.primary().kill();
            back = until_answered(&limiter, 1)?;
            Ok(())
        })?;
        backs.push(back);
    }
    row(
        "Sentinel, kill -9 of the primary, down-after 1 s",
        "until the new primary answers",
        &backs,
    );
    Ok(())
}

fn cluster(options: &Options) -> anyhow::Result<()> {
    let mut backs = Vec::new();
    for _ in 0..options.rounds.min(3) {
        let mut cluster = RedisCluster::start_with_failover();
        let limiter = limiter(&cluster.url())?;
        until_answered(&limiter, 30)?;
        let mut back = Duration::ZERO;
        under_load(&limiter, || {
            cluster
                .nodes()
                .first_mut()
                .context("a cluster has nodes")?
                .kill();
            back = until_answered(&limiter, 30)?;
            Ok(())
        })?;
        backs.push(back);
    }
    row(
        "Cluster, kill -9 of a primary, node-timeout 1 s",
        "until every slot is answered for",
        &backs,
    );
    Ok(())
}
