//! The most denied and the busiest keys of a summary.

use serde::Serialize;
use tidegate::Timestamp;

use super::sketch::{Entry, Merged, per_second};
use crate::log::masked;

/// The number of keys of each kind.
const KEYS: usize = 25;
/// A decayed count below this is not shown.
const LEAST_COUNT: f64 = 0.05;

#[derive(Clone, Debug, Serialize)]
pub(super) struct KeyRates {
    policy: Box<str>,
    tenant: Option<Box<str>>,
    key: String,
    requests: f64,
    denied: f64,
    /// The limit that denied it last.
    limit: Option<String>,
    /// True if its last request was denied.
    is_denied: bool,
    /// The time since its first denial without a longer pause, in seconds.
    since_s: Option<u64>,
    /// The time until a request is allowed, in seconds; `null` if it is allowed or never will be.
    free_in_s: Option<f64>,
    behavior: Option<&'static str>,
}

/// The keys of a summary.
pub(super) struct Keys {
    pub(super) denied: Vec<KeyRates>,
    pub(super) busiest: Vec<KeyRates>,
    pub(super) top3_share: Option<f64>,
    pub(super) obeying: usize,
    pub(super) hammering: usize,
}

impl Keys {
    pub(super) fn of(merged: Merged, now: Timestamp, shows_keys: bool) -> Self {
        let totals = merged.totals;
        let mut entries = merged.entries;
        let top = |entries: &[Entry], is_listed: fn(&Entry) -> bool| {
            let listed = entries.iter().filter(|entry| is_listed(entry)).take(KEYS);
            listed
                .map(|entry| KeyRates::of(entry, now, shows_keys))
                .collect::<Vec<_>>()
        };
        entries.sort_by(|a, b| b.denied.total_cmp(&a.denied));
        let denied = top(&entries, |entry| entry.denied >= LEAST_COUNT);
        let top3: f64 = entries.iter().take(3).map(|entry| entry.denied).sum();
        let count = |name: &str| {
            denied
                .iter()
                .filter(|key| key.behavior == Some(name))
                .count()
        };
        let (obeying, hammering) = (count("obeys"), count("hammers"));
        entries.sort_by(|a, b| (b.requests - b.error).total_cmp(&(a.requests - a.error)));
        Self {
            busiest: top(&entries, |entry| {
                entry.requests - entry.error >= LEAST_COUNT
            }),
            top3_share: (totals.denied >= LEAST_COUNT).then(|| (top3 / totals.denied).min(1.0)),
            denied,
            obeying,
            hammering,
        }
    }
}

impl KeyRates {
    fn of(entry: &Entry, now: Timestamp, shows_keys: bool) -> Self {
        let key = match shows_keys {
            true => {
                let text = String::from_utf8_lossy(&entry.key);
                let cut = if entry.key_bytes > entry.key.len() {
                    "…"
                } else {
                    ""
                };
                format!("{text}{cut}")
            }
            false => masked(&entry.key, entry.key_bytes),
        };
        let denial = entry.denial.as_ref();
        let denied_now = denial.filter(|denial| denial.is_active);
        let age = now.saturating_since(entry.begun).as_secs_f64();
        let behavior = match entry.hammered + entry.obeyed {
            total if total < 0.5 => None,
            _ if entry.hammered > entry.obeyed => Some("hammers"),
            _ => Some("obeys"),
        };
        Self {
            policy: entry.policy.clone(),
            tenant: entry.tenant.clone(),
            key,
            requests: per_second(entry.requests - entry.error, age),
            denied: per_second(entry.denied, age),
            limit: denial.and_then(|denial| Some(denial.limit?.to_string())),
            since_s: denial.map(|denial| now.saturating_since(denial.since).as_secs()),
            is_denied: denied_now.is_some(),
            free_in_s: denied_now
                .and_then(|denial| denial.free_at)
                .map(|free_at| free_at.saturating_since(now).as_secs_f64()),
            behavior,
        }
    }
}
