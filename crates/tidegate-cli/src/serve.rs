//! `tidegate serve`: a rate limit server for any language.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tidegate::Clock;
use tidegate_server::config::{Flag, Listen, LogFormat, Scope};
use tidegate_server::{Config, ConfigSource, Listeners, Reloads, log, run};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Run a rate limit server, over HTTP, gRPC and for Redis clients
///
/// Without options it counts in memory and listens on this machine only: HTTP on 127.0.0.1:8080,
/// metrics and resets on 127.0.0.1:9090. SIGTERM and Ctrl-C finish requests in flight and end it.
/// SIGHUP, or a change of the file, reloads its configuration.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeOptions {
    #[command(flatten)]
    source: SourceOptions,
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve
  tidegate serve --config tidegate.toml
  tidegate serve --resp 127.0.0.1:6379 --snapshot counts.snapshot
  tidegate serve --grpc 127.0.0.1:8081 --envoy-config ratelimit/
  tidegate serve --store redis://127.0.0.1:6379/ --http 0.0.0.0:8080 --insecure

The environment variables of envoyproxy/ratelimit apply if RUNTIME_ROOT, RUNTIME_SUBDIRECTORY or
CONFIG_TYPE is set. docs/server.md describes the protocols, docs/envoy.md Envoy's rate limit service,
docs/configuration.md all settings.";

/// The options of a server's configuration.
#[derive(Args, Clone)]
pub(crate) struct SourceOptions {
    /// Configuration file in TOML; `tidegate config schema` describes it
    #[arg(long, short, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Store of the counters: memory://, redis://HOST:PORT/DB, rediss://, unix://PATH,
    /// redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST
    #[arg(
        long,
        short,
        env = "TIDEGATE_STORE",
        hide_env_values = true,
        value_name = "URL"
    )]
    store: Option<String>,
    /// Address for checks over HTTP, or `off` [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<Listen>,
    /// Address for Redis clients, or `off` [default: off]
    #[arg(long, value_name = "ADDRESS:PORT")]
    resp: Option<Listen>,
    /// Address for gRPC (Envoy's rate limit service), or `off` [default: off]
    #[arg(long, value_name = "ADDRESS:PORT")]
    grpc: Option<Listen>,
    /// Rules for descriptors, in the format of envoyproxy/ratelimit: a file or a directory
    #[arg(long, value_name = "PATH")]
    envoy_config: Option<PathBuf>,
    /// Address for operators (metrics, resets), or `off` [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<Listen>,
    /// With memory://: file that keeps the counters across restarts
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// File for a trace of checks: all checks of one in ten keys, up to 100 MB, keys hashed
    /// ([record] in the configuration changes this)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Accept unauthenticated clients from other machines
    #[arg(long)]
    insecure: bool,
    /// Format of log lines: text or json [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// Minimum level of log lines: error, warn, info or debug [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug"])]
    log_level: Option<String>,
}

impl SourceOptions {
    /// Returns `true` if an option or the environment asks for JSON, whatever the file says.
    fn asks_for_json(&self) -> bool {
        let from_environment = std::env::var("TIDEGATE__LOG__FORMAT").ok();
        self.log_format.clone().or(from_environment).as_deref() == Some("json")
    }

    /// Returns the source of the configuration: the file, overridden by the environment and these
    /// options.
    pub(crate) fn source(&self) -> ConfigSource {
        let mut flags = Vec::new();
        let mut add = |name: &'static str, path: &'static str, value: Option<String>| {
            flags.extend(value.map(|value| Flag {
                name,
                path,
                value: value.into(),
            }));
        };
        let listen = |listen: Option<Listen>| listen.map(|listen| listen.to_string());
        add("--store", "store.url", self.store.clone());
        add("--http", "http.listen", listen(self.http));
        add("--resp", "resp.listen", listen(self.resp));
        add("--grpc", "grpc.listen", listen(self.grpc));
        let path = |path: &PathBuf| path.display().to_string();
        let rules = self.envoy_config.as_ref().map(path);
        add("--envoy-config", "envoy.config", rules);
        add("--admin", "admin.listen", listen(self.admin));
        add(
            "--snapshot",
            "store.snapshot",
            self.snapshot.as_ref().map(path),
        );
        add("--record", "record.file", self.record.as_ref().map(path));
        add("--log-format", "log.format", self.log_format.clone());
        add("--log-level", "log.level", self.log_level.clone());
        if self.insecure {
            for path in [
                "http.insecure",
                "resp.insecure",
                "grpc.insecure",
                "admin.insecure",
            ] {
                flags.push(Flag {
                    name: "--insecure",
                    path,
                    value: true.into(),
                });
            }
        }
        let environment = std::env::vars_os();
        let texts = environment.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        ConfigSource {
            file: self.config.clone(),
            environment: texts.collect(),
            flags,
        }
    }
}

