//! The store over SQLite makes the decisions of all other stores: it runs every worked case.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "../sqlite_store.rs"]
mod sqlite_store;

use std::collections::HashMap;

use sqlite_store::Sqlite;
use tidegate::store::{CasStore, Store};
use tidegate::{Clock, Decision, Limiter, ManualClock, Receipt, Timestamp};
use tidegate_testkit::{Act, Folder, vectors};

type SqliteStore = CasStore<Sqlite>;

fn store(folder: &Folder, clock: impl Into<Clock>) -> SqliteStore {
    CasStore::new(Sqlite::open(&folder.path().join("limits.sqlite"), clock.into()).unwrap())
}

#[test]
fn every_vector_matches_on_sqlite() {
    let (folder, clock) = (Folder::new(), ManualClock::new());
    let store = store(&folder, clock.clone());
    let mut number = 0;
    vectors::run(|policy| {
        let limiter = Limiter::builder(store.clone(), policy)
            .deny_cache(0)
            .build();
        let clock = clock.clone();
        let mut receipts: HashMap<u32, Receipt<SqliteStore>> = HashMap::new();
        number += 1;
        let case = number;
        move |at_ns: u64, key: &str, act: Act| -> Decision {
            clock.set(Timestamp::from_nanos(at_ns));
            let key = (case, key);
            match act {
                Act::Check(cost) => limiter.check(key).cost(cost).blocking().unwrap(),
                Act::Refund(cost) => limiter.refund(key, cost).blocking().unwrap().into(),
                Act::Charge(cost) => limiter.charge(key, cost).blocking().unwrap().into(),
                Act::Admit(cost, number) => {
                    let check = limiter.check(key).cost(cost).with_receipt();
                    let (decision, receipt) = check.blocking().unwrap();
                    receipts.insert(number, receipt);
                    decision
                }
                Act::Settle(number, actual) => {
                    let receipt = receipts.remove(&number).unwrap();
                    let settled = receipt.settle_and_peek(actual);
                    let settled = limiter.store().block_on(settled).unwrap().unwrap();
                    // A denied request has nothing to settle.
                    let look = || limiter.check(key).cost(0).blocking().unwrap();
                    settled.first().copied().unwrap_or_else(look)
                }
            }
        }
    });
}

/// Two stores on one file share their limits, and no request is counted twice or lost.
#[test]
fn two_processes_share_one_file() {
    let folder = Folder::new();
    let limiters = [(); 2].map(|()| {
        let store = store(&folder, Clock::system());
        Limiter::new(store, "fixed_window 100/365 days".parse().unwrap())
    });
    let allowed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number: usize| {
                let limiter = &limiters[number % 2];
                scope.spawn(move || {
                    let check = || limiter.check("k").blocking().unwrap();
                    (0..50).filter(|_| check().is_allowed()).count()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(allowed, 100);
    assert!(limiters[0].reset("k").blocking().unwrap());
    assert!(!limiters[1].reset("k").blocking().unwrap());
    assert_eq!(limiters[1].counters().degraded_total(), 0);
}

#[test]
fn expired_values_are_swept() {
    let (folder, clock) = (Folder::new(), ManualClock::new());
    let store = store(&folder, clock.clone());
    let limiter = Limiter::new(store.clone(), "fixed_window 5/minute".parse().unwrap());
    limiter.check("k").blocking().unwrap().or_deny().unwrap();
    assert_eq!(store.backend().sweep().unwrap(), 0);
    clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(store.backend().sweep().unwrap(), 1);
    assert_eq!(limiter.peek("k").blocking().unwrap().remaining(), 4);
}
