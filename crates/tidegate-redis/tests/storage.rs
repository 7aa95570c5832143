//! The keys that the store writes, and their size.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::closed;
use tidegate_core::{Limiter, ManualClock};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisServer, Value};

/// Returns the server's counter of changes since the last save.
fn changes(server: &RedisServer) -> String {
    let Value::BulkString(info) = server.command(&["INFO", "persistence"]) else {
        panic!("INFO did not return text")
    };
    let info = String::from_utf8(info).unwrap();
    info.lines()
        .find(|line| line.starts_with("rdb_changes_since_last_save:"))
        .unwrap()
        .to_owned()
}

#[test]
fn a_denial_and_a_peek_write_nothing() {
    let server = RedisServer::start();
    let policies = [
        "fixed_window 3/365 days",
        "sliding_window_log 3/365 days",
        "sliding_window_counter 3/365 days",
        "gcra 3/365 days",
        "gcra 3/365 days; sliding_window_log 4/365 days; fixed_window 5/365 days",
    ];
    for policy in policies {
        let limiter = closed(&server.url(), policy);
        let _ = limiter.check("k").cost(3).blocking().unwrap();
        let before = changes(&server);
        assert!(limiter.check("k").blocking().unwrap().is_denied());
        assert!(limiter.check("k").cost(99).blocking().unwrap().is_denied());
        assert!(
            limiter
                .check("new")
                .cost(99)
                .blocking()
                .unwrap()
                .is_denied()
        );
        let _ = limiter.check("k").cost(0).blocking().unwrap();
        limiter
            .check_many(&[("k", 1), ("new", 0), ("k", 2)])
            .blocking()
            .unwrap();
        limiter.refund("k", 0).blocking().unwrap();
        assert_eq!(changes(&server), before, "{policy}");
        assert!(limiter.check("new").blocking().unwrap().is_allowed());
        assert_ne!(changes(&server), before, "{policy}");
        limiter.reset("k").blocking().unwrap();
        limiter.reset("new").blocking().unwrap();
        assert!(server.keys().is_empty(), "{policy}");
    }
}

#[test]
fn a_log_takes_at_most_20_bytes_per_entry() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let builder =
        RedisStore::builder(&server.url()).manual_time(clock.clone(), Duration::from_secs(60));
    let store = builder
        .timeout(Duration::from_secs(5))
        .connect_blocking()
        .unwrap();
    let limiter = Limiter::builder(store, "sliding_window_log 100000/day".parse().unwrap())
        .deny_cache(0)
        .build();
    let mut made = 0;
    for entries in [100, 1_000, 5_000] {
        while made < entries {
            clock.advance(Duration::from_micros(fastrand::u64(1..1_000_000)));
            assert!(
                limiter
                    .check("k")
                    .cost(fastrand::u64(1..20))
                    .blocking()
                    .unwrap()
                    .is_allowed()
            );
            made += 1;
        }
        let Value::Int(bytes) =
            server.command(&["MEMORY", "USAGE", "tg::sl/100000/1d:{k}", "SAMPLES", "0"])
        else {
            panic!()
        };
        assert!(bytes <= 20 * entries, "{bytes} bytes for {entries} entries");
    }
}

/// All but the last few of half a million entries have expired. A binary search finds them, and one
/// call trims them.
#[test]
fn expired_entries_of_a_large_log_are_trimmed() {
    let server = RedisServer::start();
    let make = "local now = redis.call('TIME') now = now[1] * 1000000 + now[2]
        redis.call('RPUSH', KEYS[1], 0)
        for entry = 1, 500000 do
            local at = entry <= 499990 and now - 3600000000 + entry or now - 1000000 + entry
            redis.call('RPUSH', KEYS[1], string.format('%d', at), string.format('%d', entry * 1000))
        end
        redis.call('PEXPIRE', KEYS[1], 60000)";
    server.command(&["EVAL", make, "1", "tg::sl/1000000/1m:{k}"]);
    let limiter = closed(
        &format!("{}?timeout=5s", server.url()),
        "sliding_window_log 1000000/minute",
    );
    assert_eq!(
        limiter.check("k").blocking().unwrap().remaining(),
        1_000_000 - 11
    );
    let Value::Int(length) = server.command(&["LLEN", "tg::sl/1000000/1m:{k}"]) else {
        panic!()
    };
    assert_eq!(length, 1 + 2 * 11);
    assert_eq!(
        limiter.refund("k", 100).blocking().unwrap().remaining(),
        1_000_000
    );
    assert!(server.keys().is_empty());
}
