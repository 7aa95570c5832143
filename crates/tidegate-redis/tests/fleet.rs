//! A fleet of processes on one Redis, while scripts are flushed, connections cut and clients
//! killed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::closed;
use tidegate_core::Limiter;
use tidegate_redis::RedisStore;
use tidegate_testkit::Folder;
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

/// A client of the fleet in its own process: this test program, configured by environment
/// variables. It writes a line for each admission immediately, so that a kill loses none.
#[test]
fn client() {
    let (Ok(url), Ok(path)) = (
        std::env::var("TIDEGATE_FLEET_URL"),
        std::env::var("TIDEGATE_FLEET_FILE"),
    ) else {
        return;
    };
    let limiters = limiters(&url);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiters, path) = (&limiters, format!("{path}-{thread}"));
            scope.spawn(move || send_requests(limiters, Path::new(&path)));
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

/// The running clients, and the files that all clients have written.
struct Fleet {
    url: String,
    folder: Folder,
    clients: Vec<Child>,
    started: usize,
}

impl Fleet {
    fn start_client(&mut self) {
        let file = self.folder.path().join(format!("client-{}", self.started));
        self.started += 1;
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client", "--nocapture"])
            .env("TIDEGATE_FLEET_URL", &self.url)
            .env("TIDEGATE_FLEET_FILE", file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.clients.push(child);
    }

    /// Kills the oldest client with SIGKILL and starts a new one.
    fn replace_oldest_client(&mut self) {
        let mut oldest = self.clients.remove(0);
        oldest.kill().unwrap();
        oldest.wait().unwrap();
        self.start_client();
    }

    /// Returns the number of admissions by policy and key.
    fn admissions(&self) -> HashMap<String, usize> {
        let mut admissions = HashMap::new();
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            for line in std::fs::read_to_string(entry.unwrap().path())
                .unwrap()
                .lines()
            {
                assert!(!line.starts_with("error"), "{line}");
                *admissions.entry(line.to_owned()).or_insert(0) += 1;
            }
        }
        admissions
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for client in &mut self.clients {
            // The client may have exited already.
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

#[test]
fn no_key_admits_more_than_its_limit() {
    let server = RedisServer::start();
    let mut fleet = Fleet {
        url: server.url(),
        folder: Folder::new(),
        clients: Vec::new(),
        started: 0,
    };
    for _ in 0..4 {
        fleet.start_client();
    }
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
            > Duration::from_millis(300) * fleet.started as u32 - Duration::from_millis(1_200)
        {
            fleet.replace_oldest_client();
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
    let admissions = fleet.admissions();
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
