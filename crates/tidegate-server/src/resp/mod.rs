//! RESP: what Redis clients speak. Parse, decide, render; a pipeline is read whole, decided at one time where nothing else
//! comes in between, and answered in one write.

mod batch;
mod command;
mod connection;
mod frame;
mod reply;
mod throttle;

use std::sync::Arc;

use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

use crate::net::{Connections, Guarded, Protocol, Stream, Times};
use crate::server::Server;

/// RESP.
#[derive(Clone)]
pub(crate) struct Resp {
    pub(crate) server: Arc<Server>,
}

impl Protocol for Resp {
    fn tls(&self, server: &Server) -> Option<Arc<ServerConfig>> {
        server.live().secrets.resp_tls.clone()
    }

    fn times(&self, server: &Server) -> Times {
        let config = &server.live().config;
        let (head, write) = (config.bounds.head_timeout.0, config.bounds.write_timeout.0);
        Times {
            head,
            idle: config.resp.idle_timeout.0,
            write,
            linger: config.bounds.linger(),
            may_be_http2: false,
        }
    }

    fn connections<'s>(&self, server: &'s Server) -> &'s Arc<Connections> {
        &server.connections
    }

    fn refusal(&self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }

    async fn serve(&self, stream: Stream, ending: CancellationToken) {
        let watch = Arc::clone(stream.watch());
        let connection = connection::Connection::new(Arc::clone(&self.server), stream);
        Guarded::new(connection, watch, ending.cancelled_owned()).await;
    }
}
