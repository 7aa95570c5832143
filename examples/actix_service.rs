//! An actix-web service that limits each client address.
//!
//! ```sh
//! cargo run -p tidegate-examples --bin actix_service
//! curl -i localhost:3000
//! ```
//!
//! Set `LISTEN=127.0.0.1:8080` to listen on another address.

use actix_web::{App, HttpServer, web};
use tidegate::actix::{RateLimit, key};

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    // Created once: the clones of the workers share their counters.
    let limit = RateLimit::memory("5/minute".parse()?, key::client_address());
    let app = move || {
        App::new()
            .wrap(limit.clone())
            .route("/", web::get().to(|| async { "hello\n" }))
    };
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let server = HttpServer::new(app).bind(listen)?;
    if let Some(address) = server.addrs().first() {
        println!("listening on http://{address}");
    }
    Ok(server.run().await?)
}
