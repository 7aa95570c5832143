//! Reloads the configuration: all of it, or nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ConfigError, ConfigSource, Scope, TlsConfig};
use crate::descriptors::{Domains, RuleError, RuleFiles, compile, rule_folders};
use crate::error::ServeError;
use crate::secrets::Secrets;
use crate::server::{ActiveConfig, Server};

/// The quiet time before a change is read: files are written in pieces, links are swapped in steps.
const QUIET: Duration = Duration::from_millis(200);
/// The maximum time to wait for quiet.
const MAX_QUIET: Duration = Duration::from_secs(2);
/// The interval of polling, for file systems that report no changes.
const POLL: Duration = Duration::from_secs(30);

/// Loads the configuration and activates it. Returns `false` if nothing has changed.
fn reload(server: &Server, source: &ConfigSource) -> Result<bool, ConfigError> {
    let config = source.load()?;
    let old = server.active();
    if let Some(name) = old.config.fixed_difference(&config) {
        return Err(ConfigError::Values(format!(
            "`{name}` cannot be changed while the server runs: expected the old value, or a restart"
        )));
    }
    let secrets = Secrets::read(&config)?;
    check_not_weaker(&old, &config, &secrets)?;
    let rules = NewRules::read(server, &old, &config)?;
    let has_new_rules = rules.activate(server);
    if old.hash == config.hash() && old.secrets.digest == secrets.digest {
        return Ok(has_new_rules);
    }
    let gate = old.gate.updated(config.policy_set()?);
    log_policies(&old.config, &config);
    server.activate(ActiveConfig::new(config, secrets, gate));
    Ok(true)
}

/// Loads the rules of a server that starts.
pub(crate) fn load_first_rules(server: &Server) -> Result<(), ServeError> {
    let active = server.active();
    match NewRules::read(server, &active, &active.config) {
        Ok(rules) => drop(rules.activate(server)),
        Err(error) if active.config.envoy.start_without_config => {
            tracing::error!(%error, "rules rejected, starting without (start_without_config)");
        }
        Err(error) => return Err(ServeError::Rules(error.to_string())),
    }
    Ok(())
}

/// Rules from files that have changed.
struct NewRules {
    descriptors: Option<Domains>,
    #[cfg(feature = "limitador")]
    limitador: Option<crate::limitador::Limitador>,
}

impl NewRules {
    fn read(server: &Server, active: &ActiveConfig, config: &Config) -> Result<Self, ConfigError> {
        Ok(Self {
            descriptors: changed_rules(server, active, config)?,
            #[cfg(feature = "limitador")]
            limitador: changed_limits(server, active, config)?,
        })
    }

    /// Activates the rules. Returns `false` if there are none.
    fn activate(self, server: &Server) -> bool {
        let mut has_new = false;
        if let Some(rules) = self.descriptors {
            let (domains, digest) = (rules.len(), &rules.digest);
            tracing::info!(domains, digest, "rules updated");
            if rules.is_empty() {
                tracing::warn!("no rules found, requests with descriptors are not limited");
            }
            server.set_rules(rules);
            has_new = true;
        }
        #[cfg(feature = "limitador")]
        if let Some(limits) = self.limitador {
            let (namespaces, digest) = (limits.namespaces().count(), &limits.digest);
            tracing::info!(namespaces, digest, "limits updated");
            server.limitador.store(Some(Arc::new(limits)));
            has_new = true;
        }
        has_new
    }
}

/// Reads the file in limitador's format. Returns `None` if there is none, or if nothing has
/// changed.
#[cfg(feature = "limitador")]
fn changed_limits(
    server: &Server,
    active: &ActiveConfig,
    config: &Config,
) -> Result<Option<crate::limitador::Limitador>, ConfigError> {
    let Some(path) = &config.limitador.config else {
        return Ok(None);
    };
    let old = server.limitador.load();
    let old = old.as_deref();
    let limits = crate::limitador::load(path, &active.gate, old)
        .map_err(|error| ConfigError::Values(error.to_string()))?;
    if old.is_some_and(|old| old.digest == limits.digest) {
        return Ok(None);
    }
    // A file that is being written is empty at first.
    let is_emptied = limits.namespaces().next().is_none()
        && old.is_some_and(|old| old.namespaces().next().is_some());
    if is_emptied {
        return Err(all_removed(path));
    }
    Ok(Some(limits))
}

