//! The server's clock, and the expiry of keys.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{TIMEOUT, admitted, closed};
use tidegate_testkit::redis::{RedisServer, ShiftedClock, Value, wait_for};

const HOUR_US: i64 = 3_600_000_000;

/// Every algorithm, with the time after which all its state has expired.
const POLICIES: [(&str, Duration); 7] = [
    ("fixed_window 5/minute", Duration::from_secs(60)),
    (
        "fixed_window 5/minute anchor=first_hit",
        Duration::from_secs(60),
    ),
    ("sliding_window_log 5/minute", Duration::from_secs(60)),
    ("sliding_window_counter 5/minute", Duration::from_secs(120)),
    ("token_bucket 5/minute", Duration::from_secs(60)),
    ("leaky_bucket 5/minute", Duration::from_secs(60)),
    ("gcra 5/minute", Duration::from_secs(60)),
];

/// Returns the server's time in microseconds.
fn now_us(server: &RedisServer) -> u64 {
    let Value::Array(time) = server.command(&["TIME"]) else {
        panic!("TIME did not return an array")
    };
    number(&time[0]) * 1_000_000 + number(&time[1])
}

/// Returns the shift that moves the clock to the start of a minute, so that no minute ends during a
/// test.
fn until_next_minute(server: &RedisServer) -> i64 {
    const MINUTE_US: u64 = 60_000_000;
    i64::try_from(MINUTE_US + 1_000_000 - now_us(server) % MINUTE_US).unwrap()
}

#[test]
fn a_clock_that_steps_back_locks_no_client_out() {
    let clock = ShiftedClock::make();
    let server = RedisServer::start_with_clock(&clock);
    let start = until_next_minute(&server);
    let shift_micros = |shift: i64| clock.shift_micros(start + shift);
    for (policy, refill) in POLICIES {
        let limiter = closed(&server.url(), policy);
        for (step, shift) in [0, -HOUR_US, -25 * HOUR_US, -26 * HOUR_US]
            .into_iter()
            .enumerate()
        {
            shift_micros(shift);
            // The limit is used up, either before the step or now.
            admitted(&limiter, "k", 6);
            let decision = limiter.check("k").blocking().unwrap();
            assert_eq!(decision.degraded(), None, "{:?}", limiter.counters());
            assert!(
                decision.is_denied(),
                "{policy}, step {step}: a step back freed the limit"
            );
            assert!(
                decision.retry_after().unwrap() <= refill,
                "{policy}, step {step}: {decision:?}"
            );
            assert!(
                decision.reset_after() <= refill,
                "{policy}, step {step}: {decision:?}"
            );
            // The limit is full again after one refill time, as reported.
            shift_micros(shift + i64::try_from(refill.as_micros()).unwrap());
            assert_eq!(admitted(&limiter, "k", 20), 5, "{policy}, step {step}");
        }
        // A step forward admits at most one capacity more.
        shift_micros(0);
        assert!(admitted(&limiter, "k", 20) <= 5, "{policy}");
        shift_micros(HOUR_US);
        assert_eq!(admitted(&limiter, "k", 20), 5, "{policy}");
        shift_micros(0);
    }
}

/// Every key has an expiry, and no key is left once all have expired.
#[test]
fn idle_keys_expire() {
    let server = RedisServer::start();
    let policies = [
        "fixed_window 5/100 ms",
        "fixed_window 5/150 ms anchor=first_hit",
        "sliding_window_log 5/100 ms",
        "sliding_window_counter 5/100 ms",
        "gcra 5/100 ms",
        "token_bucket 7/100 ms burst=3",
        "gcra 5/50 ms; sliding_window_log 9/80 ms; fixed_window 5/60 ms",
    ];
    for policy in policies {
        let limiter = closed(&server.url(), policy);
        for number in 0..300 {
            let key = format!("{}", number % 50);
            let _ = limiter
                .check(&key)
                .cost(f64::from(number % 4) / 2.0)
                .blocking()
                .unwrap();
            if number % 7 == 0 {
                limiter.refund(&key, 0.5).blocking().unwrap();
            }
            if number % 50 == 0 {
                assert!(
                    server.keys().iter().all(|(_, ttl)| *ttl >= 0),
                    "{policy}: {:?}",
                    server.keys()
                );
            }
        }
        assert_eq!(limiter.counters().degraded_total(), 0);
    }
    assert!(
        wait_for(TIMEOUT, || server.keys().is_empty()),
        "{:?}",
        server.keys()
    );
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap(),
        Value::BulkString(text) => std::str::from_utf8(text).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A state expires when it equals a fresh one. An earlier expiry would admit too much. The expiry
/// is at most a millisecond late.
#[test]
fn keys_do_not_expire_early() {
    let clock = ShiftedClock::make();
    let server = RedisServer::start_with_clock(&clock);
    clock.shift_micros(until_next_minute(&server));
    let names = ["fw", "ff", "sl", "sc", "tb", "lb", "gc"];
    for ((policy, _), name) in POLICIES.into_iter().zip(names) {
        let limiter = closed(&server.url(), policy);
        for round in 0..20 {
            let key = format!("{round}");
            let before = now_us(&server);
            let decision = limiter.check(&key).cost(0.777).blocking().unwrap();
            let after = now_us(&server);
            let reset = u64::try_from(decision.reset_after().as_micros()).unwrap();
            let expires = 1_000
                * number(&server.command(&["PEXPIRETIME", &format!("tg::{name}/5/1m:{{{key}}}")]));
            assert!(
                expires >= before + reset,
                "{policy}: {} µs too early",
                before + reset - expires
            );
            assert!(
                expires <= after + reset + 1_000,
                "{policy}: {} µs too late",
                expires - after - reset
            );
        }
    }
}

/// A retry after `retry_after` succeeds on the server's own clock.
#[test]
fn a_retry_after_the_reported_wait_succeeds() {
    let server = RedisServer::start();
    let limiter = closed(&server.url(), "gcra 100/second burst=1");
    for _ in 0..20 {
        let decision = limiter.check("k").blocking().unwrap();
        if let Some(retry_after) = decision.retry_after() {
            assert!(retry_after <= Duration::from_millis(10), "{decision:?}");
            // No other request is made, so only time can free the limit.
            std::thread::park_timeout(retry_after);
            let again = || limiter.check("k").blocking().unwrap().is_allowed();
            assert!(wait_for(TIMEOUT, again));
        }
    }
}
