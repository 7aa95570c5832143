//! Settlements on long logs, on a real server. They are exact, and each call rewrites only a part
//! of the log.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::TIMEOUT;
use redis::Value;

use tidegate_core::{
    Claims, Cost, Key, ManualClock, MemoryStore, Policy, Settlement, Store, Timestamp,
};
use tidegate_redis::RedisStore;
use tidegate_testkit::Answer;
use tidegate_testkit::redis::{RedisServer, wait_for};

const ENTRIES: usize = 3_500;

/// Runs the same requests on both stores, at the same times.
struct Both {
    redis: RedisStore,
    memory: MemoryStore,
    policy: Policy,
    clock: ManualClock,
}

impl Both {
    fn new(server: &RedisServer, policy: &str) -> Self {
        let clock = ManualClock::new();
        clock.set(Timestamp::from_micros(1_700_000_000_123_456).unwrap());
        let builder = RedisStore::builder(&format!("{}?timeout=5s", server.url()));
        let redis = builder
            .manual_time(clock.clone(), Duration::from_secs(3_600))
            .connect_blocking()
            .unwrap();
        let memory = MemoryStore::builder()
            .max_keys(1_000)
            .clock(clock.clone())
            .build()
            .unwrap();
        Self {
            redis,
            memory,
            policy: policy.parse().unwrap(),
            clock,
        }
    }

    fn admit(&self, cost: Cost) -> (Claims, Claims) {
        let key = Key::new(b"k").unwrap();
        let plan = Store::plan(&self.redis, &self.policy, "");
        let redis = self
            .redis
            .block_on(self.redis.admit_one(&plan, key, cost))
            .unwrap()
            .unwrap();
        let plan = self.memory.plan(&self.policy, "");
        let memory = self.memory.admit_one(&plan, key, cost);
        assert_eq!(
            Answer::of(&redis.decision, 1_000),
            Answer::of(&memory.decision, 1_000),
            "cost {cost} at {:?}",
            self.clock.now()
        );
        (redis.claims, memory.claims)
    }

    fn settle(&self, (claims, memory_claims): &(Claims, Claims), taken: Cost, actual: Cost) {
        let key = Key::new(b"k").unwrap();
        let plan = Store::plan(&self.redis, &self.policy, "");
        let settlement = Settlement {
            claims,
            taken,
            actual,
        };
        let redis = self
            .redis
            .block_on(self.redis.settle(&plan, key, &settlement))
            .unwrap()
            .unwrap();
        let settlement = Settlement {
            claims: memory_claims,
            taken,
            actual,
        };
        let memory = self
            .memory
            .settle(&self.memory.plan(&self.policy, ""), key, &settlement);
        assert_eq!(
            Answer::of(&redis.decision, 1_000),
            Answer::of(&memory.decision, 1_000),
            "settled to {actual}"
        );
    }
}

fn script_calls(server: &RedisServer) -> u64 {
    let stats = server.info("commandstats");
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls
        .and_then(|calls| calls.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn a4_a_settlement_on_a_long_log_is_exact_and_split_into_calls() {
    let two = Cost::try_from(2).unwrap();
    let server = RedisServer::start();
    for policy in [
        "sliding_window_log 7_000/hour",
        "fixed_window 9_000/day; sliding_window_log 7_000/hour; 8_000/day",
    ] {
        server.command(&["FLUSHALL"]);
        let both = Both::new(&server, policy);
        let receipts: Vec<(Claims, Claims)> = (0..ENTRIES)
            .map(|_| {
                both.clock.advance(Duration::from_millis(500));
                both.admit(two)
            })
            .collect();
        // Partial and full refunds of the first entry, the last entry, neighbours, and entries at
        // the edges of a thousand.
        let settled = [
            (0, 0),
            (2_500, 500),
            (2_499, 0),
            (3_499, 1_000),
            (1, 1_999),
            (1_200, 0),
            (1_201, 0),
            (2, 0),
        ];
        // Loads the script.
        both.settle(&receipts[0], two, two);
        let mut removed = Vec::new();
        for (number, left) in settled {
            let before = script_calls(&server);
            both.settle(
                &receipts[number],
                two,
                Cost::from_thousandths(left).unwrap(),
            );
            let calls = script_calls(&server) - before;
            let later = ENTRIES - number - removed.iter().filter(|other| **other > number).count();
            assert_eq!(calls as usize, later.div_ceil(1_000), "for {number}");
            removed.extend((left == 0).then_some(number));
        }
        // All later waits, and all figures while the entries expire, match the memory store.
        for units in [50, 500, 2_000, 5_000, 6_999] {
            both.admit(Cost::try_from(units).unwrap());
        }
        for _ in 0..40 {
            both.clock.advance(Duration::from_secs(61));
            both.admit(Cost::ONE);
            both.admit(Cost::try_from(6_990).unwrap());
        }
    }
}

/// The log may change during a settlement. The settlement never refunds more than the log still
/// counts.
#[test]
fn a4_a_reset_or_refund_during_a_settlement_is_not_undone() {
    let server = RedisServer::start();
    let store = RedisStore::connect_blocking(&format!("{}?timeout=5s", server.url())).unwrap();
    let plan = Store::plan(
        &store,
        &"sliding_window_log 100_000/day".parse().unwrap(),
        "",
    );
    let (key, fifty) = (Key::new(b"k").unwrap(), Cost::try_from(50).unwrap());
    for disturb in ["reset", "refund"] {
        server.command(&["FLUSHDB"]);
        let admitted = store.block_on(store.admit_one(&plan, key, fifty));
        let claims = admitted.unwrap().unwrap().claims;
        let name = String::from_utf8(server.keys()[0].0.clone()).unwrap();
        // The log looks as if 200,000 requests had arrived a microsecond apart.
        let add = "local at = tonumber(redis.call('LINDEX', KEYS[1], -2)) for i = 1, 200000 do redis.call('RPUSH', KEYS[1], \
                   string.format('%d', at + i), string.format('%d', 50000 + i)) end";
        server.command(&["EVAL", add, "1", &name]);
        let has_passed = "local time = redis.call('TIME') return time[1] * 1000000 + time[2] > \
                          tonumber(redis.call('LINDEX', KEYS[1], -2)) and 1 or 0";
        assert!(wait_for(TIMEOUT, || server
            .command(&["EVAL", has_passed, "1", &name])
            == Value::Int(1)));
        let settlement = Settlement {
            claims: &claims,
            taken: fifty,
            actual: Cost::ZERO,
        };
        std::thread::scope(|scope| {
            let settling = scope.spawn(|| {
                store
                    .block_on(store.settle(&plan, key, &settlement))
                    .unwrap()
            });
            let other =
                RedisStore::connect_blocking(&format!("{}?timeout=5s", server.url())).unwrap();
            match disturb {
                "reset" => drop(other.block_on(other.reset(&plan, key)).unwrap().unwrap()),
                _ => drop(
                    other
                        .block_on(other.refund(&plan, key, Cost::try_from(220).unwrap()))
                        .unwrap()
                        .unwrap(),
                ),
            }
            assert!(
                other
                    .block_on(other.check(&plan, key, Cost::ONE))
                    .unwrap()
                    .unwrap()
                    .is_allowed()
            );
            settling.join().unwrap().unwrap();
        });
        let peek = store
            .block_on(store.check(&plan, key, Cost::ZERO))
            .unwrap()
            .unwrap();
        // The one later request counts. The other entries and the refund count at most once.
        assert!(
            (99_700..=99_999).contains(&peek.remaining()),
            "{disturb}: {peek:?}"
        );
    }
}
