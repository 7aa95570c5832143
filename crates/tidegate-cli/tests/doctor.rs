//! `tidegate doctor` and `tidegate verify` on real servers with planted faults.
// Helpers panic when a test should fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tidegate_testkit::redis::{RedisCluster, RedisServer, ShiftedClock};
use tidegate_testkit::{Folder, tools};

use common::{ServerProcess, TIMEOUT, failure, tidegate};
use tidegate_testkit::redis::wait_for;

/// Returns the exit code, and the codes of all findings.
fn doctor(url: &str) -> (i32, Vec<String>) {
    let output = tidegate()
        .args(["doctor", url, "-o", "json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let findings: Vec<Value> =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    for finding in &findings {
        let is_mended = finding["severity"] == "note" || finding["fix"] != "";
        assert!(is_mended, "a fix is missing: {finding}");
    }
    let codes = findings
        .iter()
        .map(|finding| finding["code"].as_str().unwrap().to_owned());
    (output.status.code().unwrap(), codes.collect())
}

fn assert_found(url: &str, code: &str) {
    let (exit, codes) = doctor(url);
    assert_eq!(exit, 1, "{code}: {codes:?}");
    assert!(codes.iter().any(|found| found == code), "{code}: {codes:?}");
}

#[test]
fn a_sound_server_has_no_findings() {
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    let (exit, codes) = doctor(&server.url());
    assert_eq!(exit, 0, "{codes:?}");
    assert!(server.keys().is_empty());
}

#[test]
fn planted_faults_are_found() {
    let server = RedisServer::start();
    let url = server.url();
    // 1: no persistence.
    assert_found(&url, "no-persistence");
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    // 2: counters may be evicted.
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    assert_found(&url, "eviction");
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    // 3: nearly full.
    server.command(&["CONFIG", "SET", "maxmemory", "1100kb"]);
    assert_found(&url, "memory");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    // 4: a foreign key under our prefix.
    server.command(&["SET", "tg:foreign", "1"]);
    assert_found(&url, "no-expiry");
    server.command(&["DEL", "tg:foreign"]);
    // 5: every check waits for the disk.
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    server.command(&["CONFIG", "SET", "appendfsync", "always"]);
    assert_found(&url, "slow-fsync");
    server.command(&["CONFIG", "SET", "appendonly", "no"]);
    // 6: a user who may not run scripts.
    server.command(&[
        "ACL", "SETUSER", "app", "on", ">secret", "~tg:*", "+@all", "-eval",
    ]);
    assert_found(&url.replace("redis://", "redis://app:secret@"), "script");
    // 7: open to the network, without a password.
    server.command(&["CONFIG", "SET", "bind", "*"]);
    server.command(&["CONFIG", "SET", "protected-mode", "no"]);
    assert_found(&url, "no-password");
}

#[test]
fn faults_of_replicas_are_found() {
    let primary = RedisServer::start();
    primary.command(&["CONFIG", "SET", "save", "3600 1"]);
    let replica = RedisServer::start();
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let is_online = || primary.info("replication").contains("state=online");
    assert!(wait_for(TIMEOUT, is_online));
    // 8: two primaries after a partition.
    assert_found(&primary.url(), "min-replicas");
    // 9: a replica instead of the primary.
    assert_found(&replica.url(), "replica");
}

#[test]
fn faults_of_clusters_and_clocks_are_found() {
    // 10: a cluster node as if it were a single server.
    let mut cluster = RedisCluster::start();
    let node = cluster.nodes()[0].url();
    assert_found(&node, "cluster-url");
    // 11: a slot that no node serves.
    let url = cluster.url();
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTS", "0"]);
    }
    assert_found(&url, "cluster-slots");
    // 12: a clock that is wrong.
    let clock = ShiftedClock::make();
    let server = RedisServer::start_with_clock(&clock);
    clock.shift_micros(5_000_000);
    assert_found(&server.url(), "clock");
}

