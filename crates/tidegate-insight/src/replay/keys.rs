//! The figures of each key, for a bounded number of keys.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

/// The number of keys that are kept when there are more than twice as many.
const KEPT: usize = 100_000;
/// The number of distinct keys that are counted exactly.
const COUNTED: usize = 4_000_000;
/// The gaps between requests that a statement about regularity needs.
const LEAST_GAPS: u64 = 20;

/// The figures of one key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyFigures {
    /// The key.
    pub key: String,
    /// The number of requests.
    pub requests: u64,
    /// The denials by each policy.
    pub denials: Vec<Denials>,
    /// The time of the first request in microseconds since 1970.
    pub first_us: u64,
    /// The time of the last request.
    pub last_us: u64,
    /// The standard deviation of the gaps between requests, divided by their mean. A timer is near
    /// 0, independent requests are near 1, people are above. `None` below 21 requests.
    pub irregularity: Option<f64>,
}

/// The denials of one key by one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Denials {
    /// The number of denied requests.
    pub count: u64,
    /// The time of the first one in microseconds since 1970, or 0.
    pub first_us: u64,
    /// The time of the last one, or 0.
    pub last_us: u64,
}

/// An order of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyOrder {
    /// Most denials by any policy first.
    #[default]
    Denied,
    /// Most requests first.
    Requests,
    /// Most regular first.
    Regular,
}

struct KeyEntry {
    requests: u64,
    first_us: u64,
    last_us: u64,
    denials: Box<[Denials]>,
    mean_gap: f64,
    /// The sum of squared differences from the mean gap, after Welford.
    squares: f64,
}

pub(super) struct KeyTable {
    policies: usize,
    entries: HashMap<Box<str>, KeyEntry>,
    distinct: HashSet<u64>,
    limited: Vec<HashSet<u64>>,
    is_exact: bool,
}

impl KeyTable {
    pub(super) fn new(policies: usize) -> Self {
        Self {
            policies,
            entries: HashMap::new(),
            distinct: HashSet::new(),
            limited: vec![HashSet::new(); policies],
            is_exact: true,
        }
    }

    /// Counts a request of a key, and its denials: one bit per policy.
    pub(super) fn add(&mut self, at_us: u64, key: &str, hash: u64, denied_by: u8) {
        self.is_exact &= insert_bounded(&mut self.distinct, hash);
        if !self.entries.contains_key(key) {
            self.make_room();
            let entry = KeyEntry::new(at_us, self.policies);
            self.entries.insert(key.into(), entry);
        }
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.arrive(at_us);
        for policy in (0..self.policies).filter(|policy| denied_by & (1 << policy) != 0) {
            self.is_exact &= insert_bounded(&mut self.limited[policy], hash);
            let denials = &mut entry.denials[policy];
            if denials.count == 0 {
                denials.first_us = at_us;
            }
            denials.count += 1;
            denials.last_us = at_us;
        }
    }

    pub(super) fn distinct(&self) -> (u64, bool) {
        (self.distinct.len() as u64, self.is_exact)
    }

    pub(super) fn limited(&self, policy: usize) -> u64 {
        self.limited[policy].len() as u64
    }

    /// Drops the least busy keys without denials.
    fn make_room(&mut self) {
        if self.entries.len() < 2 * KEPT {
            return;
        }
        let rank = |entry: &KeyEntry| (entry.denied(), entry.requests);
        let mut ranks: Vec<_> = self.entries.values().map(rank).collect();
        let (busier, threshold, _) = ranks.select_nth_unstable_by(KEPT, |a, b| b.cmp(a));
        let threshold = *threshold;
        // Among equal keys, as many as there is room for.
        let mut ties = KEPT - busier.iter().filter(|rank| **rank > threshold).count();
        self.entries.retain(|_, entry| {
            let is_tie = rank(entry) == threshold && ties > 0;
            ties -= usize::from(is_tie);
            is_tie || rank(entry) > threshold
        });
    }

    pub(super) fn top(&self, order: KeyOrder, count: usize) -> Vec<KeyFigures> {
        let mut entries: Vec<(&str, &KeyEntry)> = self
            .entries
            .iter()
            .map(|(key, entry)| (&**key, entry))
            .collect();
        match order {
            KeyOrder::Denied => entries.retain(|(_, entry)| entry.denied() > 0),
            KeyOrder::Requests => {}
            KeyOrder::Regular => entries.retain(|(_, entry)| entry.irregularity().is_some()),
        }
        entries.sort_by(|(a_key, a), (b_key, b)| {
            let ordering = match order {
                KeyOrder::Denied => b.denied().cmp(&a.denied()),
                KeyOrder::Requests => b.requests.cmp(&a.requests),
                KeyOrder::Regular => {
                    let irregularity = |entry: &KeyEntry| entry.irregularity().unwrap_or(f64::MAX);
                    irregularity(a).total_cmp(&irregularity(b))
                }
            };
            ordering
                .then(b.requests.cmp(&a.requests))
                .then(a_key.cmp(b_key))
        });
        let figures = entries.into_iter().take(count);
        figures.map(|(key, entry)| entry.figures(key)).collect()
    }
}

/// Returns `false` if the set is full and lacks the hash.
fn insert_bounded(set: &mut HashSet<u64>, hash: u64) -> bool {
    if set.len() >= COUNTED {
        return set.contains(&hash);
    }
    set.insert(hash);
    true
}

impl KeyEntry {
    fn new(at_us: u64, policies: usize) -> Self {
        Self {
            requests: 0,
            first_us: at_us,
            last_us: at_us,
            denials: vec![Denials::default(); policies].into(),
            mean_gap: 0.0,
            squares: 0.0,
        }
    }

    fn arrive(&mut self, at_us: u64) {
        self.requests += 1;
        let gaps = self.requests - 1;
        if gaps > 0 {
            let gap = (at_us - self.last_us) as f64;
            let difference = gap - self.mean_gap;
            self.mean_gap += difference / gaps as f64;
            self.squares += difference * (gap - self.mean_gap);
        }
        self.last_us = at_us;
    }

    fn denied(&self) -> u64 {
        self.denials
            .iter()
            .map(|denials| denials.count)
            .max()
            .unwrap_or(0)
    }

    fn irregularity(&self) -> Option<f64> {
        let gaps = self.requests.saturating_sub(1);
        let is_known = gaps >= LEAST_GAPS && self.mean_gap > 0.0;
        is_known.then(|| (self.squares / gaps as f64).sqrt() / self.mean_gap)
    }

    fn figures(&self, key: &str) -> KeyFigures {
        KeyFigures {
            key: key.to_owned(),
            requests: self.requests,
            denials: self.denials.to_vec(),
            first_us: self.first_us,
            last_us: self.last_us,
            irregularity: self.irregularity(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_single_keys_do_not_push_out_busy_ones() {
        let mut table = KeyTable::new(1);
        for number in 0..50_u64 {
            for _ in 0..10 {
                table.add(1, &format!("busy{number}"), number, 1);
            }
        }
        for number in 100..450_000_u64 {
            table.add(2, &number.to_string(), number, 0);
        }
        let top = table.top(KeyOrder::Denied, 100);
        assert_eq!(top.len(), 50);
        assert!(
            top.iter()
                .all(|key| key.requests == 10 && key.denials[0].count == 10)
        );
        assert!(table.entries.len() <= 2 * KEPT);
    }
}
