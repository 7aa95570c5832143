//! `tidegate replay` on generated and broken logs.
// Helpers panic when a test should fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Output, Stdio};

use serde_json::Value;
use tidegate_testkit::Folder;
use tidegate_testkit::access_log::{AccessLog, Attack, LogLine, caddy, combined};

use common::{failure, success, tidegate};

/// 2026-01-05 00:00 UTC.
const MONDAY: u64 = 1_767_571_200;
const DAY: u64 = 86_400;

fn two_days(seed: u64) -> AccessLog {
    AccessLog {
        seed,
        start: MONDAY,
        length: 2 * DAY,
        people: 3_000,
        programs: 10,
        attack: None,
    }
}

/// An attack of a quarter of an hour, at 10:00 on a day.
fn attack(day: u64) -> Attack {
    Attack {
        start: MONDAY + day * DAY + 36_000,
        length: 900,
        addresses: 5,
        rate: 60,
    }
}

fn json(arguments: &[&str]) -> Value {
    let all = [&["replay"][..], arguments, &["-o", "json"]].concat();
    serde_json::from_str(&success(&all)).unwrap()
}

/// Counts denials of a fixed window by the definition.
fn naive(lines: &[LogLine], limit: u64, period_ms: u64) -> (u64, HashMap<&str, u64>) {
    let mut windows: HashMap<(&str, u64), u64> = HashMap::new();
    let mut denied: HashMap<&str, u64> = HashMap::new();
    for line in lines {
        let count = windows
            .entry((&line.address, line.at_ms / period_ms))
            .or_default();
        if *count == limit {
            *denied.entry(&line.address).or_default() += 1;
        } else {
            *count += 1;
        }
    }
    (denied.values().sum(), denied)
}

#[test]
fn results_equal_a_naive_count_in_every_format() {
    let folder = Folder::new();
    let mut log = two_days(1);
    log.attack = Some(attack(0));
    let lines = log.requests();
    let (denied, by_key) = naive(&lines, 12, 60_000);
    assert!(denied > 10_000 && by_key.len() > 30);
    let files = [
        folder.write("access.log", &combined(&lines)),
        folder.write("caddy.log", &caddy(&lines)),
    ];
    for file in files {
        let output = json(&[
            &file,
            "-p",
            "fixed_window 12/minute",
            "--top",
            "100000",
            "--no-spread",
        ]);
        assert_eq!(output["requests"], lines.len(), "{file}");
        assert_eq!(output["policies"][0]["denied"], denied);
        assert_eq!(output["policies"][0]["limited_keys"], by_key.len());
        for key in output["keys_shown"].as_array().unwrap() {
            let expected = by_key[key["key"].as_str().unwrap()];
            assert_eq!(key["denials"][0]["count"], expected, "{key}");
        }
        assert_eq!(output["keys_shown"].as_array().unwrap().len(), by_key.len());
    }
}

#[test]
fn compressed_split_and_piped_logs_give_the_same() {
    let folder = Folder::new();
    let lines = two_days(2).requests();
    let whole = folder.write("whole.log", &combined(&lines));
    // Two servers that share the traffic, and a rotated file: given in any order.
    let (even, odd): (Vec<_>, Vec<_>) = lines
        .iter()
        .cloned()
        .enumerate()
        .partition(|(index, _)| index % 2 == 0);
    let strip = |lines: Vec<(usize, LogLine)>| lines.into_iter().map(|(_, line)| line).collect();
    let (even, odd): (Vec<LogLine>, Vec<LogLine>) = (strip(even), strip(odd));
    let half = even.len() / 2;
    let files = [
        folder.write("b.log", &combined(&even[half..])),
        folder.write("a.log", &combined(&odd)),
        folder.write("b.log.1", &combined(&even[..half])),
    ];
    let compressed = folder.path().join("b.log.1.gz");
    let gzip = std::process::Command::new("gzip")
        .arg(&files[2])
        .status()
        .unwrap();
    assert!(gzip.success());
    let options = ["-p", "5/s burst=5", "--no-spread", "--no-curve"];
    let expected = json(&[&[whole.as_str()][..], &options].concat());
    let merged = [&files[0], &files[1], compressed.to_str().unwrap()];
    let merged = json(&[&merged[..], &options].concat());
    assert_eq!(merged["policies"], expected["policies"]);
    assert_eq!(merged["out_of_order"], 0);
    let text = std::fs::read(&whole).unwrap();
    let piped = piped(&[&["-"][..], &options, &["-o", "json"]].concat(), text);
    let piped: Value = serde_json::from_slice(&piped.stdout).unwrap();
    assert_eq!(piped["policies"], expected["policies"]);
}

