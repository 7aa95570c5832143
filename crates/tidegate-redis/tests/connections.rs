//! Connections to Redis: every URL scheme, and the traffic on a connection.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{FIVE, admitted, closed, wait_until_available};
use tidegate_core::{BlockingError, CheckError, Cost, Key, Limiter, ManualClock, Store};
use tidegate_redis::{RedisConnectError, RedisStore};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::{Fault, Proxy, RedisServer, TlsFiles};

#[test]
fn tls_verifies_server_and_client_certificates() {
    let files = TlsFiles::make();
    let (_server, port) = files.start_server();
    let (ca, certificate, key) = (
        files.path("ca.crt"),
        files.path("redis.crt"),
        files.path("redis.key"),
    );
    let timeouts = "connect_timeout=10s&timeout=5s";
    let url = format!("rediss://127.0.0.1:{port}/?ca={ca}&cert={certificate}&key={key}&{timeouts}");
    assert_eq!(admitted(&closed(&url, FIVE), "k", 7), 5);
    // The first connection does not trust the server's certificate. The second has no client
    // certificate.
    let unknown = RedisStore::connect_blocking(&format!("rediss://127.0.0.1:{port}/?{timeouts}"));
    assert!(
        matches!(unknown, Err(RedisConnectError::Redis(_))),
        "{unknown:?}"
    );
    let without =
        RedisStore::connect_blocking(&format!("rediss://127.0.0.1:{port}/?ca={ca}&{timeouts}"));
    assert!(
        matches!(without, Err(RedisConnectError::Redis(_))),
        "{without:?}"
    );
    let missing =
        RedisStore::connect_blocking(&format!("rediss://127.0.0.1:{port}/?ca=/no/such/file"));
    assert!(
        matches!(missing, Err(RedisConnectError::Io(_))),
        "{missing:?}"
    );
}

#[test]
fn unix_sockets_and_databases_are_supported() {
    let folder = Folder::new();
    let socket = folder.path().join("redis.sock");
    let server = RedisServer::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    assert_eq!(
        admitted(
            &closed(&format!("unix://{}", socket.display()), FIVE),
            "k",
            7
        ),
        5
    );
    assert_eq!(admitted(&closed(&server.url(), FIVE), "k", 7), 0);
    assert_eq!(
        admitted(&closed(&format!("{}3", server.url()), FIVE), "k", 7),
        5
    );
}

/// The permissions that docs/redis.md lists for a Redis user.
const ACL: &str = "on >secret ~tg:* resetchannels -@all +evalsha +script|load +time +get +mget +set +del +unlink +lrange \
                   +lindex +llen +ltrim +lset +lrem +rpush +pexpire +pexpireat +getdel +ping";

#[test]
fn a_user_with_the_documented_permissions_can_do_everything() {
    let server = RedisServer::start();
    let words: Vec<&str> = ["ACL", "SETUSER", "limiter"]
        .into_iter()
        .chain(ACL.split_whitespace())
        .collect();
    server.command(&words);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    for policy in [
        FIVE,
        "sliding_window_log 5/365 days; fixed_window 5/day; sliding_window_counter 5/day",
    ] {
        let limiter = closed(&url, policy);
        assert_eq!(admitted(&limiter, "k", 7), 5, "{:?}", limiter.counters());
        assert_eq!(limiter.refund("k", 2).blocking().unwrap().remaining(), 2);
        limiter
            .check_many(&[("k", 1), ("other", 1)])
            .blocking()
            .unwrap();
        limiter.reset("k").blocking().unwrap();
        assert_eq!(
            limiter.counters().degraded_total(),
            0,
            "{:?}",
            limiter.counters()
        );
    }
    let wrong = RedisStore::connect_blocking(&format!(
        "redis://limiter:wrong@127.0.0.1:{}/",
        server.port()
    ));
    let message = wrong.unwrap_err().to_string();
    assert!(!message.contains("wrong@"), "{message}");
}

