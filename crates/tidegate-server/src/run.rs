//! A server, from its configuration to its end.

use std::future::Future;
use std::sync::Arc;

use tidegate::{AnyStore, Gate, StoreUrl};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Source};
use crate::error::ServeError;
use crate::http::Http;
use crate::net::{Listeners, Protocol, Sockets, accept};
use crate::resp::Resp;
use crate::server::{Live, Server};
use crate::{monitor, reload, snapshot};

/// How often and from where a running server is told to read its configuration again.
pub struct Reloads {
    /// Where it comes from.
    pub source: Source,
    /// Told to look at it now: by SIGHUP, say.
    pub asked: mpsc::Receiver<()>,
}

/// Serves until `shutdown` is done, and then until what is asked is answered: at most `bounds.drain_timeout`. `ready` is
/// called once requests are served.
///
/// # Errors
/// If the configuration does not go together, or the store is not there.
pub async fn run(
    config: Config,
    listeners: Listeners,
    reloads: Option<Reloads>,
    ready: impl FnOnce() + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let url = store_url(&config)?;
    serve(config, url, listeners, reloads, ready, shutdown).await
}

/// The same, told the time by a clock: for tests, and in no program that is shipped.
///
/// # Errors
/// As [`run`].
#[cfg(feature = "given-time")]
pub async fn run_at(
    clock: tidegate::ManualClock,
    config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let url = store_url(&config)?.given_time(clock, std::time::Duration::from_secs(3_600));
    serve(config, url, listeners, None, || {}, shutdown).await
}

/// The store's URL, with what the configuration says beside it.
fn store_url(config: &Config) -> Result<StoreUrl, ServeError> {
    let mut url = config.store.url.url().clone();
    if let Some(failure) = config.failure_policy() {
        url = url.failure(failure);
    }
    if config.store.lazy {
        url = url.lazily();
    }
    if let Some(path) = &config.store.snapshot
        && let Some(bytes) = snapshot::read(path)?
    {
        url = url.restore(bytes);
    }
    Ok(url)
}

async fn serve(
    config: Config,
    url: StoreUrl,
    listeners: Listeners,
    reloads: Option<Reloads>,
    ready: impl FnOnce() + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let gate = gate(&config, url).await?;
    let server = Arc::new(Server::new(Live::new(config, gate)?));
    let ended = CancellationToken::new();
    let beside = TaskTracker::new();
    beside.spawn(monitor::watch(Arc::clone(&server), ended.clone()));
    let keeper = tokio::spawn(snapshot::keep(Arc::clone(&server), ended.clone()));
    if let Some(Reloads { source, asked }) = reloads {
        let stamp = reload::Stamp::of(&source, &server.live().config);
        beside.spawn(reload::watch(Arc::clone(&server), source, stamp, asked, ended.clone()));
    }
    let workers = Workers::start(&server, listeners)?;
    ready();
    shutdown.await;
    tracing::info!(connections = server.connections.count(), "ending: what is asked is answered, and no more is taken");
    server.end();
    let patience = server.live().config.bounds.drain_timeout.0;
    if tokio::time::timeout(patience, workers.end()).await.is_err() {
        tracing::warn!(connections = server.connections.count(), "ended before all connections were");
    }
    ended.cancel();
    // The last snapshot is written when nothing is counted any more.
    let _ = keeper.await;
    beside.close();
    beside.wait().await;
    tracing::info!("ended");
    Ok(())
}

async fn gate(config: &Config, url: StoreUrl) -> Result<Gate<AnyStore>, ServeError> {
    let path = config.store.snapshot.clone();
    match url.gate(config.book()?).await {
        Ok(gate) => {
            if let (AnyStore::Memory(store), Some(path)) = (gate.store(), &path)
                && store.stats().keys > 0
            {
                tracing::info!(keys = store.stats().keys, path = %path.display(), "going on where the snapshot was");
            }
            Ok(gate)
        }
        Err(tidegate::ConnectError::Restore(error)) => {
            Err(ServeError::Snapshot { path: path.unwrap_or_default(), error: error.to_string() })
        }
        Err(error) => Err(error.into()),
    }
}

/// A thread a core, each with its own runtime and its own sockets: no request changes threads. What operators ask is
/// answered by the runtime that the server was started on.
struct Workers {
    ending: CancellationToken,
    threads: Vec<std::thread::JoinHandle<()>>,
    admin: TaskTracker,
}

impl Workers {
    fn start(server: &Arc<Server>, listeners: Listeners) -> Result<Self, ServeError> {
        let mut workers = Self { ending: CancellationToken::new(), threads: Vec::new(), admin: TaskTracker::new() };
        let mut https = listeners.http.into_iter().flat_map(|sockets| sockets.sockets);
        let mut resps = listeners.resp.into_iter().flat_map(|sockets| sockets.sockets);
        loop {
            let (http, resp) = (https.next(), resps.next());
            if http.is_none() && resp.is_none() {
                break;
            }
            workers.start_one(server, http, resp)?;
        }
        if let Some(Sockets { sockets, .. }) = listeners.admin {
            let http = Http { server: Arc::clone(server), is_admin: true };
            for socket in sockets {
                listen(socket, http.clone(), server, &workers.ending, &workers.admin)?;
            }
        }
        Ok(workers)
    }

    fn start_one(
        &mut self,
        server: &Arc<Server>,
        http: Option<std::net::TcpListener>,
        resp: Option<std::net::TcpListener>,
    ) -> Result<(), ServeError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Of its own, so that threads do not meet at it.
        let (server, ending) = (Arc::clone(server), self.ending.child_token());
        let work = async move {
            let tasks = TaskTracker::new();
            let (http_server, resp_server) = (Arc::clone(&server), Arc::clone(&server));
            let listening = [
                http.map(|socket| {
                    listen(socket, Http { server: http_server, is_admin: false }, &server, &ending, &tasks)
                }),
                resp.map(|socket| listen(socket, Resp { server: resp_server }, &server, &ending, &tasks)),
            ];
            for error in listening.into_iter().flatten().filter_map(Result::err) {
                tracing::error!(%error, "a listener could not be started");
            }
            ending.cancelled().await;
            tasks.close();
            tasks.wait().await;
        };
        let name = format!("tidegate-{}", self.threads.len());
        let thread = std::thread::Builder::new().name(name).spawn(move || runtime.block_on(work))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Takes no more connections, and waits until those there are have ended.
    async fn end(self) {
        self.ending.cancel();
        self.admin.close();
        self.admin.wait().await;
        let ended = tokio::task::spawn_blocking(|| self.threads.into_iter().for_each(|thread| drop(thread.join())));
        let _ = ended.await;
    }
}

fn listen(
    socket: std::net::TcpListener,
    protocol: impl Protocol,
    server: &Arc<Server>,
    ending: &CancellationToken,
    tasks: &TaskTracker,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(socket)?;
    tasks.spawn(accept(listener, protocol, Arc::clone(server), ending.clone(), tasks.clone()));
    Ok(())
}
