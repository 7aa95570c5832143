//! Charging by the outcome, and traffic shaping.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use tidegate_core::{Cost, Gate, ManualClock, MemoryStore, PolicySet, Rules};
use tidegate_tower::{Charge, Limits, RateLimitLayer, key};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};

type Incoming = Request<Full<Bytes>>;

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

fn request(path: &str) -> Incoming {
    Request::get(path).body(Full::default()).unwrap()
}

/// Responds with the status that is the path.
async fn status_of_path(request: Incoming) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = request
        .uri()
        .path()
        .trim_start_matches('/')
        .parse()
        .unwrap();
    let mut response = Response::new(Full::new(Bytes::from_static(b"0123456789")));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("x-cost", "7".parse().unwrap());
    Ok(response)
}

#[tokio::test]
async fn only_matching_responses_count() {
    let limits = limits("3/365 days").count_when(|reply| reply.status == StatusCode::UNAUTHORIZED);
    let service = RateLimitLayer::new(limits.clone()).layer(service_fn(status_of_path));
    let status = async |path| {
        service
            .clone()
            .oneshot(request(path))
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    for _ in 0..10 {
        assert_eq!(status("/200").await, 200);
    }
    assert_eq!(left(&limits), 3);
    for _ in 0..3 {
        assert_eq!(status("/401").await, 401);
    }
    // From now on every request is denied, even one with the right password.
    assert_eq!(status("/200").await, 429);
    assert_eq!(limits.gate().counters()[0].refunds, 10);
}

/// A parallel burst cannot exceed the limit, even before any of its requests has a response.
#[tokio::test]
async fn a_parallel_burst_cannot_exceed_the_limit() {
    let limits = limits("5/365 days").count_when(|reply| reply.status == StatusCode::UNAUTHORIZED);
    let (started, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, opened) = (Arc::clone(&started), Arc::clone(&gate));
    let service = RateLimitLayer::new(limits.clone()).layer(service_fn(move |request| {
        counted.fetch_add(1, Ordering::Relaxed);
        let opened = Arc::clone(&opened);
        async move {
            opened.notified().await;
            status_of_path(request).await
        }
    }));
    let tasks: Vec<_> = (0..100)
        .map(|_| tokio::spawn(service.clone().oneshot(request("/401"))))
        .collect();
    while left(&limits) > 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(started.load(Ordering::Relaxed), 5);
    for _ in 0..5 {
        gate.notify_one();
    }
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.push(task.await.unwrap().unwrap().status().as_u16());
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 5);
}

/// Polls a future once and drops it, like a client that disconnects.
fn poll_once_and_drop<F: Future>(future: F) {
    assert!(
        pin!(future)
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
}

#[tokio::test]
async fn a_disconnect_and_a_panic_refund_the_cost() {
    let limits = limits("9/365 days").count_when(|_| true);
    let layer = RateLimitLayer::new(limits.clone());
    let never = layer.layer(service_fn(|_: Incoming| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }));
    poll_once_and_drop(never.oneshot(request("/")));
    assert_eq!(left(&limits), 9);
    let panics = layer.layer(service_fn(|_: Incoming| async {
        if true {
            panic!("as handlers do");
        }
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    assert!(tokio::spawn(panics.oneshot(request("/"))).await.is_err());
    assert_eq!(left(&limits), 9);
    let fails = layer.layer(service_fn(|_: Incoming| async {
        Err::<Response<Full<Bytes>>, _>("no connection")
    }));
    assert!(fails.oneshot(request("/")).await.is_err());
    assert_eq!(left(&limits), 9);
    // `count_aborted` charges such requests.
    let counted = self::limits("9/365 days")
        .count_when(|_| true)
        .count_aborted();
    let never = RateLimitLayer::new(counted.clone()).layer(service_fn(|_: Incoming| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }));
    poll_once_and_drop(never.oneshot(request("/")));
    assert_eq!(left(&counted), 8);
    // A request that is not charged by its outcome stays charged.
    let plain = self::limits("9/365 days");
    let never = RateLimitLayer::new(plain.clone()).layer(service_fn(|_: Incoming| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }));
    poll_once_and_drop(never.oneshot(request("/")));
    assert_eq!(left(&plain), 8);
}

#[tokio::test]
async fn the_response_head_can_settle_the_cost() {
    let cost =
        |reply: &http::response::Parts| reply.headers.get("x-cost")?.to_str().ok()?.parse().ok();
    let limits = limits("100/365 days").cost(|_| 50).settle_by(move |reply| {
        let units: u64 = cost(reply)?;
        Cost::try_from(units).ok()
    });
    let service = RateLimitLayer::new(limits.clone()).layer(service_fn(status_of_path));
    service.oneshot(request("/200")).await.unwrap();
    assert_eq!(left(&limits), 93);
}

#[tokio::test]
async fn the_bytes_sent_can_settle_the_cost() {
    let limits = limits("100/365 days").cost(|_| 100).settle_by_bytes(2);
    let service = RateLimitLayer::new(limits.clone()).layer(service_fn(|_: Incoming| async {
        let frames = ["0123", "45"]
            .map(|text| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(text))));
        let frames = std::collections::VecDeque::from(frames);
        let frames = std::sync::Mutex::new(frames);
        let stream = std::iter::from_fn(move || frames.lock().unwrap().pop_front());
        Ok::<_, Infallible>(Response::new(StreamBody::new(Streamed(stream))))
    }));
    let whole = service.clone().oneshot(request("/")).await.unwrap();
    assert_eq!(
        left(&limits),
        0,
        "the estimate is charged until the body ends"
    );
    assert_eq!(
        whole.into_body().collect().await.unwrap().to_bytes(),
        "012345"
    );
    assert_eq!(left(&limits), 97);
    limits.gate().reset("default", "global").await.unwrap();
    // The client disconnects after the first of two frames.
    let mut half = service.oneshot(request("/")).await.unwrap().into_body();
    half.frame().await.unwrap().unwrap();
    drop(half);
    assert_eq!(left(&limits), 98);
}

