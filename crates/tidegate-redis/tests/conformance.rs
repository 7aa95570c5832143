//! The Redis store makes the same decisions as the memory store, in every field. The tests run
//! every vector and random requests of every algorithm.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tidegate_core::{
    Algorithm, Cost, Decision, Limit, LimitFigures, Limiter, ManualClock, MemoryStore, Policy,
    Receipt, Store, Timestamp,
};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisCluster, RedisServer};
use tidegate_testkit::walk::{self, Walk};
use tidegate_testkit::{Act, Answer, Subject, tools, vectors};

/// Durations in Redis are whole microseconds.
const TICK_NS: u64 = 1_000;

/// The year 2147. Later times of a bucket that takes a century to refill exceed the integers that a
/// double holds exactly.
const LATEST_NS: u64 = 5_600_000_000_000_000_000;

/// A duration longer than any test takes.
const KEEP: Duration = Duration::from_secs(3_600);

/// A store with a manual clock, and a limiter on it for each case.
struct ManualStore {
    limiter: Limiter<RedisStore>,
    clock: ManualClock,
    cases: AtomicU64,
}

impl ManualStore {
    fn connect(url: &str) -> Self {
        let clock = ManualClock::new();
        let builder = RedisStore::builder(url)
            .manual_time(clock.clone(), KEEP)
            .timeout(Duration::from_secs(10));
        let redis = builder.connect_blocking().unwrap();
        // The deny cache uses the clock of this process, not the manual clock, so it is off.
        let limiter = Limiter::builder(redis, "1/s".parse().unwrap())
            .deny_cache(0)
            .build();
        Self {
            limiter,
            clock,
            cases: AtomicU64::new(0),
        }
    }

    fn case(&self, policy: Policy) -> Case {
        let number = self.cases.fetch_add(1, Ordering::Relaxed);
        let (limiter, clock) = (self.limiter.with_policy(policy), self.clock.clone());
        Case {
            limiter,
            clock,
            number,
            receipts: HashMap::new(),
        }
    }
}

/// A test case with its own keys, so that it starts with nothing stored.
struct Case {
    limiter: Limiter<RedisStore>,
    clock: ManualClock,
    number: u64,
    receipts: HashMap<u32, Receipt<RedisStore>>,
}

impl Subject for Case {
    fn act(&mut self, at_ns: u64, key: &str, act: Act) -> Decision {
        self.clock.set(Timestamp::from_nanos(at_ns));
        let key = format!("{}:{key}", self.number);
        let decision = match act {
            Act::Check(cost) => self.limiter.check(&key).cost(cost).blocking().unwrap(),
            Act::Refund(cost) => self.limiter.refund(&key, cost).blocking().unwrap().into(),
            Act::Charge(cost) => self.limiter.charge(&key, cost).blocking().unwrap().into(),
            Act::Admit(cost, number) => {
                let (decision, receipt) = self
                    .limiter
                    .check(&key)
                    .cost(cost)
                    .with_receipt()
                    .blocking()
                    .unwrap();
                self.receipts.insert(number, receipt);
                decision
            }
            Act::Settle(number, actual) => {
                let receipt = self.receipts.remove(&number).unwrap();
                let settled = self
                    .limiter
                    .store()
                    .block_on(receipt.settle_and_peek(actual))
                    .unwrap()
                    .unwrap();
                // A denied request has nothing to settle.
                settled
                    .first()
                    .copied()
                    .unwrap_or_else(|| self.limiter.check(&key).cost(0).blocking().unwrap())
            }
        };
        assert_eq!(decision.degraded(), None, "{:?}", self.limiter.counters());
        decision
    }
}

#[test]
fn every_vector_matches_on_one_server() {
    let server = RedisServer::start();
    let manual = ManualStore::connect(&server.url());
    vectors::run(|policy| manual.case(policy));
    assert!(
        server.keys().iter().all(|(_, ttl)| *ttl > 0),
        "a key has no expiry"
    );
}

/// The versions in docs/redis.md, beside Debian's: every vector, and random requests of several
/// limits.
fn conforms(program: &std::path::Path, seed: u64) {
    let server = RedisServer::start_program(program);
    let manual = ManualStore::connect(&server.url());
    vectors::run(|policy| manual.case(policy));
    walks_on(&manual, seed, false, several);
    walks_on(&manual, seed + 1, true, several);
    assert!(
        server.keys().iter().all(|(_, ttl)| *ttl > 0),
        "a key has no expiry"
    );
}