#[test]
fn a_custom_prefix_is_used_for_every_key() {
    let server = RedisServer::start();
    let limiter = closed(&format!("{}?prefix=app:limits", server.url()), FIVE);
    let _ = limiter.check("k").blocking().unwrap();
    let _ = limiter.check(&[0xff, 0, b'{']).blocking().unwrap();
    let _ = limiter.check(vec![b'x'; 1 << 20]).blocking().unwrap();
    let mut names: Vec<Vec<u8>> = server.keys().into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names.len(), 3);
    assert!(
        names
            .iter()
            .all(|name| name.starts_with(b"app:limits::gc/5/365d:") && name.len() < 100),
        "{names:?}"
    );
}

#[test]
fn connecting_to_an_unreachable_server_or_an_invalid_url_fails() {
    let port = tidegate_testkit::redis::free_port();
    assert!(matches!(
        RedisStore::connect_blocking(&format!("redis://127.0.0.1:{port}")),
        Err(RedisConnectError::Redis(_))
    ));
    assert!(matches!(
        RedisStore::connect_blocking("redis://h?x=1"),
        Err(RedisConnectError::Url(_))
    ));
    for wrong in [
        RedisStore::builder("redis://h").timeout(Duration::ZERO),
        RedisStore::builder("redis://h").prefix("{a}"),
    ] {
        assert!(matches!(
            wrong.connect_blocking(),
            Err(RedisConnectError::Url(_))
        ));
    }
    // Connecting fails on a thread without a runtime.
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut connecting = std::pin::pin!(RedisStore::connect("redis://127.0.0.1"));
    let polled = connecting.as_mut().poll(&mut context);
    assert!(matches!(
        polled,
        std::task::Poll::Ready(Err(RedisConnectError::NoRuntime))
    ));
}

#[test]
fn a_lazy_store_connects_once_redis_starts() {
    let mut server = RedisServer::start();
    server.kill();
    let store = RedisStore::builder(&server.url())
        .lazily()
        .connect_blocking()
        .unwrap();
    let limiter = Limiter::builder(store, FIVE.parse().unwrap()).build();
    assert!(limiter.check("k").blocking().unwrap().degraded().is_some());
    server.restart();
    wait_until_available(&limiter);
}

#[test]
fn waiting_on_a_runtime_thread_is_an_error() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let limiter = Limiter::new(
            RedisStore::connect(&server.url()).await.unwrap(),
            FIVE.parse().unwrap(),
        );
        assert!(matches!(
            limiter.check("k").blocking(),
            Err(CheckError::Blocking(BlockingError { .. }))
        ));
        assert!(limiter.check("k").await.unwrap().is_allowed());
    });
}

/// A current-thread runtime runs only inside `block_on`, so a wait on another thread would never
/// end.
#[test]
fn waiting_for_an_idle_runtime_is_an_error() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = runtime
        .block_on(RedisStore::connect(&server.url()))
        .unwrap();
    let limiter = Limiter::new(store, FIVE.parse().unwrap());
    assert!(matches!(
        limiter.check("k").blocking(),
        Err(CheckError::Blocking(_))
    ));
}

/// A program may exit while checks are in flight and queued.
#[test]
fn a_runtime_shuts_down_under_load() {
    let server = RedisServer::start();
    let (done, is_done) = std::sync::mpsc::channel();
    let url = format!("{}?timeout=10s", server.url());
    std::thread::spawn(move || {
        for _ in 0..20 {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let store = runtime.block_on(RedisStore::connect(&url)).unwrap();
            // The deny cache answers without yielding, and a task that never yields cannot be
            // cancelled. It is off.
            let limiter = Limiter::builder(store, FIVE.parse().unwrap())
                .deny_cache(0)
                .build();
            for task in 0..200 {
                let limiter = limiter.clone();
                runtime.spawn(async move {
                    loop {
                        let _ = limiter.check(format!("{task}")).await.unwrap();
                    }
                });
            }
            let _ = runtime.block_on(async { limiter.check("k").await.unwrap() });
            drop(runtime);
        }
        done.send(()).unwrap();
    });
    assert!(
        is_done.recv_timeout(common::TIMEOUT).is_ok(),
        "a runtime did not shut down"
    );
}

