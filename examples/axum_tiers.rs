//! An axum service whose users have tiers, in memory or on Redis.
//!
//! ```sh
//! cargo run -p tidegate-examples --bin axum_tiers                      # in memory
//! cargo run -p tidegate-examples --bin axum_tiers redis://127.0.0.1/   # shared by all processes
//! curl -i localhost:3000 -H 'x-user: ann'                   # 5 a minute
//! curl -i localhost:3000 -H 'x-user: bob' -H 'x-tier: gold' # 50 a minute
//! curl localhost:3000/metrics
//! ```
//!
//! Set `LISTEN=127.0.0.1:8080` to listen on another address.
//!
//! In production, a gateway that has authenticated the user sets these headers and overwrites the
//! client's own.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tidegate::tower::{Limits, RateLimitLayer, key};
use tidegate::{AnyStore, Connect, Exception, Gate, PolicySet, Rules};

fn policies() -> anyhow::Result<PolicySet> {
    let per_user = Rules::new("5/minute".parse()?)
        .tier("gold", "50/minute".parse()?)?
        .exception("header:x-user:status-page", Exception::Unlimited)?;
    // A looser limit by address: inventing user names does not bypass it.
    let per_address = Rules::new("sliding_window_counter 100/minute".parse()?);
    Ok(PolicySet::new()
        .with("per_user", per_user)?
        .with("per_address", per_address)?)
}

fn app(gate: Gate<AnyStore>) -> anyhow::Result<Router> {
    let mut registry = Registry::default();
    tidegate::prometheus::register(&mut registry, &gate);
    let limits = Limits::new(gate)
        .limit("per_user", key::header("x-user"))?
        .limit("per_address", key::client_address())?
        .tier(|request| request.headers.get("x-tier")?.to_str().ok().map(Into::into));
    Ok(Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(RateLimitLayer::new(limits))
        // Added after the layer, so not limited.
        .route("/metrics", get(metrics))
        .with_state(Arc::new(registry)))
}

async fn metrics(State(registry): State<Arc<Registry>>) -> String {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => text,
        Err(error) => error.to_string(),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "memory://".to_owned());
    let gate = Gate::connect(&url, policies()?)
        .await
        .with_context(|| format!("the store at {url}"))?;
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Passes the peer's address to the layer.
    let service = app(gate)?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
