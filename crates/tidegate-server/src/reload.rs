//! Another configuration in the place of the one in use: whole, or not at all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ConfigError, Scope, Source, TlsConfig};
use crate::secrets::Secrets;
use crate::server::{Live, Server};

/// How long it is quiet before a change is looked at: files are written in pieces, links are swapped in steps.
const QUIET: Duration = Duration::from_millis(200);
/// How long it is waited for.
const MOST_QUIET: Duration = Duration::from_secs(2);
/// Where changes are not told: networks, overlays.
const POLL: Duration = Duration::from_secs(30);

/// Takes over what the source says by now. Without a change, nothing happens.
fn reload(server: &Server, source: &Source) -> Result<bool, ConfigError> {
    let config = source.load()?;
    let old = server.live();
    if let Some(name) = old.config.fixed_difference(&config) {
        return Err(ConfigError::Values(format!(
            "`{name}` cannot be changed while the server runs: restart it"
        )));
    }
    // A file that is being written is empty first.
    if config.policies.is_empty() && !old.config.policies.is_empty() {
        return Err(ConfigError::Values(
            "all policies would be gone: expected at least one; restart to go on without"
                .to_owned(),
        ));
    }
    let secrets = Secrets::read(&config)?;
    for scope in [Scope::Check, Scope::Refund, Scope::Admin] {
        if secrets.tokens.is_open(scope) && !old.secrets.tokens.is_open(scope) {
            return Err(ConfigError::Values(format!(
                "all tokens of scope {} would be gone, and everybody let in: expected at least one; restart to go on without",
                scope.name()
            )));
        }
    }
    for (name, before, after) in [
        ("http", &old.config.http.tls, &config.http.tls),
        ("resp", &old.config.resp.tls, &config.resp.tls),
        ("admin", &old.config.admin.tls, &config.admin.tls),
    ] {
        let asks =
            |tls: &Option<TlsConfig>| tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if asks(before) && !asks(after) {
            return Err(ConfigError::Values(format!(
                "{name}.tls.client_ca would be gone, and clients without a certificate accepted: expected it to stay; \
                 restart to go on without"
            )));
        }
    }
    if old.hash == config.hash() && old.secrets.digest == secrets.digest {
        return Ok(false);
    }
    let gate = old.gate.renewed(config.book()?);
    server.exchange(Live::new(config, secrets, gate));
    Ok(true)
}

/// The files that a configuration hangs on.
fn files(source: &Source, config: &Config) -> BTreeSet<PathBuf> {
    let tls = [&config.http.tls, &config.resp.tls, &config.admin.tls]
        .into_iter()
        .flatten();
    let tls = tls.flat_map(|tls| tls.files()).map(Path::to_owned);
    let tokens = config.tokens.iter().filter_map(|token| token.file.clone());
    source
        .file
        .iter()
        .cloned()
        .chain(tls)
        .chain(tokens)
        .collect()
}

/// Looks for changes until the server ends: when it is told to, when a file changes, and now and then.
pub(crate) async fn watch(
    server: Arc<Server>,
    source: Source,
    mut asked: mpsc::Receiver<()>,
    ended: CancellationToken,
) {
    let (changed, mut changes) = mpsc::channel(1);
    let source = Arc::new(source);
    // Watched for as long as it is kept.
    let mut watcher = watch_files(&files(&source, &server.live().config), &changed);
    // What has changed since it was read nobody has seen.
    let _ = changed.try_send(());
    let mut last_error = None;
    loop {
        let is_asked = tokio::select! {
            () = ended.cancelled() => return drop(watcher),
            Some(()) = asked.recv() => true,
            Some(()) = changes.recv() => {
                let quiet = async { while tokio::time::timeout(QUIET, changes.recv()).await.is_ok() {} };
                let _ = tokio::time::timeout(MOST_QUIET, quiet).await;
                false
            }
            () = tokio::time::sleep(POLL) => false,
        };
        let reloading = {
            let (server, source) = (Arc::clone(&server), Arc::clone(&source));
            tokio::task::spawn_blocking(move || reload(&server, &source))
        };
        // Where it ended in a bug, the old one stays as well.
        let reloaded = reloading
            .await
            .unwrap_or_else(|error| Err(ConfigError::Values(error.to_string())));
        match reloaded {
            Ok(true) => {
                server.metrics.reloaded(true);
                last_error = None;
                // It may name other files.
                watcher = watch_files(&files(&source, &server.live().config), &changed);
                // What has changed between the two watchers nobody has seen.
                let _ = changed.try_send(());
                tracing::info!(hash = server.live().hash, "configuration reloaded");
            }
            Ok(false) => {
                server.metrics.is_current();
                if is_asked || last_error.take().is_some() {
                    tracing::info!(
                        hash = server.live().hash,
                        "the configuration has not changed"
                    );
                }
            }
            Err(error) => {
                let text = error.to_string();
                // Once, not at every look.
                if is_asked || last_error.as_ref() != Some(&text) {
                    server.metrics.reloaded(false);
                    tracing::error!(
                        error = text,
                        "the configuration was refused; the old one stays in use"
                    );
                }
                last_error = Some(text);
            }
        }
    }
}

/// Watches the folders, as files are often put in the place of others, and links in the place of links.
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
        .for_each(|file| add_folders(file, &mut folders, MOST_LINKS));
    for folder in folders {
        if let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, folder = %folder.display(), "changes here are seen only every 30 s");
        }
    }
    Some(watcher)
}

/// As many as the system follows.
const MOST_LINKS: usize = 40;

/// Adds the folder that a file is in, and that of every link on the way to it: each of them may be swapped.
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
