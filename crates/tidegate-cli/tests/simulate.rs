//! `tidegate simulate` as a user runs it: the real program, real files and pipes, a real terminal.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tidegate::store::Record;
use tidegate::{Algorithm, Policy, Timestamp};
use tidegate_testkit::redis::RedisServer;
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
    // From a thread of its own: the program may answer before it has read all, and need not read all.
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

/// What is said on standard error by a run that must fail with exit code 2.
fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Every vector as a trace: what comes out is the vector, in every field.
#[test]
fn all_vectors() {
    all_vectors_on("memory://");
}

#[test]
fn all_vectors_on_redis() {
    let server = RedisServer::start();
    all_vectors_on(&server.url());
    assert!(
        server.keys().is_empty(),
        "a simulation leaves nothing behind"
    );
}

fn all_vectors_on(store: &str) {
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

/// 20,000 random steps an algorithm: on Redis the same answers as in memory, to the byte.
#[test]
fn random_traces_on_redis_as_in_memory() {
    const STEPS_A_POLICY: usize = 2_000;
    let server = RedisServer::start();
    let mut random = fastrand::Rng::with_seed(11);
    for algorithm in Algorithm::ALL {
        let mut steps = 0;
        while steps < 20_000 {
            let policy = Policy::new([walk::limit(&mut random, algorithm)]).unwrap();
            let trace = random_trace(&mut random, &policy, STEPS_A_POLICY);
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

/// A trace that looks for trouble. It ends early where it has run too far ahead in time.
fn random_trace(random: &mut fastrand::Rng, policy: &Policy, steps: usize) -> String {
    /// The year 2147: beyond, a bucket that takes a century to refill leaves what a double holds exactly.
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
    for name in ["cost", "refund", "receipt", "settle"] {
        if let Some(amount) = step.get(name) {
            input[name] = amount.clone();
        }
    }
    input
}

#[test]
fn cost_is_one_where_none_is_given_and_fields_come_in_order() {
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
fn a_bad_line_is_named_and_what_came_before_it_is_answered() {
    let good = "{\"at_us\":1,\"key\":\"a\"}\n";
    for (bad, says) in [
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
        let said = complaint(&output);
        assert!(
            said.contains("standard input: line 3:") && said.contains(says),
            "{said}"
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    }
    let endless = simulate(&["-p", "1/s", "-t", "-"], &"x".repeat(3 << 20));
    assert!(complaint(&endless).contains("line 1: the line is longer than 1 MiB"));
}

#[test]
fn bad_arguments_say_what_was_expected() {
    let said = complaint(&simulate(&["-p", "100/fortnight", "-t", "-"], ""));
    assert!(said.contains("  100/fortnight\n      ^^^^^^^^^"), "{said}");
    assert!(
        complaint(&simulate(&["-p", "1/s", "-t", "/nowhere/trace"], "")).contains("/nowhere/trace")
    );
    assert!(complaint(&simulate(&["-p", "1/s", "-t", "/"], "")).contains("directory"));
    assert!(
        complaint(&simulate(
            &["-p", "1/s", "-t", "-", "--store", "mem://x"],
            ""
        ))
        .contains("memory://")
    );
    assert!(
        complaint(&simulate(
            &["-p", "1/s", "-t", "-", "--store", "memory://?max_keys=0"],
            ""
        ))
        .contains("at least 1")
    );
    assert!(complaint(&simulate(&["-t", "-"], "")).contains("--policy"));
    assert!(complaint(&simulate(&["-p", "1/s", "-t", "-", "-o", "xml"], "")).contains("jsonl"));
}

#[test]
fn the_table_sums_up() {
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
        complaint(&broken).contains("line 2")
            && String::from_utf8_lossy(&broken.stdout).contains("1 request in")
    );
    let empty = simulate(&["-p", "1/s", "-t", "-", "-o", "table"], "");
    assert!(stdout(&empty).contains("0 requests"));
}

#[test]
fn keys_do_not_write_to_the_terminal() {
    let output = simulate(
        &["-p", "1/s", "-t", "-", "-o", "table"],
        "{\"at_us\":1,\"key\":\"\\u001b[31m\\r\\n\"}\n",
    );
    assert!(stdout(&output).contains("\\u{1b}[31m\\r\\n"));
    assert!(!stdout(&output).contains('\u{1b}'));
}

/// On a real terminal, which `script` provides: the table is the default.
#[test]
fn a_terminal_gets_the_table() {
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
fn who_stops_reading_is_not_told_off() {
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

/// A million keys, one line each, in 200 MB of address space; on a store with too little room it says so.
#[test]
fn long_traces_need_little_memory() {
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
    let said = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(
        said.contains("999000 keys were evicted") && said.contains("max_keys=N"),
        "{said}"
    );
}

/// The output of one simulation is a trace for another.
#[test]
fn simulations_chain() {
    let first = stdout(&simulate(
        &["-p", "100/minute", "-t", sample().to_str().unwrap()],
        "",
    ));
    let second = stdout(&simulate(&["-p", "100/minute", "-t", "-"], &first));
    assert_eq!(first, second);
}

/// Whoever follows a trace as it grows gets each answer when it is there, not when a buffer is full.
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
    // A byte order mark and the other system's line ends are no obstacle.
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
