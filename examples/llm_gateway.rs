//! A gateway to a language model with limits on requests and tokens, all or nothing.
//!
//! An estimate of the tokens is taken before the model runs, so parallel requests cannot exceed the
//! limit. Once the response has been streamed, the rest is given back, or the difference is charged:
//! a key may owe up to 2,000 tokens.
//!
//! ```sh
//! cargo run -p tidegate-examples --bin llm_gateway
//! curl -i 'localhost:3000/complete?prompt=the+quick+brown+fox&max_tokens=400' -H 'authorization: Bearer sk-1'
//! ```
//!
//! Set `LISTEN=127.0.0.1:8080` to listen on another address.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::http::request::Parts;
use axum::routing::get;
use futures_util::stream;
use tidegate::tower::{Charge, Limits, RateLimitLayer, key};
use tidegate::{Gate, PolicySet, Rules};

#[derive(serde::Deserialize)]
struct Completion {
    prompt: String,
}

/// The default for `max_tokens`.
const MAX_TOKENS: u64 = 500;

/// Returns the estimated cost of the response: the client's `max_tokens`, at least 1.
fn estimated(uri: &axum::http::Uri) -> u64 {
    let query = uri.query().unwrap_or_default();
    let asked = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("max_tokens=")?.parse().ok());
    asked.unwrap_or(MAX_TOKENS).max(1)
}

fn app() -> anyhow::Result<Router> {
    // 20 requests and 1,000 tokens a minute for each API key. This service does not verify keys, so
    // addresses are limited too.
    let policies = PolicySet::new()
        .with("requests", Rules::new("20/minute".parse()?))?
        .with("tokens", Rules::new("1000/minute debt=2000".parse()?))?
        .with("per_address", Rules::new("5000/minute debt=2000".parse()?))?;
    let tokens = |request: &Parts| estimated(&request.uri);
    let limits = Limits::new(Gate::memory(policies))
        .limit("requests", key::api_key("authorization"))?
        .limit("tokens", key::api_key("authorization").cost(tokens))?
        .limit("per_address", key::client_address().cost(tokens))?
        .never_status(413)
        .report_all()
        .settle();
    Ok(Router::new()
        .route("/complete", get(complete))
        .route_layer(RateLimitLayer::new(limits)))
}

/// A stand-in for the model: streams the words of the prompt in reverse.
async fn complete(
    Extension(charge): Extension<Charge>,
    Query(completion): Query<Completion>,
) -> Body {
    let words: Vec<String> = completion
        .prompt
        .split_whitespace()
        .map(|word| format!("{word} "))
        .collect();
    let tokens = words.into_iter().rev().map(move |token| {
        // Reported per token: a client that disconnects pays for the tokens so far.
        let _ = charge.add(1);
        Ok::<_, Infallible>(token)
    });
    Body::from_stream(stream::iter(tokens))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
