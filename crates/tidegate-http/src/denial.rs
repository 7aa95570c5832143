//! The response to a denied request: status, headers and problem+json.

use std::time::Duration;

use tidegate_core::{DenialReason, Limit, Name, PolicyDecision, Verdict};

use crate::headers::{Header, Headers};
use crate::problem::Problem;
use crate::rounding::retry_after_seconds;

/// The content of the response to a denied request: status, headers and problem details.
///
/// # Examples
///
/// ```
/// use tidegate::{Gate, PolicySet, Rules};
/// use tidegate::tower::Denial;
///
/// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
/// gate.check("api", "user:42").now()?;
/// let verdict = gate.check("api", "user:42").now()?;
/// let denial = Denial::new(&verdict).expect("denied");
/// assert_eq!((denial.status(), denial.retry_after()), (429, Some(60)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Denial<'a> {
    verdict: &'a Verdict,
    policy: &'a PolicyDecision,
    /// Set if the request was admitted to a queue and its delay was too long by this time.
    excess: Option<Duration>,
    status: u16,
    jitter: u64,
}

/// The status codes for requests that no retry will allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenialStatuses {
    /// For a cost that exceeds the capacity.
    pub(crate) never: u16,
    /// For a blocked key.
    pub(crate) blocked: u16,
}

impl Default for DenialStatuses {
    fn default() -> Self {
        Self {
            never: 429,
            blocked: 429,
        }
    }
}

impl<'a> Denial<'a> {
    /// Creates the response to a denied request. Returns `None` if the request is allowed.
    #[must_use]
    pub fn new(verdict: &'a Verdict) -> Option<Self> {
        Self::with_statuses(verdict, DenialStatuses::default(), false)
    }

    pub(crate) fn with_statuses(
        verdict: &'a Verdict,
        statuses: DenialStatuses,
        has_jitter: bool,
    ) -> Option<Self> {
        let denial = Self::build(verdict, verdict.denial()?, None, statuses);
        Some(denial.with_jitter(has_jitter))
    }

    /// Creates the response to a request that was admitted to a queue with too long a delay.
    pub(crate) fn delayed(
        verdict: &'a Verdict,
        excess: Duration,
        has_jitter: bool,
    ) -> Option<Self> {
        let policy = verdict.longest_delayed()?;
        let denial = Self::build(verdict, policy, Some(excess), DenialStatuses::default());
        Some(denial.with_jitter(has_jitter))
    }

    fn build(
        verdict: &'a Verdict,
        policy: &'a PolicyDecision,
        excess: Option<Duration>,
        statuses: DenialStatuses,
    ) -> Self {
        let status = match reason(policy) {
            DenialReason::Outage => 503,
            DenialReason::CostAboveCapacity => statuses.never,
            DenialReason::Blocked => statuses.blocked,
            _ => 429,
        };
        Self {
            verdict,
            policy,
            excess,
            status,
            jitter: 0,
        }
    }

    fn with_jitter(mut self, has_jitter: bool) -> Self {
        if has_jitter && self.retry_after().is_some() {
            self.jitter = fastrand::u64(0..=1);
        }
        self
    }

    /// Returns by how much the request's delay in a queue was too long, or `None` if it was denied
    /// outright.
    #[must_use]
    pub fn excess(&self) -> Option<Duration> {
        self.excess
    }

