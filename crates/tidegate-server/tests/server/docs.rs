//! Runs the snippets of docs/server.md exactly as a reader pastes them.

use std::process::Command;

use crate::common::{TestServer, config};
use tidegate_testkit::tools;

const PAGE: &str = include_str!("../../../../docs/server.md");

/// Returns the code blocks of a language, with the ports of the test server.
fn snippets(language: &str, server: &TestServer) -> Vec<String> {
    let begin = format!("```{language}\n");
    let blocks = PAGE
        .split(&begin)
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let (http, resp) = (
        server.http.port().to_string(),
        server.resp.port().to_string(),
    );
    blocks
        .map(|block| block.replace("8080", &http).replace("6379", &resp))
        .collect()
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn python_snippets_print_the_documented_output() {
    let server = TestServer::start(config(""));
    let [http, resp] = &snippets("python", &server)[..] else {
        panic!("expected two snippets")
    };
    // The HTTP snippet needs no installed package.
    assert_eq!(
        output(Command::new("python3").args(["-c", http])),
        "99 left\n"
    );
    assert_eq!(
        output(Command::new(tools::python()).args(["-c", resp])),
        "15 of 16 left\n"
    );
}

#[test]
fn node_snippets_print_the_documented_output() {
    let server = TestServer::start(config(""));
    let [http, resp] = &snippets("js", &server)[..] else {
        panic!("expected two snippets")
    };
    assert_eq!(output(Command::new("node").args(["-e", http])), "99 left\n");
    let with_modules = &mut Command::new("node");
    with_modules
        .env("NODE_PATH", tools::node_modules())
        .args(["-e", resp]);
    assert_eq!(output(with_modules), "15 of 16 left\n");
}

#[test]
fn the_curl_snippet_prints_the_documented_response() {
    let server = TestServer::start(config(""));
    let snippet = snippets("sh", &server)
        .into_iter()
        .find(|block| block.starts_with("curl"))
        .unwrap();
    let shown = output(Command::new("bash").args(["-c", &snippet]));
    // The output equals that on the page, except for the time.
    let page = PAGE
        .split("```text\n")
        .find(|block| block.starts_with("HTTP/1.1 200 OK"))
        .unwrap();
    let page = page.split("```").next().unwrap();
    for line in page
        .lines()
        .filter(|line| line.contains(':') && !line.starts_with(['{', ' ']))
    {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    let json = page.split("\n\n").nth(1).unwrap().replace("\n ", "");
    assert!(shown.contains(json.trim()), "{json} in {shown}");
}

/// The PromQL expressions of the page are valid: promtool reads them as alert rules.
#[test]
fn the_promql_of_the_page_is_valid() {
    let block = PAGE.split("```promql\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    let rules: Vec<String> = block
        .lines()
        .enumerate()
        .map(|(number, line)| format!("  - alert: Alert{number}\n    expr: '{line}'\n"))
        .collect();
    assert!(rules.len() > 5, "{block}");
    let folder = tidegate_testkit::Folder::new();
    let text = format!("groups:\n- name: tidegate\n  rules:\n{}", rules.concat());
    let file = folder.write("rules.yml", &text);
    let checked = output(Command::new("promtool").args(["check", "rules", &file]));
    assert!(checked.contains("SUCCESS"), "{checked}");
    // Every metric that they name exists.
    let server = TestServer::start(config(""));
    let known = server.admin().get("/metrics").unwrap().body;
    for line in block.lines() {
        let start = line.find("tidegate_").unwrap();
        let name = line[start..]
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .next()
            .unwrap();
        let is_remote = name.contains("_store_") || name.contains("_snapshot_");
        let is_policy = name.contains("degraded_total")
            || name.contains("dropped_units")
            || name.contains("checks");
        assert!(is_remote || is_policy || known.contains(name), "{name}");
    }
}
