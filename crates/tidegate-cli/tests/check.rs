//! `tidegate check`, `peek` and `reset` as a user runs them, on a real Redis.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::redis::{RedisServer, free_port, wait_for};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

fn tidegate(arguments: &[&str]) -> Output {
    Command::new(TIDEGATE)
        .args(arguments)
        .env_remove("TIDEGATE_STORE")
        .output()
        .unwrap()
}

fn code_and_stdout(output: &Output) -> (i32, String) {
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout.clone()).unwrap(),
    )
}

fn failure_stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn checks_peeks_and_resets_share_a_counter() {
    let server = RedisServer::start();
    let url = server.url();
    let run = |command: &str, more: &[&str]| {
        let arguments = [
            &[
                command,
                "user:42",
                "--policy",
                "fixed_window 3/365 days",
                "--store",
                &url,
            ],
            more,
        ]
        .concat();
        code_and_stdout(&tidegate(&arguments))
    };
    assert_eq!(run("check", &[]).0, 0);
    let (code, text) = run("check", &["--cost", "1.5"]);
    assert!(
        code == 0 && text.starts_with("allowed; 0 of 3 left, reset in "),
        "{text}"
    );
    let (code, text) = run("check", &[]);
    assert!(code == 1 && text.starts_with("denied, retry in "), "{text}");
    let (code, text) = run("check", &["-c", "4"]);
    assert!(code == 1 && text.contains("never"), "{text}");
    let (code, text) = run("peek", &["-o", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (
            code,
            &answer["key"],
            &answer["remaining"],
            &answer["degraded"]
        ),
        (1, &"user:42".into(), &0.into(), &Value::Null)
    );
    assert_eq!(run("reset", &[]), (0, "reset; 3 of 3 left\n".to_owned()));
    assert_eq!(
        run("reset", &[]),
        (0, "nothing to reset; 3 of 3 left\n".to_owned())
    );
    let (code, text) = run("peek", &["--cost", "3"]);
    assert!(
        code == 0 && text.starts_with("allowed; 0 of 3 left"),
        "{text}"
    );
    let (code, text) = run("charge", &["--cost", "2"]);
    assert!(code == 0 && text.starts_with("1 of 3 left"), "{text}");
    let (code, text) = run("refund", &["--cost", "2"]);
    assert!(code == 0 && text.starts_with("3 of 3 left"), "{text}");
    let (code, text) = run("check", &["--output", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (
            code,
            &answer["allowed"],
            &answer["cost"],
            &answer["retry_after_us"]
        ),
        (0, &true.into(), &1.into(), &0.into())
    );
}

#[test]
fn the_store_is_read_from_the_environment() {
    let server = RedisServer::start();
    let check = || {
        let mut command = Command::new(TIDEGATE);
        command
            .args(["check", "k", "-p", "1/365 days"])
            .env("TIDEGATE_STORE", server.url())
            .output()
            .unwrap()
    };
    assert_eq!(
        (code_and_stdout(&check()).0, code_and_stdout(&check()).0),
        (0, 1)
    );
}

#[test]
fn the_memory_store_prints_a_warning() {
    let output = tidegate(&["check", "k", "-p", "1/day"]);
    assert_eq!(code_and_stdout(&output).0, 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("memory"));
}

#[test]
fn invalid_arguments_exit_with_code_2() {
    let unreachable = format!("redis://127.0.0.1:{}/", free_port());
    let cases: [(&[&str], &str); 7] = [
        (&["check", "k", "-p", "1/fortnight"], "unknown unit"),
        (
            &["check", "k", "-p", "1/s", "-c", "0.0001"],
            "too many decimals",
        ),
        (&["check", "k", "-p", "1/s", "-c", "-1"], "negative"),
        (&["check", "", "-p", "1/s"], "empty"),
        (
            &["check", "k", "-p", "1/s", "-s", "http://h"],
            "expected memory://, redis://",
        ),
        (
            &["check", "k", "-p", "1/s", "-s", "redis://h?colour=blue"],
            "unknown option",
        ),
        (&["reset", "k", "-p", "1/s", "-s", &unreachable], "refused"),
    ];
    for (arguments, expected) in cases {
        let stderr = failure_stderr(&tidegate(arguments)).to_lowercase();
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_failure_policy_in_the_url_applies_to_an_unreachable_store() {
    let unreachable =
        |failure: &str| format!("redis://127.0.0.1:{}/?failure={failure}", free_port());
    let check = |failure: &str| {
        code_and_stdout(&tidegate(&[
            "check",
            "k",
            "-p",
            "5/day",
            "-s",
            &unreachable(failure),
        ]))
    };
    let (code, text) = check("open");
    assert!(
        code == 0 && text.starts_with("allowed; store unavailable"),
        "{text}"
    );
    let (code, text) = check("closed");
    assert!(code == 1 && text.contains("store unavailable"), "{text}");
    let (code, text) = check("local&instances=5");
    assert!(
        code == 0 && text.contains("0 of 1 left") && text.contains("counted locally"),
        "{text}"
    );
    // The cause is printed to standard error, and a peek has the exit code of a check.
    let output = tidegate(&["peek", "k", "-p", "5/day", "-s", &unreachable("open")]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("refused"),
        "{output:?}"
    );
    assert_eq!(
        tidegate(&["peek", "k", "-p", "5/day", "-s", &unreachable("closed")])
            .status
            .code(),
        Some(1)
    );
}

/// Ctrl-C during a simulation on Redis deletes the keys that it has written.
#[test]
fn an_interrupted_simulation_deletes_its_keys() {
    let server = RedisServer::start();
    let mut child = Command::new(TIDEGATE)
        .args([
            "simulate",
            "-p",
            "5/day",
            "-t",
            "-",
            "-o",
            "jsonl",
            "-s",
            &server.url(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (
        child.stdin.take().unwrap(),
        BufReader::new(child.stdout.take().unwrap()),
    );
    let line = "{\"at_us\": 1700000000000000, \"key\": \"a\"}\n";
    stdin.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    stdout.read_line(&mut answer).unwrap();
    assert_eq!(server.keys().len(), 1);
    let kill = format!("kill -INT {}", child.id());
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    // The program sees the signal at the next line.
    let ends = || {
        let _ = stdin.write_all(line.as_bytes());
        child.try_wait().unwrap().is_some()
    };
    assert!(wait_for(Duration::from_secs(30), ends));
    assert!(server.keys().is_empty(), "{:?}", server.keys());
}
