//! Redis is slow, down, restarted, full or read-only. The calling program neither blocks nor gets
//! wrong decisions.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{FIVE, TIMEOUT, admitted, builder, closed, left, wait_until_available};
use tidegate_core::{Breaker, CheckError, Degraded, FailurePolicy};
use tidegate_testkit::redis::{Fault, Proxy, RedisServer, now, wait_for};

#[test]
fn a_flushed_script_is_reloaded() {
    let server = RedisServer::start();
    for policy in [
        FIVE,
        "sliding_window_log 5/365 days",
        "fixed_window 5/365 days; sliding_window_counter 5/365 days",
    ] {
        let limiter = closed(&server.url(), policy);
        for _ in 0..5 {
            server.command(&["SCRIPT", "FLUSH"]);
            assert!(
                limiter.check("k").blocking().unwrap().is_allowed(),
                "{:?}",
                limiter.counters()
            );
        }
        server.command(&["SCRIPT", "FLUSH"]);
        let batch = limiter
            .check_many(&[("k", 1), ("other", 1)])
            .blocking()
            .unwrap();
        assert_eq!(
            (batch[0].is_allowed(), batch[1].is_allowed()),
            (false, true)
        );
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(limiter.refund("k", 2).blocking().unwrap().remaining(), 2);
        assert_eq!(limiter.counters().degraded_total(), 0);
        limiter.reset("k").blocking().unwrap();
        limiter.reset("other").blocking().unwrap();
        assert!(server.keys().is_empty());
    }
}

/// SIGSTOP: Redis accepts connections but does not reply. Threads with their own limits keep
/// sending requests.
#[test]
fn a_hanging_server_does_not_block_callers() {
    let server = RedisServer::start();
    let limiter = closed(&server.url(), "gcra 1000/365 days");
    let limiters: Vec<_> = (0..8)
        .map(|n| limiter.with_policy(format!("gcra {}/365 days", 1_000 + n).parse().unwrap()))
        .collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, limiter) in limiters.iter().enumerate() {
            let is_over = &is_over;
            scope.spawn(move || {
                let key = format!("of thread {number}");
                while !is_over.load(Ordering::Relaxed) {
                    let start = now();
                    let decision = limiter.check(&key).blocking().unwrap();
                    // `cargo xtask bench failures` measures the exact figures.
                    assert!(
                        start.elapsed() < Duration::from_secs(5),
                        "blocked for {:?}",
                        start.elapsed()
                    );
                    // Each thread has a different limit, so a reply to another thread would show.
                    assert_eq!(decision.limit(), 1_000 + number as u64);
                    std::thread::yield_now();
                }
            });
        }
        let breaker = || limiter.counters().store.unwrap().breaker;
        wait_until_available(&limiter);
        for _ in 0..3 {
            server.stop();
            assert!(
                wait_for(TIMEOUT, || breaker() == Breaker::Open),
                "{:?}",
                limiter.counters()
            );
            server.go_on();
            wait_until_available(&limiter);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let counters = limiter.counters();
    assert!(counters.degraded(Degraded::Timeout) > 0, "{counters:?}");
    assert!(counters.degraded(Degraded::BreakerOpen) > 0, "{counters:?}");
    // A check that timed out may have been counted. No check was counted twice.
    for (number, limiter) in limiters.iter().enumerate() {
        let key = format!("of thread {number}");
        assert!(left(limiter, &key) <= 1_000 + number as u64);
    }
}

#[test]
fn the_number_of_waiting_checks_is_bounded() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = closed(&format!("{}?max_waiting=3&timeout=2s", proxy.url()), FIVE);
    proxy.set(Fault::Hang);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| limiter.check("k").blocking().unwrap());
        }
    });
    let counters = limiter.counters();
    assert!(
        counters.degraded(Degraded::Overloaded) >= 20 - 3 - 4,
        "{counters:?}"
    );
    proxy.set(Fault::None);
    wait_until_available(&limiter);
}