fn piped(arguments: &[&str], input: Vec<u8>) -> Output {
    let mut child = tidegate()
        .arg("replay")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    output
}

/// The recommended limit stops a planted attack, also on a day that the search did not see.
#[test]
fn a_planted_attack_is_stopped_on_a_held_out_day() {
    let folder = Folder::new();
    let mut log = two_days(3);
    log.attack = Some(attack(0));
    let first = folder.write("first.log", &caddy(&log.requests()));
    let output = json(&[
        &first,
        "--find",
        "--attack",
        "2026-01-05T10:00..2026-01-05T10:15",
    ]);
    let found = &output["found"];
    assert_eq!(found["reaches_goal"], true, "{found}");
    for part in ["searched", "checked"] {
        let part = &found[part];
        let (keys, limited) = (
            part["keys"].as_u64().unwrap(),
            part["limited_keys"].as_u64().unwrap(),
        );
        assert!(limited * 1_000 <= keys, "{part}");
        assert!(part["attack_stopped"].as_f64().unwrap() >= 0.99, "{part}");
    }
    // Other people, other addresses, another attack.
    let mut other = two_days(4);
    other.start = MONDAY + 7 * DAY;
    other.attack = Some(Attack {
        start: other.start + 3_600,
        rate: 80,
        ..attack(0)
    });
    let lines = other.requests();
    let second = folder.write("second.log", &caddy(&lines));
    let policy = found["policy"].as_str().unwrap();
    let output = json(&[&second, "-p", policy, "--top", "100000", "--no-curve"]);
    let is_attacker = |key: &str| key.starts_with("203.0.");
    let keys = output["keys_shown"].as_array().unwrap();
    let limited = keys
        .iter()
        .filter(|key| !is_attacker(key["key"].as_str().unwrap()))
        .count();
    assert!(
        limited <= 3,
        "{limited} of 3010 other keys were limited by {policy}"
    );
    let stopped: u64 = keys
        .iter()
        .filter(|key| is_attacker(key["key"].as_str().unwrap()))
        .map(|key| key["denials"][0]["count"].as_u64().unwrap())
        .sum();
    assert!(
        stopped * 100 >= 99 * 5 * 80 * 900,
        "{stopped} denied by {policy}"
    );
}

#[test]
fn the_tightest_limit_leaves_enough_keys_untouched() {
    let folder = Folder::new();
    let file = folder.write("a.log", &caddy(&two_days(5).requests()));
    let strict = json(&[&file, "--find"]);
    let loose = json(&[&file, "--find", "--untouched", "95"]);
    let in_a_minute = |output: &Value| {
        let found = &output["found"];
        let number = |name: &str| found[name].as_f64().unwrap();
        number("burst") + number("limit") * 60e6 / number("period_us")
    };
    assert!(
        in_a_minute(&loose) < in_a_minute(&strict),
        "{} {}",
        loose["found"],
        strict["found"]
    );
    let searched = &strict["found"]["searched"];
    assert!(
        searched["limited_keys"].as_u64().unwrap() * 1_000 <= searched["keys"].as_u64().unwrap()
    );
    assert_eq!(strict["found"]["hours"].as_array().unwrap().len(), 48);
    let text = success(&["replay", &file, "--find", "--name", "shop"]);
    assert!(
        text.contains("[policies.shop]\nlimits = \"token_bucket"),
        "{text}"
    );
    assert!(text.contains("# candidate = \"token_bucket"), "{text}");
    // The configuration works as pasted.
    let start = text.find("[policies.shop]").unwrap();
    let config = folder.write("tidegate.toml", &text[start..]);
    assert!(success(&["config", "check", &config]).contains("valid, 1 policy"));
}

#[test]
fn clients_that_obey_are_served_later_and_those_that_hammer_cost_more() {
    let folder = Folder::new();
    let lines: String = (0..20)
        .map(|index| {
            format!(
                "{{\"at_us\":{},\"key\":\"a\"}}\n",
                1_700_000_000_000_000_u64 + index
            )
        })
        .collect();
    let file = folder.write("burst.jsonl", &lines);
    let figures = |clients: &str| {
        json(&[&file, "-p", "1/s burst=10", "--clients", clients])["policies"][0].clone()
    };
    let (lost, obey, hammer) = (figures("as-logged"), figures("obey"), figures("hammer"));
    assert_eq!(
        (&lost["denied"], &lost["served_later"]),
        (&10.into(), &0.into())
    );
    assert_eq!(
        (&obey["served_later"], &obey["given_up"]),
        (&10.into(), &0.into())
    );
    assert_eq!(hammer["served_later"], 10);
    let backoff = figures("backoff");
    assert_eq!(
        backoff["served_later"].as_u64().unwrap() + backoff["given_up"].as_u64().unwrap(),
        10
    );
}