/// A denied client that retries in a loop does not starve other tasks.
#[test]
fn cached_denials_do_not_starve_other_tasks() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = RedisStore::connect(&format!("{}?timeout=5s", server.url()))
            .await
            .unwrap();
        // The clock stands still, so the deny cache never expires.
        let limiter = Limiter::builder(store, "gcra 1/365 days".parse().unwrap())
            .clock(ManualClock::new())
            .build();
        let has_run = std::rc::Rc::new(std::cell::Cell::new(false));
        let local = tokio::task::LocalSet::new();
        let runs = std::rc::Rc::clone(&has_run);
        local
            .run_until(async {
                while limiter.check("k").await.unwrap().is_allowed() {}
                tokio::task::spawn_local(async move { runs.set(true) });
                while !has_run.get() {
                    assert!(limiter.check("k").await.unwrap().is_denied());
                }
            })
            .await;
    });
}

#[test]
fn a_policy_with_eight_limits_is_supported() {
    let server = RedisServer::start();
    let policy = ["gcra 7/365 days; fixed_window 5/365 days"; 4].join("; ");
    let limiter = closed(&format!("{}?timeout=5s", server.url()), &policy);
    assert_eq!(admitted(&limiter, "k", 7), 5, "{:?}", limiter.counters());
    limiter
        .check_many(&[("k", 1), ("other", 1)])
        .blocking()
        .unwrap();
    assert_eq!(
        limiter.counters().degraded_total(),
        0,
        "{:?}",
        limiter.counters()
    );
}

/// Any executor may poll the futures, because the store brings its own runtime.
#[test]
fn any_executor_can_poll_a_check() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let store = runtime
        .block_on(RedisStore::connect(&server.url()))
        .unwrap();
    let limiter = Limiter::new(store, FIVE.parse().unwrap());
    assert!(limiter.check("k").blocking().unwrap().is_allowed());
}

#[test]
fn a4_a_batch_is_sent_in_parts_and_decided_in_order() {
    let server = RedisServer::start();
    let limiter = closed(&format!("{}?timeout=5s", server.url()), "gcra 3/365 days");
    let _ = limiter.check("loads the script").blocking().unwrap();
    limiter
        .check_many(&[("loads", 1), ("the other", 1)])
        .blocking()
        .unwrap();
    let trips = || limiter.counters().store.unwrap().round_trips;
    let before = trips();
    let requests: Vec<(String, Cost)> = (0..2_000)
        .map(|n| (format!("{}", n % 500), Cost::ONE))
        .collect();
    let decisions = limiter.check_many(&requests).blocking().unwrap();
    // A part has at most 256 checks of one limit.
    assert_eq!(trips(), before + 8);
    let allowed: Vec<bool> = decisions
        .iter()
        .map(|decision| decision.is_allowed())
        .collect();
    assert_eq!(allowed, (0..2_000).map(|n| n < 1_500).collect::<Vec<_>>());
    assert_eq!(decisions[1_499].remaining(), 0);
}

/// Checks that arrive while others are in flight are sent together. Each check gets its own reply.
#[test]
fn waiting_checks_are_sent_together() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = closed(
        &format!("{}?timeout=20s", proxy.url()),
        "gcra 1000/365 days",
    );
    let others = limiter.with_policy(
        "fixed_window 7/365 days; sliding_window_log 7/365 days"
            .parse()
            .unwrap(),
    );
    for limiter in [&limiter, &others] {
        let _ = limiter.check("loads the script").blocking().unwrap();
    }
    proxy.set(Fault::Delay(Duration::from_millis(20)));
    let before = limiter.counters().store.unwrap();
    std::thread::scope(|scope| {
        for number in 0..64 {
            let (limiter, others) = (&limiter, &others);
            scope.spawn(move || {
                let key = format!("k{}", number % 10);
                if number % 4 == 0 {
                    assert_eq!(others.check(&key).blocking().unwrap().limit(), 7);
                } else {
                    assert_eq!(
                        limiter.check(&key).cost(number).blocking().unwrap().limit(),
                        1_000
                    );
                }
            });
        }
    });
    let after = limiter.counters().store.unwrap();
    assert_eq!(after.checks_sent - before.checks_sent, 64);
    assert!(
        after.round_trips - before.round_trips < 32,
        "{} trips for 64 checks",
        after.round_trips - before.round_trips
    );
    let used: u64 = (0..10)
        .map(|n| 1_000 - common::left(&limiter, &format!("k{n}")))
        .sum();
    assert_eq!(used, (0..64).filter(|number| number % 4 != 0).sum::<u64>());
}

