//! Statistics of a rule: hits, and how many were over, near or within the limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of values with statistics of their own, per rule. Further values count under
/// the rule.
const MAX_VALUES: usize = 1_000;

/// The maximum number of values with statistics of their own, of all rules together.
const MAX_ALL_VALUES: usize = 10_000;
/// The maximum length of a name with values.
const MAX_NAME: usize = 256;

/// The number of values with statistics, of all rules.
static ALL_VALUES: AtomicUsize = AtomicUsize::new(0);

/// The counters of a rule or of one of its values.
#[derive(Debug, Default)]
pub(crate) struct HitCounters {
    total: AtomicU64,
    over: AtomicU64,
    near: AtomicU64,
    within: AtomicU64,
    shadow: AtomicU64,
}

/// The name of a counter below its domain: `key_value` for each entry.
pub(crate) type StatPath = Box<[Box<str>]>;

/// The key and the value of a rule's entry.
pub(crate) type RuleEntry = (Box<str>, Box<str>);

/// The statistics of a rule.
pub(crate) struct RuleStats {
    domain: Box<str>,
    /// The entries of the rule. Names are joined with `_`, so two rules may have the same.
    rule: Box<[RuleEntry]>,
    path: StatPath,
    /// The name as envoyproxy/ratelimit builds it: `domain.key_value.key`.
    name: Box<str>,
    values: ShownValues,
    counters: Arc<HitCounters>,
    /// The counters of values, if the name shows some.
    by_value: Mutex<HashMap<StatPath, Arc<HitCounters>>>,
}

/// The values of a request that the names of its statistics show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownValues {
    /// Only those that are in the rules.
    OfRules,
    /// Those of entries with `value_to_metric`.
    Some,
    /// All of them: `detailed_metric`.
    All,
}

/// One decision, as it is counted.
#[derive(Clone, Copy)]
pub(crate) struct CountedHits {
    pub(crate) hits: u64,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) is_over: bool,
    pub(crate) is_shadow: bool,
}

impl RuleStats {
    pub(crate) fn new(
        domain: &str,
        rule: &[RuleEntry],
        path: StatPath,
        values: ShownValues,
    ) -> Self {
        Self {
            rule: rule.into(),
            name: stat_name(domain, &path).into(),
            domain: domain.into(),
            path,
            values,
            counters: Arc::default(),
            by_value: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn domain(&self) -> &str {
        &self.domain
    }

    pub(crate) fn values(&self) -> ShownValues {
        self.values
    }

    /// Counts a decision. `near_limit` is the share of the limit, in thousandths, from which hits
    /// are near it. `path` returns the name with the values of the request.
    pub(crate) fn count(
        &self,
        counted: CountedHits,
        near_limit: u64,
        path: impl FnOnce() -> StatPath,
    ) {
        if self.values == ShownValues::OfRules {
            return self.counters.count(counted, near_limit);
        }
        let path = path();
        // Clients choose the values.
        if path.iter().map(|part| part.len()).sum::<usize>() > MAX_NAME {
            return self.counters.count(counted, near_limit);
        }
        let mut by_value = self.by_value.lock().unwrap_or_else(PoisonError::into_inner);
        let counters = match by_value.get(&path) {
            Some(counters) => counters,
            None if by_value.len() < MAX_VALUES && has_room() => by_value.entry(path).or_default(),
            None => &self.counters,
        };
        counters.count(counted, near_limit);
    }

    /// Returns `true` for the statistics of a rule with these keys and values.
    pub(crate) fn is_of(&self, domain: &str, rule: &[RuleEntry]) -> bool {
        *self.domain == *domain && *self.rule == *rule
    }

    /// Returns the counters with their names below the domain.
    pub(crate) fn snapshot(&self) -> Vec<(StatPath, Arc<HitCounters>)> {
        let mut all = vec![(self.path.clone(), Arc::clone(&self.counters))];
        let by_value = self.by_value.lock().unwrap_or_else(PoisonError::into_inner);
        let by_value = by_value.iter();
        all.extend(by_value.map(|(path, counters)| (path.clone(), Arc::clone(counters))));
        all
    }
}

/// Counts one more value, if there is room for it.
fn has_room() -> bool {
    let more = |count: usize| (count < MAX_ALL_VALUES).then_some(count + 1);
    let counted = ALL_VALUES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    counted.is_ok()
}

impl Drop for RuleStats {
    fn drop(&mut self) {
        let by_value = self
            .by_value
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        ALL_VALUES.fetch_sub(by_value.len(), Ordering::Relaxed);
    }
}

/// Returns the name of a counter as envoyproxy/ratelimit builds it.
pub(crate) fn stat_name(domain: &str, path: &[Box<str>]) -> String {
    let mut name = domain.to_owned();
    for part in path {
        name.push('.');
        name.push_str(part);
    }
    name
}

impl HitCounters {
    /// Returns the counters with the names that envoyproxy/ratelimit gives them.
    pub(crate) fn by_name(&self) -> [(&'static str, &AtomicU64); 5] {
        [
            ("total_hits", &self.total),
            ("over_limit", &self.over),
            ("near_limit", &self.near),
            ("within_limit", &self.within),
            ("shadow_mode", &self.shadow),
        ]
    }

    /// Splits the hits as envoyproxy/ratelimit does: those beyond the limit are over, those beyond
    /// the threshold are near it.
    fn count(&self, counted: CountedHits, near_limit: u64) {
        let add = |counter: &AtomicU64, hits: u64| {
            if hits > 0 {
                counter.fetch_add(hits, Ordering::Relaxed);
            }
        };
        let CountedHits { hits, limit, .. } = counted;
        add(&self.total, hits);
        if counted.is_over {
            add(&self.over, hits);
            add(&self.shadow, if counted.is_shadow { hits } else { 0 });
            return;
        }
        add(&self.within, hits);
        let used = limit.saturating_sub(counted.remaining);
        let threshold = limit.saturating_mul(near_limit) / 1_000;
        add(&self.near, used.saturating_sub(threshold).min(hits));
    }
}
