//! The dashboard in a real browser, its data, and the recorder.
// Helpers panic when a test should fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;
use tidegate_testkit::http::HttpClient;
use tidegate_testkit::redis::wait_for;
use tidegate_testkit::{Folder, tools};

use common::{ServerProcess, TIMEOUT, success, tidegate};

const POLICIES: &str = r#"
[policies.api]
limits = "50/second burst=100"
candidate = "5/second"
[policies.login]
limits = "sliding_window_log 5/minute"
"#;

const TOKEN: &str = "a-token-for-operators";

fn start(folder: &Folder, settings: &str, arguments: &[&str]) -> ServerProcess {
    let config = folder.write("tidegate.toml", &format!("{settings}\n{POLICIES}"));
    let all = [&["--config", config.as_str()][..], arguments].concat();
    ServerProcess::start(&all)
}

fn get(server: &ServerProcess, path: &str) -> String {
    HttpClient::connect(server.admin)
        .unwrap()
        .get(path)
        .unwrap()
        .body
}

/// Returns the latest summary for which a condition holds.
fn top(server: &ServerProcess, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let mut found = Value::Null;
    let read = || {
        found = serde_json::from_str(&get(server, "/v1/top")).unwrap();
        is_wanted(&found)
    };
    assert!(wait_for(TIMEOUT, read), "{found}");
    found
}

fn check(server: &ServerProcess, policy: &str, key: &str) {
    let body = format!(r#"{{"policy":"{policy}","key":"{key}"}}"#);
    assert_eq!(server.post("/v1/check", &body).status, 200);
}

/// Live numbers, a denied key in three clicks, resets with and without a token, no console error, no
/// request to another host. TIDEGATE_SCREENSHOTS=FOLDER keeps pictures.
#[test]
fn the_dashboard_works_in_a_browser() {
    let folder = Folder::new();
    let settings = format!(
        "[admin]\nshow_keys = true\n[[token]]\nscopes = [\"admin\", \"check\"]\nfile = {:?}\n",
        folder.write("token", TOKEN)
    );
    let server = start(&folder, &settings, &[]);
    let screenshots = std::env::var("TIDEGATE_SCREENSHOTS").unwrap_or_default();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard/browser.cjs");
    let output = Command::new("node")
        .env("NODE_PATH", tools::node_modules())
        .args([
            script,
            &format!("http://{}", server.admin),
            &format!("http://{}", server.http),
        ])
        .args([TOKEN, &screenshots])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "ok\n",
        "{errors}{}",
        server.log()
    );
    // The reset is audited, without the whole key.
    assert!(server.log().contains("key reset") && !server.log().contains("user:hammer"));
}

#[test]
fn denied_keys_are_named_masked_and_explained() {
    let folder = Folder::new();
    let server = start(&folder, "", &[]);
    for _ in 0..30 {
        check(&server, "login", "user:42");
        check(&server, "api", "user:7");
    }
    let found = top(&server, |top| top["denied"][0]["behavior"] == "hammers");
    let denied = &found["denied"][0];
    assert_eq!(denied["policy"], "login");
    assert_eq!(denied["limit"], "sliding_window_log 5/minute");
    assert_eq!(denied["behavior"], "hammers");
    assert!(
        (50.0..61.0).contains(&denied["free_in_s"].as_f64().unwrap()),
        "{denied}"
    );
    assert_eq!(denied["key"], "use*** (7 bytes)");
    assert!(found["top3_share"].as_f64().unwrap() > 0.99);
    assert!(!found.to_string().contains("user:42"));
    // The candidate's denials stand beside the enforced ones.
    let with_candidate = top(&server, |top| {
        let policies = top["policies"].as_array().unwrap();
        policies
            .iter()
            .any(|policy| policy["candidate"].is_object())
    });
    assert_eq!(with_candidate["policy_count"], 2);
}

#[test]
fn every_protocol_is_seen() {
    let folder = Folder::new();
    let server = start(&folder, "[admin]\nshow_keys = true", &[]);
    let limits = r#"{"limits":"1/hour","key":"inline"}"#;
    let mut redis = TcpStream::connect(server.resp).unwrap();
    for _ in 0..3 {
        server.post("/v1/check", limits);
        redis
            .write_all(b"CL.THROTTLE bucket 0 1 3600\r\nTG.CHECK login named\r\n")
            .unwrap();
        let path = "/v1/forward-auth?policy=login&key=forwarded";
        let _ = server.client().get(path).unwrap();
    }
    let wanted = [
        ("(token_bucket 1/hour)", "inline"),
        ("(throttle)", "bucket"),
        ("login", "named"),
        ("login", "forwarded"),
    ];
    top(&server, |top| {
        let busiest = top["busiest"].as_array().unwrap();
        wanted.iter().all(|(policy, key)| {
            busiest
                .iter()
                .any(|item| item["policy"] == *policy && item["key"] == *key)
        })
    });
}