#[test]
fn the_store_recovers_from_a_restart() {
    let mut server = RedisServer::start();
    let limiter = closed(&server.url(), FIVE);
    assert_eq!(admitted(&limiter, "k", 10), 5);
    for _ in 0..3 {
        server.kill();
        assert!(limiter.check("k").blocking().unwrap().degraded().is_some());
        assert!(wait_for(TIMEOUT, || limiter
            .counters()
            .store
            .unwrap()
            .breaker
            == Breaker::Open));
        server.restart();
        wait_until_available(&limiter);
        // The server kept nothing on disk, so counters reset and the limit applies again.
        assert_eq!(admitted(&limiter, "k", 10), 5);
    }
    assert!(limiter.counters().store.unwrap().reconnects >= 3);
}

#[test]
fn a_lost_reply_is_not_retried() {
    let server = RedisServer::start();
    let direct = closed(&server.url(), FIVE);
    for fault in [
        Fault::SwallowReplies,
        Fault::CutReplies,
        Fault::CutNextReply,
    ] {
        let proxy = Proxy::start(server.port());
        let limiter = closed(&proxy.url(), FIVE);
        assert!(limiter.check("k").blocking().unwrap().is_allowed());
        proxy.set(fault);
        let decision = limiter.check("k").blocking().unwrap();
        assert!(
            decision.is_denied() && decision.degraded().is_some(),
            "{decision:?}"
        );
        assert!(
            wait_for(TIMEOUT, || left(&direct, "k") == 3),
            "the check was not executed exactly once"
        );
        proxy.set(Fault::None);
        wait_until_available(&limiter);
        assert_eq!(left(&limiter, "k"), 3);
        limiter.reset("k").blocking().unwrap();
    }
}

#[test]
fn fragmented_and_delayed_replies_are_parsed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = closed(
        &format!("{}?timeout=20s&connect_timeout=20s", proxy.url()),
        "sliding_window_log 5/365 days; gcra 5/day",
    );
    for fault in [Fault::Slice, Fault::Delay(Duration::from_millis(5))] {
        proxy.set(fault);
        assert_eq!(admitted(&limiter, &format!("{fault:?}"), 7), 5);
    }
    assert_eq!(limiter.counters().degraded_total(), 0);
}

/// Reconnects happen one at a time and back off, for any number of callers.
#[test]
fn reconnects_back_off() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = closed(&proxy.url(), FIVE);
    wait_until_available(&limiter);
    let before = proxy.accepted();
    proxy.set(Fault::Cut);
    let cut = now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while proxy.accepted() < before + 6 {
                    assert!(limiter.check("k").blocking().unwrap().is_denied());
                    std::thread::yield_now();
                }
            });
        }
    });
    // Six attempts: the first at once, the others after at least half of 50, 100, 200, 400 and 500
    // ms.
    assert!(
        cut.elapsed() > Duration::from_millis(400),
        "{:?}",
        cut.elapsed()
    );
    proxy.set(Fault::None);
    wait_until_available(&limiter);
}

#[test]
fn the_failure_policy_decides_requests_that_redis_rejects() {
    let server = RedisServer::start();
    let limiter = closed(&server.url(), FIVE);
    assert_eq!(admitted(&limiter, "k", 2), 2);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(
        limiter.check("k").blocking().unwrap().degraded(),
        Some(Degraded::Refused)
    );
    assert!(
        limiter
            .counters()
            .store
            .unwrap()
            .last_error
            .unwrap()
            .contains("OOM")
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(admitted(&limiter, "k", 10), 3);
    // A denial writes nothing and needs no memory.
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(limiter.check("k").blocking().unwrap().degraded(), None);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(
        limiter.check("other").blocking().unwrap().degraded(),
        Some(Degraded::Refused)
    );
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert!(limiter.check("other").blocking().unwrap().is_allowed());
}

#[test]
fn a_demoted_server_is_avoided_until_it_is_a_primary_again() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let limiter = closed(&server.url(), FIVE);
    assert!(limiter.check("k").blocking().unwrap().is_allowed());
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    assert!(limiter.check("k").blocking().unwrap().degraded().is_some());
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let admits = || limiter.check("another").blocking().unwrap().is_allowed();
    assert!(wait_for(TIMEOUT, admits), "{:?}", limiter.counters());
}

