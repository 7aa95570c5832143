//! `tidegate doctor`: examines a Redis or a server, and says how to mend what it finds.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tidegate::store::{Finding, Severity};
use tidegate::{AnyStore, Policy, StoreUrl};

use crate::check::OutputFormat;

/// Check a Redis or a Tidegate server for settings that weaken limits
///
/// For a Redis: version, eviction, memory, persistence, replicas, cluster slots, clock, permissions,
/// latency, scripts, and keys without expiry under the prefix. It writes one key that expires after
/// a second. For a server (http:// or https://): health, readiness, the store behind it and its
/// configuration. The variable TIDEGATE_TOKEN is sent to it as a token.
///
/// Exit code: 0 if nothing is wrong, 1 with serious findings or warnings, 2 if it cannot be reached.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorOptions {
    /// URL: redis://HOST:PORT/DB, rediss://, unix://PATH, redis+sentinel://HOST,HOST/NAME,
    /// redis+cluster://HOST,HOST, or http://HOST:PORT of a server's check or admin listener
    url: String,
    /// Output format
    #[arg(long, short, value_enum, default_value = "text", value_name = "FORMAT")]
    output: OutputFormat,
}

const EXAMPLES: &str = "\
Examples:
  tidegate doctor redis://127.0.0.1:6379/
  tidegate doctor 'redis+cluster://10.0.0.1,10.0.0.2' --output json
  TIDEGATE_TOKEN=… tidegate doctor http://127.0.0.1:9090";

/// The timeout of a request to a server.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct JsonFinding<'a> {
    severity: &'static str,
    code: &'static str,
    what: &'a str,
    fix: &'a str,
}

pub(crate) fn run(options: &DoctorOptions) -> anyhow::Result<ExitCode> {
    let is_server = options.url.starts_with("http://") || options.url.starts_with("https://");
    let mut findings = match is_server {
        true => examine_server(options.url.trim_end_matches('/'))?,
        false => examine_store(&options.url)?,
    };
    findings.sort_by_key(|finding| finding.severity);
    let text = match options.output {
        OutputFormat::Text => as_text(&findings),
        OutputFormat::Json => {
            let all = findings.iter().map(|finding| JsonFinding {
                severity: finding.severity.name(),
                code: finding.code,
                what: &finding.what,
                fix: &finding.fix,
            });
            serde_json::to_string_pretty(&all.collect::<Vec<_>>())? + "\n"
        }
    };
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .context("standard output")?;
    let is_wrong = findings
        .iter()
        .any(|finding| finding.severity != Severity::Note);
    Ok(ExitCode::from(u8::from(is_wrong)))
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (severity, code) = (finding.severity.name(), finding.code);
        let what = printable(&finding.what);
        text.push_str(&format!(
            "{severity:<8} {code}: {what}
"
        ));
        if !finding.fix.is_empty() {
            text.push_str(&format!("{:<8} fix: {}\n", "", finding.fix));
        }
    }
    let count = |severity: Severity| {
        findings
            .iter()
            .filter(|one| one.severity == severity)
            .count()
    };
    let (serious, warnings) = (count(Severity::Serious), count(Severity::Warning));
    let plural = if warnings == 1 { "" } else { "s" };
    text + &format!("{serious} serious, {warnings} warning{plural}\n")
}

/// Returns text of a server that a terminal can show.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .collect()
}

/// Examines a Redis with the connection that a limiter would use.
fn examine_store(url: &str) -> anyhow::Result<Vec<Finding>> {
    let url: StoreUrl = url
        .parse()
        .context("expected the URL of a Redis, or http:// of a server")?;
    if url.is_memory() {
        bail!("memory:// is part of this process: expected the URL of a Redis or of a server");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let policy: Policy = "1/s".parse()?;
        let limiter = url.limiter(policy).await?;
        match limiter.store() {
            AnyStore::Redis(store) => Ok(store.diagnose(true).await),
            _ => bail!("expected the URL of a Redis"),
        }
    })
}