#[test]
fn valkey_9_conforms() {
    conforms(&tools::valkey_server(), 31);
}

#[test]
fn redis_6_2_conforms() {
    conforms(&tools::redis_6_server(), 41);
}

#[test]
fn every_vector_matches_on_a_cluster() {
    let mut cluster = RedisCluster::start();
    let manual = ManualStore::connect(&cluster.url());
    vectors::run(|policy| manual.case(policy));
    for node in &cluster.nodes()[..3] {
        assert!(
            node.keys().iter().all(|(_, ttl)| *ttl > 0),
            "a key has no expiry"
        );
    }
}

#[test]
fn every_vector_matches_in_batches() {
    let server = RedisServer::start();
    let manual = ManualStore::connect(&server.url());
    vectors::run(|policy| {
        let mut case = manual.case(policy);
        move |at_ns: u64, key: &str, act: Act| {
            let Act::Check(cost) = act else {
                return case.act(at_ns, key, act);
            };
            case.clock.set(Timestamp::from_nanos(at_ns));
            let key = format!("{}:{key}", case.number);
            // The batch has a second key, because a single check uses another script.
            case.limiter
                .check_many(&[(&*key, cost), ("beside", Cost::ONE)])
                .blocking()
                .unwrap()[0]
        }
    });
}

/// Rounds a duration up to the tick of Redis.
fn micros(duration: Duration) -> u128 {
    duration.as_nanos().div_ceil(1_000)
}

/// Asserts that a peek returns the figures of the memory store, for every limit, and takes nothing.
fn assert_peeks_match(
    case: &Case,
    (expected, expected_limits): &(Decision, Vec<LimitFigures>),
    cost: Cost,
    policy: &Policy,
) {
    let key = format!("{}:k", case.number);
    let peek = || case.limiter.peek(&key).cost(cost).with_limits().blocking();
    for (peeked, limits) in [peek().unwrap(), peek().unwrap()] {
        let answer = |decision| Answer::of(decision, TICK_NS);
        assert_eq!(answer(&peeked), answer(expected), "{policy}: peek {cost:?}");
        let figures = |limits: &[LimitFigures]| -> Vec<_> {
            let row = |one: &LimitFigures| {
                let waits = (one.retry_after().map(micros), micros(one.reset_after()));
                (one.is_allowed(), one.limit(), one.remaining(), waits)
            };
            limits.iter().map(row).collect()
        };
        assert_eq!(
            figures(&limits),
            figures(expected_limits),
            "{policy}: peek {cost:?}"
        );
    }
}

/// Runs random walks on a new server and compares it with the memory store.
fn walks(seed: u64, steps_back: bool, draw: impl FnMut(&mut Rng) -> Policy) {
    let server = RedisServer::start();
    let manual = ManualStore::connect(&server.url());
    walks_on(&manual, seed, steps_back, draw);
}

