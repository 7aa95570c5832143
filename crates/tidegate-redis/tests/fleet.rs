//! A fleet of processes on one Redis, while scripts are flushed, connections cut and clients
//! killed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use common::clients::{Clients, client_settings};
use common::closed;
use tidegate_core::Limiter;
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisServer, now, wait_for};

const LIMIT: usize = 20;
const KEYS: usize = 100;

/// Limits that refill too slowly for a test to notice.
const POLICIES: [&str; 4] = [
    "gcra 20/366 days",
    "sliding_window_log 20/366 days",
    "sliding_window_counter 20/366 days",
    "token_bucket 20/365 days; fixed_window 1000/365 days; sliding_window_log 30/365 days",
];

fn limiters(url: &str) -> Vec<Limiter<RedisStore>> {
    let first = closed(url, POLICIES[0]);
    let others = POLICIES[1..]
        .iter()
        .map(|policy| first.with_policy(policy.parse().unwrap()))
        .collect::<Vec<_>>();
    [vec![first], others].concat()
}

fn key(number: usize) -> String {
    format!("user:{number}")
}

/// A client of the fleet in its own process.
#[test]
fn client() {
    let Some((url, path)) = client_settings() else {
        return;
    };
    let limiters = limiters(&url);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiters, path) = (&limiters, path.with_extension(thread.to_string()));
            scope.spawn(move || send_requests(limiters, &path));
        }
    });
}

fn send_requests(limiters: &[Limiter<RedisStore>], path: &Path) {
    let mut file = File::create(path).unwrap();
    let mut random = fastrand::Rng::new();
    loop {
        let (number, key_number) = (random.usize(..limiters.len()), random.usize(..KEYS));
        match limiters[number].check(key(key_number)).blocking() {
            Ok(decision) if decision.is_allowed() => {
                assert_eq!(decision.degraded(), None, "the failure policy is closed");
                file.write_all(format!("{number} {key_number}\n").as_bytes())
                    .unwrap();
            }
            Ok(_) => {}
            Err(error) => file
                .write_all(format!("error: {error}\n").as_bytes())
                .unwrap(),
        }
    }
}

/// Returns the number of admissions by policy and key.
fn admissions(clients: &Clients) -> HashMap<String, usize> {
    let mut admissions = HashMap::new();
    for line in clients.lines() {
        assert!(!line.starts_with("error"), "{line}");
        *admissions.entry(line).or_insert(0) += 1;
    }
    admissions
}

#[test]
fn no_key_admits_more_than_its_limit() {
    let server = RedisServer::start();
    let mut clients = Clients::start(server.url(), 4);
    let start = now();
    let (mut flushes, mut kills) = (0, 0);
    // Scripts are flushed every 100 ms, connections killed every 70 ms, and a client killed every
    // 300 ms.
    wait_for(Duration::from_secs(4), || {
        let elapsed = start.elapsed();
        if elapsed > Duration::from_millis(100) * flushes {
            server.command(&["SCRIPT", "FLUSH"]);
            flushes += 1;
        }
        if elapsed > Duration::from_millis(70) * kills {
            server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            kills += 1;
        }
        if elapsed
            > Duration::from_millis(300) * clients.started() as u32 - Duration::from_millis(1_200)
        {
            clients.replace_oldest();
        }
        assert!(
            server.keys().iter().all(|(_, ttl)| *ttl != -1),
            "a key has no expiry"
        );
        false
    });
    // The clients run undisturbed until all limits are used up.
    let limiters = limiters(&server.url());
    let is_used_up = || {
        limiters
            .iter()
            .all(|limiter| (0..KEYS).all(|number| common::left(limiter, &key(number)) == 0))
    };
    assert!(
        wait_for(common::TIMEOUT, is_used_up),
        "the clients did not use up the limits"
    );
    let admissions = admissions(&clients);
    for (key, count) in &admissions {
        assert!(*count <= LIMIT, "{key} was admitted {count} times");
    }
    let total: usize = admissions.values().sum();
    // Redis may have counted requests whose client or connection was killed before the reply.
    assert!(
        total > POLICIES.len() * KEYS * LIMIT / 2,
        "only {total} admissions were recorded"
    );
}