/// Examines a server by what it says about itself.
fn examine_server(base: &str) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut add = |severity, code, what: String, fix: &str| {
        findings.push(Finding {
            severity,
            code,
            what,
            fix: fix.to_owned(),
        });
    };
    let health = get(base, "/healthz")?;
    if health.0 != 200 {
        bail!(
            "{base}/healthz answers {}: expected a Tidegate server",
            health.0
        );
    }
    let (status, ready) = get(base, "/readyz")?;
    if status != 200 {
        let detail = ready["detail"].as_str().unwrap_or("not ready").to_owned();
        let fix = "wait, or see the server's log";
        add(
            Severity::Serious,
            "not-ready",
            format!("the server is not ready: {detail}"),
            fix,
        );
    } else if ready["store"] == "degraded" {
        let fix = "tidegate doctor on the store's URL; docs/failure-modes.md";
        let what = "the store is unavailable, and the failure policy decides".to_owned();
        add(Severity::Serious, "degraded", what, fix);
    }
    let is_plain = base.starts_with("http://");
    let host = base.split("://").nth(1).unwrap_or_default();
    let is_local =
        host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]");
    if is_plain && !is_local {
        let what = "the connection is not encrypted: tokens and keys can be read".to_owned();
        add(
            Severity::Warning,
            "no-tls",
            what,
            "set http.tls or admin.tls, docs/configuration.md",
        );
    }
    let (status, top) = get(base, "/v1/top")?;
    match status {
        200 => examine_top(&top, &mut add),
        401 | 403 => add(
            Severity::Note,
            "no-token",
            "the figures of the server need a token".to_owned(),
            "set TIDEGATE_TOKEN to a token with the scope admin",
        ),
        _ => add(
            Severity::Note,
            "check-listener",
            "this is the listener for checks; the admin listener knows more".to_owned(),
            "tidegate doctor http://HOST:9090",
        ),
    }
    Ok(findings)
}

fn examine_top(top: &Value, add: &mut impl FnMut(Severity, &'static str, String, &str)) {
    let (store, config) = (&top["store"], &top["config"]);
    let version = top["version"].as_str().unwrap_or_default();
    let store_url = store["url"].as_str().unwrap_or_default();
    let what = format!(
        "Tidegate {version} on {store_url}, {} policies",
        top["policy_count"]
    );
    add(Severity::Note, "server", what, "");
    if config["is_rejected"] == true {
        let what = "the last configuration was invalid; an earlier one is in use".to_owned();
        add(
            Severity::Serious,
            "config-rejected",
            what,
            "tidegate config check FILE",
        );
    }
    let number = |name: &str| store[name].as_u64();
    if let (Some(keys), Some(most)) = (number("keys"), number("max_keys"))
        && keys >= most / 10 * 9
    {
        let what = format!("{keys} of {most} keys are in use; a full store evicts counters");
        add(
            Severity::Warning,
            "memory-keys",
            what,
            "store.url = \"memory://?max_keys=N\"",
        );
    }
    if number("evictions").is_some_and(|evictions| evictions > 0) {
        let what = format!(
            "{} keys were evicted before they had reset",
            store["evictions"]
        );
        add(
            Severity::Warning,
            "evictions",
            what,
            "store.url = \"memory://?max_keys=N\"",
        );
    }
    if top["totals"]["degraded"]
        .as_f64()
        .is_some_and(|rate| rate > 0.0)
    {
        let what = "requests are answered by the failure policy right now".to_owned();
        add(
            Severity::Serious,
            "degraded-now",
            what,
            "docs/failure-modes.md",
        );
    }
}

/// Returns the status and the JSON of a path; `null` if it is something else.
fn get(base: &str, path: &str) -> anyhow::Result<(u16, Value)> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .build();
    let mut request = ureq::Agent::new_with_config(config).get(format!("{base}{path}"));
    if let Ok(token) = std::env::var("TIDEGATE_TOKEN") {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().with_context(|| base.to_owned())?;
    let text = response
        .body_mut()
        .read_to_string()
        .with_context(|| base.to_owned())?;
    let status = response.status().as_u16();
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
}
