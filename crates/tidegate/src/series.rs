//! The metrics of a gate, for every exporter.

use tidegate_core::{Breaker, Degraded, Gate, PolicyCounters, Store};

/// One value with its labels. Labels come from the configuration, never from a key.
pub(crate) struct Point {
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: u64,
}

/// All values of one metric.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricKind,
    read: fn(&Snapshot) -> Vec<Point>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    /// A histogram of durations. Exporters without histograms of their own export the percentiles,
    /// in microseconds.
    Histogram,
}

/// The counters of a gate at one time.
pub(crate) struct Snapshot {
    policies: Vec<PolicyCounters>,
    store: Option<tidegate_core::StoreHealth>,
}

impl Snapshot {
    pub(crate) fn of<S: Store>(gate: &Gate<S>) -> Self {
        Self {
            policies: gate.counters(),
            store: gate.store_health(),
        }
    }

    /// Returns the durations of round trips, or `None` in memory.
    #[cfg(feature = "prometheus")]
    pub(crate) fn latency(&self) -> Option<&tidegate_core::Latency> {
        Some(&self.store.as_ref()?.latency)
    }
}

impl Series {
    /// Returns the values; none if there is nothing to report.
    pub(crate) fn points(&self, snapshot: &Snapshot) -> Vec<Point> {
        (self.read)(snapshot)
    }
}

/// All metrics.
pub(crate) const SERIES: [Series; 20] = [
    counter("tidegate_checks", "Requests by policy and outcome", checks),
    counter(
        "tidegate_near_limit",
        "Allowed requests that left less than a fifth of the capacity",
        |snapshot| by_policy(snapshot, |policy| policy.near_limit),
    ),
    counter(
        "tidegate_candidate_checks",
        "Requests by policy and outcome of its candidate",
        candidates,
    ),
    counter(
        "tidegate_degraded",
        "Degraded decisions by policy and reason",
        degraded,
    ),
    counter(
        "tidegate_refunds",
        "Requests whose cost was given back in part or in full",
        |snapshot| by_policy(snapshot, |policy| policy.refunds),
    ),
    counter(
        "tidegate_charges",
        "Charges, and settlements at a higher cost",
        |snapshot| by_policy(snapshot, |policy| policy.charges),
    ),
    counter(
        "tidegate_dropped_units",
        "Units of charges that exceeded the debt and were not counted",
        |snapshot| by_policy(snapshot, |policy| policy.dropped / 1_000),
    ),
    counter(
        "tidegate_unknown_tiers",
        "Requests with a tier that the policy does not have",
        |snapshot| by_policy(snapshot, |policy| policy.unknown_tiers),
    ),
    counter(
        "tidegate_unsettled",
        "Charges and settlements that exceeded the debt",
        |snapshot| by_policy(snapshot, |policy| policy.unsettled),
    ),
    counter(
        "tidegate_store_trips",
        "Round trips to the store that were answered",
        |snapshot| of_store(snapshot, |store| store.round_trips),
    ),
    counter(
        "tidegate_store_reconnects",
        "Connections to the store established after one was lost",
        |snapshot| of_store(snapshot, |store| store.reconnects),
    ),
    counter(
        "tidegate_store_breaker_openings",
        "Times the circuit breaker of the store opened",
        |snapshot| of_store(snapshot, |store| store.breaker_openings),
    ),
    gauge(
        "tidegate_store_breaker_open",
        "State of the circuit breaker of the store: 0 closed, 1 half open or open",
        |snapshot| {
            of_store(snapshot, |store| {
                u64::from(store.breaker != Breaker::Closed)
            })
        },
    ),
    gauge(
        "tidegate_store_waiting",
        "Checks waiting for a round trip to the store",
        |snapshot| of_store(snapshot, |store| store.waiting),
    ),
    gauge(
        "tidegate_leased_keys",
        "Keys of which this process holds leased quota",
        |snapshot| of_store(snapshot, |store| store.leases.keys),
    ),
    gauge(
        "tidegate_leased_units",
        "Leased quota that this process has not spent",
        |snapshot| of_store(snapshot, |store| store.leases.held / 1_000),
    ),
    counter(
        "tidegate_lease_granted_units",
        "Quota leased from the store",
        |snapshot| of_store(snapshot, |store| store.leases.granted / 1_000),
    ),
    counter(
        "tidegate_lease_returned_units",
        "Leased quota given back unspent",
        |snapshot| of_store(snapshot, |store| store.leases.returned / 1_000),
    ),
    counter(
        "tidegate_lease_lapsed_units",
        "Leased quota neither spent nor given back",
        |snapshot| of_store(snapshot, |store| store.leases.lapsed / 1_000),
    ),
    Series {
        name: "tidegate_store_latency_seconds",
        help: "Duration of round trips to the store, including those that timed out",
        kind: MetricKind::Histogram,
        read: latency,
    },
];

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&Snapshot) -> Vec<Point>,
) -> Series {
    Series {
        name,
        help,
        kind: MetricKind::Counter,
        read,
    }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    read: fn(&Snapshot) -> Vec<Point>,
) -> Series {
    Series {
        name,
        help,
        kind: MetricKind::Gauge,
        read,
    }
}

