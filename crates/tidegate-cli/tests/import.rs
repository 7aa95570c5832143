//! `tidegate config import`: policies that can be loaded, and notes with positions.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use common::tidegate;
use tidegate_testkit::Folder;

/// Runs the command. Returns its exit code, output and errors.
fn import(format: &str, paths: &[&str]) -> (i32, String, String) {
    let arguments = [&["config", "import", format], paths].concat();
    let output = tidegate().args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap();
    (code, text(&output.stdout), text(&output.stderr))
}

/// Asserts that a configuration is valid.
fn check(folder: &Folder, toml: &str) {
    let file = folder.write("imported.toml", toml);
    let output = tidegate()
        .args(["config", "check", &file])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{toml}\n{errors}");
}

const RULES: &str = r#"domain: shop
descriptors:
- key: ip
  rate_limit: {unit: minute, requests_per_unit: 100}
- key: ip
  value: 10.0.0.1
  rate_limit: {unlimited: true}
- key: ip
  value: 10.0.0.2
  rate_limit: {unit: minute, requests_per_unit: 0}
- key: ip
  value: 10.0.0.3
  rate_limit: {unit: minute, requests_per_unit: 500}
- key: plan
  value: free
  shadow_mode: true
  quota_mode: true
  rate_limit: {unit: day, requests_per_unit: 5, name: "free plan"}
  descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 7, algorithm: sliding_window_log}
- key: user
  descriptors:
  - key: route
    rate_limit: {unit: second, requests_per_unit: 3, unit_multiplier: 10}
- key: path
  value: /files/*
  share_threshold: true
  rate_limit: {unit: day, requests_per_unit: 4, replaces: [{name: other}]}
"#;

#[test]
fn rules_of_ratelimit_become_policies() {
    let folder = Folder::new();
    let file = folder.write("rules.yaml", RULES);
    let (code, toml, errors) = import("envoy", &[&file]);
    assert_eq!(code, 0, "{errors}");
    check(&folder, &toml);
    for expected in [
        "# For requests with domain `shop`.\n# Key: the value of `ip`.\n[policies.\"shop-ip\"]\nlimits = \"fixed_window 100/minute\"\n",
        "    { key = \"10.0.0.1\", unlimited = true },\n",
        "    { key = \"10.0.0.2\", blocked = true },\n",
        "    { key = \"10.0.0.3\", limits = \"fixed_window 500/minute\" },\n",
        "[policies.\"free-plan\"]\nlimits = \"fixed_window 5/day\"\nshadow = true\n",
        "# For requests with domain `shop` and `plan` = `free`.\n# Key: the value of `user`.\n[policies.\"shop-plan-free-user\"]\nlimits = \"sliding_window_log 7/hour\"\n",
        "# Key: the list of the values of `user`, `route`.\n[policies.\"shop-user-route\"]\nlimits = \"fixed_window 3/10 second\"\n",
    ] {
        assert!(toml.contains(expected), "{expected}\n---\n{toml}");
    }
    for expected in [
        "note: rules.yaml:14:3: quota_mode",
        "rules.yaml:26:3: replaces",
        "rules.yaml:26:3: share_threshold",
        "a wildcard",
        "5 policies, 4 notes",
    ] {
        assert!(errors.contains(expected), "{expected}\n---\n{errors}");
    }
}

#[test]
fn limits_of_limitador_become_policies() {
    let folder = Folder::new();
    let file = folder.write(
        "limits.yaml",
        "- {namespace: a.b, name: get, max_value: 10, seconds: 60, conditions: [\"m == 'GET'\"], variables: [user]}\n- {namespace: a.b, max_value: 100, seconds: 3600, conditions: [\"m == 'GET'\"], variables: [user]}\n- {namespace: c, max_value: 0, seconds: 1, conditions: [], variables: []}\n- {namespace: c, max_value: 1, seconds: 1, conditions: , variables: }\n",
    );
    let (code, toml, errors) = import("limitador", &[&file]);
    assert_eq!(code, 0, "{errors}");
    check(&folder, &toml);
    assert!(
        toml.contains("# Only if: m == 'GET'\n# Key: user\n[policies.\"a.b-get\"]\nlimits = \"fixed_window 10/60 seconds anchor=first_hit; fixed_window 100/3600 seconds anchor=first_hit\"\n"),
        "{toml}"
    );
    assert!(
        toml.contains("[policies.\"c\"]\nlimits = \"fixed_window 1/1 seconds"),
        "{toml}"
    );
    assert!(errors.contains("limits.yaml:1:3: conditions"), "{errors}");
    assert!(errors.contains("limits.yaml:3:3: max_value 0"), "{errors}");
}

#[test]
fn invalid_files_are_reported_with_their_position() {
    let folder = Folder::new();
    let bad = folder.write("bad.yaml", "domain: a\ndescriptors: [{kay: b}]\n");
    let (code, toml, errors) = import("envoy", &[&bad]);
    assert_eq!((code, toml.as_str()), (2, ""));
    assert!(
        errors.contains("bad.yaml: config error, unknown key 'kay' (line 2"),
        "{errors}"
    );
    let (code, _, errors) = import("envoy", &["/no/such/file"]);
    assert_eq!(code, 2);
    assert!(errors.contains("/no/such/file"), "{errors}");
    let (code, _, errors) = import("limitador", &[&bad]);
    assert_eq!(code, 2);
    assert!(errors.contains("expected a list of limits"), "{errors}");
    assert_eq!(import("nginx", &[&bad]).0, 2);
    // Rules that `serve` would reject are rejected here too, and by `config check`.
    for limit in [
        "{unit: fortnight, requests_per_unit: 1}",
        "{requests_per_unit: 1}",
        "{unit: day, requests_per_unit: 1, algorithm: bucket}",
        "{unit: day, requests_per_unit: 1, unit_multiplier: 0}",
    ] {
        let text = format!("domain: a\ndescriptors: [{{key: k, rate_limit: {limit}}}]\n");
        let rules = folder.write("rules.yaml", &text);
        let (code, _, errors) = import("envoy", &[&rules]);
        assert_eq!(code, 2, "{limit}: {errors}");
        let config = folder.write("check.toml", &format!("envoy.config = {rules:?}\n"));
        let checked = tidegate()
            .args(["config", "check", &config])
            .output()
            .unwrap();
        assert_eq!(checked.status.code(), Some(2), "{limit}");
    }
    let large = "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 4000000000}}]\n";
    let (code, toml, errors) = import("envoy", &[&folder.write("large.yaml", large)]);
    assert_eq!(code, 0, "{errors}");
    check(&folder, &toml);
}