/// Runs random walks on a store and compares it with the memory store.
fn walks_on(
    manual: &ManualStore,
    seed: u64,
    steps_back: bool,
    mut draw: impl FnMut(&mut Rng) -> Policy,
) {
    const STEPS: usize = 20_000;
    const STEPS_PER_WALK: usize = 100;
    let mut random = Rng::with_seed(seed);
    for _ in 0..STEPS / STEPS_PER_WALK {
        let policy = draw(&mut random);
        let mut walk = Walk::new(&mut random, &policy);
        walk.steps_back = steps_back;
        let mut case = manual.case(policy.clone());
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(10)
            .clock(clock.clone())
            .build()
            .unwrap();
        let memory = Limiter::new(store, policy.clone());
        let (mut receipts, mut costs) = (HashMap::new(), BTreeMap::new());
        for step in 0..STEPS_PER_WALK {
            let (at_ns, mut act) = walk.next_step();
            if at_ns > LATEST_NS {
                break;
            }
            // Some requests take a receipt, and some steps settle one at any cost.
            if let (Act::Check(cost), 0) = (act, random.u8(0..4)) {
                act = Act::Admit(cost, step as u32);
                costs.insert(step as u32, cost);
            } else if let (Some(number), 0) =
                (random.choice(costs.keys().copied()), random.u8(0..4))
            {
                let taken = costs.remove(&number).unwrap().thousandths();
                let actual = [0, taken / 2, taken, taken + 1, taken * 3][random.usize(0..5)];
                act = Act::Settle(
                    number,
                    Cost::from_thousandths(actual.min(Cost::MAX.thousandths())).unwrap(),
                );
            }
            let at_ns = at_ns - at_ns % TICK_NS;
            clock.set(Timestamp::from_nanos(at_ns));
            let limits_before = match act {
                Act::Check(cost) => memory.peek("k").cost(cost).with_limits().now().unwrap(),
                _ => memory.peek("k").with_limits().now().unwrap(),
            };
            let expected = match act {
                Act::Check(cost) => memory.check("k").cost(cost).now().unwrap(),
                Act::Refund(cost) => memory.refund("k", cost).now().unwrap().into(),
                Act::Charge(cost) => memory.charge("k", cost).now().unwrap().into(),
                Act::Admit(cost, number) => {
                    let (decision, receipt) =
                        memory.check("k").cost(cost).with_receipt().now().unwrap();
                    receipts.insert(number, receipt);
                    decision
                }
                Act::Settle(number, actual) => {
                    let settled = receipts
                        .remove(&number)
                        .unwrap()
                        .settle_now(actual)
                        .unwrap();
                    settled
                        .first()
                        .copied()
                        .unwrap_or_else(|| memory.check("k").cost(0).now().unwrap())
                }
            };
            if let Act::Check(cost) = act {
                case.clock.set(Timestamp::from_nanos(at_ns));
                assert_peeks_match(&case, &limits_before, cost, &policy);
            }
            let decision = case.act(at_ns, "k", act);
            let context = || format!("{policy}: {act:?} at {at_ns}");
            assert_eq!(
                Answer::of(&decision, TICK_NS),
                Answer::of(&expected, TICK_NS),
                "{}",
                context()
            );
            assert_eq!(
                (decision.limit_index(), micros(decision.limit_reset_after())),
                (expected.limit_index(), micros(expected.limit_reset_after())),
                "{}",
                context()
            );
            walk.learn(Answer::of(&expected, 1));
        }
    }
}

fn one_limit(algorithm: Algorithm) -> impl FnMut(&mut Rng) -> Policy {
    move |random| Policy::new([walk::limit(random, algorithm)]).unwrap()
}

fn several(random: &mut Rng) -> Policy {
    let limits: Vec<Limit> = (0..random.usize(2..5))
        .map(|_| walk::limit(random, Algorithm::ALL[random.clone().usize(0..6)]))
        .collect();
    Policy::new(limits).unwrap()
}

#[test]
fn fixed_window_matches_memory() {
    walks(1, false, one_limit(Algorithm::FixedWindow));
}

#[test]
fn sliding_window_log_matches_memory() {
    walks(2, false, one_limit(Algorithm::SlidingWindowLog));
}

#[test]
fn sliding_window_counter_matches_memory() {
    walks(3, false, one_limit(Algorithm::SlidingWindowCounter));
}

#[test]
fn token_bucket_matches_memory() {
    walks(4, false, one_limit(Algorithm::TokenBucket));
}

#[test]
fn leaky_bucket_matches_memory() {
    walks(5, false, one_limit(Algorithm::LeakyBucket));
}

#[test]
fn gcra_matches_memory() {
    walks(6, false, one_limit(Algorithm::Gcra));
}

#[test]
fn several_limits_match_memory() {
    walks(7, false, several);
}

/// Policies with this many limits use the generic script.
#[test]
fn many_limits_match_memory() {
    walks(10, false, |random| {
        let limit =
            |random: &mut Rng| walk::limit(random, Algorithm::ALL[random.clone().usize(0..6)]);
        Policy::new(
            (0..random.usize(4..9))
                .map(|_| limit(random))
                .collect::<Vec<_>>(),
        )
        .unwrap()
    });
}

#[test]
fn decisions_match_memory_if_the_clock_steps_back() {
    walks(8, true, |random| {
        Policy::new([walk::limit(
            random,
            Algorithm::ALL[random.clone().usize(0..6)],
        )])
        .unwrap()
    });
    walks(9, true, several);
}
