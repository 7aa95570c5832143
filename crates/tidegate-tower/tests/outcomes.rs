//! What is charged by the outcome, and what is shaped.
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

/// Answers with the status that the path is.
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
async fn only_some_answers_count() {
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
    // From now on nobody gets in, whatever the password.
    assert_eq!(status("/200").await, 429);
    assert_eq!(limits.gate().counters()[0].refunds, 10);
}

/// A burst in parallel, before any of it has an answer, gets no further than the limit.
#[tokio::test]
async fn a_burst_in_parallel_gets_no_further() {
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

/// Polls an answer once, and goes away.
fn poll_once_and_drop<F: Future>(future: F) {
    assert!(
        pin!(future)
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
}

#[tokio::test]
async fn a_client_that_goes_away_and_a_handler_that_panics_give_back() {
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
    // Unless it is said that such count.
    let counted = self::limits("9/365 days")
        .count_when(|_| true)
        .count_aborted();
    let never = RateLimitLayer::new(counted.clone()).layer(service_fn(|_: Incoming| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }));
    poll_once_and_drop(never.oneshot(request("/")));
    assert_eq!(left(&counted), 8);
    // What is not charged by its outcome stays taken.
    let plain = self::limits("9/365 days");
    let never = RateLimitLayer::new(plain.clone()).layer(service_fn(|_: Incoming| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }));
    poll_once_and_drop(never.oneshot(request("/")));
    assert_eq!(left(&plain), 8);
}

#[tokio::test]
async fn settled_by_the_head_of_the_answer() {
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
async fn settled_by_the_bytes_that_were_sent() {
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
    assert_eq!(left(&limits), 0, "all is taken until the body has ended");
    assert_eq!(
        whole.into_body().collect().await.unwrap().to_bytes(),
        "012345"
    );
    assert_eq!(left(&limits), 97);
    limits
        .gate()
        .reset("default", b"global", None)
        .await
        .unwrap();
    // The client goes away after the first of two frames.
    let mut half = service.oneshot(request("/")).await.unwrap().into_body();
    half.frame().await.unwrap().unwrap();
    drop(half);
    assert_eq!(left(&limits), 98);
}

/// A stream of what is there already.
struct Streamed<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Streamed<I> {
    type Item = I::Item;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

#[tokio::test]
async fn settled_by_what_the_handler_tells() {
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
    for path in ["/set", "/add", "/untold"] {
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
    // What nobody tells is kept as it was taken.
    assert_eq!(used, [20, 4, 500]);
    limits
        .gate()
        .reset("default", b"global", None)
        .await
        .unwrap();
    // What had been spent when the client went away.
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
async fn a_leaky_bucket_shapes() {
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
        let told = response
            .headers()
            .get("retry-after")
            .map(|value| value.to_str().unwrap().to_owned());
        seen.push((
            response.status().as_u16(),
            started.elapsed().as_secs(),
            told,
        ));
    }
    // The fourth would have had to wait for three seconds: one too long.
    let expected = [
        (200, 0, None),
        (200, 1, None),
        (200, 2, None),
        (429, 2, Some("1".to_owned())),
    ];
    assert_eq!(seen, expected);
    assert_eq!(left(&limits), 7, "what was not let in is given back");
}

#[tokio::test(start_paused = true)]
async fn c3_a_cancelled_waiters_place_stays_empty() {
    let limits = shaped(&ManualClock::new()).shape(Duration::from_secs(20));
    let service = RateLimitLayer::new(limits.clone()).layer(service_fn(status_of_path));
    let started = tokio::time::Instant::now();
    // Five leave at 0 to 4 seconds. The first leaves at once, and three go away while they wait.
    let mut waiting: Vec<_> = (0..5)
        .map(|_| Box::pin(service.clone().oneshot(request("/200"))))
        .collect();
    for one in &mut waiting {
        let _ = one.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    waiting.drain(0..4);
    assert_eq!(left(&limits), 5);
    // Later requests leave behind the last of them, one a second.
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
fn a_layer_that_limits_nobody_is_found_at_the_start() {
    let _ = RateLimitLayer::new(Limits::new(Gate::memory(PolicySet::new())));
}
