//! Redis slow, gone, restarted, full, read-only: the program that uses it neither hangs nor lies.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{FIVE, PATIENCE, admitted, builder, closed, left, wait_until_answered};
use tidegate_core::{Breaker, CheckError, Degraded, FailurePolicy};
use tidegate_testkit::redis::{Fault, Proxy, RedisServer, now, wait_for};

#[test]
fn a_script_that_is_flushed_is_loaded_again() {
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
                limiter.check("k").wait().unwrap().is_allowed(),
                "{:?}",
                limiter.counters()
            );
        }
        server.command(&["SCRIPT", "FLUSH"]);
        let batch = limiter
            .check_many(&[("k", 1), ("other", 1)])
            .wait()
            .unwrap();
        assert_eq!(
            (batch[0].is_allowed(), batch[1].is_allowed()),
            (false, true)
        );
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(limiter.refund("k", 2).wait().unwrap().remaining(), 2);
        assert_eq!(limiter.counters().degraded_total(), 0);
        limiter.reset("k").wait().unwrap();
        limiter.reset("other").wait().unwrap();
        assert!(server.keys().is_empty());
    }
}

/// SIGSTOP: Redis is there and does not answer. Threads with limits of their own ask on and on.
#[test]
fn a_server_that_hangs_holds_nobody_up() {
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
                    let asked = now();
                    let decision = limiter.check(&key).wait().unwrap();
                    // The exact figures are a measurement: `cargo xtask bench failures`.
                    assert!(
                        asked.elapsed() < Duration::from_secs(5),
                        "held up for {:?}",
                        asked.elapsed()
                    );
                    // Nobody gets the answer of another: limits differ.
                    assert_eq!(decision.limit(), 1_000 + number as u64);
                    std::thread::yield_now();
                }
            });
        }
        let breaker = || limiter.counters().store.unwrap().breaker;
        wait_until_answered(&limiter);
        for _ in 0..3 {
            server.stop();
            assert!(
                wait_for(PATIENCE, || breaker() == Breaker::Open),
                "{:?}",
                limiter.counters()
            );
            server.go_on();
            wait_until_answered(&limiter);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let counters = limiter.counters();
    assert!(counters.degraded(Degraded::Timeout) > 0, "{counters:?}");
    assert!(counters.degraded(Degraded::BreakerOpen) > 0, "{counters:?}");
    // What timed out may have been counted, and nothing was counted twice.
    for (number, limiter) in limiters.iter().enumerate() {
        let key = format!("of thread {number}");
        assert!(left(limiter, &key) <= 1_000 + number as u64);
    }
}

#[test]
fn what_waits_is_bounded() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = closed(&format!("{}?max_waiting=3&timeout=2s", proxy.url()), FIVE);
    proxy.set(Fault::Hang);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| limiter.check("k").wait().unwrap());
        }
    });
    let counters = limiter.counters();
    assert!(
        counters.degraded(Degraded::Overloaded) >= 20 - 3 - 4,
        "{counters:?}"
    );
    proxy.set(Fault::None);
    wait_until_answered(&limiter);
}

#[test]
fn a_restart_is_survived() {
    let mut server = RedisServer::start();
    let limiter = closed(&server.url(), FIVE);
    assert_eq!(admitted(&limiter, "k", 10), 5);
    for _ in 0..3 {
        server.kill();
        assert!(limiter.check("k").wait().unwrap().degraded().is_some());
        assert!(wait_for(PATIENCE, || limiter
            .counters()
            .store
            .unwrap()
            .breaker
            == Breaker::Open));
        server.restart();
        wait_until_answered(&limiter);
        // It kept nothing on disk: everybody starts afresh, and is held to the limit again.
        assert_eq!(admitted(&limiter, "k", 10), 5);
    }
    assert!(limiter.counters().store.unwrap().reconnects >= 3);
}

#[test]
fn an_answer_that_is_lost_is_not_asked_for_again() {
    let server = RedisServer::start();
    let direct = closed(&server.url(), FIVE);
    for fault in [
        Fault::SwallowReplies,
        Fault::CutReplies,
        Fault::CutNextReply,
    ] {
        let proxy = Proxy::start(server.port());
        let limiter = closed(&proxy.url(), FIVE);
        assert!(limiter.check("k").wait().unwrap().is_allowed());
        proxy.set(fault);
        let decision = limiter.check("k").wait().unwrap();
        assert!(
            decision.is_denied() && decision.degraded().is_some(),
            "{decision:?}"
        );
        assert!(
            wait_for(PATIENCE, || left(&direct, "k") == 3),
            "executed, and once"
        );
        proxy.set(Fault::None);
        wait_until_answered(&limiter);
        assert_eq!(left(&limiter, "k"), 3);
        limiter.reset("k").wait().unwrap();
    }
}

