//! Functions limited by an attribute.
//!
//! ```sh
//! cargo run -p tidegate-examples --bin attribute                      # in memory
//! cargo run -p tidegate-examples --bin attribute redis://127.0.0.1/   # shared by all processes
//! curl -i 'localhost:3000/search?user=ann'
//! ```
//!
//! Set `LISTEN=127.0.0.1:8080` to listen on another address.

use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use tidegate::attribute::Limited;
use tidegate::rate_limit;

#[derive(serde::Deserialize)]
struct Search {
    user: String,
}

/// An axum handler: a denied request gets 429.
#[rate_limit("5/minute", key = search.user)]
async fn search(Query(search): Query<Search>) -> String {
    match send_mail(&search.user).await {
        Ok(()) => "found, mail sent\n".to_owned(),
        Err(limited) => format!("found, mail not sent: {limited}\n"),
    }
}

/// Any other function: a denied call returns an error.
#[rate_limit("fixed_window 2/hour", key = user, name = "mail")]
async fn send_mail(user: &str) -> Result<(), Limited> {
    println!("mail to {user}");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if let Some(url) = std::env::args().nth(1) {
        tidegate::attribute::connect(&url).await?;
    }
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, Router::new().route("/search", get(search))).await?)
}
