//! Runs every example as a user would.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate_testkit::redis::{RedisServer, wait_for};

/// A running example process. Dropping it kills the process.
struct Example {
    process: Child,
    url: String,
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(name: &str, arguments: &[&str]) -> Example {
    let path = match name {
        "axum_tiers" => env!("CARGO_BIN_EXE_axum_tiers"),
        "tonic_service" => env!("CARGO_BIN_EXE_tonic_service"),
        "actix_service" => env!("CARGO_BIN_EXE_actix_service"),
        "login" => env!("CARGO_BIN_EXE_login"),
        "llm_gateway" => env!("CARGO_BIN_EXE_llm_gateway"),
        "attribute" => env!("CARGO_BIN_EXE_attribute"),
        other => panic!("unknown example: {other}"),
    };
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env("LISTEN", "127.0.0.1:0")
        .stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    // Drains the rest of the output, so that the example never blocks on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    let url = first
        .strip_prefix("listening on ")
        .unwrap_or_else(|| panic!("{first}"))
        .to_owned();
    Example { process, url }
}

impl Example {
    /// Returns the status and the full output of curl.
    fn curl(&self, path: &str, options: &[&str]) -> (u16, String) {
        let url = format!("{}{path}", self.url);
        let output = Command::new("curl")
            .args(["--silent", "--include"])
            .args(options)
            .arg(url)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("{text:?}")), text)
    }

    fn statuses(&self, times: usize, path: &str, options: &[&str]) -> Vec<u16> {
        (0..times).map(|_| self.curl(path, options).0).collect()
    }
}

fn assert_tiers(arguments: &[&str]) {
    let example = start("axum_tiers", arguments);
    let (status, text) = example.curl("/", &["-H", "x-user: ann"]);
    assert_eq!(status, 200);
    assert!(
        text.contains("ratelimit-policy: \"per_user\";q=5;w=60, \"per_address\";q=100;w=60"),
        "{text}"
    );
    assert_eq!(
        example.statuses(5, "/", &["-H", "x-user: ann"]),
        [200, 200, 200, 200, 429]
    );
    assert_eq!(
        example.statuses(8, "/", &["-H", "x-user: bob", "-H", "x-tier: gold"]),
        [200; 8]
    );
    assert_eq!(
        example.statuses(6, "/", &["-H", "x-user: status-page"]),
        [200; 6]
    );
    let (_, metrics) = example.curl("/metrics", &[]);
    assert!(
        metrics.contains("tidegate_checks_total{policy=\"per_user\",outcome=\"denied\"} 1"),
        "{metrics}"
    );
}

#[test]
fn axum_tiers_in_memory() {
    assert_tiers(&[]);
}

#[test]
fn axum_tiers_on_redis() {
    let redis = RedisServer::start();
    assert_tiers(&[&format!("{}?timeout=5s", redis.url())]);
}

#[test]
fn actix_service() {
    let example = start("actix_service", &[]);
    assert_eq!(
        example.statuses(6, "/", &[]),
        [200, 200, 200, 200, 200, 429]
    );
}

#[test]
fn login() {
    let example = start("login", &[]);
    let attempt = |times, password: &str| {
        example.statuses(
            times,
            "/login",
            &["-d", &format!("name=ann&password={password}")],
        )
    };
    assert_eq!(attempt(8, "secret"), [200; 8]);
    assert_eq!(attempt(5, "wrong"), [401; 5]);
    assert_eq!(attempt(1, "secret"), [429]);
}

#[test]
fn llm_gateway() {
    let example = start("llm_gateway", &[]);
    let complete = |prompt: &str, max_tokens: u64, key: &str| {
        let path = format!("/complete?prompt={prompt}&max_tokens={max_tokens}");
        example.curl(&path, &["-H", &format!("authorization: Bearer {key}")])
    };
    let (status, text) = complete("the+quick+brown+fox", 1_000, "sk-1");
    assert_eq!(status, 200);
    assert!(text.ends_with("fox brown quick the "), "{text}");
    // Unused tokens are refunded once the response has ended.
    let left = || {
        complete("fox", 1, "sk-1")
            .1
            .split("\"tokens\";r=")
            .nth(1)
            .and_then(|text| text.split(';').next()?.parse().ok())
    };
    assert!(wait_for(Duration::from_secs(10), || left()
        .is_some_and(|left: u64| left > 950)));
    assert_eq!(complete("fox", 1_001, "sk-1").0, 413);
    assert_eq!(complete("fox", 1_000, "sk-2").0, 200);
}

#[test]
fn attribute() {
    let redis = RedisServer::start();
    let url = format!("{}?timeout=5s", redis.url());
    for arguments in [&[][..], &[url.as_str()]] {
        let example = start("attribute", arguments);
        let responses: Vec<_> = (0..6)
            .map(|_| example.curl("/search?user=ann", &[]))
            .collect();
        assert_eq!(
            responses
                .iter()
                .map(|(status, _)| *status)
                .collect::<Vec<_>>(),
            [200, 200, 200, 200, 200, 429]
        );
        assert!(
            responses[1].1.ends_with("mail sent\n")
                && responses[2].1.contains("mail: fixed_window 2/hour")
        );
    }
}

#[tokio::test]
async fn tonic_service() {
    let example = start("tonic_service", &[]);
    let channel = tonic::transport::Endpoint::new(example.url.clone())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut client = tonic_health::pb::health_client::HealthClient::new(channel);
    let mut codes = Vec::new();
    for _ in 0..6 {
        let response = client
            .check(tonic_health::pb::HealthCheckRequest::default())
            .await;
        codes.push(response.err().map(|status| status.code()));
    }
    assert_eq!(
        codes,
        [
            None,
            None,
            None,
            None,
            None,
            Some(tonic::Code::ResourceExhausted)
        ]
    );
}