fn labelled(policy: &PolicyCounters, label: &'static str, value: &str, count: u64) -> Point {
    Point {
        labels: vec![
            ("policy", policy.policy.to_string()),
            (label, value.to_owned()),
        ],
        value: count,
    }
}

fn by_policy(snapshot: &Snapshot, read: fn(&PolicyCounters) -> u64) -> Vec<Point> {
    let point = |policy: &PolicyCounters| Point {
        labels: vec![("policy", policy.policy.to_string())],
        value: read(policy),
    };
    snapshot.policies.iter().map(point).collect()
}

fn of_store(snapshot: &Snapshot, read: fn(&tidegate_core::StoreHealth) -> u64) -> Vec<Point> {
    snapshot
        .store
        .iter()
        .map(|store| Point {
            labels: Vec::new(),
            value: read(store),
        })
        .collect()
}

fn checks(snapshot: &Snapshot) -> Vec<Point> {
    let of_policy = |policy: &PolicyCounters| {
        [
            ("allowed", policy.allowed),
            ("denied", policy.denied),
            ("outage", policy.outages),
            ("never_allowed", policy.never_allowed),
            ("unlimited", policy.unlimited),
            ("blocked", policy.blocked),
            ("denied_by_others", policy.denied_by_others),
            ("shadow_denied", policy.shadow_denied),
            ("turned_away", policy.turned_away),
        ]
        .map(|(outcome, count)| labelled(policy, "outcome", outcome, count))
    };
    snapshot.policies.iter().flat_map(of_policy).collect()
}

fn candidates(snapshot: &Snapshot) -> Vec<Point> {
    let of_policy = |policy: &PolicyCounters| {
        [
            ("allowed", policy.candidate_allowed),
            ("denied", policy.candidate_denied),
        ]
        .map(|(outcome, count)| labelled(policy, "outcome", outcome, count))
    };
    snapshot.policies.iter().flat_map(of_policy).collect()
}

fn degraded(snapshot: &Snapshot) -> Vec<Point> {
    let of_policy = |policy: &PolicyCounters| {
        Degraded::ALL
            .map(|reason| labelled(policy, "reason", reason.name(), policy.degraded(reason)))
    };
    snapshot.policies.iter().flat_map(of_policy).collect()
}

fn latency(snapshot: &Snapshot) -> Vec<Point> {
    let quantiles = |store: &tidegate_core::StoreHealth| {
        let latency = &store.latency;
        [
            ("50", latency.p50),
            ("99", latency.p99),
            ("99.9", latency.p999),
        ]
        .map(|(percentile, time)| Point {
            labels: vec![("percentile", percentile.to_owned())],
            value: u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        })
    };
    snapshot.store.iter().flat_map(quantiles).collect()
}
