//! axum, hyper and tonic over real sockets. Exactly the limit passes, and the headers are correct.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use common::{Connection, listen, passed_of_64_connections, serve};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use sfv::Parser;
use tidegate_core::{FailurePolicy, Gate, Limiter, PolicySet, Rules};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::RedisServer;
use tidegate_tower::{ClientAddress, HeaderFormat, Limits, PeerAddress, RateLimitLayer, key};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Layer;

/// The period is so long that nothing refills during a test.
const LIMIT: &str = "200/365 days";

fn per_address() -> RateLimitLayer {
    RateLimitLayer::memory(LIMIT.parse().unwrap(), key::client_address())
}

fn router() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_passes_exactly_the_limit() {
    let address = serve(router().layer(per_address())).await;
    assert_eq!(passed_of_64_connections(address, 10).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn hyper_passes_exactly_the_limit() {
    let (listener, address) = listen().await;
    let layer = per_address();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            // Each connection has its own clone of the layer, and clones share their state.
            let service = layer.clone().layer(tower::service_fn(
                |_: Request<hyper::body::Incoming>| async {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello"))))
                },
            ));
            let service = tower::util::MapRequest::new(service, move |mut request: Request<_>| {
                request.extensions_mut().insert(PeerAddress(peer.ip()));
                request
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(connection);
        }
    });
    assert_eq!(passed_of_64_connections(address, 10).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_passes_exactly_the_limit() {
    let (listener, address) = listen().await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder()
        .layer(per_address())
        .add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));
    let clients: Vec<_> = (0..64)
        .map(|_| {
            tokio::spawn(async move {
                let channel = tonic::transport::Endpoint::new(format!("http://{address}")).unwrap();
                let mut client = HealthClient::new(channel.connect().await.unwrap());
                let mut passed = 0;
                for _ in 0..10 {
                    match client.check(HealthCheckRequest::default()).await {
                        Ok(response) => {
                            assert!(response.metadata().get("ratelimit").is_some());
                            passed += 1;
                        }
                        Err(status) => assert_grpc_denial(&status),
                    }
                }
                passed
            })
        })
        .collect();
    let mut passed = 0;
    for client in clients {
        passed += client.await.unwrap();
    }
    assert_eq!(passed, 200);
}

fn assert_grpc_denial(status: &tonic::Status) {
    use tonic_types::StatusExt;
    assert_eq!(status.code(), Code::ResourceExhausted);
    let wait = status
        .get_details_retry_info()
        .unwrap()
        .retry_delay
        .unwrap();
    // 200 in 365 days: one in 157,680 s.
    assert!(
        wait > Duration::from_secs(157_000) && wait <= Duration::from_secs(157_680),
        "{wait:?}"
    );
    let pushback: u64 = status
        .metadata()
        .get("grpc-retry-pushback-ms")
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(u128::from(pushback), wait.as_millis());
    assert!(status.metadata().get("ratelimit").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_structured_fields_and_match_the_decision() {
    let limits = Limits::memory(
        "fixed_window 3/365 days".parse().unwrap(),
        key::client_address(),
    );
    let address = serve(router().layer(RateLimitLayer::new(limits))).await;
    let mut connection = Connection::open(address).await;
    for left in [2, 1, 0] {
        let answer = connection.get("/", &[]).await;
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (StatusCode::OK, None)
        );
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some(r#""default";q=3;w=31536000"#)
        );
        let field = answer.header("ratelimit").unwrap();
        assert!(
            field.starts_with(&format!(r#""default";r={left};t="#)),
            "{field}"
        );
        Parser::new(field).parse::<sfv::List>().unwrap();
    }
    let denied = connection.get("/", &[]).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    let retry_after: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(
        denied.header("ratelimit"),
        Some(&*format!(r#""default";r=0;t={retry_after}"#))
    );
    assert_eq!(denied.json()["retry_after"], retry_after);
    assert_eq!(
        denied.json()["violated-policies"],
        serde_json::json!(["default"])
    );
}

/// curl waits as long as Retry-After says and retries. One retry is enough if the header is
/// correct.
#[tokio::test(flavor = "multi_thread")]
async fn one_retry_after_the_reported_wait_succeeds() {
    let limits = Limits::memory("1 per 2 seconds".parse().unwrap(), key::client_address());
    let gate = limits.gate().clone();
    let address = serve(router().layer(RateLimitLayer::new(limits))).await;
    assert_eq!(
        Connection::open(address).await.get("/", &[]).await.status,
        StatusCode::OK
    );
    let curl = tokio::task::spawn_blocking(move || {
        let arguments = ["--silent", "--show-error", "--fail", "--retry", "3"];
        Command::new("curl")
            .args(arguments)
            .arg(format!("http://{address}/"))
            .output()
            .unwrap()
    });
    let output = curl.await.unwrap();
    assert_eq!(output.stdout, b"hello", "{output:?}");
    let counters = &gate.counters()[0];
    assert_eq!((counters.allowed, counters.denied), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_behind_a_proxy_are_separate_and_cannot_spoof_an_address() {
    let limits = Limits::memory(
        "1/365 days".parse().unwrap(),
        ClientAddress::behind(["127.0.0.0/8"]).unwrap(),
    );
    let address = serve(router().layer(RateLimitLayer::new(limits))).await;
    let mut connection = Connection::open(address).await;
    let mut status = async |forwarded| {
        connection
            .get("/", &[("x-forwarded-for", forwarded)])
            .await
            .status
    };
    assert_eq!(status("203.0.113.1").await, StatusCode::OK);
    assert_eq!(status("203.0.113.2").await, StatusCode::OK);
    assert_eq!(
        status("1.1.1.1, 203.0.113.1").await,
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(status("2001:db8:1:2::1").await, StatusCode::OK);
    assert_eq!(
        status("2001:db8:1:2:ffff::1").await,
        StatusCode::TOO_MANY_REQUESTS
    );
}

fn policies(failure: FailurePolicy) -> PolicySet {
    let rules = |text: &str| Rules::new(text.parse().unwrap()).failure_policy(failure);
    PolicySet::new()
        .with("address", rules(LIMIT))
        .and_then(|policies| policies.with("user", rules("150/365 days")))
        .unwrap()
}

async fn on_redis(url: &str, failure: FailurePolicy) -> (SocketAddr, Limits<RedisStore>) {
    let gate = Gate::new(RedisStore::connect(url).await.unwrap(), policies(failure));
    let limits = Limits::new(gate)
        .limit("address", key::client_address())
        .unwrap();
    let limits = limits.limit("user", key::header("x-user")).unwrap();
    (
        serve(router().layer(RateLimitLayer::new(limits.clone()))).await,
        limits,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_on_redis_enforces_two_keys() {
    let redis = RedisServer::start();
    let (address, limits) = on_redis(
        &format!("{}?timeout=5s", redis.url()),
        FailurePolicy::Closed,
    )
    .await;
    // All requests without a user share one key.
    assert_eq!(passed_of_64_connections(address, 4).await, 150);
    let left = limits
        .gate()
        .check("address", "ip:127.0.0.1")
        .cost(0)
        .await
        .unwrap();
    assert_eq!(
        left.remaining(),
        Some(50),
        "a denial by one policy charges nothing to the other"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failure_policy_applies_during_a_redis_outage() {
    for failure in [
        FailurePolicy::Open,
        FailurePolicy::Closed,
        FailurePolicy::local(1),
    ] {
        let mut redis = RedisServer::start();
        let (address, limits) = on_redis(&redis.url(), failure).await;
        let mut connection = Connection::open(address).await;
        assert_eq!(connection.get("/", &[]).await.status, StatusCode::OK);
        redis.kill();
        let answer = connection.get("/", &[]).await;
        assert_eq!(
            answer.header("ratelimit"),
            None,
            "expected no state without the store: {answer:?}"
        );
        assert!(answer.header("ratelimit-policy").is_some());
        if failure == FailurePolicy::Closed {
            assert_eq!(
                (answer.status, answer.header("retry-after")),
                (StatusCode::SERVICE_UNAVAILABLE, None)
            );
            let kind = answer.json()["type"].as_str().unwrap().to_owned();
            assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
        } else {
            assert_eq!(answer.status, StatusCode::OK);
        }
        let degraded: u64 = limits
            .gate()
            .counters()
            .iter()
            .map(|policy| {
                tidegate_core::Degraded::ALL
                    .into_iter()
                    .map(|reason| policy.degraded(reason))
                    .sum::<u64>()
            })
            .sum();
        assert!(degraded > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_peer_address_is_reported_in_the_response() {
    let (listener, address) = listen().await;
    let router = router().layer(per_address());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let answer = Connection::open(address).await.get("/", &[]).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("peer's address is missing"),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn header_formats_closures_and_cors_are_applied() {
    let limits = Limits::memory("1/365 days".parse().unwrap(), key::global())
        .headers(HeaderFormat::Envoy)
        .cors()
        .skip(|request| request.uri.path() == "/healthz")
        .on_denied(|denial, request| {
            assert_eq!(request.uri.path(), "/");
            let mut response = Response::new(Bytes::from(format!("{} says no", denial.policy())));
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            response
        });
    let router = router().route("/healthz", get(|| async { "well" }));
    let address = serve(router.layer(RateLimitLayer::new(limits))).await;
    let mut connection = Connection::open(address).await;
    let preflight = Request::options("/")
        .header("access-control-request-method", "GET")
        .body(http_body_util::Empty::new())
        .unwrap();
    assert_ne!(
        connection.send(preflight).await.status,
        StatusCode::IM_A_TEAPOT
    );
    let first = connection.get("/", &[]).await;
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(
        first.header("x-ratelimit-limit"),
        Some(r#"1, 1;w=31536000;name="default""#)
    );
    let exposed = first.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("X-RateLimit-Remaining") && exposed.contains("Retry-After"));
    let denied = connection.get("/", &[]).await;
    assert_eq!(
        (denied.status, &denied.body[..]),
        (StatusCode::IM_A_TEAPOT, &b"default says no"[..])
    );
    assert!(
        denied.header("retry-after").is_some()
            && denied.header("x-ratelimit-remaining") == Some("0")
    );
    assert_eq!(connection.get("/healthz", &[]).await.status, StatusCode::OK);
}

/// The test checks the gate directly, like a program without a layer. Both count for one policy.
#[tokio::test]
async fn a_gate_can_be_shared_with_the_rest_of_the_program() {
    let limits = Limits::memory(
        "3/365 days".parse().unwrap(),
        key::from_fn(|_| Some("user:42".to_owned())),
    );
    let gate = limits.gate().clone();
    let address = serve(router().layer(RateLimitLayer::new(limits))).await;
    assert!(
        gate.check("default", "user:42")
            .cost(2)
            .now()
            .unwrap()
            .is_allowed()
    );
    let mut connection = Connection::open(address).await;
    assert_eq!(connection.get("/", &[]).await.status, StatusCode::OK);
    assert_eq!(
        connection.get("/", &[]).await.status,
        StatusCode::TOO_MANY_REQUESTS
    );
    // A separate limiter has its own counters.
    assert!(
        Limiter::memory("3/365 days".parse().unwrap())
            .check("user:42")
            .now()
            .unwrap()
            .is_allowed()
    );
}
