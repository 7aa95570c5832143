//! Tests of receipts, and of requests on several keys, on the store itself.

use super::*;
use crate::blocking::ready;
use crate::{Gate, Name, PolicySet, Rules, Subject};

fn key(text: &str) -> Key<'_> {
    Key::new(text.as_bytes()).unwrap()
}

fn cost(units: u64) -> Cost {
    units.try_into().unwrap()
}

fn store() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new();
    (
        MemoryStore::builder().clock(clock.clone()).build().unwrap(),
        clock,
    )
}

/// Receipts are stored under an identity in which the order of limits does not matter.
#[test]
fn a3_a_late_receipt_frees_nothing_in_any_order_of_limits() {
    for other in ["10/second; gcra 1_000/day", "gcra 1_000/day; 10/second"] {
        let (take, clock) = limiter("10/second; gcra 1_000/day", 100);
        let settle = take.with_policy(other.parse().unwrap());
        for number in 0..100 {
            let (decision, is_kept) =
                ready(take.check_with_receipt_id(b"k", Cost::ONE, &number.to_string())).unwrap();
            assert!(decision.decision.is_allowed() && is_kept);
            clock.advance(Duration::from_millis(100));
        }
        clock.advance(Duration::from_secs(2));
        let mut at_once = 0;
        for number in 0..100 {
            at_once += u32::from(take.check("k").now().unwrap().is_allowed());
            assert!(
                ready(settle.settle_receipt_id(b"k", &number.to_string(), Cost::ZERO))
                    .unwrap()
                    .is_some()
            );
        }
        assert_eq!(at_once, 10, "{other}");
    }
}

#[test]
fn a3_a_receipt_of_one_bucket_refunds_nothing_to_another() {
    let (limiter, _) = limiter("5/hour; fixed_window 1000/day", 100);
    let old = limiter.in_namespace(&Name::new("p").unwrap(), limiter.policy().clone());
    let new = old.with_policy("6/hour; fixed_window 1000/day".parse().unwrap());
    for number in 0..5 {
        ready(old.check_with_receipt_id(b"k", Cost::ONE, &number.to_string())).unwrap();
    }
    let pass = || {
        (0..20)
            .filter(|_| new.check("k").now().unwrap().is_allowed())
            .count()
    };
    let before = pass();
    for number in 0..5 {
        // The window refunds its cost, but the bucket does not.
        assert!(
            ready(new.settle_receipt_id(b"k", &number.to_string(), Cost::ZERO))
                .unwrap()
                .is_some()
        );
    }
    assert_eq!((before, pass()), (6, 0));
}

#[test]
fn a3_settled_receipts_use_no_space() {
    let gate = Gate::memory(
        PolicySet::new()
            .with("p", Rules::new("fixed_window 9/hour".parse().unwrap()))
            .unwrap(),
    );
    assert!(
        ready(gate.decide_with_receipt(&Subject::new("p", "first"), "first"))
            .unwrap()
            .1
    );
    let free = |key| Subject {
        cost: Cost::ZERO,
        ..Subject::new("p", key)
    };
    for number in 0..70_000 {
        let id = number.to_string();
        assert!(
            ready(gate.decide_with_receipt(&Subject::new("p", "other"), &id))
                .unwrap()
                .1
        );
        assert!(ready(gate.settle(&free("other"), &id)).unwrap().is_some());
    }
    assert!(
        ready(gate.settle(&free("first"), "first"))
            .unwrap()
            .is_some()
    );
    assert!(
        ready(gate.settle(&free("first"), "first"))
            .unwrap()
            .is_none(),
        "the receipt was settled twice"
    );
}

/// The bucket is full again long before the actual cost is known.
#[test]
fn a3_a_higher_cost_is_charged_after_the_limit_has_reset() {
    let (store, clock) = store();
    let gate = Gate::new(
        store,
        PolicySet::new()
            .with("p", Rules::new("100_000/minute".parse().unwrap()))
            .unwrap(),
    );
    let subject = |units| Subject {
        cost: cost(units),
        ..Subject::new("p", "k")
    };
    assert!(
        ready(gate.decide_with_receipt(&subject(100), "r"))
            .unwrap()
            .1
    );
    clock.advance(Duration::from_secs(300));
    let settled = ready(gate.settle(&subject(50_000), "r")).unwrap().unwrap();
    assert_eq!(settled.remaining(), 50_100);
}

/// One key has a full log, another a bucket that was idle for long. A denied request must not touch
/// their times.
#[test]
fn a5_a_denied_request_on_several_keys_writes_nothing() {
    let (store, clock) = store();
    let none = store.plan(&"fixed_window 1/day".parse().unwrap(), "none");
    let log = store.plan(&"sliding_window_log 5/hour".parse().unwrap(), "log");
    let two = store.plan(&"3/minute; fixed_window 1000/day".parse().unwrap(), "two");
    for plan in [&none, &log, &two] {
        let _ = store.check(plan, key("k"), Cost::ONE);
    }
    clock.advance(Duration::from_secs(600));
    let entries = |store: &MemoryStore| -> Vec<_> {
        (0..store.table.lines.len())
            .flat_map(|line| store.table.entries(line))
            .collect()
    };
    let before = entries(&store);
    let admissions = store.admit(&[
        (&log, key("k"), Cost::ONE),
        (&two, key("k"), Cost::ONE),
        (&none, key("k"), Cost::ONE),
    ]);
    assert_eq!(
        admissions
            .iter()
            .map(|admission| admission.decision.is_denied())
            .collect::<Vec<_>>(),
        [false, false, true]
    );
    let states = |entries: &[table::Entry]| {
        entries
            .iter()
            .map(|entry| entry.record.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(states(&before), states(&entries(&store)));
}

#[test]
fn a5_a_request_on_too_many_keys_does_not_exceed_max_keys() {
    let store = MemoryStore::builder()
        .max_keys(2)
        .build_with(SECRET)
        .unwrap();
    let plan = store.plan(&"5/hour".parse().unwrap(), "");
    let names: Vec<String> = (0..32).map(|number| number.to_string()).collect();
    store.admit(
        &names
            .iter()
            .map(|name| (&plan, key(name), Cost::ONE))
            .collect::<Vec<_>>(),
    );
    for number in 0..100 {
        let _ = store.check(&plan, key(&format!("new {number}")), Cost::ONE);
    }
    assert_eq!(store.stats().keys, 2);
    store.table.assert_sound();
}

/// A denied request has no receipt, even if a candidate would have allowed it.
#[test]
fn a3_denied_requests_leave_no_candidate_receipts() {
    let rules = Rules::new("fixed_window 1/hour".parse().unwrap());
    let rules = rules.candidate("fixed_window 1000000/hour".parse().unwrap());
    let gate = Gate::memory(PolicySet::new().with("p", rules).unwrap());
    assert!(
        ready(gate.decide_with_receipt(&Subject::new("p", "k"), "first"))
            .unwrap()
            .1
    );
    for number in 0..66_000 {
        assert!(
            !ready(gate.decide_with_receipt(&Subject::new("p", "k"), &number.to_string()))
                .unwrap()
                .1
        );
    }
    let free = Subject {
        cost: Cost::ZERO,
        ..Subject::new("p", "k")
    };
    assert!(ready(gate.settle(&free, "first")).unwrap().is_some());
}
