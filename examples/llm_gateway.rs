//! A gateway to a language model that charges by the token. What an answer can cost at most is taken before it is asked for,
//! and what it did not use is given back when it has been streamed: no burst in parallel gets past the limit. Run it:
//!
//! ```sh
//! cargo run -p tidegate-examples --bin llm_gateway
//! curl -i 'localhost:3000/complete?prompt=the+quick+brown+fox&max_tokens=400' -H 'authorization: Bearer sk-1'
//! ```
//!
//! `LISTEN=127.0.0.1:8080` in the environment has it listen elsewhere.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::routing::get;
use futures_util::stream;
use tidegate::tower::{Charge, Limits, RateLimitLayer, key};
use tidegate::{Book, Gate, Rules};

#[derive(serde::Deserialize)]
struct Completion {
    prompt: String,
}

/// What an answer costs where nobody says.
const MAX_TOKENS: u64 = 500;

/// What the answer can cost at most: what the client asks for, and no less than nothing.
fn reserved(uri: &axum::http::Uri) -> u64 {
    let query = uri.query().unwrap_or_default();
    let asked = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("max_tokens=")?.parse().ok());
    asked.unwrap_or(MAX_TOKENS).max(1)
}

fn app() -> anyhow::Result<Router> {
    // 1,000 tokens a minute for every API key; and for every address, for nobody looks here whether a key is one.
    let book = Book::new()
        .with("per_key", Rules::new("1000/minute".parse()?))?
        .with("per_address", Rules::new("5000/minute".parse()?))?;
    let limits = Limits::new(Gate::memory(book))
        .limit("per_key", key::api_key("authorization"))?
        .limit("per_address", key::client_address())?
        .cost(|request| reserved(&request.uri))
        .never_status(413)
        .settle();
    Ok(Router::new()
        .route("/complete", get(complete))
        .route_layer(RateLimitLayer::new(limits)))
}

/// Stands for the model: it answers the prompt's words in reverse, one at a time.
async fn complete(
    Extension(charge): Extension<Charge>,
    uri: axum::http::Uri,
    Query(completion): Query<Completion>,
) -> Body {
    let words: Vec<String> = completion
        .prompt
        .split_whitespace()
        .map(|word| format!("{word} "))
        .collect();
    // No more than was reserved.
    let most = usize::try_from(reserved(&uri)).unwrap_or(usize::MAX);
    let tokens = words.into_iter().rev().take(most).map(move |token| {
        // Told as it goes: who hangs up in the middle has paid for what was made.
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
