//! Takes connections, as many as there may be, and leaves none behind when the server ends.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::stream::Stream;
use super::watch::{Times, Watch};
use crate::server::Server;

/// What is spoken on a listener.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// TLS, where the listener speaks it.
    fn tls(&self, server: &Server) -> Option<Arc<rustls::ServerConfig>>;

    /// How long a connection may be at what.
    fn times(&self, server: &Server) -> Times;

    /// The connections that are counted together with those here.
    fn connections<'s>(&self, server: &'s Server) -> &'s Arc<Connections>;

    /// The most connections that there are file descriptors for.
    fn most_connections(&self, server: &Server) -> usize {
        server.most_connections
    }

    /// What one is told that comes when there are as many as may be.
    fn refusal(&self) -> &'static [u8];

    /// Serves a connection until it ends.
    fn serve(&self, stream: Stream, ending: CancellationToken) -> impl Future<Output = ()> + Send;
}

/// How long to wait where the system has no more to give: file descriptors, most likely.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Takes connections until the server ends; then what has come already, and no more.
pub(crate) async fn accept(
    listener: TcpListener,
    protocol: impl Protocol,
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
    // Whoever is in the queue has been told that they are connected.
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
    protocol: &impl Protocol,
    server: &Arc<Server>,
    ending: &CancellationToken,
    tasks: &TaskTracker,
) {
    let connections = protocol.connections(server);
    let Some(place) = connections.enter(
        peer.ip(),
        &server.live().config.bounds,
        protocol.most_connections(server),
    ) else {
        server.metrics.refused_connection();
        if protocol.tls(server).is_none() {
            // As much as the socket takes at once: nobody waits for one that is not to be here.
            let _ = stream.try_write(protocol.refusal());
        }
        return;
    };
    // What is answered in one write is to go at once.
    let _ = stream.set_nodelay(true);
    let (protocol, server, ending) = (protocol.clone(), Arc::clone(server), ending.clone());
    let counted = Counted::new(&server);
    tasks.spawn(async move {
        let _counted = counted;
        let is_local = stream
            .local_addr()
            .is_ok_and(|address| address.ip().to_canonical().is_loopback());
        let watch = Arc::new(Watch::new(protocol.times(&server), is_local));
        match protocol.tls(&server) {
            None => protocol.serve(Stream::clear(stream, watch), ending).await,
            Some(tls) => {
                let patience = server.live().config.bounds.handshake_timeout.0;
                let agreed =
                    tokio::time::timeout(patience, TlsAcceptor::from(tls).accept(stream)).await;
                match agreed {
                    Ok(Ok(stream)) => protocol.serve(Stream::tls(stream, watch), ending).await,
                    Ok(Err(_)) | Err(_) => server.metrics.failed_handshake(),
                }
            }
        }
        drop(place);
    });
}

/// Counts a task that ends in a bug: the others go on.
pub(crate) struct Counted(Arc<Server>);

impl Counted {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        Self(Arc::clone(server))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.metrics.panicked();
        }
    }
}

/// The connections there are.
#[derive(Default)]
pub(crate) struct Connections {
    all: std::sync::atomic::AtomicUsize,
    /// Only where they are bounded.
    by_peer: std::sync::Mutex<std::collections::HashMap<IpAddr, usize>>,
}

/// One connection's place among them, given up when it is dropped.
pub(crate) struct Place {
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
    ) -> Option<Place> {
        use std::sync::atomic::Ordering::Relaxed;
        let one_more =
            |count: usize| (count < bounds.max_connections.min(most)).then_some(count + 1);
        self.all.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        let mut place = Place {
            connections: Arc::clone(self),
            peer: None,
        };
        if bounds.max_connections_per_peer > 0 {
            let mut peers = self
                .by_peer
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let peer = network(peer);
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

/// Whom an address stands for: of IPv6 everybody has a network of 2^64.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

impl Drop for Place {
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