#[test]
fn servers_are_examined_too() {
    let folder = Folder::new();
    let redis = RedisServer::start();
    let config = folder.write("tidegate.toml", "[policies.api]\nlimits = \"5/s\"\n");
    let server = ServerProcess::start(&["--config", &config, "--store", &redis.url()]);
    let admin = format!("http://{}", server.admin);
    let (exit, codes) = doctor(&admin);
    assert_eq!((exit, codes), (0, vec!["server".to_owned()]));
    let (exit, codes) = doctor(&format!("http://{}", server.http));
    assert_eq!((exit, codes), (0, vec!["check-listener".to_owned()]));
    // An outage, and a configuration that is invalid.
    drop(redis);
    std::fs::write(&config, "[policies.api]\nlimits = \"5/fortnight\"\n").unwrap();
    server.signal("-HUP");
    server.post("/v1/check", r#"{"policy":"api","key":"a"}"#);
    let has_both = || {
        let (_, codes) = doctor(&admin);
        ["degraded", "config-rejected"]
            .iter()
            .all(|code| codes.iter().any(|found| found == code))
    };
    assert!(wait_for(TIMEOUT, has_both), "{}", server.log());
}

#[test]
fn errors_say_what_to_do() {
    for (arguments, expected) in [
        (vec!["doctor"], "Usage"),
        (vec!["doctor", "ftp://x"], "redis://"),
        (vec!["doctor", "memory://"], "expected the URL of a Redis"),
        (vec!["doctor", "redis://127.0.0.1:1/"], "refused"),
        (vec!["doctor", "http://127.0.0.1:1"], "refused"),
        (vec!["verify", "redis://127.0.0.1:1/"], "refused"),
        (vec!["verify", "memory://", "--callers", "0"], "1..=1000"),
        (vec!["bench", "redis://127.0.0.1:1/"], "refused"),
        (vec!["bench", "memory://", "--pipeline", "4"], "resp://"),
        (
            vec!["bench", "resp://127.0.0.1:1", "-p", "fixed_window 5/s"],
            "has a bucket",
        ),
        (
            vec!["bench", "memory://", "--duration", "0s"],
            "expected a time",
        ),
    ] {
        let error = failure(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

fn verify(url: &str) -> (i32, String) {
    let output = tidegate().args(["verify", url]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

#[test]
fn every_version_of_redis_passes_and_is_left_clean() {
    for server in [
        RedisServer::start(),
        RedisServer::start_program(&tools::redis_6_server()),
        RedisServer::start_program(&tools::valkey_server()),
    ] {
        server.command(&["SET", "mine", "1"]);
        let (exit, text) = verify(&server.url());
        assert_eq!(exit, 0, "{text}");
        assert!(text.contains("every decision is right"), "{text}");
        assert_eq!(server.keys().len(), 1, "only the user's own key is left");
    }
    assert_eq!(verify("memory://").0, 0);
}

/// A proxy that runs other scripts than those that were sent.
#[test]
fn a_broken_script_is_noticed() {
    let server = Arc::new(RedisServer::start());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::clone(&server);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = Arc::clone(&shared);
            std::thread::spawn(move || break_scripts(client, &server));
        }
    });
    let (exit, text) = verify(&format!("redis://{address}/"));
    assert_eq!(exit, 1, "{text}");
    assert!(
        text.contains("wrong: case ") && text.contains("decides wrongly"),
        "{text}"
    );
}

/// The scripts that are loaded, and the broken ones that run instead.
static BROKEN: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

fn break_scripts(client: TcpStream, server: &RedisServer) {
    let upstream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let (mut from, mut to) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let mut reader = BufReader::new(client);
    let mut upstream = upstream;
    while let Some(mut words) = read_command(&mut reader) {
        match &*words[0].to_ascii_uppercase() {
            b"SCRIPT" if words.len() == 3 => {
                let text = String::from_utf8(words[2].clone()).unwrap();
                let load = |text: &str| format!("{:?}", server.command(&["SCRIPT", "LOAD", text]));
                // It forgets every request that it admits.
                let broken = text.replace("count1 = count1 + amount", "count1 = count1");
                BROKEN.lock().unwrap().push((load(&text), load(&broken)));
            }
            b"EVALSHA" => {
                let sha = String::from_utf8(words[1].clone()).unwrap();
                let known = BROKEN.lock().unwrap();
                let found = known.iter().find(|(own, _)| own.contains(&sha));
                if let Some((_, broken)) = found {
                    let hex = |c: &char| c.is_ascii_hexdigit() && !c.is_ascii_uppercase();
                    let quoted = broken.split(['\'', '"']).find(|part| part.len() == 40);
                    let digits: String = quoted.unwrap_or(broken).chars().filter(hex).collect();
                    words[1] = digits.as_bytes()[digits.len() - 40..].to_vec();
                }
            }
            _ => {}
        }
        let mut frame = format!("*{}\r\n", words.len()).into_bytes();
        for word in &words {
            frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            frame.extend_from_slice(word);
            frame.extend_from_slice(b"\r\n");
        }
        if upstream.write_all(&frame).is_err() {
            return;
        }
    }
}

fn read_command(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let mut line = String::new();
    let mut number = |reader: &mut dyn BufRead| -> Option<usize> {
        line.clear();
        reader.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse().ok()
    };
    let count = number(reader)?;
    (0..count)
        .map(|_| {
            let length = number(reader)?;
            let mut word = vec![0; length + 2];
            reader.read_exact(&mut word).ok()?;
            word.truncate(length);
            Some(word)
        })
        .collect()
}

#[test]
fn bench_measures_every_target() {
    let folder = Folder::new();
    let redis = RedisServer::start();
    let rules = folder.write("rules.yaml", "domain: bench\ndescriptors:\n  - key: key\n    rate_limit: {unit: second, requests_per_unit: 1000000}\n");
    let port = tidegate_testkit::redis::free_port();
    let grpc = format!("127.0.0.1:{port}");
    let server = ServerProcess::start(&["--grpc", &grpc, "--envoy-config", &rules]);
    for (target, more) in [
        ("memory://".to_owned(), &["--distribution", "zipf"][..]),
        (redis.url(), &["--rate", "500"]),
        (
            format!("http://{}", server.http),
            &["-p", "5/hour", "--distribution", "hot"],
        ),
        (format!("resp://{}", server.resp), &["--pipeline", "8"]),
        (format!("grpc://{grpc}"), &[]),
    ] {
        let arguments = [
            "bench",
            &target,
            "--callers",
            "2",
            "--duration",
            "300ms",
            "-o",
            "json",
        ];
        let report = common::success(&[&arguments[..], more].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        assert!(report["checks"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(report["errors"], 0, "{report}");
        assert!(report["p50_us"].as_f64().unwrap() <= report["p99_us"].as_f64().unwrap());
        let is_limited = target.starts_with("http://");
        assert_eq!(
            report["denied"].as_u64().unwrap() > 0,
            is_limited,
            "{report}"
        );
    }
}
