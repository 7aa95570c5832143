//! Connects to the management server. Certificates are read at every attempt, so they can be
//! replaced while the server runs.

use std::path::Path;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::config::{XdsConfig, XdsTlsConfig};

/// The maximum time of a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);
/// The interval of pings, and the time to wait for their answer. A peer that is gone without a word
/// is noticed by them.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(10);

/// Connects, or returns the reason why not.
pub(super) async fn connect(config: &XdsConfig) -> Result<Channel, String> {
    let scheme = if config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", config.server))
        .map_err(|error| error.to_string())?
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .keep_alive_while_idle(true);
    let endpoint = match &config.tls {
        None => endpoint,
        Some(tls) => endpoint.tls_config(client_tls(tls)?).map_err(|error| {
            // The cause says which file is wrong.
            let source = std::error::Error::source(&error).map(ToString::to_string);
            source.unwrap_or_else(|| error.to_string())
        })?,
    };
    endpoint.connect().await.map_err(|error| describe(&error))
}

/// Returns an error with its causes: the outermost one says only that there was one.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

fn client_tls(tls: &XdsTlsConfig) -> Result<ClientTlsConfig, String> {
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&tls.cert, &tls.key) {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