#[test]
fn unreadable_keys_are_denied_and_left_unchanged() {
    let server = RedisServer::start();
    let policies = [
        ("gcra 5/365 days", "tg::gc/5/365d:{k}"),
        ("fixed_window 5/365 days", "tg::fw/5/365d:{k}"),
        ("sliding_window_counter 5/365 days", "tg::sc/5/365d:{k}"),
        ("sliding_window_log 5/365 days", "tg::sl/5/365d:{k}"),
        ("gcra 5/day; fixed_window 5/day", "tg::fw/5/1d+gc/5/1d:{k}"),
    ];
    for (policy, name) in policies {
        let limiter = builder(&server.url(), policy)
            .failure_policy(FailurePolicy::Open)
            .build();
        for damaged in [
            "",
            "abc",
            "nan",
            "-5",
            "1e+17",
            " 5",
            "0x10",
            "99999999999999999999999",
            "12 34",
        ] {
            server.command(&["SET", name, damaged]);
            let before = server.command(&["GET", name]);
            let decision = limiter.check("k").blocking().unwrap();
            assert!(
                decision.is_denied(),
                "{policy} on {damaged:?}: {decision:?}"
            );
            assert_eq!(
                decision.degraded(),
                Some(Degraded::Unreadable),
                "{policy} on {damaged:?}"
            );
            let batch = limiter
                .check_many(&[("k", 1), ("innocent", 0)])
                .blocking()
                .unwrap();
            assert_eq!(
                (batch[0].degraded(), batch[1].degraded()),
                (Some(Degraded::Unreadable), None),
                "{policy}"
            );
            assert_eq!(
                server.command(&["GET", name]),
                before,
                "{policy} on {damaged:?}"
            );
        }
        server.command(&["DEL", name]);
        server.command(&["HSET", name, "field", "1"]);
        assert_eq!(
            limiter.check("k").blocking().unwrap().degraded(),
            Some(Degraded::Unreadable),
            "{policy} on a hash"
        );
        assert_eq!(
            limiter
                .check_many(&[("k", 1), ("innocent", 0)])
                .blocking()
                .unwrap()[0]
                .degraded(),
            Some(Degraded::Unreadable)
        );
        limiter.reset("k").blocking().unwrap();
        assert!(
            limiter.check("k").blocking().unwrap().degraded().is_none(),
            "{policy}"
        );
    }
}

#[test]
fn each_failure_policy_decides_while_redis_is_down() {
    let mut server = RedisServer::start();
    let build = |failure| {
        builder(&server.url(), "gcra 10/365 days")
            .failure_policy(failure)
            .build()
    };
    let (open, closed_limiter, local) = (
        build(FailurePolicy::Open),
        build(FailurePolicy::Closed),
        build(FailurePolicy::local(5)),
    );
    assert_eq!(admitted(&local, "k", 3), 3);
    server.kill();
    assert_eq!(admitted(&open, "k", 20), 20);
    assert_eq!(admitted(&closed_limiter, "k", 20), 0);
    // A fifth of 10. The counts in Redis do not matter.
    assert_eq!(admitted(&local, "k", 20), 2);
    let decision = local.check("k").blocking().unwrap();
    assert_eq!((decision.limit(), decision.remaining()), (2, 0));
    assert!(decision.degraded().is_some());
    // Refunds and resets have no local fallback. A refund of a cost that Redis counted must not
    // free local admissions.
    assert!(matches!(
        local.refund("k", 1).blocking(),
        Err(CheckError::Store(_))
    ));
    assert!(matches!(
        local.reset("k").blocking(),
        Err(CheckError::Store(_))
    ));
    assert!(local.check("k").blocking().unwrap().is_denied());
    for (limiter, expected) in [
        (&open, (20, 0, 0)),
        (&closed_limiter, (0, 0, 20)),
        (&local, (5, 20, 0)),
    ] {
        let counters = limiter.counters();
        let counts = (counters.allowed, counters.denied, counters.outages);
        assert_eq!(counts, expected);
    }
    assert_eq!(open.counters().degraded_total(), 20);
    assert_eq!(local.counters().degraded_total(), 22);
    server.restart();
    for limiter in [&open, &closed_limiter, &local] {
        wait_until_available(limiter);
    }
    assert_eq!(left(&local, "k"), 10);
}