/// Runs the server. A fatal error has the format of log lines.
pub(crate) fn serve(options: &ServeOptions) -> anyhow::Result<()> {
    let mut is_json = options.source.asks_for_json();
    run_server(options, &mut is_json).map_err(|error| {
        if !is_json {
            return error;
        }
        let now = Duration::from_nanos(Clock::system().now().as_nanos());
        let line = serde_json::json!({
            "timestamp": humantime::format_rfc3339_micros(std::time::UNIX_EPOCH + now).to_string(),
            "level": "ERROR",
            "message": "the server failed",
            "error": format!("{error:#}"),
        });
        eprintln!("{line}");
        Reported.into()
    })
}

/// The error for a failure that has been reported.
#[derive(Debug, thiserror::Error)]
#[error("the server failed")]
pub(crate) struct Reported;

fn run_server(options: &ServeOptions, is_json: &mut bool) -> anyhow::Result<()> {
    let source = options.source.source();
    let config = source.load()?;
    *is_json = config.log.format == LogFormat::Json;
    for (name, meant) in misspelled(&source, &config) {
        eprintln!("tidegate: {name} is ignored: did you mean {meant}?");
    }
    // As many connections as the system allows.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let listeners = Listeners::bind(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tidegate-tasks")
        .enable_all()
        .build()
        .context("the async runtime")?;
    runtime.block_on(async {
        // Kept until the end, when the rest is flushed.
        let _logging = log::start(&config.log)?;
        serve_until_signal(config, listeners, source).await
    })
}

/// Returns environment variables that look like settings except for an underscore.
fn misspelled(source: &ConfigSource, config: &Config) -> Vec<(String, String)> {
    const SECTIONS: [&str; 13] = [
        "STORE",
        "HTTP",
        "RESP",
        "GRPC",
        "ENVOY",
        "LIMITADOR",
        "GUBERNATOR",
        "FORWARD_AUTH",
        "ADMIN",
        "RECORD",
        "BOUNDS",
        "LOG",
        "POLICIES",
    ];
    let is_token = |name: &str| {
        config
            .tokens
            .iter()
            .any(|token| token.env.as_deref() == Some(name))
    };
    let meant = |name: &str| {
        let rest = name
            .strip_prefix("TIDEGATE_")
            .filter(|rest| !rest.starts_with('_'))?;
        let (section, setting) = rest.split_once('_')?;
        let is_setting = SECTIONS.contains(&section) && !is_token(name);
        is_setting.then(|| format!("TIDEGATE__{section}__{}", setting.trim_start_matches('_')))
    };
    let names = source.environment.iter().map(|(name, _)| name);
    names
        .filter_map(|name| Some((name.clone(), meant(name)?)))
        .collect()
}

async fn serve_until_signal(
    config: Config,
    listeners: Listeners,
    source: ConfigSource,
) -> anyhow::Result<()> {
    let (request, requests) = mpsc::channel(1);
    let mut hangups = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            // One pending reload is enough.
            let _ = request.try_send(());
        }
    });
    let shutdown = shutdown_signal()?;
    let greeting = Greeting::of(&config, &listeners);
    let ready = move || {
        greeting.say();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    };
    let shutdown = async {
        shutdown.await;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    };
    run(
        config,
        listeners,
        Some(Reloads { source, requests }),
        ready,
        shutdown,
    )
    .await?;
    Ok(())
}

/// Signals within this time count as one: some tools signal a process and its group.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// The time to write the last log line.
const LAST_LINE: Duration = Duration::from_millis(100);

