//! Twenty million keys on a store for one million.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tidegate_core::{Cost, Limiter};

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or("0 kB");
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<u64>()
        .unwrap()
        * 1_024
}

/// This test is alone in its file, so that no other test's memory is measured.
#[test]
fn memory_stays_bounded_and_denied_keys_stay_denied() {
    const MAX_KEYS: u64 = 1_000_000;
    let before = resident();
    let limiter = Limiter::memory("100/day".parse().unwrap());
    assert_eq!(limiter.store().stats().max_keys, MAX_KEYS);
    let denied_keys: Vec<String> = (0..1_000)
        .map(|number| format!("denied:{number}"))
        .collect();
    for key in &denied_keys {
        assert!(limiter.check(key).cost(100).now().unwrap().is_allowed());
        assert!(limiter.check(key).now().unwrap().is_denied());
    }
    let mut decisions = Vec::new();
    for batch in 0..20_000_000 / 1_000 {
        let keys: Vec<(String, Cost)> = (0..1_000)
            .map(|key| (format!("flood:{}", batch * 1_000 + key), Cost::ONE))
            .collect();
        decisions.clear();
        limiter.check_many(&keys).now_into(&mut decisions).unwrap();
    }
    let still_denied = denied_keys
        .iter()
        .filter(|key| limiter.check(*key).now().unwrap().is_denied())
        .count();
    assert_eq!(still_denied, denied_keys.len());
    let stats = limiter.store().stats();
    assert_eq!(stats.keys, MAX_KEYS);
    // The documented 46 bytes per key, plus 1 MB for the test itself.
    assert!(stats.table_bytes as u64 <= 46 * MAX_KEYS, "{stats:?}");
    let grown = resident().saturating_sub(before);
    assert!(grown <= 46 * MAX_KEYS + (1 << 20), "{grown} bytes");
}
