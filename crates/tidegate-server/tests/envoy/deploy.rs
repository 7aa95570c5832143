//! The files in deploy/: alerts, dashboard, compose, Helm chart.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::Folder;
use tidegate_testkit::gateway::{system_program, tool};

use crate::cases::with_rules;
use crate::common::{TestServer, config};

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(deploy(path)).unwrap()
}

/// Runs a program in a folder of deploy/ and asserts that it succeeds.
fn run(folder: &str, program: &Path, arguments: &[&str]) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(deploy(folder))
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&text)
    );
}

#[test]
fn alerts_fire_as_they_should() {
    let promtool = system_program("promtool");
    run("prometheus", &promtool, &["check", "rules", "alerts.yaml"]);
    run(
        "prometheus",
        &promtool,
        &["test", "rules", "alerts_test.yaml"],
    );
}

/// Returns the names of our metrics in a text.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let is_other = |symbol: char| !(symbol.is_ascii_alphanumeric() || symbol == '_');
    text.split(is_other)
        .filter(|word| word.starts_with("tidegate_"))
        .collect()
}

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let folder = Folder::new();
    folder.write(
        "rules.yaml",
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
    );
    let text = "[policies.api]\nlimits = \"1/day\"\n";
    let server = TestServer::start(with_rules(&folder, text));
    server.post("/v1/check", r#"{"policy": "api", "key": "k"}"#);
    let metrics = server.admin().get("/metrics").unwrap().body;
    let dashboard = read("grafana/tidegate.json");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() >= 8);
    let alerts = read("prometheus/alerts.yaml");
    let names: BTreeSet<&str> = metric_names(&dashboard)
        .union(&metric_names(&alerts))
        .copied()
        .collect();
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        assert!(
            metrics.contains(&format!("\n{name}{{")) || metrics.contains(&format!("\n{name} ")),
            "{name} does not exist"
        );
    }
}

#[test]
fn envoy_accepts_the_configuration_of_compose() {
    let arguments = ["--mode", "validate", "-c", "envoy.yaml", "-l", "error"];
    run("compose", &tool("envoy"), &arguments);
}

#[test]
fn compose_and_chart_are_yaml() {
    let script = "import sys, yaml\nfor name in sys.argv[1:]: assert list(yaml.safe_load_all(open(name))), name\n";
    let files = [
        "compose/compose.yaml",
        "helm/tidegate/Chart.yaml",
        "helm/tidegate/values.yaml",
    ];
    run("", &tool("python"), &[&["-c", script], &files[..]].concat());
}

#[test]
fn the_configuration_of_the_chart_is_valid() {
    let template = read("helm/tidegate/templates/configmap.yaml");
    let (_, text) = template.split_once("  tidegate.toml: |\n").unwrap();
    let (text, _) = text.split_once("{{ .Values.config").unwrap();
    // Every optional part, with the values that the chart would insert.
    let lines = text.lines().filter(|line| !line.starts_with("{{-"));
    let lines = lines.map(|line| line.strip_prefix("    ").unwrap_or(line));
    let text = lines.collect::<Vec<_>>().join("\n");
    let admin =
        "{{ if .Values.tokens.secret }}\"0.0.0.0:9090\"{{ else }}\"127.0.0.1:9090\"{{ end }}";
    let text = text
        .replace("{{ .Values.store | quote }}", "\"redis://redis:6379/\"")
        .replace("{{ empty .Values.tokens.secret }}", "false")
        .replace(admin, "\"0.0.0.0:9090\"");
    assert!(!text.contains("{{"), "{text}");
    let config = config(&text);
    assert_eq!(config.tokens.len(), 2);
    assert!(config.envoy.config.is_some());
}
