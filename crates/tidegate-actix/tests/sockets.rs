//! actix-web over real sockets. Exactly the limit passes, and the headers are correct.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::{App, HttpMessage, HttpRequest, HttpResponse, HttpServer, web};
use tidegate_actix::{Charge, ClientAddress, Limits, RateLimit, key};
use tidegate_core::{FailurePolicy, Gate, PolicySet, Rules, Store};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::RedisServer;

/// A server with its own workers. Dropping it stops the server.
struct Server {
    address: SocketAddr,
    handle: ServerHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
    }
}

/// Responds with the status in the path. Under `/told` it also sets a charge of 20.
async fn handle(request: HttpRequest) -> Result<HttpResponse, actix_web::Error> {
    Ok(match request.path() {
        "/told" => {
            request
                .extensions()
                .get::<Charge>()
                .unwrap()
                .set(20)
                .unwrap();
            HttpResponse::Ok().body("told")
        }
        "/panic" => panic!("as handlers do"),
        "/never" => {
            std::future::pending::<()>().await;
            HttpResponse::Ok().finish()
        }
        "/error" => return Err(actix_web::error::ErrorUnauthorized("no")),
        path => {
            let status = path.trim_start_matches('/').parse().unwrap_or(200);
            HttpResponse::build(StatusCode::from_u16(status).unwrap()).body("0123456789")
        }
    })
}

/// Rejects some requests with an error, like middleware that authenticates.
async fn authenticate(
    request: actix_web::dev::ServiceRequest,
    next: actix_web::middleware::Next<impl actix_web::body::MessageBody>,
) -> Result<actix_web::dev::ServiceResponse<impl actix_web::body::MessageBody>, actix_web::Error> {
    if request.path() == "/unknown" {
        return Err(actix_web::error::ErrorUnauthorized("who are you?"));
    }
    next.call(request).await
}

fn serve<S: Store>(limits: &Limits<S>) -> Server {
    let (send, receive) = std::sync::mpsc::channel();
    let limit = RateLimit::new(limits.clone());
    std::thread::spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            let server = HttpServer::new(move || {
                let app = App::new()
                    .wrap(actix_web::middleware::from_fn(authenticate))
                    .wrap(limit.clone());
                app.default_service(web::to(handle))
            });
            // Otherwise a client that closed its end of the connection counts as still reading.
            let server = server.h1_allow_half_closed(false);
            let server = server
                .workers(2)
                .disable_signals()
                .bind("127.0.0.1:0")
                .unwrap();
            let address = server.addrs()[0];
            let server = server.run();
            send.send(Server {
                address,
                handle: server.handle(),
            })
            .unwrap();
            server.await.unwrap();
        });
    });
    receive.recv().unwrap()
}

/// A response: its status, its head in lower case, and its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

fn passed_of_64_connections(address: SocketAddr) -> usize {
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(move || {
                    let answers: Vec<Answer> = (0..5).map(|_| get(address, "/", &[])).collect();
                    for answer in &answers {
                        assert_eq!(answer.header("retry-after").is_some(), answer.status == 429);
                        assert!(answer.header("ratelimit").is_some());
                    }
                    answers.iter().filter(|answer| answer.status == 200).count()
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    })
}

fn limits(policy: &str) -> Limits {
    Limits::memory(policy.parse().unwrap(), key::global())
}

fn left(limits: &Limits) -> u64 {
    limits
        .gate()
        .check("default", "global")
        .cost(0)
        .now()
        .unwrap()
        .remaining()
        .unwrap()
}

fn wait_until(condition: impl Fn() -> bool) {
    assert!(tidegate_testkit::redis::wait_for(
        Duration::from_secs(20),
        condition
    ));
}

#[test]
fn exactly_the_limit_passes() {
    let limits = Limits::memory("100/365 days".parse().unwrap(), key::client_address());
    let server = serve(&limits);
    assert_eq!(passed_of_64_connections(server.address), 100);
}

