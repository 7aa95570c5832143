//! D4: measures the memory of a key in Redis.

use anyhow::Context;
use tidegate::{Connect, Limiter};
use tidegate_testkit::redis::{RedisServer, Value};

use super::contenders::name_of;

/// A policy, the number of keys, the number of requests per key, and the most bytes per key.
const ROWS: [(&str, usize, usize, u64); 7] = [
    ("gcra 100/minute", 50_000, 1, 150),
    ("gcra 7/hour burst=100", 50_000, 1, 150),
    ("fixed_window 100/minute", 50_000, 1, 150),
    ("fixed_window 100/hour anchor=first_hit", 50_000, 1, 150),
    ("sliding_window_counter 100/minute", 50_000, 1, 150),
    ("sliding_window_log 1_000/hour", 500, 100, 2_000),
    ("sliding_window_log 1_000/hour", 100, 1_000, 20_000),
];

pub(super) fn measure(server: &RedisServer) -> anyhow::Result<()> {
    println!("\n| D4 policy | requests per key | bytes per key | bar |\n|---|---:|---:|---:|");
    for (policy, keys, requests, bar) in ROWS {
        server.command(&["FLUSHALL"]);
        // Connects before the first measurement, so that the connection is not counted.
        let limiter =
            Limiter::connect_blocking(&format!("{}?timeout=10s", server.url()), policy.parse()?)?;
        let before = used_memory(server)?;
        for _ in 0..requests {
            let batch: Vec<(String, u64)> = (0..keys).map(|key| (name_of(key), 1)).collect();
            for part in batch.chunks(1_000) {
                limiter.check_many(part).blocking()?;
            }
        }
        let bytes = used_memory(server)?.saturating_sub(before) / keys as u64;
        println!(
            "| {policy} | {requests} | {bytes} | {bar}{} |",
            if bytes <= bar { "" } else { " missed" }
        );
    }
    server.command(&["FLUSHALL"]);
    Ok(())
}

fn used_memory(server: &RedisServer) -> anyhow::Result<u64> {
    let info = match server.command(&["INFO", "memory"]) {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => anyhow::bail!("INFO: expected text, got {other:?}"),
    };
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .context("INFO: expected used_memory")?;
    Ok(line.trim().parse()?)
}
