//! Statistics of a rule: hits, and how many were over, near or within the limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of values with statistics of their own, per rule. Further values count under
/// the rule.
const MAX_VALUES: usize = 1_000;

/// The counters of a rule or of one of its values.
#[derive(Debug, Default)]
pub(crate) struct HitCounters {
    total: AtomicU64,
    over: AtomicU64,
    near: AtomicU64,
    within: AtomicU64,
    shadow: AtomicU64,
}

/// The statistics of a rule.
pub(crate) struct RuleStats {
    /// The name as envoyproxy/ratelimit builds it: `domain.key_value.key`.
    name: Box<str>,
    counters: Arc<HitCounters>,
    /// The counters of values, if the rule has `detailed_metric` or `value_to_metric`.
    values: Option<Mutex<HashMap<Box<str>, Arc<HitCounters>>>>,
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
    pub(crate) fn new(name: &str, shows_value: bool) -> Self {
        Self {
            name: name.into(),
            counters: Arc::default(),
            values: shows_value.then(Mutex::default),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shows_value(&self) -> bool {
        self.values.is_some()
    }

    /// Counts a decision. `near_limit` is the share of the limit, in thousandths, from which hits
    /// are near it. `detailed_name` returns the name of the counters with the descriptor's values.
    pub(crate) fn count(
        &self,
        counted: CountedHits,
        near_limit: u64,
        detailed_name: impl FnOnce() -> String,
    ) {
        match &self.values {
            None => self.counters.count(counted, near_limit),
            Some(values) => {
                let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
                let name = detailed_name();
                let counters = match values.get(name.as_str()) {
                    Some(counters) => counters,
                    None if values.len() < MAX_VALUES => values.entry(name.into()).or_default(),
                    None => &self.counters,
                };
                counters.count(counted, near_limit);
            }
        }
    }

    /// Returns the counters with their names.
    pub(crate) fn snapshot(&self) -> Vec<(Box<str>, Arc<HitCounters>)> {
        let mut all = vec![(self.name.clone(), Arc::clone(&self.counters))];
        if let Some(values) = &self.values {
            let values = values.lock().unwrap_or_else(PoisonError::into_inner);
            let of_values = values.iter();
            all.extend(of_values.map(|(name, counters)| (name.clone(), Arc::clone(counters))));
        }
        all
    }
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
