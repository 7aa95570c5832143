//! A login form protected against password guessing.
//!
//! Only failed attempts count, by the client's address and by the account.
//!
//! ```sh
//! cargo run -p tidegate-examples --bin login
//! curl -i localhost:3000/login -d 'name=ann&password=wrong'     # allowed 5 times in 15 minutes
//! curl -i localhost:3000/login -d 'name=ann&password=secret'
//! ```
//!
//! Set `LISTEN=127.0.0.1:8080` to listen on another address.

use std::net::SocketAddr;

use axum::Form;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tidegate::tower::{Limits, RateLimitLayer, denied_response, key};
use tidegate::{Gate, PolicySet, Rules, Subject};

#[derive(serde::Deserialize)]
struct Attempt {
    name: String,
    password: String,
}

fn app() -> anyhow::Result<Router> {
    let strict = Rules::new("sliding_window_log 5 per 15 minutes".parse()?);
    // Guessing must not lock out the owner of an account easily, so this limit is higher.
    let loose = Rules::new("sliding_window_log 20 per 15 minutes".parse()?);
    let gate = Gate::memory(
        PolicySet::new()
            .with("per_address", strict)?
            .with("per_account", loose)?,
    );
    let limits = Limits::new(gate.clone())
        .limit("per_address", key::client_address())?
        .count_when(|response| response.status == StatusCode::UNAUTHORIZED)
        // An aborted attempt counts too.
        .count_aborted();
    Ok(Router::new()
        .route("/login", post(login))
        .layer(RateLimitLayer::new(limits))
        .with_state(gate))
}

/// Limits by account here, because the account is in the body and the layer reads only the head.
async fn login(State(gate): State<Gate>, Form(attempt): Form<Attempt>) -> Response {
    let account = Subject::new("per_account", &attempt.name);
    // Taken before the password is verified, so parallel attempts cannot exceed the limit.
    let Ok((verdict, receipt)) = gate.admit(&[account]).await else {
        return (StatusCode::BAD_REQUEST, "the name is empty\n").into_response();
    };
    if let Some(denied) = denied_response(&verdict) {
        return denied.map(Body::from);
    }
    if attempt.name == "ann" && attempt.password == "secret" {
        receipt.give_back();
        return "welcome\n".into_response();
    }
    (StatusCode::UNAUTHORIZED, "wrong name or password\n").into_response()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
