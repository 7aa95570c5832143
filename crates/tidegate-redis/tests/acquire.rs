//! `acquire` on Redis: two stores with their own connections, as two processes have them, share the
//! rate exactly. The time is a manual clock.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{Limiter, ManualClock, Timestamp};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisServer, wait_for};

const TIMEOUT: Duration = Duration::from_secs(20);

async fn limiter(url: &str, clock: &ManualClock) -> Limiter<RedisStore> {
    let store = RedisStore::builder(url)
        .manual_time(clock.clone(), Duration::from_secs(3_600))
        .timeout(Duration::from_secs(10));
    let store = store.connect().await.unwrap();
    Limiter::builder(store, "10/second burst=1".parse().unwrap())
        .deny_cache(0)
        .build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_rate_exactly() {
    const EACH: usize = 20;
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let start = clock.now();
    let admitted: Arc<Mutex<Vec<Timestamp>>> = Arc::default();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let limiter = limiter(&server.url(), &clock).await;
        for _ in 0..EACH {
            let (limiter, clock, admitted) =
                (limiter.clone(), clock.clone(), Arc::clone(&admitted));
            tasks.push(tokio::spawn(async move {
                let decision = limiter.acquire("api").await.unwrap();
                assert_eq!(decision.degraded(), None);
                admitted.lock().unwrap().push(clock.now());
            }));
        }
    }
    // At each tenth of a second exactly one request of either process is admitted. The clock moves
    // on only when the first waiter of both is asleep again.
    for number in 0..2 * EACH {
        let count = || admitted.lock().unwrap().len();
        assert!(
            wait_for(TIMEOUT, || count() == number + 1),
            "{number}: {}",
            count()
        );
        let due = start.saturating_add(Duration::from_millis(100 * (number as u64 + 1)));
        let is_settled = || clock.next_wake() == Some(due) || number + 1 == 2 * EACH;
        assert!(
            wait_for(TIMEOUT, is_settled),
            "{number}: {:?}",
            clock.next_wake()
        );
        clock.set(due);
    }
    for task in tasks {
        task.await.unwrap();
    }
    let times = admitted.lock().unwrap();
    for (number, at) in times.iter().enumerate() {
        let after = at.saturating_since(start);
        assert_eq!(
            after,
            Duration::from_millis(100 * number as u64),
            "none early, none late"
        );
    }
}

/// A waiter that is dropped while its call is in flight takes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_waiters_take_nothing() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limiter = limiter(&server.url(), &clock).await;
    let _ = limiter.check("loads the script").await.unwrap();
    let mut dropped = Vec::new();
    for number in 0..50 {
        let key = format!("k{number}");
        let mut acquire = limiter.acquire(&key).into_future();
        // Polled once, the call is sent; then the waiter goes away.
        let poll = |context: &mut Context<'_>| Poll::Ready(acquire.as_mut().poll(context));
        if std::future::poll_fn(poll).await.is_ready() {
            continue;
        }
        dropped.push(key.clone());
        drop(acquire);
    }
    // Every call is answered in the end, and whatever it took is given back.
    let is_over = async || {
        let health = limiter.counters().store.unwrap();
        if (health.in_flight, health.waiting) != (0, 0) {
            return false;
        }
        for key in &dropped {
            if limiter.peek(key).await.unwrap().is_denied() {
                return false;
            }
        }
        true
    };
    let over = async {
        while !is_over().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, over).await.unwrap();
}