/// A trace of a server has the checks of all its policies. An option separates them.
#[test]
fn recorded_policies_are_told_apart() {
    let folder = Folder::new();
    let line = |policy: &str| {
        format!("{{\"at_us\":1700000000000000,\"key\":\"a\",\"policy\":\"{policy}\"}}\n")
    };
    let file = folder.write(
        "trace.jsonl",
        &(line("api").repeat(5) + &line("login").repeat(3)),
    );
    let api = json(&[&file, "-p", "2/s", "--recorded", "api"]);
    assert_eq!(
        (&api["requests"], &api["policies"][0]["denied"]),
        (&5.into(), &3.into())
    );
    let apart = json(&[&file, "-p", "2/s", "-k", "key+field:policy"]);
    assert_eq!(
        (&apart["keys"], &apart["policies"][0]["denied"]),
        (&2.into(), &4.into())
    );
    let output = tidegate()
        .args(["replay", &file, "-p", "2/s"])
        .output()
        .unwrap();
    let warning = String::from_utf8_lossy(&output.stderr);
    assert!(
        warning.contains("several policies (api, login)"),
        "{warning}"
    );
}

#[test]
fn programs_are_the_most_regular_keys() {
    let folder = Folder::new();
    let file = folder.write("a.log", &caddy(&two_days(6).requests()));
    let output = json(&[
        &file,
        "-p",
        "1/hour",
        "--sort",
        "regular",
        "--top",
        "10",
        "--no-curve",
    ]);
    for key in output["keys_shown"].as_array().unwrap() {
        assert!(
            key["key"].as_str().unwrap().starts_with("2001:db8:"),
            "{key}"
        );
        assert!(key["irregularity"].as_f64().unwrap() < 0.01, "{key}");
    }
}

#[test]
fn pages_are_self_contained_and_escaped() {
    let folder = Folder::new();
    let file = folder.write(
        "x.jsonl",
        "{\"at_us\":1700000000000000,\"key\":\"<script>alert(1)</script>\"}\n"
            .repeat(5)
            .as_str(),
    );
    let page = folder.path().join("report.html");
    success(&[
        "replay",
        &file,
        "-p",
        "1/s",
        "--find",
        "--html",
        page.to_str().unwrap(),
    ]);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(
        html.contains("<svg") && html.contains("&lt;script&gt;"),
        "{html}"
    );
    assert!(
        !html.contains("<script>") && !html.contains("src="),
        "{html}"
    );
    let csv = success(&["replay", &file, "-p", "1/s", "-o", "csv"]);
    assert!(
        csv.starts_with("key,requests,") && csv.lines().count() == 2,
        "{csv}"
    );
    let formula = folder.write("y.jsonl", "{\"at_us\":1700000000000000,\"key\":\"=1+1\"}\n");
    let csv = success(&[
        "replay", &formula, "-p", "1/s", "-o", "csv", "--sort", "requests",
    ]);
    assert!(csv.contains("\n'=1+1,"), "{csv}");
}

/// Twenty broken lines between good ones: each is counted, none ends the replay.
#[test]
fn a_log_broken_in_twenty_ways_is_still_replayed() {
    let good = r#"192.0.2.1 - - [05/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x""#;
    let broken: Vec<Vec<u8>> = [
        &b"not a log line"[..],
        b"{",
        b"{}",
        b"[1,2]",
        b"{\"ts\":\"yesterday\",\"remote_addr\":\"192.0.2.1\"}",
        b"{\"ts\":1767571200}",
        b"{\"ts\":1e400,\"remote_addr\":\"192.0.2.1\"}",
        b"{\"at_us\":-1,\"key\":\"a\"}",
        b"{\"at_us\":18446744073709551615,\"key\":\"a\"}",
        b"{\"at_us\":1767571200000000,\"key\":\"a\",\"refund\":1}",
        b"{\"at_us\":1767571200000000,\"key\":\"\"}",
        b"{\"at_us\":1767571200000000,\"key\":\"a\",\"cost\":-1}",
        b"192.0.2.1 - - [05/Foo/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5",
        b"192.0.2.1 - - [32/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5",
        b"192.0.2.1 - - [05/Jan/2026:00:00:00 +0000 \"GET / HTTP/1.1\" 200 5",
        b"192.0.2.1 - - [05/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1 200 5",
        b"192.0.2.1 - - [05/Jan/2026:25:00:00 +0000] \"GET / HTTP/1.1\" 200 5",
        b"- - - [05/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5",
        b"\xff\xfe\x00\x01\x02",
        b"\x00\x00\x00\x00",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    let mut log = b"\xef\xbb\xbf".to_vec();
    for line in &broken {
        log.extend_from_slice(line);
        log.extend_from_slice(b"\r\n\n");
        log.extend_from_slice(good.as_bytes());
        log.push(b'\n');
    }
    // A line without an end, and one that is far too long.
    log.extend(vec![b'x'; 3 << 20]);
    log.push(b'\n');
    log.extend_from_slice(good.as_bytes());
    let output = piped(&["-", "-p", "5/s", "-o", "json"], log);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["requests"], &report["unreadable_lines"]),
        (&21.into(), &21.into()),
        "{report}"
    );
    assert!(stderr.contains("standard input: line 1: "), "{stderr}");
    assert!(stderr.contains("16 more lines were left out"), "{stderr}");
}

