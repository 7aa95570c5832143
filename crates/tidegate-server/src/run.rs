//! A server, from its configuration to its end.

use std::future::Future;
use std::sync::Arc;

use tidegate::{AnyStore, Gate, StoreUrl};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::config::{Config, Source};
use crate::error::ServeError;
use crate::http::Http;
use crate::net::{Listeners, Protocol, accept};
use crate::resp::Resp;
use crate::secrets::Secrets;
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
/// If the configuration does not go together, the store is not there, or a snapshot cannot be taken over or written at the end.
pub async fn run(
    config: Config,
    listeners: Listeners,
    reloads: Option<Reloads>,
    ready: impl FnOnce() + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    // Before it is read: whoever has it may be about to write it.
    let lock = config
        .store
        .snapshot
        .as_deref()
        .map(snapshot::lock)
        .transpose()?;
    let url = store_url(&config)?;
    serve(config, url, lock, listeners, reloads, ready, shutdown).await
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
    serve(config, url, None, listeners, None, || {}, shutdown).await
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
    lock: Option<snapshot::Lock>,
    listeners: Listeners,
    reloads: Option<Reloads>,
    ready: impl FnOnce() + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let secrets = Secrets::read(&config)?;
    for exposed in config.exposed() {
        let (listener, address) = (exposed.name, exposed.listen);
        tracing::warn!(listener, %address, "listener accepts unauthenticated clients (insecure = true)");
    }
    let gate = gate(&config, url).await?;
    let server = Arc::new(Server::new(Live::new(config, secrets, gate)));
    server.warn_of_few_files();
    let ended = CancellationToken::new();
    // Whatever becomes of this future: nothing that it has started goes on without it.
    let _all = ended.clone().drop_guard();
    let beside = TaskTracker::new();
    beside.spawn(monitor::watch(Arc::clone(&server), ended.clone()));
    let keeper = tokio::spawn(snapshot::keep(Arc::clone(&server), ended.clone(), lock));
    if let Some(Reloads { source, asked }) = reloads {
        beside.spawn(reload::watch(
            Arc::clone(&server),
            source,
            asked,
            ended.clone(),
        ));
    }
    let workers = Workers::start(&server, listeners)?;
    ready();
    shutdown.await;
    tracing::info!(
        connections = server.connections.count(),
        "shutting down, draining connections"
    );
    server.end();
    workers.end(&server).await;
    ended.cancel();
    // The last snapshot is written when nothing is counted any more.
    let kept = keeper
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
    beside.close();
    beside.wait().await;
    tracing::info!("ended");
    kept
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
        Err(tidegate::ConnectError::Restore(error)) => Err(ServeError::Snapshot {
            path: path.unwrap_or_default(),
            error: error.to_string(),
        }),
        Err(error) => Err(error.into()),
    }
}

/// A thread a core, each with its own runtime and its own sockets: no request changes threads. One more for what operators
/// ask.
struct Workers {
    /// No more is taken, and what is asked is answered.
    ending: CancellationToken,
    /// All is dropped.
    over: CancellationToken,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// Ends the threads with whoever has started them.
    _guards: [DropGuard; 2],
}

/// What a worker listens for.
type Listening =
    Box<dyn FnOnce(&Arc<Server>, &CancellationToken, &TaskTracker) -> std::io::Result<()> + Send>;

impl Workers {
    fn start(server: &Arc<Server>, listeners: Listeners) -> Result<Self, ServeError> {
        let (ending, over) = (CancellationToken::new(), CancellationToken::new());
        let _guards = [ending.clone().drop_guard(), over.clone().drop_guard()];
        let mut workers = Self {
            ending,
            over,
            threads: Vec::new(),
            _guards,
        };
        let mut https = listeners
            .http
            .into_iter()
            .flat_map(|sockets| sockets.sockets);
        let mut resps = listeners
            .resp
            .into_iter()
            .flat_map(|sockets| sockets.sockets);
        loop {
            let (http, resp) = (https.next(), resps.next());
            if http.is_none() && resp.is_none() {
                break;
            }
            let is_admin = false;
            let http = http.map(|socket| {
                listening(
                    socket,
                    Http {
                        server: Arc::clone(server),
                        is_admin,
                    },
                )
            });
            let resp = resp.map(|socket| {
                listening(
                    socket,
                    Resp {
                        server: Arc::clone(server),
                    },
                )
            });
            workers.start_one(server, http.into_iter().chain(resp).collect())?;
        }
        for socket in listeners
            .admin
            .into_iter()
            .flat_map(|sockets| sockets.sockets)
        {
            let admin = Http {
                server: Arc::clone(server),
                is_admin: true,
            };
            workers.start_one(server, vec![listening(socket, admin)])?;
        }
        Ok(workers)
    }

    fn start_one(
        &mut self,
        server: &Arc<Server>,
        listening: Vec<Listening>,
    ) -> Result<(), ServeError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // Of its own, so that threads do not meet at it.
        let (server, ending, over) = (
            Arc::clone(server),
            self.ending.child_token(),
            self.over.clone(),
        );
        let work = async move {
            let tasks = TaskTracker::new();
            for error in listening
                .into_iter()
                .filter_map(|listen| listen(&server, &ending, &tasks).err())
            {
                tracing::error!(%error, "a listener could not be started");
            }
            ending.cancelled().await;
            tasks.close();
            tokio::select! {
                () = tasks.wait() => {}
                // What is left is dropped with the runtime.
                () = over.cancelled() => {}
            }
        };
        let name = format!("tidegate-{}", self.threads.len());
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || runtime.block_on(work))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Takes no more connections, and waits until those there are have ended.
    /// After `bounds.drain_timeout` nobody is waited for any more.
    async fn end(self, server: &Server) {
        let Self {
            ending,
            over,
            threads,
            _guards,
        } = self;
        ending.cancel();
        let joined = tokio::task::spawn_blocking(|| {
            threads.into_iter().for_each(|thread| drop(thread.join()))
        });
        let mut joined = std::pin::pin!(joined);
        let patience = server.live().config.bounds.drain_timeout.0;
        if tokio::time::timeout(patience, &mut joined).await.is_err() {
            tracing::warn!(
                connections = server.connections.count(),
                "ended before all connections were"
            );
            over.cancel();
            let _ = joined.await;
        }
    }
}

fn listening(socket: std::net::TcpListener, protocol: impl Protocol) -> Listening {
    Box::new(move |server, ending, tasks| listen(socket, protocol, server, ending, tasks))
}

fn listen(
    socket: std::net::TcpListener,
    protocol: impl Protocol,
    server: &Arc<Server>,
    ending: &CancellationToken,
    tasks: &TaskTracker,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(socket)?;
    tasks.spawn(accept(
        listener,
        protocol,
        Arc::clone(server),
        ending.clone(),
        tasks.clone(),
    ));
    Ok(())
}
