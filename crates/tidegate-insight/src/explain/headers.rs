//! The headers that a client would receive: for its first request, and for the first denied one.

use serde::Serialize;
use tidegate_core::{Gate, ManualClock, MemoryStore, Policy, PolicySet, Rules, Timestamp, Verdict};
use tidegate_http::{Denial, Header, verdict_headers};

use crate::trial::{origin, units};

/// The name of the policy in the headers.
const NAME: &str = "api";

/// Headers in the default format, for a policy named `api`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExampleHeaders {
    /// The headers of the first request.
    pub allowed: Vec<String>,
    /// The headers of a request that comes when nothing is left.
    pub denied: Vec<String>,
}

impl ExampleHeaders {
    pub(super) fn of(policy: &Policy) -> Self {
        // A request in memory fails only for invalid input.
        Self::rendered(policy).unwrap_or_default()
    }

    fn rendered(policy: &Policy) -> Option<Self> {
        let clock = ManualClock::at(Timestamp::from_nanos(origin([policy])));
        let store = MemoryStore::builder().max_keys(64).clock(clock).build();
        let policies = PolicySet::new()
            .with(NAME, Rules::new(policy.clone()))
            .ok()?;
        let gate = Gate::new(store.ok()?, policies);
        let allowed = gate.check(NAME, "client").with_limits().now().ok()?;
        let rest = units(allowed.remaining().unwrap_or(0));
        let _rest = gate.check(NAME, "client").cost(rest).now().ok()?;
        let denied = gate.check(NAME, "client").with_limits().now().ok()?;
        Some(Self {
            allowed: verdict_headers(&allowed).iter().map(text).collect(),
            denied: denied_headers(&denied),
        })
    }
}

fn denied_headers(verdict: &Verdict) -> Vec<String> {
    let retry = Denial::new(verdict).and_then(|denial| denial.retry_after());
    let retry = retry.map(|seconds| format!("retry-after: {seconds}"));
    verdict_headers(verdict)
        .iter()
        .map(text)
        .chain(retry)
        .collect()
}

fn text(header: &Header) -> String {
    format!(
        "{}: {}",
        header.name,
        String::from_utf8_lossy(&header.value)
    )
}
