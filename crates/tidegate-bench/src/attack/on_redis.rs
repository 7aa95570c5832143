//! Attacks on servers that share a Redis.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate_testkit::redis::RedisServer;

use super::Finding;
use super::target::Target;

fn config(redis: &RedisServer, limits: &str, options: &str) -> String {
    let url = format!("redis://127.0.0.1:{}/{options}", redis.port());
    format!("store.url = \"{url}\"\n[policies.api]\nlimits = \"{limits}\"\n")
}

/// Settles every receipt eight times at once on two servers. Each must count once.
pub(super) fn repeated_settlements(duration: Duration) -> anyhow::Result<Finding> {
    let redis = RedisServer::start();
    let config = config(&redis, "fixed_window 1000000/day", "?timeout=5s");
    let targets = [Target::start(&config)?, Target::start(&config)?];
    let mut client = targets[0].client()?;
    let (started, mut receipts, mut settled) = (Instant::now(), 0_u64, 0_u64);
    while started.elapsed() < duration {
        let body = r#"{"policy": "api", "key": "k", "cost": 10, "receipt": true}"#;
        let response = client.post("/v1/check", body)?.json();
        let Some(receipt) = response["receipt"].as_str() else {
            break;
        };
        let settle = format!(r#"{{"receipt": "{receipt}", "cost": 9}}"#);
        receipts += 1;
        settled += std::thread::scope(|scope| {
            let (targets, settle) = (&targets, &settle);
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    scope.spawn(move || {
                        let response = targets[number % 2]
                            .client()
                            .ok()?
                            .post("/v1/settle", settle)
                            .ok()?;
                        (response.status == 200).then_some(())
                    })
                })
                .collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().ok().flatten())
                .count() as u64
        });
    }
    let left = client
        .post("/v1/peek", r#"{"policy": "api", "key": "k", "cost": 0}"#)?
        .json()["remaining"]
        .as_u64();
    let figures = format!(
        "{receipts} receipts, {} settlements attempted, {settled} succeeded; {left:?} left",
        receipts * 8
    );
    Ok(Finding {
        figures,
        has_held: settled == receipts && left == Some(1_000_000 - receipts * 9),
    })
}

/// Rolls a deployment from one burst to another.
pub(super) fn two_configurations(duration: Duration) -> anyhow::Result<Finding> {
    let redis = RedisServer::start();
    let old = Target::start(&config(&redis, "100/day", "?timeout=5s"))?;
    let new = Target::start(&config(&redis, "100/day burst=20", "?timeout=5s"))?;
    let mut clients = [old.client()?, new.client()?];
    let (started, mut asked, mut passed) = (Instant::now(), 0_u64, 0_u64);
    while started.elapsed() < duration.min(Duration::from_secs(10)) {
        for client in &mut clients {
            asked += 1;
            let response = client.post("/v1/check", r#"{"policy": "api", "key": "k"}"#)?;
            passed += u64::from(response.json()["allowed"] == true);
        }
    }
    let figures = format!(
        "{asked} requests, {passed} allowed, at most 120 (one capacity of each configuration)"
    );
    Ok(Finding {
        figures,
        has_held: passed <= 121,
    })
}

/// Keeps Redis busy with one connection. A client of a policy that fails open must not notice.
pub(super) fn large_batches(duration: Duration) -> anyhow::Result<Finding> {
    let redis = RedisServer::start();
    let target = Target::start(&format!(
        "{}failure = \"open\"\n",
        config(&redis, "fixed_window 5/day", "")
    ))?;
    let limits: Vec<String> = (1..=8)
        .map(|days| format!("sliding_window_log 1000 per {days} days"))
        .collect();
    let check = |number: u32| format!(r#"{{"limits":"{}","key":"{number}"}}"#, limits.join("; "));
    let batch = format!(
        r#"{{"checks":[{}]}}"#,
        (0..400).map(check).collect::<Vec<_>>().join(",")
    );
    let is_over = AtomicBool::new(false);
    let (asked, passed, degraded, batches) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let attacker = scope.spawn(|| {
            let mut batches = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let Ok(mut client) = target.client() else {
                    break;
                };
                while !is_over.load(Ordering::Relaxed)
                    && client.post("/v1/check:batch", &batch).is_ok()
                {
                    batches += 1;
                }
            }
            batches
        });
        let mut client = target.client()?;
        let (mut asked, mut passed, mut degraded) = (0_u64, 0_u64, 0_u64);
        let started = Instant::now();
        while started.elapsed() < duration {
            let response = client
                .post("/v1/check", r#"{"policy": "api", "key": "client"}"#)?
                .json();
            asked += 1;
            passed += u64::from(response["allowed"] == true);
            degraded += u64::from(response["degraded"].is_string());
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        Ok((asked, passed, degraded, attacker.join().unwrap_or(0)))
    })?;
    let figures = format!(
        "{batches} batches of 400 policies of 8 logs; {passed} of the client's {asked} checks were allowed, {degraded} degraded"
    );
    Ok(Finding {
        figures,
        has_held: passed <= 5 + asked / 100,
    })
}
