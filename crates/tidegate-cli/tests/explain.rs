//! `tidegate explain`, as a user runs it.
// Helpers panic when a test should fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use serde_json::Value;

use common::{failure, success};

#[test]
fn one_policy_is_explained() {
    let text = success(&["explain", "fixed_window 100/minute"]);
    for expected in [
        "sustained     100 per 1 min (1.667/s)",
        "in any 1 s           200   100 at -1 ns, 100 at 0 s",
        "bytes per key 46 in memory, 148 in Redis",
        "retry-after: 60",
        "warning: fixed_window 100/minute: twice the limit",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn policies_are_compared_with_the_shortest_trace() {
    let text = success(&[
        "explain",
        "fixed_window 5/minute",
        "sliding_window_log 5/minute",
    ]);
    assert!(text.contains("1 at -1 ns, 5 at 0 s"), "{text}");
    assert!(
        text.contains("allowed by fixed_window 5/minute, denied by sliding_window_log 5/minute")
    );
    let text = success(&["explain", "gcra 5/minute", "5/minute"]);
    assert!(text.contains("No difference found"), "{text}");
}

#[test]
fn the_json_output_has_everything() {
    let text = success(&["explain", "10/s", "20/s", "--cost", "15", "-o", "json"]);
    let output: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(output["policies"][0]["worst_cases"][0]["most"], 19);
    assert_eq!(output["differences"][0]["steps"][0]["count"], 11);
    let warning = output["policies"][0]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("cost 15 is never allowed"), "{warning}");
}

#[test]
fn errors_point_at_the_mistake() {
    let error = failure(&["explain", "100/fortnight"]);
    assert!(
        error.contains("unknown unit") && error.contains("^^^"),
        "{error}"
    );
    assert!(failure(&["explain"]).contains("Usage"));
    assert!(failure(&["explain", "1/s", "--cost", "0.0001"]).contains("--cost"));
}
