//! Attacks on servers that share a Redis. Each test is named after the finding that it reproduces.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use common::{ServerProcess, TIMEOUT};
use tidegate_testkit::Folder;
use tidegate_testkit::http::HttpAnswer;
use tidegate_testkit::redis::{RedisServer, wait_for};

fn on(redis: &RedisServer) -> String {
    format!("redis://127.0.0.1:{}/?timeout=5s", redis.port())
}

fn allowed(response: &HttpAnswer) -> bool {
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["allowed"].as_bool().unwrap()
}

/// A rolling deployment: half of the servers have the old burst, half the new one.
#[test]
fn a1_two_configurations_on_one_redis_admit_one_capacity_each() {
    let redis = RedisServer::start();
    let folder = Folder::new();
    let start = |name: &str, limits: &str| {
        let config = folder.write(name, &format!("[policies.api]\nlimits = \"{limits}\"\n"));
        ServerProcess::start(&["--config", &config, "--store", &on(&redis)])
    };
    let servers = [
        start("old.toml", "100/300 days"),
        start("new.toml", "100/300 days burst=20"),
    ];
    let mut clients = servers.each_ref().map(ServerProcess::client);
    let body = r#"{"policy": "api", "key": "k"}"#;
    let mut passed = 0;
    for _ in 0..300 {
        for client in &mut clients {
            passed += u32::from(allowed(&client.post("/v1/check", body).unwrap()));
        }
    }
    assert_eq!(passed, 120);
}

