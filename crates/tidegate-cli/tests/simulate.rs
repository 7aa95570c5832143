//! `tidegate simulate` as a user runs it: the real program, real files and pipes, a real terminal.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::store::Record;
use tidegate::{Algorithm, Policy, Timestamp};
use tidegate_testkit::redis::{RedisServer, wait_for};
use tidegate_testkit::walk::{self, Walk};
use tidegate_testkit::{Act, Answer, vectors};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces/five-minutes.jsonl")
}

/// Runs `tidegate simulate` with the trace on its standard input.
fn simulate(arguments: &[&str], trace: &str) -> Output {
    let mut child = Command::new(TIDEGATE)
        .arg("simulate")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let trace = trace.to_owned();
    // A separate thread writes the trace. The program may print before it has read everything, and
    // may stop reading early.
    let writer = std::thread::spawn(move || stdin.write_all(trace.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    output
}

fn stdout(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Asserts exit code 2 and returns standard error.
fn failure_stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs every vector as a trace. The output must equal the vector in every field.
#[test]
fn vectors_match_on_memory() {
    assert_vectors_match("memory://");
}

#[test]
fn vectors_match_on_redis() {
    let server = RedisServer::start();
    assert_vectors_match(&server.url());
    assert!(
        server.keys().is_empty(),
        "a simulation must delete its keys"
    );
}

fn assert_vectors_match(store: &str) {
    let files = std::fs::read_dir(vectors::folder())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut cases = 0;
    for file in files.filter(|file| {
        file.extension()
            .is_some_and(|extension| extension == "jsonl")
    }) {
        for (index, line) in std::fs::read_to_string(&file).unwrap().lines().enumerate() {
            let case: Value = serde_json::from_str(line).unwrap();
            let steps = case["steps"].as_array().unwrap();
            let trace: String = steps
                .iter()
                .map(|step| format!("{}\n", input_of(step)))
                .collect();
            let policy = case["policy"].as_str().unwrap();
            let output = simulate(
                &["--policy", policy, "--trace", "-", "--store", store],
                &trace,
            );
            let answers: Vec<Value> = stdout(&output)
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(answers.len(), steps.len());
            for (answer, step) in answers.iter().zip(steps) {
                assert_eq!(
                    answer,
                    step,
                    "{}:{} {}",
                    file.display(),
                    index + 1,
                    case["policy"]
                );
            }
            cases += 1;
        }
    }
    assert!(cases > 400);
}

/// Runs 20,000 random steps per algorithm. The output on Redis must equal that in memory, byte for
/// byte.
#[test]
fn random_traces_match_on_redis_and_memory() {
    const STEPS_PER_POLICY: usize = 2_000;
    let server = RedisServer::start();
    let mut random = fastrand::Rng::with_seed(11);
    for algorithm in Algorithm::ALL {
        let mut steps = 0;
        while steps < 20_000 {
            let policy = Policy::new([walk::limit(&mut random, algorithm)]).unwrap();
            let trace = random_trace(&mut random, &policy, STEPS_PER_POLICY);
            let run = |store: &str| {
                stdout(&simulate(
                    &["-p", &policy.to_string(), "-t", "-", "-s", store],
                    &trace,
                ))
            };
            assert_eq!(run(&server.url()), run("memory://"), "{policy}");
            steps += trace.lines().count();
        }
    }
    assert!(server.keys().is_empty());
}

/// Returns a random trace of edge cases. It ends early if its time has run too far ahead.
fn random_trace(random: &mut fastrand::Rng, policy: &Policy, steps: usize) -> String {
    /// The year 2147. Beyond it, a bucket that takes a century to refill exceeds the exact integers
    /// of a double.
    const LATEST_NS: u64 = 5_600_000_000_000_000_000;
    let mut walk = Walk::new(random, policy);
    let (mut record, mut trace) = (Record::default(), String::new());
    for _ in 0..steps {
        let (at_ns, act) = walk.next_step();
        if at_ns > LATEST_NS {
            break;
        }
        let (at_us, now) = (at_ns / 1_000, Timestamp::from_nanos(at_ns - at_ns % 1_000));
        let (name, cost, decision) = match act {
            Act::Check(cost) => ("cost", cost, policy.decide(&mut record, now, cost)),
            Act::Refund(cost) => ("refund", cost, policy.refund(&mut record, now, cost)),
            Act::Charge(cost) => {
                let charged = policy.charge(&mut record, now, cost);
                ("charge", cost, charged.decision)
            }
            Act::Admit(..) | Act::Settle(..) => panic!("walks have no receipts"),
        };
        walk.learn(Answer::of(&decision, 1));
        trace.push_str(&format!(
            "{{\"at_us\": {at_us}, \"key\": \"k\", \"{name}\": {cost}}}\n"
        ));
    }
    trace
}

fn input_of(step: &Value) -> Value {
    let mut input = json!({"at_us": step["at_us"], "key": step["key"]});
    for name in ["cost", "refund", "charge", "receipt", "settle"] {
        if let Some(amount) = step.get(name) {
            input[name] = amount.clone();
        }
    }
    input
}

#[test]
fn the_default_cost_is_one_and_fields_keep_their_order() {
    let output = simulate(
        &["-p", "2/s", "-t", "-"],
        "{\"key\": \"a\", \"at_us\": 1}\n\n  \n{\"at_us\": 1, \"key\": \"a\", \"refund\": 0.5}\n",
    );
    assert_eq!(
        stdout(&output),
        concat!(
            r#"{"at_us":1,"key":"a","cost":1,"allowed":true,"limit":2,"remaining":1,"retry_after_us":0,"reset_after_us":500000,"delay_us":0}"#,
            "\n",
            r#"{"at_us":1,"key":"a","refund":0.5,"allowed":true,"limit":2,"remaining":1,"retry_after_us":0,"reset_after_us":250000,"delay_us":0}"#,
            "\n"
        )
    );
}

#[test]
fn an_invalid_line_is_reported_after_the_output_of_earlier_lines() {
    let good = "{\"at_us\":1,\"key\":\"a\"}\n";
    for (bad, expected) in [
        ("{\"at_us\":1}", "missing field `key`"),
        ("{\"at_us\":1,\"key\":\"\"}", "key is empty"),
        (
            "{\"at_us\":1,\"key\":\"a\",\"cost\":0.0001}",
            "too many decimals",
        ),
        ("{\"at_us\":1,\"key\":\"a\",\"cost\":-1}", "negative"),
        ("{", "EOF"),
    ] {
        let output = simulate(&["-p", "1/s", "-t", "-"], &format!("{good}\n{bad}\n{good}"));
        let stderr = failure_stderr(&output);
        assert!(
            stderr.contains("standard input: line 3:") && stderr.contains(expected),
            "{stderr}"
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    }
    let endless = simulate(&["-p", "1/s", "-t", "-"], &"x".repeat(3 << 20));
    assert!(failure_stderr(&endless).contains("line 1: the line is longer than 1 MiB"));
}

#[test]
fn invalid_arguments_report_the_expected_values() {
    let stderr = failure_stderr(&simulate(&["-p", "100/fortnight", "-t", "-"], ""));
    assert!(
        stderr.contains("  100/fortnight\n      ^^^^^^^^^"),
        "{stderr}"
    );
    assert!(
        failure_stderr(&simulate(&["-p", "1/s", "-t", "/nowhere/trace"], ""))
            .contains("/nowhere/trace")
    );
    assert!(failure_stderr(&simulate(&["-p", "1/s", "-t", "/"], "")).contains("directory"));
    assert!(
        failure_stderr(&simulate(
            &["-p", "1/s", "-t", "-", "--store", "mem://x"],
            ""
        ))
        .contains("memory://")
    );
    assert!(
        failure_stderr(&simulate(
            &["-p", "1/s", "-t", "-", "--store", "memory://?max_keys=0"],
            ""
        ))
        .contains("at least 1")
    );
    assert!(failure_stderr(&simulate(&["-t", "-"], "")).contains("--policy"));
    assert!(
        failure_stderr(&simulate(&["-p", "1/s", "-t", "-", "-o", "xml"], "")).contains("jsonl")
    );
}

#[test]
fn the_table_summarizes_the_trace() {
    let trace = sample();
    let output = simulate(
        &[
            "-p",
            "token_bucket 100/minute",
            "-t",
            trace.to_str().unwrap(),
            "-o",
            "table",
            "--top",
            "2",
        ],
        "",
    );
    let table = stdout(&output);
    for expected in [
        "policy    token_bucket 100/minute",
        "trace     3053 requests in 4 min 59 s, 5 refunds",
        "keys      121",
        "allowed   1639",
        "denied    1414",
        "203.0.113.9       2013      599    1414               545 ms",
        "… and 119 more keys",
    ] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    let never = simulate(
        &["-p", "5/s", "-t", "-", "-o", "table"],
        "{\"at_us\":9,\"key\":\"a\",\"cost\":50}\n{\"at_us\":1,\"key\":\"a\"}\n",
    );
    assert!(
        stdout(&never).contains("1 request can never be allowed")
            && stdout(&never).contains("never\n"),
        "{}",
        stdout(&never)
    );
    assert!(
        stdout(&never).contains("2 requests in 8 µs"),
        "{}",
        stdout(&never)
    );
    let broken = simulate(
        &["-p", "5/s", "-t", "-", "-o", "table"],
        "{\"at_us\":9,\"key\":\"a\"}\n{",
    );
    assert!(
        failure_stderr(&broken).contains("line 2")
            && String::from_utf8_lossy(&broken.stdout).contains("1 request in")
    );
    let empty = simulate(&["-p", "1/s", "-t", "-", "-o", "table"], "");
    assert!(stdout(&empty).contains("0 requests"));
}

#[test]
fn control_characters_in_keys_are_escaped() {
    let output = simulate(
        &["-p", "1/s", "-t", "-", "-o", "table"],
        "{\"at_us\":1,\"key\":\"\\u001b[31m\\r\\n\"}\n",
    );
    assert!(stdout(&output).contains("\\u{1b}[31m\\r\\n"));
    assert!(!stdout(&output).contains('\u{1b}'));
}

/// `script` provides a real terminal. The table is the default there.
#[test]
fn the_table_is_the_default_on_a_terminal() {
    let command = format!(
        "{TIDEGATE} simulate --policy 100/minute --trace {}",
        sample().display()
    );
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    assert!(
        shown.contains("busiest keys") && !shown.contains("\"allowed\""),
        "{shown}"
    );
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let command = format!(
        "{TIDEGATE} simulate -p 1/s -t {} | head -1",
        sample().display()
    );
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", &command])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stderr.is_empty());
}

/// A million keys, one line each, fit in 200 MB of address space. A store that is too small prints
/// a warning.
#[test]
fn long_traces_use_little_memory() {
    let bounded = |arguments: &str| {
        let script =
            format!("ulimit -v 200000; exec {TIDEGATE} simulate -p 1/hour -t - {arguments}");
        let mut child = Command::new("bash")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = std::io::BufWriter::new(child.stdin.take().unwrap());
        let writer = std::thread::spawn(move || {
            for key in 0..1_000_000u64 {
                writeln!(
                    stdin,
                    "{{\"at_us\":{},\"key\":\"user:{key}\"}}",
                    1_700_000_000_000_000 + key
                )
                .unwrap();
            }
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    };
    let table = bounded("-o table");
    assert!(
        stdout(&table).contains("allowed   1000000 (100.0 %)"),
        "{}",
        stdout(&table)
    );
    assert!(
        stdout(&table).contains("keys      more than 200000"),
        "{}",
        stdout(&table)
    );
    assert!(
        stdout(&table).contains("busiest keys") && stdout(&table).contains("may be missing"),
        "{}",
        stdout(&table)
    );
    assert!(table.stderr.is_empty());
    let full = bounded("-o table --store 'memory://?max_keys=1000'");
    assert!(stdout(&full).contains("1000000"));
    let stderr = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(
        stderr.contains("999000 keys were evicted") && stderr.contains("max_keys=N"),
        "{stderr}"
    );
}

/// The output of one simulation is a trace for another.
#[test]
fn simulations_can_be_chained() {
    let first = stdout(&simulate(
        &["-p", "100/minute", "-t", sample().to_str().unwrap()],
        "",
    ));
    let second = stdout(&simulate(&["-p", "100/minute", "-t", "-"], &first));
    assert_eq!(first, second);
}

/// Each line of a growing trace is answered at once, not when a buffer is full.
#[test]
fn a_live_trace_is_answered_at_once() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(TIDEGATE)
        .args(["simulate", "-p", "1/s", "-t", "-", "-o", "jsonl"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    // A byte order mark and CRLF line endings are accepted.
    for (line, allowed) in [
        ("\u{feff}{\"at_us\":1,\"key\":\"a\"}\r\n", true),
        ("{\"at_us\":2,\"key\":\"a\"}\n", false),
    ] {
        stdin.write_all(line.as_bytes()).unwrap();
        let answer: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["allowed"], allowed);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Ctrl-C prints the summary so far, also in memory and while no line arrives.
#[test]
fn an_interrupted_simulation_prints_its_summary() {
    let mut child = Command::new(TIDEGATE)
        .args(["simulate", "-p", "1/hour", "-t", "-", "-o", "table"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for line in 0..3 {
        writeln!(stdin, "{{\"at_us\":{line},\"key\":\"a\"}}").unwrap();
    }
    stdin.flush().unwrap();
    // The handler is set before any line is read.
    let status = format!("/proc/{}/status", child.id());
    let catches_interrupt = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap_or("0").trim(), 16).unwrap_or(0);
        caught & 2 != 0
    };
    assert!(wait_for(Duration::from_secs(20), catches_interrupt));
    let pid = child.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(130));
    let [table, errors] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    // As many lines as were read before the signal.
    assert!(
        table.contains("request") && errors.contains("interrupted"),
        "{table}{errors}"
    );
}

/// A fixed window lets twice its limit through around an edge, a sliding log does not.
#[test]
fn generated_traffic_shows_the_boundary_burst() {
    let folder = tidegate_testkit::Folder::new();
    for (name, start) in [
        ("a.svg", &b"<svg "[..]),
        ("a.png", b"\x89PNG"),
        ("a.html", b"<!doctype html>"),
    ] {
        let file = folder.path().join(name);
        let output = simulate(
            &[
                "-p",
                "fixed_window 100/minute",
                "-p",
                "sliding_window_log 100/minute",
                "--traffic",
                "boundary",
                "--plot",
                &file.display().to_string(),
            ],
            "",
        );
        let text = stdout(&output);
        let most = |policy: &str| {
            let line = text.lines().find(|line| line.contains(policy)).unwrap();
            line.split_whitespace()
                .nth(7)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        assert_eq!(
            (most("fixed_window"), most("sliding_window_log")),
            (200, 100),
            "{text}"
        );
        assert!(std::fs::read(&file).unwrap().starts_with(start), "{name}");
    }
    let output = simulate(
        &["-p", "5/s", "--traffic", "steady:10/s", "--plot", "-"],
        "",
    );
    let text = stdout(&output);
    assert!(
        text.contains("units left") && !text.contains('\x1b'),
        "{text}"
    );
}

#[test]
fn several_policies_and_clients_are_named() {
    let arguments = [
        "-p",
        "1/s",
        "-p",
        "2/s",
        "--traffic",
        "steady:5/s",
        "--traffic",
        "poisson:5/s",
        "--duration",
        "2s",
        "-o",
        "jsonl",
    ];
    let first = stdout(&simulate(&arguments, ""));
    assert_eq!(first, stdout(&simulate(&arguments, "")), "the same seed");
    let lines: Vec<Value> = first
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["policy"], "token_bucket 1/second");
    assert_eq!(lines[1]["policy"], "token_bucket 2/second");
    let keys: std::collections::BTreeSet<&str> = lines
        .iter()
        .map(|line| line["key"].as_str().unwrap())
        .collect();
    assert_eq!(
        keys.into_iter().collect::<Vec<_>>(),
        ["poisson-2", "steady-1"]
    );
    let seeded = [&arguments[..], &["--seed", "2"]].concat();
    assert_ne!(first, stdout(&simulate(&seeded, "")));
}

#[test]
fn invalid_traffic_is_explained() {
    for (arguments, expected) in [
        (
            &["--traffic", "flood"][..],
            "unknown traffic `flood`: expected steady:5/s",
        ),
        (&["--traffic", "steady"], "steady without a rate"),
        (&[], "--trace <FILE>|--traffic <SHAPE>"),
        (
            &["--traffic", "steady:1/s", "--plot", "a.gif"],
            "expected FILE.svg",
        ),
        (
            &["--traffic", "steady:1/s", "--duration", "soon"],
            "--duration",
        ),
    ] {
        let output = simulate(&[&["-p", "1/s"][..], arguments].concat(), "");
        let error = failure_stderr(&output);
        assert!(error.contains(expected), "{error}");
    }
}