/// Completes at the first SIGTERM or SIGINT. The second one ends the process at once.
fn shutdown_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminations = signal(SignalKind::terminate())?;
    let mut interruptions = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminations.recv() => {}
            _ = interruptions.recv() => {}
        }
        tokio::spawn(async move {
            let same = async {
                loop {
                    tokio::select! {
                        _ = terminations.recv() => {}
                        _ = interruptions.recv() => {}
                    }
                }
            };
            let _: Result<(), _> = tokio::time::timeout(ONE_SIGNAL, same).await;
            let number = tokio::select! {
                _ = terminations.recv() => SignalKind::terminate().as_raw_value(),
                _ = interruptions.recv() => SignalKind::interrupt().as_raw_value(),
            };
            tracing::warn!("second signal, ending at once without draining or a snapshot");
            // A separate thread writes the log, and may be blocked if nothing reads it.
            tokio::time::sleep(LAST_LINE).await;
            std::process::exit(128 + number);
        });
    })
}

/// The lines printed once requests are served.
struct Greeting {
    lines: Vec<String>,
    addresses: [(&'static str, Option<SocketAddr>); 4],
    is_for_people: bool,
    store: String,
    hash: String,
    policies: String,
}

impl Greeting {
    fn of(config: &Config, listeners: &Listeners) -> Self {
        let addresses = [
            ("http", listeners.http()),
            ("resp", listeners.resp()),
            ("grpc", listeners.grpc()),
            ("admin", listeners.admin()),
        ];
        let scheme = |tls: bool| if tls { "https" } else { "http" };
        let (http, admin) = (
            scheme(config.http.tls.is_some()),
            scheme(config.admin.tls.is_some()),
        );
        let shown =
            |address: Option<SocketAddr>, text: &dyn Fn(SocketAddr) -> String, hint: &str| {
                address.map_or_else(|| hint.to_owned(), text)
            };
        let mut lines = vec![
            format!(
                "tidegate {} on {}",
                env!("CARGO_PKG_VERSION"),
                config.store.url
            ),
            format!(
                "  http   {}",
                shown(listeners.http(), &|at| format!("{http}://{at}"), "off")
            ),
            format!(
                "  resp   {}",
                shown(
                    listeners.resp(),
                    &|at| format!("{at}"),
                    "off (enable with --resp 127.0.0.1:6379)"
                )
            ),
            format!(
                "  grpc   {}",
                match listeners.grpc_socket() {
                    Some(path) if listeners.grpc().is_none() => format!("unix:{}", path.display()),
                    _ => shown(
                        listeners.grpc(),
                        &|at| format!("{at}"),
                        "off (enable with --grpc 127.0.0.1:8081)"
                    ),
                }
            ),
            format!(
                "  admin  {}",
                shown(
                    listeners.admin(),
                    &|at| format!("{admin}://{at}/metrics"),
                    "off"
                )
            ),
        ];
        if let (Some(address), true) = (listeners.admin(), config.admin.dashboard) {
            lines.push(format!("  dashboard  {admin}://{address}/"));
        }
        if let Some(mut address) = listeners.http() {
            if address.ip().is_unspecified() {
                address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            let what = match config.policies.keys().next() {
                Some(policy) => format!("\"policy\": \"{policy}\""),
                None => "\"limits\": \"5/minute\"".to_owned(),
            };
            let is_open = !config
                .tokens
                .iter()
                .any(|token| token.scopes.contains(&Scope::Check));
            let token = if is_open {
                ""
            } else {
                "-H 'authorization: Bearer TOKEN' "
            };
            let tls = match &config.http.tls {
                None => "",
                Some(tls) if tls.client_ca.is_none() => "--cacert CA.crt ",
                Some(_) => "--cacert CA.crt --cert CLIENT.crt --key CLIENT.key ",
            };
            lines.push(String::new());
            lines.push(format!(
                "Try: curl {tls}{token}{http}://{address}/v1/check -d '{{{what}, \"key\": \"user:42\"}}'"
            ));
        }
        Self {
            lines,
            addresses,
            is_for_people: config.log.format == LogFormat::Text,
            store: config.store.url.to_string(),
            hash: config.hash(),
            policies: config
                .policies
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", "),
        }
    }

    fn say(&self) {
        if self.is_for_people {
            let mut stdout = std::io::stdout().lock();
            // An error is ignored: nothing else depends on standard output.
            let _ = self
                .lines
                .iter()
                .try_for_each(|line| writeln!(stdout, "{line}"));
            let _ = stdout.flush();
            return;
        }
        let Self {
            store,
            hash,
            policies,
            ..
        } = self;
        let version = env!("CARGO_PKG_VERSION");
        tracing::info!(version, store, hash, policies, "server started");
        for (listener, address) in self.addresses {
            if let Some(address) = address {
                tracing::info!(listener, %address, "listening");
            }
        }
    }
}
