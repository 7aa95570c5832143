//! The metrics of rules, and the values that their names show.

use tidegate::ManualClock;
use tidegate_server::config::MetricNames;
use tidegate_testkit::Folder;

use crate::cases::with_rules;
use crate::common::TestServer;

const RULES: &str = r#"
domain: m
descriptors:
- key: plain
  rate_limit: {unit: day, requests_per_unit: 2}
- key: shown
  value_to_metric: true
  descriptors:
  - key: route
    rate_limit: {unit: day, requests_per_unit: 9}
- key: detailed
  detailed_metric: true
  metadata: {kept: true}
  rate_limit: {unit: day, requests_per_unit: 9}
- key: path
  value: /a/*
  rate_limit: {unit: day, requests_per_unit: 9}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 1}
"#;

fn hit(server: &TestServer, entries: &[(&str, &str)]) -> serde_json::Value {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| serde_json::json!({ "key": key, "value": value }))
        .collect();
    let body = serde_json::json!({ "domain": "m", "descriptors": [{ "entries": entries }] });
    server.post("/json", &body.to_string()).json()
}

#[test]
fn names_show_the_values_that_rules_ask_for() {
    let folder = Folder::new();
    folder.write("rules.yaml", RULES);
    let mut config = with_rules(&folder, "");
    config.envoy.metric_names = MetricNames::Ratelimit;
    let server = TestServer::start_at(&ManualClock::new(), config);
    for value in ["10.0.0.1", "10.0.0.1", "10.0.0.1", "b"] {
        hit(&server, &[("plain", value)]);
        hit(&server, &[("shadow", "x")]);
    }
    hit(&server, &[("shown", "10.0.0.1"), ("route", "r")]);
    let answer = hit(&server, &[("detailed", "v:1")]);
    // Upstream loses the metadata of such a rule.
    assert_eq!(answer["dynamicMetadata"]["metadata"]["kept"], true);
    hit(&server, &[("path", "/a/b")]);
    for (name, expected) in [
        (
            "tidegate_rule_hits_total{domain=\"m\",rule=\"plain\",outcome=\"allowed\"}",
            3,
        ),
        (
            "tidegate_rule_hits_total{domain=\"m\",rule=\"plain\",outcome=\"denied\"}",
            1,
        ),
        (
            "tidegate_rule_hits_total{domain=\"m\",rule=\"shadow\",outcome=\"shadow_denied\"}",
            3,
        ),
        (
            "tidegate_rule_hits_total{domain=\"m\",rule=\"shadow\",outcome=\"denied\"}",
            0,
        ),
        (
            "ratelimit_service_rate_limit_shadow_mode{domain=\"m\",key1=\"shadow\"}",
            3,
        ),
        (
            "ratelimit_service_rate_limit_total_hits{domain=\"m\",key1=\"shown_10_0_0_1\",key2=\"route\"}",
            1,
        ),
        (
            "ratelimit_service_rate_limit_total_hits{domain=\"m\",key1=\"detailed_v_1\"}",
            1,
        ),
        (
            "ratelimit_service_rate_limit_total_hits{domain=\"m\",key1=\"path_/a/*\"}",
            1,
        ),
    ] {
        assert_eq!(server.metric(name), expected, "{name}");
    }
}

#[test]
fn the_number_of_series_does_not_grow_with_values() {
    let folder = Folder::new();
    folder.write("rules.yaml", RULES);
    let server = TestServer::start(with_rules(&folder, ""));
    let mut client = server.client();
    for number in 0..1_500 {
        let body = format!(
            r#"{{"domain":"m","descriptors":[{{"entries":[{{"key":"detailed","value":"v{number}"}}]}}]}}"#
        );
        assert_eq!(client.post("/json", &body).unwrap().status, 200);
    }
    let metrics = server.admin().get("/metrics").unwrap().body;
    let series = metrics.matches("rule=\"detailed_v").count();
    // 1,000 values, with four series each.
    assert_eq!(series, 4_000);
    let rest = "tidegate_rule_hits_total{domain=\"m\",rule=\"detailed\",outcome=\"allowed\"}";
    assert_eq!(server.metric(rest), 500);
    // Nor does a client choose the size of a name.
    hit(&server, &[("detailed", &"x".repeat(1_000))]);
    assert_eq!(server.metric(rest), 501);
}

#[test]
fn no_series_is_written_twice() {
    let folder = Folder::new();
    folder.write(
        "rules.yaml",
        "domain: m\ndescriptors:\n- {key: a, value: b_c, rate_limit: {unit: day, requests_per_unit: 5}}\n- {key: a_b, value: c, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}\n",
    );
    let mut config = with_rules(&folder, "");
    config.envoy.metric_names = MetricNames::Ratelimit;
    let server = TestServer::start(config);
    hit(&server, &[("a", "b_c")]);
    hit(&server, &[("a_b", "c")]);
    let metrics = server.admin().get("/metrics").unwrap().body;
    let names = metrics.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = names
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, _)| name)
        .collect();
    let different: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), different.len());
    let both = "tidegate_rule_hits_total{domain=\"m\",rule=\"a_b_c\",outcome=\"allowed\"}";
    assert_eq!(server.metric(both), 2);
}
