//! Runs a server, from its configuration to its shutdown.

use std::future::Future;
use std::sync::Arc;

use tidegate::store::Store;
use tidegate::{AnyStore, Gate, StoreUrl};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::activity::Activity;
use crate::config::{Config, ConfigSource};
use crate::error::ServeError;
use crate::grpc::Grpc;
use crate::http::Http;
use crate::net::{Listeners, ProtocolHandler, UnixSocket, accept, accept_unix};
use crate::resp::Resp;
use crate::secrets::Secrets;
use crate::server::{ActiveConfig, Server};
use crate::{activity, monitor, reload, snapshot, xds};

/// The source of a running server's configuration, and the signal to reload it.
pub struct Reloads {
    /// The source of the configuration.
    pub source: ConfigSource,
    /// Receives a message to reload now, for example on SIGHUP.
    pub requests: mpsc::Receiver<()>,
}

/// Serves until `shutdown` completes, then drains for at most `bounds.drain_timeout`. Calls `ready`
/// once requests are served.
///
/// # Errors
///
/// Returns an error if the configuration is invalid, if the store cannot be reached, or if a
/// snapshot cannot be restored, or written at the end.
pub async fn run(
    config: Config,
    listeners: Listeners,
    reloads: Option<Reloads>,
    ready: impl FnOnce() + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    // Locked before it is read: another server may be about to write it.
    let lock = config
        .store
        .snapshot
        .as_deref()
        .map(snapshot::lock)
        .transpose()?;
    let url = store_url(&config)?;
    serve(config, url, lock, listeners, reloads, ready, shutdown).await
}

/// Like [`run`], with a manual clock. For tests only.
///
/// # Errors
///
/// Returns the errors of [`run`].
#[cfg(feature = "manual-time")]
pub async fn run_at(
    clock: tidegate::ManualClock,
    config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let url = store_url(&config)?.manual_time(clock, std::time::Duration::from_secs(3_600));
    serve(config, url, None, listeners, None, || {}, shutdown).await
}

/// Returns the store's URL with the settings of the configuration.
fn store_url(config: &Config) -> Result<StoreUrl, ServeError> {
    let mut url = config.store.url.url().clone();
    if let Some(failure) = config.failure_policy() {
        url = url.with_failure_policy(failure);
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
    // The monitor logs them, also while no request comes.
    gate.silence_outage_log();
    let activity = Activity::new(config.admin.dashboard, &config.record)?;
    let active = ActiveConfig::new(config, secrets, gate);
    let server = Arc::new(Server::new(active, activity));
    server.warn_of_few_files();
    reload::load_first_rules(&server)?;
    let ended = CancellationToken::new();
    // If this future is dropped, everything that it started ends.
    let _all = ended.clone().drop_guard();
    let beside = TaskTracker::new();
    beside.spawn(monitor::watch(Arc::clone(&server), ended.clone()));
    beside.spawn(activity::watch(Arc::clone(&server), ended.clone()));
    let keeper = tokio::spawn(snapshot::keep(Arc::clone(&server), ended.clone(), lock));
    if let Some(Reloads { source, requests }) = reloads {
        beside.spawn(reload::watch(
            Arc::clone(&server),
            source,
            requests,
            ended.clone(),
        ));
    }
    beside.spawn(xds::watch(Arc::clone(&server), ended.clone()));
    let workers = Workers::start(&server, listeners)?;
    ready();
    shutdown.await;
    let delay = server.active().config.bounds.drain_delay();
    if !delay.is_zero() {
        server.start_leaving();
        let delay_seconds = delay.as_secs_f64();
        tracing::info!(
            delay_seconds,
            "shutting down, not ready, still accepting connections"
        );
        tokio::time::sleep(delay).await;
    }
    tracing::info!(
        connections = server.connections.count(),
        "shutting down, draining connections"
    );
    server.start_draining();
    workers.end(&server).await;
    // No request needs the quota that this process has leased.
    Store::give_back_leases(server.active().gate.store()).await;
    ended.cancel();
    // The last snapshot is written after all connections have ended.
    let kept = keeper
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
    beside.close();
    beside.wait().await;
    tracing::info!("shut down");
    kept
}

async fn gate(config: &Config, url: StoreUrl) -> Result<Gate<AnyStore>, ServeError> {
    let path = config.store.snapshot.clone();
    match url.gate(config.policy_set()?).await {
        Ok(gate) => {
            if let (AnyStore::Memory(store), Some(path)) = (gate.store(), &path)
                && store.stats().keys > 0
            {
                tracing::info!(keys = store.stats().keys, path = %path.display(), "snapshot restored");
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

/// One thread per core, each with its own runtime and sockets, so no request changes threads. One
/// more thread for the admin listener.
struct Workers {
    /// Cancelled to drain: accept no more connections and finish requests in flight.
    ending: CancellationToken,
    /// Cancelled to drop all connections.
    over: CancellationToken,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// End the threads if this is dropped.
    _guards: [DropGuard; 2],
}

/// Starts a listener on a worker.
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
        let mut grpcs = listeners
            .grpc
            .into_iter()
            .flat_map(|sockets| sockets.sockets);
        let mut grpc_unix = listeners.grpc_unix;
        let services = Grpc::new(server);
        loop {
            let (http, resp, grpc) = (https.next(), resps.next(), grpcs.next());
            let unix = grpc_unix.take();
            if http.is_none() && resp.is_none() && grpc.is_none() && unix.is_none() {
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
            let grpc = grpc.map(|socket| listening(socket, services.clone()));
            let unix = unix.map(|socket| listening_unix(socket, services.clone()));
            let all = [http, resp, grpc, unix].into_iter().flatten();
            workers.start_one(server, all.collect())?;
        }
        for socket in listeners
            .admin
            .into_iter()
            .chain(listeners.metrics)
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
            // With the default of 61, a tenth of the requests of fifty connections wait twice as
            // long.
            .event_interval(31)
            .enable_all()
            .build()?;
        // A token per thread, so that threads do not contend for one.
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
                tracing::error!(%error, "cannot start listener");
            }
            ending.cancelled().await;
            tasks.close();
            tokio::select! {
                () = tasks.wait() => {}
                // The remaining connections are dropped with the runtime.
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

    /// Drain: accepts no more connections, and waits until all have ended, for at most
    /// `bounds.drain_timeout`.
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
        let timeout = server.active().config.bounds.drain_timeout.0;
        if tokio::time::timeout(timeout, &mut joined).await.is_err() {
            tracing::warn!(
                connections = server.connections.count(),
                "drain timeout, dropping connections"
            );
            over.cancel();
            let _ = joined.await;
        }
    }
}

fn listening(socket: std::net::TcpListener, protocol: impl ProtocolHandler) -> Listening {
    Box::new(move |server, ending, tasks| listen(socket, protocol, server, ending, tasks))
}

fn listening_unix(socket: UnixSocket, protocol: impl ProtocolHandler) -> Listening {
    Box::new(move |server, ending, tasks| {
        let accepting = accept_unix(
            socket,
            protocol,
            Arc::clone(server),
            ending.clone(),
            tasks.clone(),
        );
        tasks.spawn(async move {
            if let Err(error) = accepting.await {
                tracing::error!(%error, "cannot start listener");
            }
        });
        Ok(())
    })
}

fn listen(
    socket: std::net::TcpListener,
    protocol: impl ProtocolHandler,
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
