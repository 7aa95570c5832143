//! The figures of the dashboard and of `GET /v1/top`, once a second.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use tidegate::{AnyStore, Breaker, Degraded, PolicyCounters, Timestamp};

use super::key_rates::{KeyRates, Keys};
use super::sketch::Merged;
use crate::server::Server;

/// The number of policies, busiest first.
const POLICIES: usize = 200;
/// The seconds of history.
const HISTORY: usize = 600;

/// The figures of one second.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// The time in milliseconds since 1970.
    at_ms: u64,
    version: &'static str,
    uptime_s: u64,
    config: ConfigFigures,
    store: StoreFigures,
    /// All policies together, per second.
    totals: Rates,
    /// The last ten minutes, oldest first: time in seconds, allowed, denied, near limit, degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) history: Vec<(u64, f64, f64, f64, f64)>,
    policies: Vec<PolicyRates>,
    policy_count: usize,
    /// The most denied keys.
    denied: Vec<KeyRates>,
    /// The busiest keys.
    busiest: Vec<KeyRates>,
    /// The part of all denials that the three most denied keys have.
    top3_share: Option<f64>,
    /// Denied clients in the list that wait, and that do not.
    obeying: usize,
    hammering: usize,
    /// True if keys are shown in full (`admin.show_keys`).
    shows_keys: bool,
    read_only: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
struct ConfigFigures {
    hash: String,
    /// The time of the last reload in seconds since 1970, or of the start.
    loaded_at_s: u64,
    reloads: u64,
    /// True if the last file was invalid, and an earlier one is in use.
    is_rejected: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
struct StoreFigures {
    url: String,
    /// `ok` or `degraded`.
    state: &'static str,
    breaker: Option<&'static str>,
    breaker_openings: u64,
    last_error: Option<String>,
    waiting: u64,
    keys: Option<u64>,
    max_keys: Option<u64>,
    evictions: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Rates {
    allowed: f64,
    denied: f64,
    near_limit: f64,
    degraded: f64,
}

#[derive(Clone, Debug, Serialize)]
struct PolicyRates {
    policy: String,
    #[serde(flatten)]
    rates: Rates,
    shadow_denied: f64,
    candidate: Option<CandidateRates>,
}

/// The candidate's decisions per second, beside the enforced ones.
#[derive(Clone, Copy, Debug, Serialize)]
struct CandidateRates {
    allowed: f64,
    denied: f64,
}

/// The counters of the last second, to compute rates.
pub(super) struct Ticker {
    last: HashMap<String, Counts>,
    inline: Counts,
    last_at: Timestamp,
    history: VecDeque<(u64, f64, f64, f64, f64)>,
    hash: String,
    loaded_at_s: u64,
    reloads: u64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    allowed: u64,
    denied: u64,
    near_limit: u64,
    degraded: u64,
    shadow_denied: u64,
    candidate_allowed: u64,
    candidate_denied: u64,
}

impl Counts {
    fn of(counters: &PolicyCounters) -> Self {
        let degraded = Degraded::ALL
            .iter()
            .map(|reason| counters.degraded(*reason));
        Self {
            allowed: counters.allowed + counters.unlimited,
            denied: counters.denied + counters.never_allowed + counters.blocked + counters.outages,
            near_limit: counters.near_limit,
            degraded: degraded.sum(),
            shadow_denied: counters.shadow_denied,
            candidate_allowed: counters.candidate_allowed,
            candidate_denied: counters.candidate_denied,
        }
    }
}

impl Ticker {
    pub(super) fn new(server: &Server) -> Self {
        Self {
            last: HashMap::new(),
            inline: Counts::default(),
            last_at: server.clock.now(),
            history: VecDeque::new(),
            hash: server.active().hash.clone(),
            loaded_at_s: server.started_at_s,
            reloads: 0,
        }
    }

