//! A tonic service with a limit on every client address. Run it:
//!
//! ```sh
//! cargo run -p tidegate-examples --bin tonic_service
//! ```
//!
//! `LISTEN=127.0.0.1:8080` in the environment has it listen elsewhere.
//!
//! It serves gRPC's standard health check, which any gRPC client can call; your own services are added the same way. Who is
//! denied gets RESOURCE_EXHAUSTED, with RetryInfo in the details.

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
