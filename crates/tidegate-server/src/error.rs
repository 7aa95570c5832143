//! Why a server does not run.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::ConfigError;

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration is not one.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It cannot listen where it is told to.
    #[error("{name} cannot listen on {address}: {error}")]
    Bind {
        /// Which listener.
        name: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The store is not there.
    #[error("the store is not there (store.lazy = true starts without it)")]
    Store(#[from] tidegate::ConnectError),
    /// The snapshot was refused: starting without it would forget who has used what.
    #[error("snapshot {}: {error}; delete the file to start with empty counters", path.display())]
    Snapshot {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// The file of the snapshot cannot be used.
    #[error("the snapshot {}: {error}", path.display())]
    SnapshotFile {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// A thread or a runtime could not be had.
    #[error("the system: {0}")]
    System(#[from] std::io::Error),
}