fn all_removed(path: &Path) -> ConfigError {
    ConfigError::Values(format!(
        "{}: all rules would be removed: expected at least one, or a restart",
        path.display()
    ))
}

/// Reads the files with rules. Returns `None` if there are none, or if nothing has changed.
fn changed_rules(
    server: &Server,
    active: &ActiveConfig,
    config: &Config,
) -> Result<Option<Domains>, ConfigError> {
    let Some(path) = &config.envoy.config else {
        return Ok(None);
    };
    let rejected = |error: RuleError| ConfigError::Values(error.to_string());
    let RuleFiles { sources, digest } = RuleFiles::read(path).map_err(rejected)?;
    let merges = config.envoy.merge_domains;
    let digest = format!("{digest}-{merges}");
    let old = server.rules();
    if old.as_ref().is_some_and(|old| old.digest == digest) {
        return Ok(None);
    }
    let old = old.as_deref();
    let mut rules = compile(&sources, merges, &active.gate, old).map_err(rejected)?;
    // A directory that is being written is empty at first.
    if rules.is_empty() && old.is_some_and(|old| !old.is_empty()) {
        return Err(all_removed(path));
    }
    rules.digest = digest;
    Ok(Some(rules))
}

/// Logs the policies that a new configuration adds, changes and removes.
fn log_policies(old: &Config, new: &Config) {
    let names = |of: &dyn Fn(&str) -> bool| {
        let names = new.policies.keys().filter(|name| of(name));
        names.map(String::as_str).collect::<Vec<_>>().join(", ")
    };
    let added = names(&|name| !old.policies.contains_key(name));
    let changed = names(&|name| {
        let before = old.policies.get(name);
        before.is_some() && before != new.policies.get(name)
    });
    let removed = old.policies.keys();
    let removed = removed.filter(|name| !new.policies.contains_key(*name));
    let removed = removed.map(String::as_str).collect::<Vec<_>>().join(", ");
    tracing::info!(added, changed, removed, "policies updated");
}

/// Rejects a configuration that would drop all policies, all tokens of a scope, or client
/// certificates: more likely a mistake than an intention.
fn check_not_weaker(
    old: &ActiveConfig,
    config: &Config,
    secrets: &Secrets,
) -> Result<(), ConfigError> {
    let error = |message: String| Err(ConfigError::Values(message));
    // A file that is being written is empty at first.
    if config.policies.is_empty() && !old.config.policies.is_empty() {
        return error(
            "all policies would be removed: expected at least one, or a restart".to_owned(),
        );
    }
    for scope in [Scope::Check, Scope::Refund, Scope::Admin] {
        if secrets.tokens.is_open(scope) && !old.secrets.tokens.is_open(scope) {
            return error(format!(
                "all tokens of scope {} would be removed, which opens it to every client: \
                 expected at least one, or a restart",
                scope.name()
            ));
        }
    }
    for (name, before, after) in [
        ("http", &old.config.http.tls, &config.http.tls),
        ("resp", &old.config.resp.tls, &config.resp.tls),
        ("grpc", &old.config.grpc.tls, &config.grpc.tls),
        ("admin", &old.config.admin.tls, &config.admin.tls),
    ] {
        if TlsConfig::requires_certificate(before.as_ref())
            && !TlsConfig::requires_certificate(after.as_ref())
        {
            return error(format!(
                "{name}.tls.client_ca would be removed, which admits clients without a \
                 certificate: expected it to stay, or a restart"
            ));
        }
    }
    Ok(())
}

/// Returns the files that a configuration depends on.
fn files(source: &ConfigSource, config: &Config) -> BTreeSet<PathBuf> {
    let tls = [
        &config.http.tls,
        &config.resp.tls,
        &config.grpc.tls,
        &config.admin.tls,
    ]
    .into_iter()
    .flatten();
    let tls = tls.flat_map(|tls| tls.files()).map(Path::to_owned);
    let tokens = config.tokens.iter().filter_map(|token| token.file.clone());
    let rules = config.envoy.config.iter().chain(&config.limitador.config);
    // Directories are watched through the files in them.
    let rules = rules.flat_map(|path| rule_folders(path));
    let rules = rules.flat_map(|path| [path.join("rule"), path]);
    source
        .file
        .iter()
        .cloned()
        .chain(tls)
        .chain(tokens)
        .chain(rules)
        .collect()
}

