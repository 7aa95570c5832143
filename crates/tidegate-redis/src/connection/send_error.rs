//! Errors of an operation: whether the server said that it was not executed.
//!
//! Only an operation that was certainly not executed may be sent again.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::dial::Destination;
use crate::error::CallError;
use crate::reply::Reply;
use crate::url::{Address, host_or};

/// The result of one operation.
pub(crate) type SendResult = Result<Reply, SendError>;

/// The error of an operation that has no reply from this node.
#[derive(Clone, Debug)]
pub(crate) enum SendError {
    /// The operation was not executed. It may be sent again, elsewhere or later.
    NotExecuted(NotExecuted),
    /// The operation may have been executed, or sending it again is pointless.
    Failed(CallError),
}

/// The server's reason for not executing an operation.
#[derive(Clone, Debug)]
pub(crate) enum NotExecuted {
    /// MOVED: the slot belongs to another node.
    Moved(Address),
    /// ASK: this key is on another node, and its slot will be.
    Ask(Address),
    /// READONLY: the node is a replica.
    ReadOnly,
    /// TRYAGAIN: some keys have moved to another node, and some have not.
    TryAgain,
    /// LOADING, CLUSTERDOWN or MASTERDOWN: not now.
    Later(Arc<str>),
}

/// Classifies an error that the server at `destination` sent.
pub(super) fn from_server(error: &RedisError, destination: &Destination) -> SendError {
    let ErrorKind::Server(kind) = error.kind() else {
        return refused(error);
    };
    let redirect = |to: fn(Address) -> NotExecuted| {
        let address = redirect_address(error, destination);
        address.map_or_else(
            || refused(error),
            |address| SendError::NotExecuted(to(address)),
        )
    };
    match kind {
        ServerErrorKind::Moved => redirect(NotExecuted::Moved),
        ServerErrorKind::Ask => redirect(NotExecuted::Ask),
        ServerErrorKind::ReadOnly => SendError::NotExecuted(NotExecuted::ReadOnly),
        ServerErrorKind::TryAgain => SendError::NotExecuted(NotExecuted::TryAgain),
        ServerErrorKind::ClusterDown
        | ServerErrorKind::MasterDown
        | ServerErrorKind::BusyLoading => {
            SendError::NotExecuted(NotExecuted::Later(error.to_string().into()))
        }
        // Before Redis 7, the error of a command in a script is reported as one of the script.
        ServerErrorKind::ResponseError
            if error
                .detail()
                .is_some_and(|detail| detail.contains("-READONLY")) =>
        {
            SendError::NotExecuted(NotExecuted::ReadOnly)
        }
        _ => refused(error),
    }
}

fn redirect_address(error: &RedisError, destination: &Destination) -> Option<Address> {
    let (node, _slot) = error.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    let asked = match destination {
        Destination::Node(asked) => &*asked.host,
        Destination::Unix(_) | Destination::Primary { .. } => host,
    };
    Some(Address {
        host: host_or(host, asked).to_owned(),
        port: port.parse().ok()?,
    })
}

fn refused(error: &RedisError) -> SendError {
    SendError::Failed(CallError::Refused(error.to_string().into()))
}
