//! What who is denied is told.

use std::time::Duration;

use serde::Serialize;
use tidegate_core::{Effect, Name, Outcome, Policy, Ruling, Verdict};

use crate::fields::retry_after_seconds;

/// A request that was denied, and what is to be said of it.
#[derive(Clone, Debug)]
pub struct Denial<'a> {
    verdict: &'a Verdict,
    ruling: &'a Ruling,
    /// By how much longer than allowed it would have to wait in a queue.
    excess: Option<Duration>,
    status: u16,
    jitter: u64,
}

/// With which status is denied what no waiting helps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statuses {
    /// What costs more than the limit will ever allow.
    pub(crate) never: u16,
    /// Keys that are blocked.
    pub(crate) blocked: u16,
}

impl Default for Statuses {
    fn default() -> Self {
        Self {
            never: 429,
            blocked: 429,
        }
    }
}

/// The body of an answer, after RFC 9457.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<&'a str>,
    retry_after: Option<u64>,
}

/// The kinds of denial there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Quota,
    /// It costs more than the limit will ever allow.
    Never,
    Blocked,
    /// The store is gone, and the failure policy is closed.
    Unavailable,
}

impl<'a> Denial<'a> {
    /// Of a verdict that denies.
    #[must_use]
    pub fn of(verdict: &'a Verdict) -> Option<Self> {
        Self::new(verdict, Statuses::default(), false)
    }

    pub(crate) fn new(verdict: &'a Verdict, statuses: Statuses, has_jitter: bool) -> Option<Self> {
        Some(Self::made(
            verdict,
            verdict.denial()?,
            None,
            statuses,
            has_jitter,
        ))
    }

    /// Of a request that was admitted, but would have to wait by so much longer than it may.
    pub(crate) fn queued(verdict: &'a Verdict, excess: Duration, has_jitter: bool) -> Option<Self> {
        Some(Self::made(
            verdict,
            verdict.longest_delayed()?,
            Some(excess),
            Statuses::default(),
            has_jitter,
        ))
    }

    fn made(
        verdict: &'a Verdict,
        ruling: &'a Ruling,
        excess: Option<Duration>,
        statuses: Statuses,
        has_jitter: bool,
    ) -> Self {
        let mut denial = Self {
            verdict,
            ruling,
            excess,
            status: 429,
            jitter: 0,
        };
        denial.status = match denial.cause() {
            Cause::Unavailable => 503,
            Cause::Never => statuses.never,
            Cause::Blocked => statuses.blocked,
            Cause::Quota => 429,
        };
        if has_jitter && denial.retry_after().is_some() {
            denial.jitter = fastrand::u64(0..=1);
        }
        denial
    }

    /// By how much longer than it may, the request would have to wait in a queue; `None` where it was denied outright.
    #[must_use]
    pub fn excess(&self) -> Option<Duration> {
        self.excess
    }

    /// What each policy said.
    #[must_use]
    pub fn verdict(&self) -> &'a Verdict {
        self.verdict
    }

    /// The policy that denies; of several, the one that does so for longest.
    #[must_use]
    pub fn policy(&self) -> &'a Name {
        self.ruling.label().name()
    }

    /// 429, or 503 where the store is gone and nothing is let through without it, or what the limits say for what no
    /// waiting helps.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// What Retry-After says, in seconds: rounded up, at least 1; `None` where it would never pass, or nobody knows.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        if let Some(excess) = self.excess {
            return Some(retry_after_seconds(excess) + self.jitter);
        }
        let knows = self.verdict.denials().all(|ruling| {
            ruling
                .decision()
                .is_none_or(|decision| decision.has_figures())
        });
        let wait = self.verdict.retry_after().filter(|_| knows)?;
        Some(retry_after_seconds(wait) + self.jitter)
    }

    fn cause(&self) -> Cause {
        match self.ruling.effect() {
            Effect::Blocked => Cause::Blocked,
            Effect::Limited(decision) if !decision.has_figures() => Cause::Unavailable,
            Effect::Limited(decision) if decision.outcome() == Outcome::NeverAllowed => {
                Cause::Never
            }
            _ => Cause::Quota,
        }
    }

    /// The names of the policies that deny.
    pub fn violated(&self) -> impl Iterator<Item = &'a str> {
        let queue = self.excess.map(|_| self.ruling);
        self.verdict
            .denials()
            .chain(queue)
            .map(|ruling| ruling.label().name().as_str())
    }

    /// What is wrong, in a sentence for people.
    #[must_use]
    pub fn detail(&self) -> String {
        let name = self.policy();
        let limit = self.limit();
        match (self.cause(), self.retry_after()) {
            (Cause::Quota, Some(wait)) => format!("{name}: {limit}; try again in {wait} s"),
            (Cause::Quota, None) => format!("{name}: {limit}"),
            (Cause::Never, _) => {
                format!("{name}: {limit}; this request costs more than that will ever allow")
            }
            (Cause::Blocked, _) => format!("{name}: this client is blocked"),
            (Cause::Unavailable, _) => format!("{name}: the limit cannot be checked at present"),
        }
    }

    /// The limit that denies, as its policy writes it.
    fn limit(&self) -> String {
        let index = self
            .ruling
            .decision()
            .map_or(0, |decision| decision.limit_index());
        let limit = self
            .ruling
            .label()
            .policy()
            .and_then(|policy| policy.limits().get(index));
        limit
            .and_then(|limit| Policy::try_from(*limit).ok())
            .map_or_else(String::new, |policy| policy.to_string())
    }

    /// The body: `application/problem+json`.
    #[must_use]
    pub fn problem(&self) -> String {
        let (kind, title) = match self.cause() {
            Cause::Quota | Cause::Never => (
                "quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
            Cause::Blocked => (
                "abnormal-usage-detected",
                "Request not satisfied due to detection of abnormal usage",
            ),
            Cause::Unavailable => (
                "temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
            ),
        };
        let problem = Problem {
            r#type: format!("https://iana.org/assignments/http-problem-types#{kind}"),
            title,
            status: self.status,
            detail: self.detail(),
            violated_policies: self.violated().collect(),
            retry_after: self.retry_after(),
        };
        // Texts and numbers: there is nothing that could not be written.
        serde_json::to_string(&problem).unwrap_or_default()
    }
}