    /// Returns the verdict of all policies.
    pub fn verdict(&self) -> &'a Verdict {
        self.verdict
    }

    /// Returns the name of the policy that denies for the longest time.
    #[must_use]
    pub fn policy(&self) -> &'a Name {
        self.policy.label().name()
    }

    /// Returns the HTTP status: 429, 503 if the store is unavailable and the failure policy is
    /// closed, or the status configured for costs above the capacity and for blocked keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{Gate, PolicySet, Rules};
    /// use tidegate::tower::Denial;
    ///
    /// # let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// # gate.check("api", "user:42").now()?;
    /// let verdict = gate.check("api", "user:42").now()?;
    /// assert_eq!(Denial::new(&verdict).map(|denial| denial.status()), Some(429));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the value of `Retry-After` in seconds, rounded up, at least 1. Returns `None` if a
    /// retry is never allowed, or if the wait is unknown.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{Gate, PolicySet, Rules};
    /// use tidegate::tower::Denial;
    ///
    /// # let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// # gate.check("api", "user:42").now()?;
    /// let verdict = gate.check("api", "user:42").now()?;
    /// assert_eq!(Denial::new(&verdict).and_then(|denial| denial.retry_after()), Some(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        if let Some(excess) = self.excess {
            return Some(retry_after_seconds(excess) + self.jitter);
        }
        let is_known = self.verdict.denials().all(|policy| {
            policy
                .decision()
                .is_none_or(|decision| decision.has_figures())
        });
        let wait = self.verdict.retry_after().filter(|_| is_known)?;
        Some(retry_after_seconds(wait) + self.jitter)
    }

    /// Returns the headers of the response, besides those of
    /// [`rate_limit_headers`](crate::rate_limit_headers): `Cache-Control` and `Retry-After`.
    #[must_use]
    pub fn headers(&self) -> Headers {
        let mut headers = Headers::new();
        headers.push(Header::new("cache-control", "no-store"));
        if let Some(seconds) = self.retry_after() {
            headers.push(Header::new("retry-after", seconds.to_string()));
        }
        headers
    }

    /// Returns the names of the policies that deny.
    pub fn violated(&self) -> impl Iterator<Item = &'a str> {
        let delayed = self.excess.map(|_| self.policy);
        let denials = self.verdict.denials().chain(delayed);
        denials.map(|policy| policy.label().name().as_str())
    }

    /// Returns a sentence for people, such as `api: token_bucket 5/minute; try again in 3 s`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{Gate, PolicySet, Rules};
    /// use tidegate::tower::Denial;
    ///
    /// # let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// # gate.check("api", "user:42").now()?;
    /// let verdict = gate.check("api", "user:42").now()?;
    /// let detail = Denial::new(&verdict).map(|denial| denial.detail());
    /// assert_eq!(detail.as_deref(), Some("api: token_bucket 1/minute; try again in 60 s"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn detail(&self) -> String {
        let name = self.policy();
        let limit = self.limit().map(ToString::to_string).unwrap_or_default();
        match (reason(self.policy), self.retry_after()) {
            (DenialReason::Limited, Some(wait)) => {
                format!("{name}: {limit}; try again in {wait} s")
            }
            (DenialReason::CostAboveCapacity, _) => {
                format!("{name}: {limit}; the cost of this request exceeds the limit")
            }
            (DenialReason::Blocked, _) => format!("{name}: this client is blocked"),
            (DenialReason::Outage, _) => {
                format!("{name}: the rate limit is temporarily unavailable")
            }
            _ => format!("{name}: {limit}"),
        }
    }

    /// Returns the reason for the denial.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::Denial;
    /// use tidegate::{DenialReason, Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// let verdict = gate.check("api", "user:42").cost(2).now()?;
    /// let denial = Denial::new(&verdict).expect("denied");
    /// assert_eq!(denial.reason(), DenialReason::CostAboveCapacity);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn reason(&self) -> DenialReason {
        reason(self.policy)
    }

    /// Returns the limit that denied the request, or `None` if the key is blocked.
    #[must_use]
    pub fn limit(&self) -> Option<&'a Limit> {
        self.policy.limit()
    }

    /// Returns the body: `application/problem+json`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{Gate, PolicySet, Rules};
    /// use tidegate::tower::Denial;
    ///
    /// # let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// # gate.check("api", "user:42").now()?;
    /// let verdict = gate.check("api", "user:42").now()?;
    /// let problem = Denial::new(&verdict).map(|denial| denial.problem()).unwrap_or_default();
    /// assert!(problem.contains(r#""violated-policies":["api"]"#));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn problem(&self) -> String {
        let (kind, title) = match reason(self.policy) {
            DenialReason::Blocked => (
                "abnormal-usage-detected",
                "Request not satisfied due to detection of abnormal usage",
            ),
            DenialReason::Outage => (
                "temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
            ),
            _ => (
                "quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
        };
        let problem = Problem {
            r#type: format!("https://iana.org/assignments/http-problem-types#{kind}"),
            violated_policies: Some(self.violated().collect()),
            retry_after: Some(self.retry_after()),
            ..Problem::new(self.status, title, self.detail())
        };
        problem.to_json()
    }
}

/// Returns the reason of a policy that denies, or that delays for too long.
fn reason(policy: &PolicyDecision) -> DenialReason {
    policy.reason().unwrap_or(DenialReason::Limited)
}