/// Reloads until the server ends: on request, when a file changes, and at an interval.
pub(crate) async fn watch(
    server: Arc<Server>,
    source: ConfigSource,
    mut requests: mpsc::Receiver<()>,
    ended: CancellationToken,
) {
    let (changed, mut changes) = mpsc::channel(1);
    let mut reloader = Reloader {
        source: Arc::new(source),
        server,
        changed,
        watcher: None,
        last_error: None,
    };
    reloader.watch_files();
    loop {
        let is_requested = tokio::select! {
            () = ended.cancelled() => return,
            Some(()) = requests.recv() => true,
            Some(()) = changes.recv() => {
                wait_for_quiet(&mut changes).await;
                false
            }
            () = tokio::time::sleep(POLL) => false,
        };
        reloader.reload(is_requested).await;
    }
}

/// Waits until no file has changed for a moment.
async fn wait_for_quiet(changes: &mut mpsc::Receiver<()>) {
    let quiet = async { while tokio::time::timeout(QUIET, changes.recv()).await.is_ok() {} };
    let _ = tokio::time::timeout(MAX_QUIET, quiet).await;
}

struct Reloader {
    server: Arc<Server>,
    source: Arc<ConfigSource>,
    changed: mpsc::Sender<()>,
    /// Watches as long as it is not dropped.
    watcher: Option<notify::RecommendedWatcher>,
    last_error: Option<String>,
}

impl Reloader {
    /// Watches the files of the active configuration.
    fn watch_files(&mut self) {
        let files = files(&self.source, &self.server.active().config);
        self.watcher = watch_files(&files, &self.changed);
        // Catches a change before the watcher was ready.
        let _ = self.changed.try_send(());
    }

    async fn reload(&mut self, is_requested: bool) {
        let (server, source) = (Arc::clone(&self.server), Arc::clone(&self.source));
        let reloading = tokio::task::spawn_blocking(move || reload(&server, &source));
        // After a panic the old configuration stays too.
        let reloaded = reloading
            .await
            .unwrap_or_else(|error| Err(ConfigError::Values(error.to_string())));
        match reloaded {
            Ok(true) => self.activated(),
            Ok(false) => self.unchanged(is_requested),
            Err(error) => self.rejected(error.to_string(), is_requested),
        }
    }

    fn activated(&mut self) {
        self.server.metrics.reloaded(true);
        self.last_error = None;
        // The new configuration may name other files.
        self.watch_files();
        let hash = &self.server.active().hash;
        tracing::info!(hash, "configuration reloaded");
    }

    fn unchanged(&mut self, is_requested: bool) {
        self.server.metrics.is_current();
        if is_requested || self.last_error.take().is_some() {
            let hash = &self.server.active().hash;
            tracing::info!(hash, "configuration unchanged");
        }
    }

    fn rejected(&mut self, error: String, is_requested: bool) {
        // Logged once, not at every attempt.
        if is_requested || self.last_error.as_ref() != Some(&error) {
            self.server.metrics.reloaded(false);
            tracing::error!(error, "configuration rejected, keeping the active one");
        }
        self.last_error = Some(error);
    }
}

/// Watches the directories, because files and links are often replaced.
fn watch_files(
    files: &BTreeSet<PathBuf>,
    changed: &mpsc::Sender<()>,
) -> Option<notify::RecommendedWatcher> {
    let changed = changed.clone();
    let tell = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changed.try_send(());
        }
    };
    let mut watcher = notify::recommended_watcher(tell).ok()?;
    let mut folders = BTreeSet::new();
    files
        .iter()
        .for_each(|file| add_folders(file, &mut folders, MAX_LINKS));
    for folder in folders {
        if let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, folder = %folder.display(), "cannot watch directory, polling every 30 s");
        }
    }
    Some(watcher)
}

/// The maximum number of links that the system follows.
const MAX_LINKS: usize = 40;

/// Adds the directory of a file, and that of every link on the way to it. Each of them may be
/// replaced.
fn add_folders(file: &Path, folders: &mut BTreeSet<PathBuf>, links_left: usize) {
    let Ok(file) = std::path::absolute(file) else {
        return;
    };
    folders.extend(file.parent().map(Path::to_owned));
    let links = file
        .ancestors()
        .filter_map(|path| Some((path, path.parent()?, std::fs::read_link(path).ok()?)));
    for (link, folder, target) in links {
        folders.insert(folder.to_owned());
        let rest = file.strip_prefix(link).unwrap_or(Path::new(""));
        if links_left > 0 {
            add_folders(&folder.join(target).join(rest), folders, links_left - 1);
        }
    }
}