/// A stream of items that are ready.
struct Streamed<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Streamed<I> {
    type Item = I::Item;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

#[tokio::test]
async fn the_handler_can_settle_the_cost() {
    let limits = limits("1000/365 days").cost(|_| 500).settle();
    let service =
        RateLimitLayer::new(limits.clone()).layer(service_fn(|request: Incoming| async move {
            let charge: Charge = request.extensions().get().cloned().unwrap();
            match request.uri().path() {
                "/set" => charge.set(20).unwrap(),
                "/add" => {
                    charge.add(1.5).unwrap();
                    charge.add(2.5).unwrap();
                    assert!(charge.add(-1).is_err() && charge.set(f64::NAN).is_err());
                }
                "/gone" => {
                    charge.add(3).unwrap();
                    std::future::pending::<()>().await;
                }
                _ => {}
            }
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
        }));
    let mut used = Vec::new();
    for path in ["/set", "/add", "/unset"] {
        let before = left(&limits);
        service
            .clone()
            .oneshot(request(path))
            .await
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap();
        used.push(before - left(&limits));
    }
    // If the handler sets no charge, the estimate stays charged.
    assert_eq!(used, [20, 4, 500]);
    limits.gate().reset("default", "global").await.unwrap();
    // The charge set before the client disconnected is kept.
    poll_once_and_drop(service.oneshot(request("/gone")));
    assert_eq!(left(&limits), 997);
}

fn shaped(clock: &ManualClock) -> Limits {
    let store = MemoryStore::builder()
        .max_keys(100)
        .clock(clock.clone())
        .build()
        .unwrap();
    let rules = Rules::new("leaky_bucket 1/second burst=10".parse().unwrap());
    let gate = Gate::new(store, PolicySet::new().with("default", rules).unwrap());
    Limits::new(gate)
        .limit("default", key::global())
        .unwrap()
        .shape(Duration::from_secs(2))
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_delays_requests() {
    let limits = shaped(&ManualClock::new());
    let mut service = RateLimitLayer::new(limits.clone()).layer(service_fn(status_of_path));
    let started = tokio::time::Instant::now();
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(service.ready().await.unwrap().call(request("/200")));
    }
    let mut seen = Vec::new();
    for answer in answers {
        let response = answer.await.unwrap();
        let retry_after = response
            .headers()
            .get("retry-after")
            .map(|value| value.to_str().unwrap().to_owned());
        seen.push((
            response.status().as_u16(),
            started.elapsed().as_secs(),
            retry_after,
        ));
    }
    // The fourth request would have to wait for three seconds, one more than allowed.
    let expected = [
        (200, 0, None),
        (200, 1, None),
        (200, 2, None),
        (429, 2, Some("1".to_owned())),
    ];
    assert_eq!(seen, expected);
    assert_eq!(left(&limits), 7, "a denied request is refunded");
}

#[tokio::test(start_paused = true)]
async fn c3_the_slot_of_a_cancelled_waiter_stays_empty() {
    let limits = shaped(&ManualClock::new()).shape(Duration::from_secs(20));
    let service = RateLimitLayer::new(limits.clone()).layer(service_fn(status_of_path));
    let started = tokio::time::Instant::now();
    // Five requests are scheduled at 0 to 4 seconds. The first passes at once, and three are
    // cancelled while they wait.
    let mut waiting: Vec<_> = (0..5)
        .map(|_| Box::pin(service.clone().oneshot(request("/200"))))
        .collect();
    for one in &mut waiting {
        let _ = one.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    waiting.drain(0..4);
    assert_eq!(left(&limits), 5);
    // Later requests are scheduled after the last of them, one per second.
    let later: Vec<_> = (0..5)
        .map(|_| Box::pin(service.clone().oneshot(request("/200"))))
        .collect();
    let mut left_at = Vec::new();
    let all = waiting.into_iter().chain(later).map(|one| async {
        assert_eq!(one.await.unwrap().status(), 200);
        started.elapsed().as_secs()
    });
    left_at.extend(futures_util::future::join_all(all).await);
    assert_eq!(left_at, [4, 5, 6, 7, 8, 9]);
}

#[test]
#[should_panic(expected = "limits without a limit")]
fn a_layer_without_limits_panics_at_startup() {
    let _ = RateLimitLayer::new(Limits::new(Gate::memory(PolicySet::new())));
}