    pub(super) fn tick(&mut self, server: &Server, merged: Merged) -> Summary {
        let active = server.active();
        let now = server.clock.now();
        let seconds = now.saturating_since(self.last_at).as_secs_f64().max(0.001);
        self.last_at = now;
        let now_s = now.as_nanos() / 1_000_000_000;
        if self.hash != active.hash {
            self.hash.clone_from(&active.hash);
            self.loaded_at_s = now_s;
            self.reloads += 1;
        }
        let counters = active.gate.counters();
        let policy_count = counters.len();
        let mut policies = self.rates(&counters, seconds);
        let mut totals = Rates::default();
        for policy in &policies {
            totals.add(&policy.rates);
        }
        totals.add(&self.inline(server, seconds));
        policies.sort_by(|a, b| b.rates.rank().total_cmp(&a.rates.rank()));
        policies.truncate(POLICIES);
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        let Rates {
            allowed,
            denied,
            near_limit,
            degraded,
        } = totals;
        self.history
            .push_back((now_s, allowed, denied, near_limit, degraded));
        let admin = &active.config.admin;
        let keys = Keys::of(merged, now, admin.show_keys);
        Summary {
            at_ms: now.as_nanos() / 1_000_000,
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: now_s.saturating_sub(server.started_at_s),
            config: ConfigFigures {
                hash: active.hash.clone(),
                loaded_at_s: self.loaded_at_s,
                reloads: self.reloads,
                is_rejected: server.metrics.is_rejected(),
            },
            store: StoreFigures::of(server),
            totals,
            history: self.history.iter().copied().collect(),
            policies,
            policy_count,
            denied: keys.denied,
            busiest: keys.busiest,
            top3_share: keys.top3_share,
            obeying: keys.obeying,
            hammering: keys.hammering,
            shows_keys: admin.show_keys,
            read_only: admin.read_only,
        }
    }

    fn rates(&mut self, counters: &[PolicyCounters], seconds: f64) -> Vec<PolicyRates> {
        let mut current = HashMap::with_capacity(counters.len());
        let mut rates = Vec::with_capacity(counters.len());
        for policy in counters {
            let name = policy.policy.as_str();
            let counts = Counts::of(policy);
            let before = self.last.get(name).copied().unwrap_or_default();
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            let has_candidate = counts.candidate_allowed + counts.candidate_denied > 0;
            rates.push(PolicyRates {
                policy: name.to_owned(),
                rates: Rates {
                    allowed: rate(counts.allowed, before.allowed),
                    denied: rate(counts.denied, before.denied),
                    near_limit: rate(counts.near_limit, before.near_limit),
                    degraded: rate(counts.degraded, before.degraded),
                },
                shadow_denied: rate(counts.shadow_denied, before.shadow_denied),
                candidate: has_candidate.then(|| CandidateRates {
                    allowed: rate(counts.candidate_allowed, before.candidate_allowed),
                    denied: rate(counts.candidate_denied, before.candidate_denied),
                }),
            });
            current.insert(name.to_owned(), counts);
        }
        self.last = current;
        rates
    }

    /// The decisions under limits that came with requests.
    fn inline(&mut self, server: &Server, seconds: f64) -> Rates {
        let [allowed, denied, degraded] = server.metrics.inline_totals();
        let counts = Counts {
            allowed,
            denied,
            degraded,
            ..Counts::default()
        };
        let before = std::mem::replace(&mut self.inline, counts);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            allowed: rate(allowed, before.allowed),
            denied: rate(denied, before.denied),
            near_limit: 0.0,
            degraded: rate(degraded, before.degraded),
        }
    }
}

impl Rates {
    fn add(&mut self, other: &Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.near_limit += other.near_limit;
        self.degraded += other.degraded;
    }

    /// Orders policies: denials count more than allowed requests.
    fn rank(&self) -> f64 {
        self.allowed + 10.0 * self.denied
    }
}

impl StoreFigures {
    fn of(server: &Server) -> Self {
        let active = server.active();
        let url = active.config.store.url.to_string();
        let state = if active.is_degraded() {
            "degraded"
        } else {
            "ok"
        };
        let health = active.gate.store_health();
        let memory = match active.gate.store() {
            AnyStore::Memory(store) => Some(store.stats()),
            _ => None,
        };
        let breaker = health.as_ref().map(|health| match health.breaker {
            Breaker::Closed => "closed",
            Breaker::Open => "open",
            _ => "half-open",
        });
        Self {
            url,
            state,
            breaker,
            breaker_openings: health.as_ref().map_or(0, |health| health.breaker_openings),
            waiting: health.as_ref().map_or(0, |health| health.waiting),
            last_error: health.and_then(|health| health.last_error),
            keys: memory.as_ref().map(|memory| memory.keys),
            max_keys: memory.as_ref().map(|memory| memory.max_keys),
            evictions: memory.as_ref().map(|memory| memory.evictions),
        }
    }
}

/// A summary without its history, which a page has already.
impl Summary {
    pub(crate) fn without_history(self: &Arc<Self>) -> Self {
        Self {
            history: Vec::new(),
            ..Self::clone(self)
        }
    }
}
