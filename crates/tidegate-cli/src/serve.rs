//! `tidegate serve`: limits for every language.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tidegate_server::config::{Flag, Listen, LogFormat, Scope};
use tidegate_server::{Config, Listeners, Reloads, Source, log, run};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Serve rate limits to every language: over HTTP, and to Redis clients
///
/// Without any option it counts in memory and listens on this machine only: HTTP on 127.0.0.1:8080, metrics and resets on
/// 127.0.0.1:9090. It ends by SIGTERM or Ctrl-C once what is asked is answered, and reads its configuration again by SIGHUP
/// and when the file changes.
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
  tidegate serve --store redis://127.0.0.1:6379/ --http 0.0.0.0:8080 --insecure

docs/server.md tells how to ask it, docs/configuration.md all that can be set.";

/// What says how a server is to be.
#[derive(Args, Clone)]
pub(crate) struct SourceOptions {
    /// The configuration, in TOML; `tidegate config schema` describes it
    #[arg(long, short, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where counts are kept: memory://, redis://HOST:PORT/DB, rediss://, unix://PATH, redis+sentinel://HOST,HOST/NAME,
    /// redis+cluster://HOST,HOST
    #[arg(
        long,
        short,
        env = "TIDEGATE_STORE",
        hide_env_values = true,
        value_name = "URL"
    )]
    store: Option<String>,
    /// Where to listen for checks over HTTP, or `off` [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<Listen>,
    /// Where to listen for Redis clients, or `off` [default: off]
    #[arg(long, value_name = "ADDRESS:PORT")]
    resp: Option<Listen>,
    /// Where to listen for operators (metrics, resets), or `off` [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<Listen>,
    /// With memory://, a file that keeps the counts over a restart
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Listen beyond this machine with neither TLS nor tokens
    #[arg(long)]
    insecure: bool,
    /// How log lines look: text or json [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// The least that is logged: error, warn, info or debug [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug"])]
    log_level: Option<String>,
}

impl SourceOptions {
    /// Where the configuration comes from: the file, the environment and these options on top.
    pub(crate) fn source(&self) -> Source {
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
        add("--admin", "admin.listen", listen(self.admin));
        add(
            "--snapshot",
            "store.snapshot",
            self.snapshot
                .as_ref()
                .map(|path| path.display().to_string()),
        );
        add("--log-format", "log.format", self.log_format.clone());
        add("--log-level", "log.level", self.log_level.clone());
        if self.insecure {
            for path in ["http.insecure", "resp.insecure", "admin.insecure"] {
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
        Source {
            file: self.config.clone(),
            environment: texts.collect(),
            flags,
        }
    }
}

pub(crate) fn serve(options: &ServeOptions) -> anyhow::Result<()> {
    let source = options.source.source();
    let config = source.load()?;
    for (name, meant) in mistaken(&source, &config) {
        eprintln!("tidegate: {name} is not read: did you mean {meant}?");
    }
    // As many connections as the system lets us have.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let listeners = Listeners::bind(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tidegate-beside")
        .enable_all()
        .build()
        .context("the async runtime")?;
    runtime.block_on(async {
        // Kept to the end: what is left to be sent is sent then.
        let _logging = log::start(&config.log)?;
        serve_until_told(config, listeners, source).await
    })
}

/// Variables that look like settings, but for an underscore.
fn mistaken(source: &Source, config: &Config) -> Vec<(String, String)> {
    const SECTIONS: [&str; 7] = [
        "STORE", "HTTP", "RESP", "ADMIN", "BOUNDS", "LOG", "POLICIES",
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

async fn serve_until_told(
    config: Config,
    listeners: Listeners,
    source: Source,
) -> anyhow::Result<()> {
    let (ask, asked) = mpsc::channel(1);
    let mut hangups = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            // One that waits to be done is enough.
            let _ = ask.try_send(());
        }
    });
    let shutdown = told_to_end()?;
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
        Some(Reloads { source, asked }),
        ready,
        shutdown,
    )
    .await?;
    Ok(())
}

/// Signals that come together are one: some send it to a process and to its group.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// Time for the last line of the log to be written.
const LAST_LINE: Duration = Duration::from_millis(100);

/// Done at the first SIGTERM or SIGINT. The second ends the process at once.
fn told_to_end() -> anyhow::Result<impl Future<Output = ()>> {
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
            tracing::warn!(
                "ended at once, by a second signal: nothing was waited for, and no snapshot written"
            );
            // The log is written by a thread of its own, which may not get to it if nothing reads it.
            tokio::time::sleep(LAST_LINE).await;
            std::process::exit(128 + number);
        });
    })
}

/// What is said once requests are served.
struct Greeting {
    lines: Vec<String>,
    addresses: [(&'static str, Option<SocketAddr>); 3],
    is_for_people: bool,
}

impl Greeting {
    fn of(config: &Config, listeners: &Listeners) -> Self {
        let addresses = [
            ("http", listeners.http()),
            ("resp", listeners.resp()),
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
                "tidegate {} counts in {}",
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
                    "off (--resp 127.0.0.1:6379 turns it on)"
                )
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
        }
    }

    fn say(&self) {
        if self.is_for_people {
            let mut stdout = std::io::stdout().lock();
            // Who does not read it misses nothing else.
            let _ = self
                .lines
                .iter()
                .try_for_each(|line| writeln!(stdout, "{line}"));
            let _ = stdout.flush();
            return;
        }
        for (listener, address) in self.addresses {
            if let Some(address) = address {
                tracing::info!(listener, %address, "listening");
            }
        }
    }
}