#[test]
fn errors_say_what_to_do() {
    let folder = Folder::new();
    let empty = folder.write("empty.log", "");
    let noise = folder.write("noise.log", "a\nb\n");
    let good = folder.write("good.jsonl", "{\"at_us\":1700000000000000,\"key\":\"a\"}\n");
    let missing = folder.path().join("missing").display().to_string();
    let directory = folder.path().display().to_string();
    for (arguments, expected) in [
        (vec![], "Usage"),
        (vec![good.as_str()], "expected --policy POLICY, or --find"),
        (vec![&missing, "-p", "1/s"], "No such file"),
        (vec![&directory, "-p", "1/s"], "is a directory"),
        (vec![&empty, "-p", "1/s"], "the log is empty"),
        (
            vec![&noise, "-p", "1/s"],
            "none of 2 lines is a request; 2: not in the combined",
        ),
        (vec![&good, "-p", "1/fortnight"], "unknown unit"),
        (vec![&good, "-p", "1/s", "-k", "adress"], "expected address"),
        (vec![&good, "-p", "1/s", "-c", "free"], "expected a number"),
        (
            vec![&good, "--find", "--attack", "noon"],
            "expected FROM..TO",
        ),
        (
            vec![
                &good,
                "--find",
                "--attack",
                "2026-01-02T10:00..2026-01-02T09:00",
            ],
            "before the end",
        ),
        (
            vec![
                &good,
                "--find",
                "--attack",
                "2026-01-02T10:00..2026-01-02T11:00",
            ],
            "outside the log",
        ),
        (vec![&good, "--find", "--untouched", "101"], "0 to 100"),
        (vec![&good, "-p", "1/s", "--max-keys", "0"], "max_keys"),
    ] {
        let error = failure(&[&["replay"][..], &arguments].concat());
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

/// The sample of the README is generated. TIDEGATE_UPDATE_GOLDEN=1 writes it.
#[test]
fn the_bundled_sample_is_the_generated_one() {
    let log = AccessLog {
        seed: 42,
        start: MONDAY,
        length: DAY,
        people: 200,
        programs: 3,
        attack: Some(Attack {
            start: MONDAY + 50_400,
            length: 300,
            addresses: 2,
            rate: 50,
        }),
    };
    let text = combined(&log.requests());
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/logs");
    let file = folder.join("access.log.gz");
    if std::env::var_os("TIDEGATE_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("access.log"), &text).unwrap();
        let mut gzip = std::process::Command::new("gzip");
        let gzip = gzip.args(["-9nf", "access.log"]).current_dir(&folder);
        assert!(gzip.status().unwrap().success());
    }
    let unpacked = std::process::Command::new("gzip")
        .arg("-dc")
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        unpacked.stdout == text.as_bytes(),
        "the sample differs from the generator"
    );
    // The commands of the README.
    let sample = file.to_str().unwrap();
    let text = success(&["replay", sample, "--policy", "60/minute burst=20"]);
    assert!(
        text.contains("203.0.113.0") && text.contains("knee"),
        "{text}"
    );
    let text = success(&[
        "replay",
        sample,
        "--find",
        "--attack",
        "2026-01-05T14:00..2026-01-05T14:05",
    ]);
    assert!(
        text.contains("[policies.api]") && !text.contains("no limit reaches"),
        "{text}"
    );
}

/// Ctrl-C ends a replay of endless input, with the results so far.
#[test]
fn ctrl_c_prints_partial_results() {
    let mut child = tidegate()
        .args(["replay", "-", "-p", "1/s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than a pipe holds: when all is written, the program reads, and handles the signal.
    let lines: String = (0..20_000)
        .map(|index| {
            let at_us = 1_700_000_000_000_000_u64 + index;
            format!("{{\"at_us\":{at_us},\"key\":\"a\"}}\n")
        })
        .collect();
    stdin.write_all(lines.as_bytes()).unwrap();
    let pid = child.id().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(
        text.contains("requests of 1 key,") && text.contains("partial"),
        "{text}"
    );
    drop(stdin);
}
