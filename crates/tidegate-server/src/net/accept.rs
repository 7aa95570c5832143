//! Accepts connections up to a maximum, and drains the queue at shutdown.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_http::client_network;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::listeners::UnixSocket;
use super::stream::Stream;
use super::timeouts::{TimeoutSettings, Timeouts};
use crate::server::Server;

/// The protocol of a listener.
pub(crate) trait ProtocolHandler: Clone + Send + Sync + 'static {
    /// Returns the TLS configuration, if the listener uses TLS.
    fn tls(&self, server: &Server) -> Option<Arc<rustls::ServerConfig>>;

    /// Returns the timeouts of a connection.
    fn times(&self, server: &Server) -> TimeoutSettings;

    /// Returns the connections that count towards the same maximum.
    fn connections<'s>(&self, server: &'s Server) -> &'s Arc<Connections>;

    /// Returns the maximum number of connections for which there are file descriptors.
    fn max_connections(&self, server: &Server) -> usize {
        server.max_connections
    }

    /// Returns the bytes sent to a connection beyond the maximum.
    fn refusal(&self) -> &'static [u8];

    /// Serves a connection until it ends.
    fn serve(&self, stream: Stream, ending: CancellationToken) -> impl Future<Output = ()> + Send;
}

/// The delay after the system has run out of a resource, most likely file descriptors.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Accepts connections until shutdown, and then those that are already queued.
pub(crate) async fn accept(
    listener: TcpListener,
    protocol: impl ProtocolHandler,
    server: Arc<Server>,
    ending: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => start(stream, peer, &protocol, &server, &ending, &tasks),
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                server.metrics.accept_failed(&error);
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
    // Clients in the queue have a connection as far as they know.
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        if stream.set_nonblocking(true).is_ok()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            start(stream, peer, &protocol, &server, &ending, &tasks);
        }
    }
}

/// Accepts connections to a Unix socket until shutdown. Its clients count as local, and TLS is not
/// used.
pub(crate) async fn accept_unix(
    socket: UnixSocket,
    protocol: impl ProtocolHandler,
    server: Arc<Server>,
    ending: CancellationToken,
    tasks: TaskTracker,
) -> std::io::Result<()> {
    const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => return Ok(()),
        };
        match accepted {
            Ok((stream, _)) => {
                let Some(place) = enter(LOCAL, &protocol, &server) else {
                    let _ = stream.try_write(protocol.refusal());
                    continue;
                };
                let (protocol, ending) = (protocol.clone(), ending.clone());
                let (server, counted) = (Arc::clone(&server), PanicCounter::new(&server));
                tasks.spawn(async move {
                    let _counted = counted;
                    let timeouts = Arc::new(Timeouts::new(protocol.times(&server), true, LOCAL));
                    protocol.serve(Stream::unix(stream, timeouts), ending).await;
                    drop(place);
                });
            }
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                server.metrics.accept_failed(&error);
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
}

/// Takes a slot for a connection, or counts that there is none.
fn enter(
    peer: SocketAddr,
    protocol: &impl ProtocolHandler,
    server: &Arc<Server>,
) -> Option<ConnectionSlot> {
    let bounds = &server.active().config.bounds;
    let most = protocol.max_connections(server);
    let slot = protocol.connections(server).enter(peer.ip(), bounds, most);
    if slot.is_none() {
        server.metrics.refused_connection();
    }
    slot
}

fn is_of_the_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}

fn start(
    stream: TcpStream,
    peer: SocketAddr,
    protocol: &impl ProtocolHandler,
    server: &Arc<Server>,
    ending: &CancellationToken,
    tasks: &TaskTracker,
) {
    let Some(place) = enter(peer, protocol, server) else {
        if protocol.tls(server).is_none() {
            // Only as much as the socket takes at once: a rejected client is not waited for.
            let _ = stream.try_write(protocol.refusal());
        }
        return;
    };
    // A response that is written at once should be sent at once.
    let _ = stream.set_nodelay(true);
    let (protocol, server, ending) = (protocol.clone(), Arc::clone(server), ending.clone());
    let counted = PanicCounter::new(&server);
    tasks.spawn(async move {
        let _counted = counted;
        let is_local = stream
            .local_addr()
            .is_ok_and(|address| address.ip().to_canonical().is_loopback());
        let timeouts = Arc::new(Timeouts::new(protocol.times(&server), is_local, peer));
        match protocol.tls(&server) {
            None => {
                protocol
                    .serve(Stream::clear(stream, timeouts), ending)
                    .await
            }
            Some(tls) => {
                let timeout = server.active().config.bounds.handshake_timeout.0;
                let agreed =
                    tokio::time::timeout(timeout, TlsAcceptor::from(tls).accept(stream)).await;
                match agreed {
                    Ok(Ok(stream)) => protocol.serve(Stream::tls(stream, timeouts), ending).await,
                    Ok(Err(_)) | Err(_) => server.metrics.failed_handshake(),
                }
            }
        }
        drop(place);
    });
}

/// Counts a panic of a task. Other tasks continue.
pub(crate) struct PanicCounter(Arc<Server>);

impl PanicCounter {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        Self(Arc::clone(server))
    }
}

impl Drop for PanicCounter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.metrics.panicked();
        }
    }
}

/// The open connections.
#[derive(Default)]
pub(crate) struct Connections {
    all: std::sync::atomic::AtomicUsize,
    /// Used only if connections per peer are limited.
    by_peer: std::sync::Mutex<std::collections::HashMap<IpAddr, usize>>,
}

/// The slot of one connection, released when it is dropped.
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    peer: Option<IpAddr>,
}

impl Connections {
    pub(crate) fn count(&self) -> usize {
        self.all.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn enter(
        self: &Arc<Self>,
        peer: IpAddr,
        bounds: &crate::config::Bounds,
        most: usize,
    ) -> Option<ConnectionSlot> {
        use std::sync::atomic::Ordering::Relaxed;
        let one_more =
            |count: usize| (count < bounds.max_connections.min(most)).then_some(count + 1);
        self.all.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        let mut place = ConnectionSlot {
            connections: Arc::clone(self),
            peer: None,
        };
        if bounds.max_connections_per_peer > 0 {
            let mut peers = self
                .by_peer
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let peer = client_network(peer);
            let count = peers.entry(peer).or_default();
            if *count >= bounds.max_connections_per_peer {
                return None;
            }
            *count += 1;
            place.peer = Some(peer);
        }
        Some(place)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections
            .all
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        if let Some(peer) = self.peer {
            let mut peers = self
                .connections
                .by_peer
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(count) = peers.get_mut(&peer) {
                *count -= 1;
                if *count == 0 {
                    peers.remove(&peer);
                }
            }
        }
    }
}
