//! The layer as users expect it: costs per limit, settlements into debt, responses of their own,
//! limits per user or else per address, and axum's test helpers.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::MockConnectInfo;
use axum::response::IntoResponse;
use axum::routing::get;
use futures_util::StreamExt as _;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tidegate_core::{DenialReason, Gate, ManualClock, MemoryStore, PolicySet, Rules};
use tidegate_tower::{
    Charge, ClientAddress, Limits, RateLimitLayer, add_headers, key, verdict_headers,
};
use tower_layer::Layer;
use tower_service::Service;

fn gate(policies: &[(&str, &str)]) -> Gate {
    let store = MemoryStore::builder()
        .clock(ManualClock::new())
        .build()
        .unwrap();
    let set = policies.iter().fold(PolicySet::new(), |set, (name, text)| {
        set.with(name, Rules::new(text.parse().unwrap())).unwrap()
    });
    Gate::new(store, set)
}

fn request(uri: &str, user: &str) -> Request<Body> {
    let builder = Request::get(uri);
    let builder = if user.is_empty() {
        builder
    } else {
        builder.header("x-user", user)
    };
    builder.body(Body::empty()).unwrap()
}

async fn send<S>(service: &mut S, request: Request<Body>) -> http::Response<S::Body>
where
    S: BodyService,
{
    service.send(request).await
}

/// A service with any body.
trait BodyService {
    type Body: http_body::Body<Data = Bytes> + Unpin;
    async fn send(&mut self, request: Request<Body>) -> http::Response<Self::Body>;
}

impl<S, B> BodyService for S
where
    S: Service<Request<Body>, Response = http::Response<B>, Error = std::convert::Infallible>,
    B: http_body::Body<Data = Bytes> + Unpin,
{
    type Body = B;

    async fn send(&mut self, request: Request<Body>) -> http::Response<B> {
        std::future::poll_fn(|context| self.poll_ready(context))
            .await
            .unwrap();
        self.call(request).await.unwrap()
    }
}

/// An LLM gateway: one request, and an estimate of its tokens. The handler reports each token.
fn llm() -> (Gate, impl BodyService) {
    let gate = gate(&[
        ("requests", "fixed_window 10/day"),
        ("tokens", "fixed_window 1000/day debt=500"),
    ]);
    let limits = Limits::new(gate.clone())
        .limit("requests", key::header("x-user"))
        .unwrap()
        .limit("tokens", key::header("x-user").cost(|_| 300))
        .unwrap()
        .settle();
    let stream = |Extension(charge): Extension<Charge>, uri: http::Uri| async move {
        let count: u32 = uri.query().unwrap().parse().unwrap();
        let tokens = futures_util::stream::iter(0..count).map(move |_| {
            charge.add(100).unwrap();
            Ok::<_, std::convert::Infallible>(Bytes::from_static(b"token "))
        });
        Body::from_stream(tokens)
    };
    let silent = || async { "nothing is reported" };
    let twice = |Extension(charge): Extension<Charge>| async move {
        charge.set(900).unwrap();
        charge.set_policy("tokens", 200).unwrap();
        "the last report counts"
    };
    let router = axum::Router::new()
        .route("/stream", get(stream))
        .route("/silent", get(silent))
        .route("/twice", get(twice));
    (gate, RateLimitLayer::new(limits).layer(router))
}

