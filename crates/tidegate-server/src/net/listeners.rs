//! Listening sockets, bound before the server runs, so that the caller knows the ports.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::{Config, Listen};
use crate::error::ServeError;

/// The maximum number of connections waiting to be accepted.
const BACKLOG: i32 = 4_096;

/// The bound sockets of a server.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) http: Option<Sockets>,
    pub(crate) resp: Option<Sockets>,
    pub(crate) grpc: Option<Sockets>,
    pub(crate) grpc_unix: Option<UnixSocket>,
    pub(crate) admin: Option<Sockets>,
    pub(crate) metrics: Option<Sockets>,
}

/// A Unix socket. Its file is deleted when this is dropped.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    pub(crate) listener: UnixListener,
    pub(crate) path: PathBuf,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An address with one socket for each worker. The kernel distributes connections.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) address: SocketAddr,
    pub(crate) sockets: Vec<TcpListener>,
}

impl Listeners {
    /// Binds the addresses of a configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is in use, or is not an address of this machine.
    pub fn bind(config: &Config) -> Result<Self, ServeError> {
        let workers = workers();
        Ok(Self {
            http: bind("http", config.http.listen, workers)?,
            resp: bind("resp", config.resp.listen, workers)?,
            grpc: bind("grpc", config.grpc.listen, workers)?,
            grpc_unix: match &config.grpc.socket {
                Some(path) => Some(bind_unix("grpc", path)?),
                None => None,
            },
            admin: bind("admin", config.admin.listen, 1)?,
            metrics: bind("admin", config.admin.metrics_listen, 1)?,
        })
    }

    /// Returns the address of the HTTP listener.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|sockets| sockets.address)
    }

    /// Returns the address of the RESP listener.
    #[must_use]
    pub fn resp(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(|sockets| sockets.address)
    }

    /// Returns the address of the gRPC listener.
    #[must_use]
    pub fn grpc(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|sockets| sockets.address)
    }

    /// Returns the path of the gRPC listener's Unix socket.
    #[must_use]
    pub fn grpc_socket(&self) -> Option<&Path> {
        self.grpc_unix.as_ref().map(|socket| socket.path.as_path())
    }

    /// Returns the address of the admin listener.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|sockets| sockets.address)
    }
}

/// Returns the number of workers: one per core that this process may use.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn bind(name: &'static str, listen: Listen, count: usize) -> Result<Option<Sockets>, ServeError> {
    let Some(mut address) = listen.address() else {
        return Ok(None);
    };
    let wanted = address;
    let error = |error| ServeError::Bind {
        name,
        address: wanted,
        error,
    };
    // The address is shared only between our own sockets, so another process on it must be
    // detected.
    drop(TcpListener::bind(address).map_err(error)?);
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = bind_one(address, count > 1).map_err(error)?;
        // Port 0 becomes a fixed port for the following sockets.
        address = socket.local_addr().map_err(error)?;
        sockets.push(socket);
    }
    Ok(Some(Sockets { address, sockets }))
}

/// Binds a Unix socket. A file that a server left behind is replaced; one in use is an error.
fn bind_unix(name: &'static str, path: &Path) -> Result<UnixSocket, ServeError> {
    use std::os::unix::fs::FileTypeExt;
    let error = |error| ServeError::BindSocket {
        name,
        path: path.to_owned(),
        error,
    };
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket {
        if UnixStream::connect(path).is_ok() {
            return Err(error(io::ErrorKind::AddrInUse.into()));
        }
        std::fs::remove_file(path).map_err(error)?;
    }
    let listener = UnixListener::bind(path).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    Ok(UnixSocket {
        listener,
        path: path.to_owned(),
    })
}

fn bind_one(address: SocketAddr, is_shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
