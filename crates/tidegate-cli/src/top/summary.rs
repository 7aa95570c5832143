//! The figures of `GET /v1/top`.

use std::fmt::Write as _;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Deserialize;
use tidegate_insight::text::duration;

/// A second: its time, and the allowed, denied, near-limit and degraded requests.
pub(super) type HistoryRow = (u64, f64, f64, f64, f64);

#[derive(Deserialize)]
pub(super) struct TopSummary {
    pub(super) version: String,
    pub(super) uptime_s: u64,
    pub(super) config: ConfigFigures,
    pub(super) store: StoreFigures,
    pub(super) totals: Rates,
    #[serde(default)]
    pub(super) history: Vec<HistoryRow>,
    pub(super) policies: Vec<PolicyRates>,
    pub(super) denied: Vec<KeyRates>,
    pub(super) busiest: Vec<KeyRates>,
    pub(super) top3_share: Option<f64>,
    pub(super) obeying: usize,
    pub(super) hammering: usize,
    pub(super) shows_keys: bool,
}

#[derive(Deserialize)]
pub(super) struct ConfigFigures {
    pub(super) hash: String,
    pub(super) is_rejected: bool,
}

#[derive(Deserialize)]
pub(super) struct StoreFigures {
    pub(super) url: String,
    pub(super) state: String,
    pub(super) breaker: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
pub(super) struct Rates {
    pub(super) allowed: f64,
    pub(super) denied: f64,
    pub(super) near_limit: f64,
    pub(super) degraded: f64,
}

#[derive(Deserialize)]
pub(super) struct PolicyRates {
    pub(super) policy: String,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

#[derive(Deserialize)]
pub(super) struct KeyRates {
    pub(super) policy: String,
    pub(super) key: String,
    pub(super) requests: f64,
    pub(super) denied: f64,
    pub(super) limit: Option<String>,
    pub(super) is_denied: bool,
    pub(super) since_s: Option<u64>,
    pub(super) free_in_s: Option<f64>,
    pub(super) behavior: Option<String>,
}

impl TopSummary {
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        serde_json::from_str(text).context("the server's response: expected that of this version")
    }

    /// Returns one line about the server.
    pub(super) fn headline(&self) -> String {
        let breaker = self.store.breaker.as_ref();
        let breaker = breaker.map_or_else(String::new, |state| format!(", breaker {state}"));
        let rejected = if self.config.is_rejected {
            ", the last configuration was rejected"
        } else {
            ""
        };
        format!(
            "tidegate {} on {} {}{breaker}, up {}, configuration {}{rejected}",
            self.version,
            self.store.url,
            self.store.state,
            duration(self.uptime_s.saturating_mul(1_000_000_000)),
            self.config.hash,
        )
    }

    /// Returns one line about the denied clients.
    pub(super) fn denials(&self) -> String {
        let share = self.top3_share.map_or_else(String::new, |share| {
            format!(
                "the first three have {:.0} % of all denials, ",
                share * 100.0
            )
        });
        let (obeying, hammering) = (self.obeying, self.hammering);
        format!("{share}{obeying} wait for Retry-After, {hammering} do not")
    }

    /// Returns everything as text.
    pub(super) fn text(&self) -> String {
        let Rates {
            allowed,
            denied,
            near_limit,
            degraded,
        } = self.totals;
        let mut text = format!(
            "{}\nper second  {allowed:.1} allowed, {denied:.1} denied, {near_limit:.1} near the \
             limit, {degraded:.1} degraded\n",
            self.headline()
        );
        if !self.denied.is_empty() {
            let _ = write!(text, "\n{}", keys("denied keys", &self.denied));
            let _ = writeln!(text, " {}", self.denials());
        }
        if !self.busiest.is_empty() {
            let _ = write!(text, "\n{}", keys("busiest keys", &self.busiest));
            if !self.shows_keys {
                text.push_str(" Keys are masked; admin.show_keys = true shows them.\n");
            }
        }
        if !self.policies.is_empty() {
            let _ = write!(text, "\n{}", policies(&self.policies));
        }
        text
    }
}

impl KeyRates {
    /// Returns the time until a request is allowed.
    pub(super) fn free_in(&self) -> String {
        match (self.is_denied, self.free_in_s) {
            (false, _) => "now".to_owned(),
            (true, None) => "never".to_owned(),
            (true, Some(seconds)) => duration((seconds * 1e9) as u64),
        }
    }

    pub(super) fn since(&self) -> String {
        let since = self
            .since_s
            .map(|seconds| duration(seconds.saturating_mul(1_000_000_000)));
        since.unwrap_or_else(|| "-".to_owned())
    }

    pub(super) fn cells(&self) -> [String; 7] {
        [
            self.key.clone(),
            self.policy.clone(),
            format!("{:.1}", self.requests),
            format!("{:.1}", self.denied),
            self.limit.clone().unwrap_or_else(|| "-".to_owned()),
            self.since(),
            self.free_in(),
        ]
    }
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn lines(table: &Table) -> String {
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

fn keys(title: &str, keys: &[KeyRates]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        title,
        "policy",
        "requests/s",
        "denied/s",
        "denied by",
        "denied for",
        "free in",
    ]);
    for key in keys {
        let [name, policy, requests, denied, limit, since, free] = key.cells();
        let name = crate::simulate::printable(&name);
        table.add_row([
            Cell::new(name),
            Cell::new(crate::simulate::printable(&policy)),
            right(requests),
            right(denied),
            Cell::new(limit),
            right(since),
            right(free),
        ]);
    }
    lines(&table)
}

fn policies(policies: &[PolicyRates]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "policy",
        "allowed/s",
        "denied/s",
        "near limit/s",
        "degraded/s",
    ]);
    for policy in policies.iter().take(20) {
        let rates = policy.rates;
        let numbers = [
            rates.allowed,
            rates.denied,
            rates.near_limit,
            rates.degraded,
        ];
        let cells = numbers.map(|number| right(format!("{number:.1}")));
        table.add_row(std::iter::once(Cell::new(&policy.policy)).chain(cells));
    }
    lines(&table)
}
