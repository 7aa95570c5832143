//! Where connections come in: bound before the server runs, so that who starts it knows the ports.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::{Config, Listen};
use crate::error::ServeError;

/// Connections that wait to be taken.
const BACKLOG: i32 = 4_096;

/// The sockets of a server, bound.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) http: Option<Sockets>,
    pub(crate) resp: Option<Sockets>,
    pub(crate) admin: Option<Sockets>,
}

/// One address, and a socket there for each worker: the kernel hands a connection to one of them.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) address: SocketAddr,
    pub(crate) sockets: Vec<TcpListener>,
}

impl Listeners {
    /// Binds where a configuration says.
    ///
    /// # Errors
    /// If an address is taken, or not one of this machine.
    pub fn bind(config: &Config) -> Result<Self, ServeError> {
        let workers = workers();
        Ok(Self {
            http: bind("http", config.http.listen, workers)?,
            resp: bind("resp", config.resp.listen, workers)?,
            admin: bind("admin", config.admin.listen, 1)?,
        })
    }

    /// Where HTTP is spoken.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|sockets| sockets.address)
    }

    /// Where RESP is spoken.
    #[must_use]
    pub fn resp(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(|sockets| sockets.address)
    }

    /// Where operators ask.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|sockets| sockets.address)
    }
}

/// One a core that this process may run on.
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
    // Shared with sockets of our own only: another process that listens there is to be noticed.
    drop(TcpListener::bind(address).map_err(error)?);
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = bind_one(address, count > 1).map_err(error)?;
        // Port 0 was any; for those after the first it is the same.
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
