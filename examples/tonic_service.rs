//! A tonic service that limits each client address.
//!
//! ```sh
//! cargo run -p tidegate-examples --bin tonic_service
//! ```
//!
//! Set `LISTEN=127.0.0.1:8080` to listen on another address.
//!
//! It serves gRPC's standard health check, which any gRPC client can call. Your own services are
//! added the same way. A denied call gets RESOURCE_EXHAUSTED with RetryInfo.

use tidegate::tower::{RateLimitLayer, key};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let limit = RateLimitLayer::memory("5/minute".parse()?, key::client_address());
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = Server::builder().layer(limit).add_service(health);
    Ok(server
        .serve_with_incoming(TcpIncoming::from(listener))
        .await?)
}