/// Events come every second, and end when the server shuts down.
#[test]
fn events_stream_until_the_server_drains() {
    let folder = Folder::new();
    let mut server = start(&folder, "", &[]);
    let mut stream = TcpStream::connect(server.admin).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
        .write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut events = Vec::new();
    while events.len() < 2 {
        let line = lines.next().unwrap().unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            events.push(serde_json::from_str::<Value>(data).unwrap());
        }
    }
    // Only the first one has the history.
    assert!(events[1]["history"].is_null());
    server.signal("-TERM");
    assert!(server.wait().success());
    assert!(lines.all(|line| line.is_ok()), "the stream ends in order");
}

#[test]
fn the_files_have_a_strict_policy_and_other_sites_are_refused() {
    let folder = Folder::new();
    let server = start(&folder, "", &[]);
    let answer = HttpClient::connect(server.admin).unwrap().get("/").unwrap();
    assert!(answer.body.contains("<title>Tidegate</title>"));
    let policy = answer.field("content-security-policy").unwrap().to_owned();
    assert!(
        policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    assert!(!answer.body.contains("<style") && !answer.body.contains("onclick="));
    for (header, status) in [
        ("host: evil.example", "421"),
        ("host: localhost\r\norigin: https://evil.example", "403"),
        ("host: localhost\r\nsec-fetch-site: cross-site", "403"),
    ] {
        let mut stream = TcpStream::connect(server.admin).unwrap();
        let request = format!("GET /v1/top HTTP/1.1\r\n{header}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut first = String::new();
        BufReader::new(stream).read_line(&mut first).unwrap();
        assert!(first.contains(status), "{header}: {first}");
    }
    // The dashboard is not on the listener for checks, and can be switched off.
    assert_eq!(server.client().get("/").unwrap().status, 404);
    assert_eq!(server.client().get("/v1/top").unwrap().status, 404);
    let off = start(&folder, "[admin]\ndashboard = false", &[]);
    assert_eq!(
        HttpClient::connect(off.admin)
            .unwrap()
            .get("/")
            .unwrap()
            .status,
        404
    );
    assert!(!off.greeting.contains("dashboard"));
}

/// A trace of the server can be replayed. Keys are hashed, unless configured otherwise.
#[test]
fn recorded_checks_can_be_replayed() {
    let folder = Folder::new();
    let trace = folder.path().join("trace.jsonl").display().to_string();
    for plain in [false, true] {
        let settings = format!("[record]\nsample = 1\nplain_keys = {plain}");
        let mut server = start(&folder, &settings, &["--record", &trace]);
        for index in 0..40 {
            check(&server, "login", &format!("user:{}", index % 4));
        }
        server.signal("-TERM");
        assert!(server.wait().success());
        let text = std::fs::read_to_string(&trace).unwrap();
        assert_eq!(text.lines().count(), 40);
        assert_eq!(text.contains("user:1"), plain);
        let report = success(&[
            "replay",
            &trace,
            "-p",
            "sliding_window_log 5/minute",
            "-o",
            "json",
        ]);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(
            (&report["keys"], &report["policies"][0]["denied"]),
            (&4.into(), &20.into())
        );
        let simulated = success(&[
            "simulate",
            "-t",
            &trace,
            "-p",
            "sliding_window_log 5/minute",
            "-o",
            "table",
        ]);
        assert!(simulated.contains("denied    20 (50.0 %)"), "{simulated}");
    }
    // A directory that does not exist is an error at the start.
    let missing = folder.path().join("missing/trace").display().to_string();
    let output = tidegate()
        .args([
            "serve",
            "--record",
            &missing,
            "--http",
            "127.0.0.1:0",
            "--admin",
            "off",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("record.file"),
        "{output:?}"
    );
}

/// The trace never exceeds its bound: the older half is dropped.
#[test]
fn the_trace_is_bounded() {
    let folder = Folder::new();
    let trace = folder.path().join("trace.jsonl").display().to_string();
    let settings = "[record]\nsample = 1\nmax_bytes = 20000";
    let mut server = start(&folder, settings, &["--record", &trace]);
    for index in 0..500 {
        check(&server, "api", &format!("user:{index}"));
    }
    server.signal("-TERM");
    assert!(server.wait().success());
    let size = |path: &str| std::fs::metadata(path).unwrap().len();
    assert!(size(&trace) + size(&format!("{trace}.1")) <= 20_000);
}

/// Ten thousand policies: the summary stays small, and has the busy ones.
#[test]
fn many_policies_are_summarized() {
    let folder = Folder::new();
    let policies: String = (0..10_000)
        .map(|number| format!("[policies.p{number}]\nlimits = \"1/hour\"\n"))
        .collect();
    let config = folder.write("many.toml", &policies);
    let server = ServerProcess::start(&["--config", &config]);
    let is_busy = |top: &Value| {
        check(&server, "p9999", "user:1");
        top["policies"][0]["policy"] == "p9999"
    };
    let found = top(&server, is_busy);
    assert_eq!(found["policy_count"], 10_000);
    assert!(found["policies"].as_array().unwrap().len() <= 200);
    assert!(found.to_string().len() < 200_000);
}
