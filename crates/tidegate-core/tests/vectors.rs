//! Runs every test vector through every entry point of the library.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;

use tidegate_core::{
    Claims, Cost, Decision, Limiter, ManualClock, MemoryStore, Policy, Receipt, Record, Settlement,
    Timestamp,
};
use tidegate_testkit::{Act, Subject, vectors};

#[test]
fn pure_steps() {
    vectors::run(|policy: Policy| {
        let mut records: HashMap<String, Record> = HashMap::new();
        let mut receipts: HashMap<u32, (Claims, Cost)> = HashMap::new();
        move |at_ns: u64, key: &str, act: Act| {
            let record = records.entry(key.to_owned()).or_default();
            let now = Timestamp::from_nanos(at_ns);
            match act {
                Act::Check(cost) => policy.decide(record, now, cost),
                Act::Refund(cost) => policy.refund(record, now, cost),
                Act::Charge(cost) => policy.charge(record, now, cost).decision,
                Act::Admit(cost, number) => {
                    let admission = policy.admit(record, now, cost);
                    receipts.insert(number, (admission.claims, cost));
                    admission.decision
                }
                Act::Settle(number, actual) => {
                    let (claims, taken) = receipts.remove(&number).unwrap();
                    policy
                        .settle(
                            record,
                            now,
                            &Settlement {
                                claims: &claims,
                                taken,
                                actual,
                            },
                        )
                        .decision
                }
            }
        }
    });
}

fn memory(policy: Policy) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(clock.clone())
        .build()
        .unwrap();
    (Limiter::new(store, policy), clock)
}

/// Open receipts, by number.
type Receipts = HashMap<u32, Receipt<MemoryStore>>;

fn act(limiter: &Limiter, receipts: &mut Receipts, key: &str, act: Act) -> Decision {
    match act {
        Act::Check(cost) => limiter.check(key).cost(cost).now().unwrap(),
        Act::Refund(cost) => limiter.refund(key, cost).now().unwrap().into(),
        Act::Charge(cost) => limiter.charge(key, cost).now().unwrap().into(),
        Act::Admit(cost, number) => {
            let (decision, receipt) = limiter.check(key).cost(cost).with_receipt().now().unwrap();
            receipts.insert(number, receipt);
            decision
        }
        Act::Settle(number, actual) => receipts
            .remove(&number)
            .unwrap()
            .settle_now(actual)
            .unwrap()[0],
    }
}

#[test]
fn memory_store() {
    vectors::run(|policy| {
        let ((limiter, clock), mut receipts) = (memory(policy), Receipts::new());
        move |at_ns: u64, key: &str, done: Act| {
            clock.set(Timestamp::from_nanos(at_ns));
            act(&limiter, &mut receipts, key, done)
        }
    });
}

#[test]
fn memory_store_in_batches() {
    vectors::run(|policy| {
        let ((limiter, clock), mut receipts) = (memory(policy), Receipts::new());
        move |at_ns: u64, key: &str, done: Act| {
            clock.set(Timestamp::from_nanos(at_ns));
            match done {
                Act::Check(cost) => limiter.check_many(&[(key, cost)]).now().unwrap()[0],
                _ => act(&limiter, &mut receipts, key, done),
            }
        }
    });
}

struct Awaited {
    limiter: Limiter,
    clock: ManualClock,
    receipts: Receipts,
}

impl Subject for Awaited {
    fn act(&mut self, at_ns: u64, key: &str, done: Act) -> Decision {
        self.clock.set(Timestamp::from_nanos(at_ns));
        match done {
            Act::Check(cost) => ready(self.limiter.check(key).cost(cost).into_future()).unwrap(),
            Act::Refund(cost) => ready(self.limiter.refund(key, cost).into_future())
                .unwrap()
                .into(),
            Act::Charge(cost) => ready(self.limiter.charge(key, cost).into_future())
                .unwrap()
                .into(),
            Act::Admit(..) | Act::Settle(..) => act(&self.limiter, &mut self.receipts, key, done),
        }
    }
}

/// Returns the output of a future that is ready.
fn ready<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("the memory store never blocks"),
    }
}

#[test]
fn memory_store_awaited() {
    vectors::run(|policy| {
        let (limiter, clock) = memory(policy);
        Awaited {
            limiter,
            clock,
            receipts: Receipts::new(),
        }
    });
}