#[tokio::test]
async fn streams_that_end_early_late_twice_and_never_are_settled() {
    let (gate, mut service) = llm();
    let left = |policy: &str, user: &str| {
        let stored = key::of_header("x-user", user);
        gate.check(policy, &stored).cost(0).now().unwrap()
    };
    let remaining = |user: &str| {
        (
            left("requests", user).remaining().unwrap(),
            left("tokens", user).remaining().unwrap(),
        )
    };
    // Late: the whole stream of 200 tokens is read, and 100 of the estimate are given back.
    let response = send(&mut service, request("/stream?2", "late")).await;
    let _ = response.into_body().collect().await;
    assert_eq!(remaining("late"), (9, 800));
    // Early: the client leaves after the first token.
    let response = send(&mut service, request("/stream?9", "early")).await;
    let mut body = response.into_body();
    let _ = body.frame().await;
    assert_eq!(
        remaining("early"),
        (9, 700),
        "the estimate is taken until the end"
    );
    drop(body);
    assert_eq!(remaining("early"), (9, 900));
    // Never: without a report the estimate stays.
    let response = send(&mut service, request("/silent", "never")).await;
    let _ = response.into_body().collect().await;
    assert_eq!(remaining("never"), (9, 700));
    // Twice: the last figure of the policy counts, once.
    let response = send(&mut service, request("/twice", "twice")).await;
    let _ = response.into_body().collect().await;
    assert_eq!(remaining("twice"), (9, 800));
    // Higher: 1,400 tokens are more than the limit, and 400 are owed. A request is still one.
    let response = send(&mut service, request("/stream?14", "higher")).await;
    let _ = response.into_body().collect().await;
    assert_eq!(remaining("higher"), (9, 0));
    assert_eq!(
        left("tokens", "higher").reason(),
        Some(DenialReason::Limited)
    );
    let denied = send(&mut service, request("/stream?1", "higher")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(remaining("higher").0, 9, "all or nothing");
    // Beyond the debt it is dropped and counted.
    let response = send(&mut service, request("/stream?20", "most")).await;
    let _ = response.into_body().collect().await;
    assert_eq!(gate.counters()[1].dropped, 500_000);
}

#[tokio::test]
async fn on_denied_sees_the_request_and_returns_anything() {
    let mut limits = Vec::new();
    let base = || Limits::memory("fixed_window 1/day".parse().unwrap(), key::global());
    limits.push(base().on_denied(|denial, request| {
        let text = format!(
            "{} {} {}",
            request.method,
            request.uri.path(),
            denial.reason()
        );
        (
            StatusCode::IM_A_TEAPOT,
            [("x-limit", denial.limit().unwrap().to_string())],
            text,
        )
    }));
    limits.push(base().on_denied(|_, _| axum::Json([1, 2])));
    limits.push(base().on_denied(|_, _| StatusCode::NOT_FOUND.into_response()));
    limits.push(base().on_denied(|_, _| http::Response::new(Bytes::from_static(b"bytes"))));
    let mut answers = Vec::new();
    for limits in limits {
        let router = axum::Router::new().route("/page", get(|| async { "hello" }));
        let mut service = RateLimitLayer::new(limits).layer(router);
        let first = send(&mut service, request("/page", "")).await;
        assert_eq!(first.status(), StatusCode::OK);
        let denied = send(&mut service, request("/page", "")).await;
        assert!(denied.headers().contains_key("ratelimit"));
        let (parts, body) = denied.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        let limit = parts
            .headers
            .get("x-limit")
            .map(|value| value.to_str().unwrap().to_owned());
        answers.push((
            parts.status.as_u16(),
            limit,
            String::from_utf8_lossy(&text).into_owned(),
        ));
    }
    assert_eq!(
        answers,
        [
            (
                418,
                Some("fixed_window 1/day".to_owned()),
                "GET /page limited".to_owned()
            ),
            (200, None, "[1,2]".to_owned()),
            (404, None, String::new()),
            (200, None, "bytes".to_owned()),
        ]
    );
}

#[tokio::test]
async fn limits_per_user_or_else_per_address() {
    let gate = gate(&[
        ("per-user", "fixed_window 3/day"),
        ("per-address", "fixed_window 1/day"),
    ]);
    let limits = Limits::new(gate.clone())
        .limit_first([
            ("per-user", key::header("x-user")),
            ("per-address", ClientAddress::peer().into()),
        ])
        .unwrap();
    let router = axum::Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(limits))
        .layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 7], 1))));
    let mut service = router;
    let mut statuses = Vec::new();
    for user in ["ann", "ann", "ann", "ann", "", "", "bob"] {
        statuses.push(
            send(&mut service, request("/", user))
                .await
                .status()
                .as_u16(),
        );
    }
    assert_eq!(statuses, [200, 200, 200, 429, 200, 429, 200]);
    // The keys can be built by hand.
    let address = key::of_address(&ClientAddress::peer(), "192.0.2.7".parse().unwrap());
    assert!(gate.reset("per-address", &address).now().unwrap());
    assert_eq!(
        send(&mut service, request("/", "")).await.status(),
        StatusCode::OK
    );
    assert!(
        Limits::new(gate)
            .limit_first::<key::RequestKey>([])
            .is_err()
    );
}

#[tokio::test]
async fn composite_keys_are_built_by_hand() {
    let gate = gate(&[("api", "fixed_window 1/day")]);
    let both = key::header("x-user").and(key::from_fn(|request| {
        request.uri.query().map(str::to_owned)
    }));
    let limits = Limits::new(gate.clone()).limit("api", both).unwrap();
    let router = axum::Router::new().route("/", get(|| async { "hello" }));
    let mut service = RateLimitLayer::new(limits).layer(router);
    for query in ["plain", "ip:192.0.2.7"] {
        let stored = key::of_both(&key::of_header("x-user", "ann"), &key::of_fn(Some(query)));
        let uri = format!("/?{query}");
        assert_eq!(
            send(&mut service, request(&uri, "ann")).await.status(),
            StatusCode::OK
        );
        assert!(
            gate.peek("api", &stored).now().unwrap().is_denied(),
            "{query}"
        );
        assert!(gate.reset("api", &stored).now().unwrap());
        assert_eq!(
            send(&mut service, request(&uri, "ann")).await.status(),
            StatusCode::OK
        );
    }
    assert_eq!(key::of_global(), "global");
}

/// Each limit has its own remaining and reset, also for a gate that is called by hand.
#[test]
fn headers_pair_remaining_and_reset_of_each_limit() {
    let gate = gate(&[("api", "5/second; fixed_window 100/day anchor=first_hit")]);
    let mut map = http::HeaderMap::new();
    let verdict = gate.check("api", "k").with_limits().now().unwrap();
    add_headers(&mut map, verdict_headers(&verdict));
    assert_eq!(map["ratelimit"], r#""api/1";r=4;t=1, "api/2";r=99;t=86400"#);
    let verdict = gate.check("api", "k").now().unwrap();
    add_headers(&mut map, verdict_headers(&verdict));
    assert!(
        map.get_all("ratelimit")
            .iter()
            .any(|value| value == r#""api/1";r=3;t=1"#)
    );
}
