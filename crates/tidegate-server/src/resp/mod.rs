//! RESP, the protocol of Redis clients: parse, decide, render.
//!
//! A pipeline is read as a whole, its throttle commands are decided together unless another command
//! is in between, and the replies are sent in one write.

mod batch;
mod command;
mod connection;
mod frame;
mod policy;
mod reply;
mod throttle;
mod transaction;

use std::sync::Arc;

use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

use crate::net::{Connections, ProtocolHandler, Stream, TimedConnection, TimeoutSettings};
use crate::server::Server;

/// The RESP protocol.
#[derive(Clone)]
pub(crate) struct Resp {
    pub(crate) server: Arc<Server>,
}

impl ProtocolHandler for Resp {
    fn tls(&self, server: &Server) -> Option<Arc<ServerConfig>> {
        server.active().secrets.resp_tls.clone()
    }

    fn times(&self, server: &Server) -> TimeoutSettings {
        let config = &server.active().config;
        let (head, write) = (config.bounds.head_timeout.0, config.bounds.write_timeout.0);
        TimeoutSettings {
            head,
            idle: config.resp.idle_timeout.0,
            write,
            linger: config.bounds.linger(),
            may_be_http2: false,
            max_age: None,
        }
    }

    fn connections<'s>(&self, server: &'s Server) -> &'s Arc<Connections> {
        &server.connections
    }

    fn refusal(&self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }

    async fn serve(&self, stream: Stream, ending: CancellationToken) {
        let timeouts = Arc::clone(stream.timeouts());
        let connection = connection::RespConnection::new(Arc::clone(&self.server), stream);
        TimedConnection::new(connection, timeouts, ending.cancelled_owned()).await;
    }
}