#[test]
fn exactly_the_limit_passes_on_redis() {
    let redis = RedisServer::start();
    let policies = PolicySet::new()
        .with("api", Rules::new("100/365 days".parse().unwrap()))
        .unwrap();
    let store = RedisStore::connect_blocking(&format!("{}?timeout=5s", redis.url())).unwrap();
    let gate = Gate::builder(store, policies)
        .failure_policy(FailurePolicy::Closed)
        .build();
    let limits = Limits::new(gate)
        .limit("api", key::client_address())
        .unwrap();
    let server = serve(&limits);
    assert_eq!(passed_of_64_connections(server.address), 100);
}

#[test]
fn headers_are_structured_fields_and_match_the_decision() {
    let server = serve(&limits("fixed_window 1/365 days"));
    let first = get(server.address, "/", &[]);
    assert_eq!(
        (first.status, first.header("ratelimit-policy")),
        (200, Some(r#""default";q=1;w=31536000"#))
    );
    sfv::Parser::new(first.header("ratelimit").unwrap())
        .parse::<sfv::List>()
        .unwrap();
    let denied = get(server.address, "/", &[]);
    assert_eq!(
        (denied.status, denied.header("cache-control")),
        (429, Some("no-store"))
    );
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    let problem: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(
        problem["retry_after"].to_string(),
        denied.header("retry-after").unwrap()
    );
    assert_eq!(problem["violated-policies"], serde_json::json!(["default"]));
}

#[test]
fn clients_behind_a_proxy_are_separate_and_cannot_spoof_an_address() {
    let address = ClientAddress::behind(["127.0.0.0/8"]).unwrap();
    let server = serve(&Limits::memory("1/365 days".parse().unwrap(), address));
    let status = |forwarded| get(server.address, "/", &[("x-forwarded-for", forwarded)]).status;
    assert_eq!(
        ["203.0.113.1", "203.0.113.2", "1.1.1.1, 203.0.113.1"].map(status),
        [200, 200, 429]
    );
}

#[test]
fn the_outcome_determines_the_charge() {
    let by_status =
        limits("3/365 days").count_when(|reply| reply.status == StatusCode::UNAUTHORIZED);
    let server = serve(&by_status);
    let statuses = [
        "/200", "/200", "/200", "/200", "/401", "/401", "/401", "/200",
    ];
    let seen = statuses.map(|path| get(server.address, path, &[]).status);
    assert_eq!(seen, [200, 200, 200, 200, 401, 401, 401, 429]);
    // Errors of the handler or of inner middleware count like any other response.
    let by_error =
        limits("2/365 days").count_when(|reply| reply.status == StatusCode::UNAUTHORIZED);
    let server = serve(&by_error);
    assert_eq!(
        ["/unknown", "/error", "/200"].map(|path| get(server.address, path, &[]).status),
        [401, 401, 429]
    );
    let by_bytes = limits("100/365 days").cost(|_| 50).settle_by_bytes(5);
    let server = serve(&by_bytes);
    assert_eq!(get(server.address, "/200", &[]).body, "0123456789");
    wait_until(|| left(&by_bytes) == 98);
    let by_handler = limits("100/365 days").cost(|_| 50).settle();
    let server = serve(&by_handler);
    assert_eq!(get(server.address, "/told", &[]).body, "told");
    wait_until(|| left(&by_handler) == 80);
}

#[test]
fn a_disconnect_and_a_panic_refund_the_cost() {
    let limits = limits("9/365 days").count_when(|_| true);
    let server = serve(&limits);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream
        .write_all(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    wait_until(|| left(&limits) == 8);
    drop(stream);
    wait_until(|| left(&limits) == 9);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream
        .write_all(b"GET /panic HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    wait_until(|| limits.gate().counters()[0].refunds == 2 && left(&limits) == 9);
}

#[test]
fn a_leaky_bucket_delays_requests() {
    let limits = limits("leaky_bucket 20/second burst=100").shape(Duration::from_millis(150));
    let server = serve(&limits);
    // These are more requests than can wait. Those that would wait too long are denied, with the
    // time of a retry.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..30)
            .map(|_| scope.spawn(|| get(server.address, "/", &[]).status))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });
    assert!(
        statuses.contains(&200) && statuses.contains(&429),
        "{statuses:?}"
    );
}
