//! Another configuration in the place of the one in use: whole, or not at all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ConfigError, Source};
use crate::server::{Live, Server};

/// How long it is quiet before a change is looked at: files are written in pieces, links are swapped in steps.
const QUIET: Duration = Duration::from_millis(200);
/// Where changes are not told: networks, overlays.
const POLL: Duration = Duration::from_secs(30);

/// Takes over what the source says by now. Without a change, nothing happens.
pub(crate) fn reload(server: &Server, source: &Source, stamp: &mut Stamp) -> Result<bool, ConfigError> {
    let config = source.load()?;
    let now = Stamp::of(source, &config);
    if now == *stamp {
        return Ok(false);
    }
    let old = server.live();
    if let Some(name) = old.config.fixed_difference(&config) {
        return Err(ConfigError::Values(format!("`{name}` cannot be changed while the server runs: restart it")));
    }
    let gate = old.gate.renewed(config.book()?);
    server.exchange(Live::new(config, gate)?);
    *stamp = now;
    Ok(true)
}

/// The contents of all files that a configuration hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(blake3::Hash);

impl Stamp {
    pub(crate) fn of(source: &Source, config: &Config) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(config.hash().as_bytes());
        for file in files(source, config) {
            // One that is gone is a change, too.
            hasher.update(&std::fs::read(&file).unwrap_or_default()).update(b"\0file\0");
        }
        Self(hasher.finalize())
    }
}

/// The files that a configuration hangs on.
fn files(source: &Source, config: &Config) -> BTreeSet<PathBuf> {
    let tls = [&config.http.tls, &config.resp.tls, &config.admin.tls].into_iter().flatten();
    let tls = tls.flat_map(|tls| tls.files()).map(Path::to_owned);
    let tokens = config.tokens.iter().filter_map(|token| token.file.clone());
    source.file.iter().cloned().chain(tls).chain(tokens).collect()
}

/// Looks for changes until the server ends: when it is told to, when a file changes, and now and then.
pub(crate) async fn watch(
    server: Arc<Server>,
    source: Source,
    mut stamp: Stamp,
    mut asked: mpsc::Receiver<()>,
    ended: CancellationToken,
) {
    let (changed, mut changes) = mpsc::channel(1);
    // Watched for as long as it is kept.
    let _watcher = watcher(&files(&source, &server.live().config), changed);
    let mut last_error = None;
    loop {
        let is_asked = tokio::select! {
            () = ended.cancelled() => return,
            Some(()) = asked.recv() => true,
            Some(()) = changes.recv() => {
                tokio::time::sleep(QUIET).await;
                while changes.try_recv().is_ok() {}
                false
            }
            () = tokio::time::sleep(POLL) => false,
        };
        let reloaded = tokio::task::block_in_place(|| reload(&server, &source, &mut stamp));
        match reloaded {
            Ok(true) => {
                server.metrics.reloaded(true);
                last_error = None;
                tracing::info!(hash = server.live().hash, "another configuration is in use");
            }
            Ok(false) if is_asked || last_error.take().is_some() => {
                tracing::info!(hash = server.live().hash, "the configuration in use is the one there is");
            }
            Ok(false) => {}
            Err(error) => {
                server.metrics.reloaded(false);
                let text = error.to_string();
                // Once, not at every look.
                if is_asked || last_error.as_ref() != Some(&text) {
                    tracing::error!(error = text, "the configuration was refused; the old one stays in use");
                }
                last_error = Some(text);
            }
        }
    }
}

/// Watches the folders, as files are often put in the place of others, and links in the place of links.
fn watcher(files: &BTreeSet<PathBuf>, changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changed.try_send(());
        }
    };
    let mut watcher = notify::recommended_watcher(tell).ok()?;
    let folders: BTreeSet<PathBuf> = files.iter().flat_map(|file| folders(file)).collect();
    for folder in folders {
        if let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, folder = %folder.display(), "changes here are seen only every 30 s");
        }
    }
    Some(watcher)
}

/// The folder that a file is in, and the one that it really is in.
fn folders(file: &Path) -> impl Iterator<Item = PathBuf> {
    let of = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    };
    [Some(of(file)), file.canonicalize().ok().map(|real| of(&real))].into_iter().flatten()
}