#[test]
fn bytes_that_come_one_by_one_and_late_are_answers_all_the_same() {
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

/// One dial at a time, further and further apart, however many are asking.
#[test]
fn no_storm_of_reconnects() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = closed(&proxy.url(), FIVE);
    wait_until_answered(&limiter);
    let before = proxy.accepted();
    proxy.set(Fault::Cut);
    let cut = now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while proxy.accepted() < before + 6 {
                    assert!(limiter.check("k").wait().unwrap().is_denied());
                    std::thread::yield_now();
                }
            });
        }
    });
    // Six attempts: at once, and after half of 50, 100, 200, 400 and 500 ms at least.
    assert!(
        cut.elapsed() > Duration::from_millis(400),
        "{:?}",
        cut.elapsed()
    );
    proxy.set(Fault::None);
    wait_until_answered(&limiter);
}

#[test]
fn what_redis_refuses_is_answered_by_the_failure_policy() {
    let server = RedisServer::start();
    let limiter = closed(&server.url(), FIVE);
    assert_eq!(admitted(&limiter, "k", 2), 2);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(
        limiter.check("k").wait().unwrap().degraded(),
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
    assert_eq!(limiter.check("k").wait().unwrap().degraded(), None);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(
        limiter.check("other").wait().unwrap().degraded(),
        Some(Degraded::Refused)
    );
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert!(limiter.check("other").wait().unwrap().is_allowed());
}

#[test]
fn a_server_that_becomes_a_replica_is_left_until_it_is_a_primary_again() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let limiter = closed(&server.url(), FIVE);
    assert!(limiter.check("k").wait().unwrap().is_allowed());
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    assert!(limiter.check("k").wait().unwrap().degraded().is_some());
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let admits = || limiter.check("another").wait().unwrap().is_allowed();
    assert!(wait_for(PATIENCE, admits), "{:?}", limiter.counters());
}

#[test]
fn what_is_none_of_ours_is_denied_and_left_alone() {
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
            let decision = limiter.check("k").wait().unwrap();
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
                .wait()
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
            limiter.check("k").wait().unwrap().degraded(),
            Some(Degraded::Unreadable),
            "{policy} on a hash"
        );
        assert_eq!(
            limiter
                .check_many(&[("k", 1), ("innocent", 0)])
                .wait()
                .unwrap()[0]
                .degraded(),
            Some(Degraded::Unreadable)
        );
        limiter.reset("k").wait().unwrap();
        assert!(
            limiter.check("k").wait().unwrap().degraded().is_none(),
            "{policy}"
        );
    }
}

#[test]
fn the_three_failure_policies() {
    let mut server = RedisServer::start();
    let build = |failure| {
        builder(&server.url(), "gcra 10/365 days")
            .failure_policy(failure)
            .build()
    };
    let (open, shut, local) = (
        build(FailurePolicy::Open),
        build(FailurePolicy::Closed),
        build(FailurePolicy::local(5)),
    );
    assert_eq!(admitted(&local, "k", 3), 3);
    server.kill();
    assert_eq!(admitted(&open, "k", 20), 20);
    assert_eq!(admitted(&shut, "k", 20), 0);
    // A fifth of 10, whatever Redis had counted.
    assert_eq!(admitted(&local, "k", 20), 2);
    let decision = local.check("k").wait().unwrap();
    assert_eq!((decision.limit(), decision.remaining()), (2, 0));
    assert!(decision.degraded().is_some());
    // Nothing stands in for a refund or a reset: what Redis counted must not free what was admitted here.
    assert!(matches!(
        local.refund("k", 1).wait(),
        Err(CheckError::Store(_))
    ));
    assert!(matches!(local.reset("k").wait(), Err(CheckError::Store(_))));
    assert!(local.check("k").wait().unwrap().is_denied());
    for (limiter, allowed, denied) in [(&open, 20, 0), (&shut, 0, 20), (&local, 5, 20)] {
        let counters = limiter.counters();
        assert_eq!((counters.allowed, counters.denied), (allowed, denied));
    }
    assert_eq!(open.counters().degraded_total(), 20);
    assert_eq!(local.counters().degraded_total(), 22);
    server.restart();
    for limiter in [&open, &shut, &local] {
        wait_until_answered(limiter);
    }
    assert_eq!(left(&local, "k"), 10);
}
