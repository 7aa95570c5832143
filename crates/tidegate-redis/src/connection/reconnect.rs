//! The task that reconnects: one attempt at a time, with backoff, until there is a connection.

use std::sync::{Arc, Weak};

use tokio::time::{sleep, timeout};

use super::node::Node;
use super::state::Numbered;
use crate::dial::describe;

/// Reconnects until there is a connection, or the store is gone. `old` is a connection that may
/// answer again.
pub(super) async fn run(node: Weak<Node>, mut old: Option<Numbered>) {
    loop {
        let Some(delay) = node
            .upgrade()
            .map(|node| node.read(|state| state.reconnect_delay()))
        else {
            return;
        };
        if let Some(delay) = delay {
            sleep(delay).await;
        }
        let Some(node) = node.upgrade() else { return };
        match attempt(&node, old.take()).await {
            Ok(connection) => {
                if node.transition_with(|state| state.reconnected(connection)) {
                    node.health.reconnected();
                }
                return;
            }
            Err(error) => {
                node.health.failed_to_connect();
                let reason = describe(&error).into();
                node.transition(|state| state.connect_failed(reason));
            }
        }
    }
}

/// Returns the old connection if it answers again, and otherwise a new one.
async fn attempt(node: &Arc<Node>, old: Option<Numbered>) -> redis::RedisResult<Numbered> {
    if let Some((mut connection, generation)) = old {
        let ping = redis::cmd("PING");
        let answered = timeout(node.settings().timeout, ping.exec_async(&mut connection)).await;
        if let Ok(Ok(())) = answered {
            return Ok((connection, generation));
        }
    }
    node.dial().await
}