#[test]
fn denials_are_cached_until_they_expire() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = RedisStore::connect_blocking(&format!("{}?timeout=5s", server.url())).unwrap();
    let limiter = Limiter::builder(store, "fixed_window 2/365 days".parse().unwrap())
        .clock(clock.clone())
        .build();
    let hits = || limiter.counters().deny_cache_hits;
    let check = || limiter.check("k").blocking().unwrap();
    assert_eq!(
        (
            check().is_allowed(),
            check().is_allowed(),
            check().is_allowed()
        ),
        (true, true, false)
    );
    let (first, second) = (check(), check());
    assert_eq!(
        (first.is_denied(), second.is_denied(), hits()),
        (true, true, 2)
    );
    clock.advance(Duration::from_millis(400));
    // The deny cache subtracts the time that has passed.
    let later = check();
    assert_eq!(
        first.retry_after().unwrap() - later.retry_after().unwrap(),
        Duration::from_millis(400)
    );
    assert_eq!(hits(), 3);
    // A request of another cost may fit, or may have to wait longer, so the store decides it.
    let _ = limiter.check("k").cost(2).blocking().unwrap();
    let _ = limiter.check("k").cost(0).blocking().unwrap();
    assert_eq!(hits(), 3);
    // After a second the deny cache entry expires, and the store decides again.
    let _ = check();
    clock.advance(Duration::from_millis(1_001));
    let before = hits();
    let _ = check();
    assert_eq!(hits(), before);
    // Refunds, resets and other policies go to the store at once.
    limiter.refund("k", 1).blocking().unwrap();
    assert!(check().is_allowed());
    assert!(check().is_denied());
    limiter.reset("k").blocking().unwrap();
    assert!(check().is_allowed());
    assert!(check().is_allowed());
    assert!(check().is_denied());
    assert!(
        limiter
            .with_policy("fixed_window 3/365 days".parse().unwrap())
            .check("k")
            .blocking()
            .unwrap()
            .is_allowed()
    );
    let batch = limiter
        .check_many(&[("k", 1), ("new", 1)])
        .blocking()
        .unwrap();
    assert_eq!(
        (batch[0].is_allowed(), batch[1].is_allowed()),
        (false, true)
    );
}

/// A future that is dropped in flight does not affect the requests behind it.
#[test]
fn a_cancelled_check_does_not_block_others() {
    let server = RedisServer::start();
    let store =
        Arc::new(RedisStore::connect_blocking(&format!("{}?timeout=5s", server.url())).unwrap());
    let plan = store.plan(&"gcra 1000000/365 days".parse().unwrap(), "");
    let key = Key::new(b"k").unwrap();
    for _ in 0..200 {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut futures: Vec<_> = (0..10)
            .map(|_| Box::pin(store.check(&plan, key, Cost::ONE)))
            .collect();
        for future in &mut futures {
            let _ = future.as_mut().poll(&mut context);
        }
        drop(futures);
    }
    let limiter = Limiter::new((*store).clone(), "gcra 1000000/365 days".parse().unwrap());
    assert_eq!(limiter.check("k").blocking().unwrap().degraded(), None);
    assert_eq!(limiter.counters().store.unwrap().waiting, 0);
}