/// Inline limits with the same key, algorithm and period, over both protocols.
#[test]
fn a1_alternating_between_limits_frees_nothing() {
    let redis = RedisServer::start();
    for store in ["memory://", &on(&redis)] {
        let server = ServerProcess::start(&["--store", store]);
        let mut client = server.client();
        let mut ask = |limits: &str, path: &str| {
            allowed(
                &client
                    .post(path, &format!(r#"{{"limits": "{limits}", "key": "k"}}"#))
                    .unwrap(),
            )
        };
        let mut passed = 0;
        for _ in 0..200 {
            passed += u32::from(ask("5/300 days", "/v1/check"));
            ask("5/300 days burst=1", "/v1/peek");
            passed += u32::from(ask("5/300 days burst=1", "/v1/check"));
        }
        assert_eq!(passed, 5 + 1, "{store}");
        // The Redis commands of a key share one bucket at any rate. It is never clamped to a
        // smaller one.
        let mut resp = TcpStream::connect(server.resp).unwrap();
        let mut throttle = |burst: u32| {
            resp.write_all(format!("CL.THROTTLE k {burst} 5 25920000\r\n").as_bytes())
                .unwrap();
            let mut reply = [0; 256];
            let read = resp.read(&mut reply).unwrap();
            reply[..read].starts_with(b"*5\r\n:0\r\n")
        };
        let mut passed = 0;
        for _ in 0..100 {
            passed += u32::from(throttle(4));
            passed += u32::from(throttle(0));
        }
        assert_eq!(passed, 5, "{store}");
    }
}

#[test]
fn a3_a_receipt_settles_once_on_any_server() {
    let redis = RedisServer::start();
    let folder = Folder::new();
    let config = folder.write(
        "serve.toml",
        "[policies.api]\nlimits = \"fixed_window 5/300 days\"\n",
    );
    let servers =
        [(); 2].map(|()| ServerProcess::start(&["--config", &config, "--store", &on(&redis)]));
    let body = r#"{"policy": "api", "key": "k", "cost": 5, "receipt": true}"#;
    let response = servers[0].post("/v1/check", body).json();
    let receipt = response["receipt"].as_str().unwrap();
    let settle = format!(r#"{{"receipt": "{receipt}", "cost": 2}}"#);
    // Eight clients settle at the same time on both servers, and exactly one succeeds.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let settling: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn({
                    let (servers, settle) = (&servers, &settle);
                    move || servers[n % 2].post("/v1/settle", settle).status
                })
            })
            .collect();
        settling
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(
        statuses.iter().filter(|status| **status == 200).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(
        statuses.iter().filter(|status| **status == 409).count(),
        7,
        "{statuses:?}"
    );
    let left = servers[1]
        .post("/v1/peek", r#"{"policy": "api", "key": "k", "cost": 0}"#)
        .json();
    assert_eq!(left["remaining"], 3);
    // A forged receipt, or one for another key, settles nothing.
    for wrong in ["", "x", "e30"] {
        let response = servers[0].post(
            "/v1/settle",
            &format!(r#"{{"receipt": "{wrong}", "cost": 0}}"#),
        );
        assert_eq!(response.status, 400, "{}", response.body);
    }
    // A denied request gets no receipt, and every stored key has an expiry.
    assert_eq!(
        servers[0].post("/v1/check", body).json()["receipt"],
        serde_json::Value::Null
    );
    assert!(redis.keys().iter().all(|(_, ttl)| *ttl > 0));
}

/// A refund after the end of a fixed window does not free the next window.
#[test]
fn a3_a_late_settlement_frees_nothing() {
    let server = ServerProcess::start(&[]);
    let mut client = server.client();
    let check =
        r#"{"limits": "fixed_window 5/second anchor=first_hit", "key": "k", "receipt": true}"#;
    let mut receipts = Vec::new();
    let collect = || {
        let response = client.post("/v1/check", check).unwrap().json();
        receipts.extend(response["receipt"].as_str().map(str::to_owned));
        receipts.len() >= 20
    };
    assert!(wait_for(TIMEOUT, collect));
    let mut kept = 0;
    let peek = |client: &mut tidegate_testkit::http::HttpClient| {
        client
            .post(
                "/v1/peek",
                r#"{"limits": "fixed_window 5/second anchor=first_hit", "key": "k"}"#,
            )
            .unwrap()
            .json()
    };
    // Receipts of earlier windows refund nothing.
    for receipt in &receipts[..15] {
        let before = peek(&mut client)["remaining"].as_u64().unwrap();
        let status = client
            .post(
                "/v1/settle",
                &format!(r#"{{"receipt": "{receipt}", "cost": 0}}"#),
            )
            .unwrap()
            .status;
        let after = peek(&mut client)["remaining"].as_u64().unwrap();
        kept += u64::from(status == 200 && after > before && after != 5);
    }
    assert_eq!(kept, 0);
}

#[test]
fn a4_many_combinations_of_limits_load_few_scripts() {
    let redis = RedisServer::start();
    let server = ServerProcess::start(&["--store", &on(&redis)]);
    let mut client = server.client();
    let kinds = [
        "gcra 9/day",
        "fixed_window 9/day",
        "sliding_window_counter 9/day",
        "sliding_window_log 9/day",
    ];
    for number in 0_usize..1_500 {
        let limits: Vec<&str> = (0..number % 8 + 1)
            .map(|place| kinds[number / 4_usize.pow(place as u32 % 6) % 4])
            .collect();
        let body = format!(
            r#"{{"limits": "{}", "key": "{number}"}}"#,
            limits.join("; ")
        );
        assert!(allowed(&client.post("/v1/check", &body).unwrap()));
    }
    let nine = ["1/s"; 9].join("; ");
    let refused = client
        .post(
            "/v1/check",
            &format!(r#"{{"limits": "{nine}", "key": "k"}}"#),
        )
        .unwrap();
    assert!(
        refused.status == 400 && refused.body.contains("at most 8"),
        "{}",
        refused.body
    );
    let info = redis.info("memory");
    let number = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
            .unwrap()
    };
    assert!(number("number_of_cached_scripts:") <= 69, "{info}");
    assert!(number("used_memory_vm_total:") < 8 << 20, "{info}");
}

#[test]
fn a8_a_refund_during_an_outage_fails_and_frees_nothing() {
    let mut redis = RedisServer::start();
    let server = ServerProcess::start(&[
        "--store",
        &format!("redis://127.0.0.1:{}/?timeout=200ms", redis.port()),
    ]);
    let mut client = server.client();
    let body = |cost: u32| {
        format!(r#"{{"limits": "fixed_window 5/300 days", "key": "k", "cost": {cost}}}"#)
    };
    assert!(allowed(&client.post("/v1/check", &body(5)).unwrap()));
    redis.kill();
    let degraded = || client.post("/v1/check", &body(1)).unwrap().json()["degraded"].is_string();
    assert!(wait_for(TIMEOUT, degraded));
    let mut passed = 1;
    for _ in 0..20 {
        passed += u32::from(allowed(&client.post("/v1/check", &body(1)).unwrap()));
        let refund = client.post("/v1/refund", &body(5)).unwrap();
        assert_eq!(refund.status, 503, "{}", refund.body);
    }
    assert!(passed <= 5, "{passed}");
}

/// Redis replies but refuses to write.
#[test]
fn c4_a_redis_that_refuses_writes_is_reported_as_an_outage() {
    let redis = RedisServer::start();
    let server = ServerProcess::start(&["--store", &on(&redis)]);
    let mut client = server.client();
    let mut number = 0;
    let mut check = || {
        number += 1;
        client
            .post(
                "/v1/check",
                &format!(r#"{{"limits": "1000/hour", "key": "{number}"}}"#),
            )
            .unwrap()
            .json()
    };
    assert!(check()["degraded"].is_null());
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..50 {
        assert_eq!(check()["degraded"], "refused");
    }
    server.wait_for_log("store unavailable, applying the failure policy");
    assert!(
        server
            .log()
            .contains("command not allowed when used memory"),
        "{}",
        server.log()
    );
    assert_eq!(
        server.client().get("/readyz").unwrap().json()["store"],
        "degraded"
    );
    assert!(server.metric("tidegate_inline_degraded_total{reason=\"refused\"}") >= 50);
    let mut resp = TcpStream::connect(server.resp).unwrap();
    resp.write_all(b"CL.THROTTLE k 4 5 60\r\n").unwrap();
    let mut reply = [0; 256];
    assert!(resp.read(&mut reply).unwrap() > 0);
    assert!(server.metric("tidegate_inline_degraded_total{reason=\"refused\"}") >= 51);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(wait_for(TIMEOUT, || check()["degraded"].is_null()
        && server.log().contains("store available again")));
    assert_eq!(
        server.log().matches("store unavailable").count(),
        1,
        "{}",
        server.log()
    );
}

#[test]
fn c5_a_redis_that_may_evict_counters_logs_a_warning() {
    let redis = RedisServer::start();
    redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let server = ServerProcess::start(&["--store", &on(&redis)]);
    server.wait_for_log("may evict counters");
    assert!(server.log().contains("allkeys-lru"), "{}", server.log());
}

/// The pipeline has more commands for one key than one call holds, and the scripts are flushed.
#[test]
fn c1_a_long_pipeline_is_decided_in_order_after_scripts_are_flushed() {
    const COMMANDS: usize = 1_500;
    let redis = RedisServer::start();
    let server = ServerProcess::start(&["--store", &on(&redis)]);
    for round in 0..3 {
        redis.command(&["SCRIPT", "FLUSH"]);
        let mut resp = TcpStream::connect(server.resp).unwrap();
        let pipeline = format!("CL.THROTTLE key{round} 699 700 25920000\r\n").repeat(COMMANDS);
        resp.write_all(pipeline.as_bytes()).unwrap();
        let mut replies = String::new();
        let mut bytes = [0; 65_536];
        while replies.matches("*5").count() < COMMANDS || !replies.ends_with('\n') {
            let read = resp.read(&mut bytes).unwrap();
            assert!(read > 0);
            replies.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        }
        // The third integer is the remaining quantity. It falls by one per command and stays at 0.
        let remaining: Vec<i64> = replies
            .split("*5\r\n")
            .skip(1)
            .map(|reply| reply.lines().nth(2).unwrap()[1..].parse().unwrap())
            .collect();
        let expected: Vec<i64> = (0..COMMANDS as i64)
            .map(|number| (699 - number).max(0))
            .collect();
        assert_eq!(remaining, expected, "round {round}");
    }
}
