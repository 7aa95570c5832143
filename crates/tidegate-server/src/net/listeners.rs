//! Listening sockets, bound before the server runs, so that the caller knows the ports.

use std::io;
use std::net::{SocketAddr, TcpListener};

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
    pub(crate) admin: Option<Sockets>,
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
            admin: bind("admin", config.admin.listen, 1)?,
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
