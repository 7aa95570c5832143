//! `acquire`: waiting until a request is allowed, in the time of a manual clock.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::{
    AcquireError, BlockingError, CheckError, DenialReason, Limiter, ManualClock, MemoryStore,
};

fn limiter(policy: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    (Limiter::new(store, policy.parse().unwrap()), clock)
}

/// Lets all tasks run that can.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Advances the clock from one wake-up to the next until all tasks have ended.
async fn run_all(clock: &ManualClock, tasks: Vec<tokio::task::JoinHandle<()>>) {
    loop {
        settle().await;
        if tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
        let wake = clock.next_wake().unwrap();
        clock.set(wake);
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_thousand_tasks_get_the_rate_in_order_and_none_early() {
    let (limiter, clock) = limiter("100/second burst=1");
    let start = clock.now();
    let admitted = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..1_000).map(|number| {
        let (limiter, clock, admitted) = (limiter.clone(), clock.clone(), Arc::clone(&admitted));
        tokio::spawn(async move {
            let _ = limiter.acquire("api").await.unwrap().or_deny().unwrap();
            let after = clock.now().saturating_since(start);
            admitted.lock().unwrap().push((number, after));
        })
    });
    run_all(&clock, tasks.collect()).await;
    let admitted = admitted.lock().unwrap();
    for (place, (number, after)) in admitted.iter().enumerate() {
        assert_eq!(*number, place, "first come, first served");
        assert_eq!(*after, Duration::from_millis(10 * place as u64));
    }
    let last = admitted.last().unwrap().1;
    assert!((Duration::from_millis(9_900)..=Duration::from_millis(10_100)).contains(&last));
    let counters = limiter.counters();
    assert_eq!(counters.allowed, 1_000);
    let calls = counters.allowed + counters.denied;
    assert!(calls <= 1_100, "{calls} calls");
}

#[tokio::test]
async fn dropped_waiters_take_nothing_and_leave_the_queue() {
    let (limiter, clock) = limiter("1/second");
    limiter.check("k").now().unwrap().or_deny().unwrap();
    let spawn = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire("k").await.map(drop).unwrap() })
    };
    let waiters: Vec<_> = (0..10).map(|_| spawn()).collect();
    settle().await;
    // The first one sleeps, the others queue behind it.
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    settle().await;
    assert_eq!(clock.next_wake(), None, "an aborted waiter still sleeps");
    clock.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(limiter.peek("k").now().unwrap().remaining(), 0);
    assert!(
        limiter.peek("k").now().unwrap().is_allowed(),
        "an aborted waiter took"
    );
    // The queue is free again, and its first place wakes when the one before it is dropped.
    let (first, second) = (spawn(), spawn());
    settle().await;
    first.await.unwrap();
    let third = spawn();
    settle().await;
    second.abort();
    settle().await;
    run_all(&clock, vec![third]).await;
}

#[tokio::test]
async fn a_timeout_fails_at_once_if_the_wait_is_longer() {
    let (limiter, clock) = limiter("1/minute");
    let second = Duration::from_secs(1);
    let _ = limiter
        .acquire("k")
        .timeout(second)
        .await
        .unwrap()
        .or_deny()
        .unwrap();
    match limiter.acquire("k").timeout(second).await {
        Err(AcquireError::Denied(denied)) => {
            assert_eq!(denied.reason(), DenialReason::Limited);
            assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)));
        }
        other => panic!("{other:?}"),
    }
    // Behind another waiter, the wait is unknown until the timeout.
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k").await.map(drop).unwrap() }
    });
    let behind = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k").timeout(second).await }
    });
    settle().await;
    clock.advance(second);
    settle().await;
    assert!(matches!(behind.await.unwrap(), Err(AcquireError::Timeout(after)) if after == second));
    run_all(&clock, vec![first]).await;
    let never = limiter.acquire("k").cost(2).await;
    assert!(matches!(
        never,
        Err(AcquireError::Denied(denied)) if denied.reason() == DenialReason::CostAboveCapacity
    ));
    for invalid in [
        limiter.acquire("").await,
        limiter.acquire("k").cost(-1).await,
    ] {
        assert!(matches!(invalid, Err(AcquireError::Check(_))));
    }
}

#[tokio::test]
async fn keys_and_costs_wait_apart() {
    let (limiter, clock) = limiter("10/second");
    let _ = limiter
        .acquire("a")
        .cost(10)
        .await
        .unwrap()
        .or_deny()
        .unwrap();
    // Another key does not wait.
    let _ = limiter.acquire("b").await.unwrap().or_deny().unwrap();
    let waits = |cost: u32| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire("a").cost(cost).await.map(drop).unwrap() })
    };
    let start = clock.now();
    run_all(&clock, vec![waits(5), waits(1), waits(1)]).await;
    assert_eq!(
        clock.now().saturating_since(start),
        Duration::from_millis(700)
    );
    // Without a key, all requests wait together.
    let global = limiter.global();
    let _ = global.acquire().cost(10).await.unwrap().or_deny().unwrap();
    assert!(global.peek().now().unwrap().is_denied());
    assert_eq!(limiter.peek("global").now().unwrap().remaining(), 0);
}

/// Blocking calls fail in async code, in memory as on Redis.
#[tokio::test]
async fn blocking_calls_fail_in_async_code() {
    let (limiter, _) = limiter("10/second");
    let check = limiter.check("k").blocking();
    assert!(
        matches!(check, Err(CheckError::Blocking(BlockingError { .. }))),
        "{check:?}"
    );
    assert!(limiter.charge("k", 1).blocking().is_err());
    assert!(limiter.refund("k", 1).blocking().is_err());
    assert!(limiter.reset("k").blocking().is_err());
    assert!(limiter.acquire("k").blocking().is_err());
    assert!(limiter.check_many(&[("k", 1)]).blocking().is_err());
    let error = limiter.peek("k").blocking().unwrap_err().to_string();
    assert!(error.contains("`.await`"), "{error}");
    assert_eq!(limiter.peek("k").await.unwrap().remaining(), 9);
    // Outside a runtime they work.
    let other = limiter.clone();
    let decision = std::thread::spawn(move || other.check("k").blocking().unwrap()).join();
    assert!(decision.unwrap().is_allowed());
}

#[test]
fn blocking_waiters_are_woken_by_the_clock() {
    let (limiter, clock) = limiter("1/second");
    limiter.check("k").now().unwrap().or_deny().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| limiter.acquire("k").blocking().unwrap().is_allowed());
        while clock.next_wake().is_none() {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(1));
        assert!(waiter.join().unwrap());
    });
    // The system's clock needs no async runtime either.
    let limiter = Limiter::memory("1000/second burst=1".parse().unwrap());
    for _ in 0..5 {
        assert!(limiter.acquire("k").blocking().unwrap().is_allowed());
    }
}
