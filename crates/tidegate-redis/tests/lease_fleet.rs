//! Processes that lease quota are killed with SIGKILL and stopped with SIGSTOP. No window admits
//! more than its limit, and a bucket no more than its bound.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, SystemTime};

use common::clients::{Clients, client_settings};
use common::closed;
use tidegate_testkit::redis::{RedisServer, now, wait_for};

const WINDOW: &str = "fixed_window 3000/second";
const WINDOW_LIMIT: usize = 3_000;

const BUCKET: &str = "gcra 2000/second burst=1000";
/// The burst and the share that may be leased.
const BUCKET_BURST: f64 = 1_100.0;
const BUCKET_RATE: f64 = 2_000.0;

/// Returns the time of the clock that Redis uses, too.
#[allow(clippy::disallowed_methods)]
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_micros() as u64
}

/// A client in its own process.
#[test]
fn client() {
    let Some((url, path)) = client_settings() else {
        return;
    };
    let window = closed(&format!("{url}?lease=on"), WINDOW);
    let bucket = window.with_policy(BUCKET.parse().unwrap());
    let mut file = File::create(path).unwrap();
    let mut granted = 0;
    loop {
        let leases = window.counters().store.unwrap().leases;
        if leases.granted > granted {
            granted = leases.granted;
            file.write_all(b"slice 0 0\n").unwrap();
        }
        for (name, limiter) in [("window", &window), ("bucket", &bucket)] {
            let asked_at = micros();
            let decision = limiter.check("k").blocking().unwrap();
            if decision.is_allowed() {
                assert_eq!(decision.degraded(), None, "the failure policy is closed");
                let line = format!("{name} {asked_at} {}\n", micros());
                file.write_all(line.as_bytes()).unwrap();
            }
        }
    }
}

/// An admission: when it was asked for, and when it was known.
type Admission = (u64, u64);

/// Returns the admissions by limit.
fn admissions(clients: &Clients) -> HashMap<String, Vec<Admission>> {
    let mut admissions = HashMap::<String, Vec<Admission>>::new();
    for line in clients.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap().to_owned();
        let mut time = || words.next().unwrap().parse().unwrap();
        admissions.entry(name).or_default().push((time(), time()));
    }
    admissions
}

#[test]
fn killed_and_stopped_processes_exceed_no_limit() {
    let server = RedisServer::start();
    let mut clients = Clients::start(server.url(), 3);
    // A client is killed every 400 ms, another is stopped for the next 300 ms: longer than the
    // lifetime of a slice, and often across the end of a window.
    let start = now();
    let mut round = 0;
    wait_for(Duration::from_secs(4), || {
        let phase = start.elapsed().as_millis() / 100;
        if phase > round {
            round = phase;
            match round % 4 {
                0 => clients.replace_oldest(),
                1 => clients.signal_newest("-STOP"),
                _ => {}
            }
            if round % 4 == 3 {
                clients.signal_newest("-CONT");
            }
        }
        false
    });
    let admissions = admissions(&clients);
    assert!(admissions["slice"].len() > 10, "no client leased quota");
    assert_windows_hold(&admissions["window"]);
    assert_bucket_holds(&admissions["bucket"]);
}

/// Admissions that were asked for and known in one window were made in it.
fn assert_windows_hold(admissions: &[Admission]) {
    let mut windows = HashMap::<u64, usize>::new();
    for (asked_at, known_at) in admissions {
        let [from, to] = [asked_at / 1_000_000, known_at / 1_000_000];
        if from == to {
            *windows.entry(from).or_default() += 1;
        }
    }
    for (window, count) in &windows {
        assert!(*count <= WINDOW_LIMIT, "{count} in window {window}");
    }
    let total: usize = windows.values().sum();
    assert!(total > WINDOW_LIMIT * 2, "only {total} admissions");
}

/// From each tenth of a second to each later one, no more than the bound was admitted.
fn assert_bucket_holds(admissions: &[Admission]) {
    let first = admissions
        .iter()
        .map(|(asked_at, _)| *asked_at)
        .min()
        .unwrap();
    let last = admissions
        .iter()
        .map(|(_, known_at)| *known_at)
        .max()
        .unwrap();
    let tenths: Vec<u64> = (first..last + 100_000).step_by(100_000).collect();
    for (index, from) in tenths.iter().enumerate() {
        for to in &tenths[index + 1..] {
            let is_within = |(asked_at, known_at): &&Admission| asked_at >= from && known_at < to;
            let count = admissions.iter().filter(is_within).count();
            let bound = BUCKET_BURST + BUCKET_RATE * (to - from) as f64 / 1e6;
            assert!(count as f64 <= bound, "{count} from {from} to {to}");
        }
    }
}
