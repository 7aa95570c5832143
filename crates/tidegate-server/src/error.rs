//! The error of a server that cannot run.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::ConfigError;

/// The error of a server that cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener's address cannot be bound.
    #[error("{name} cannot listen on {address}: {error}")]
    Bind {
        /// The listener.
        name: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// A Unix socket cannot be bound.
    #[error("{name} cannot listen on {}: {error}", path.display())]
    BindSocket {
        /// The listener.
        name: &'static str,
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The rules for descriptors are invalid.
    #[error("{0}")]
    Rules(String),
    /// The store cannot be reached.
    #[error("the store cannot be reached (store.lazy = true starts without it)")]
    Store(#[from] tidegate::ConnectError),
    /// The snapshot cannot be restored. Starting without it would reset all limits.
    #[error("snapshot {}: {error}; delete the file to start with empty counters", path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: String,
    },
    /// The snapshot's file cannot be used.
    #[error("the snapshot {}: {error}", path.display())]
    SnapshotFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: String,
    },
    /// A thread or a runtime cannot be created.
    #[error("system error: {0}")]
    System(#[from] std::io::Error),
}
