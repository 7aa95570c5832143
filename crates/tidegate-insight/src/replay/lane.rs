//! One policy of a replay: its limiter, the behaviour of denied clients, and its figures.

use std::io;

use serde::Serialize;
use tidegate_core::{
    Cost, Decision, Limiter, ManualClock, MemoryStore, Outcome, Policy, Timestamp,
};

use super::ReplayOptions;
use super::clients::{ClientBehavior, Retries, Retry};
use crate::Timeline;

/// The number of keys whose state is kept by default.
const MAX_KEYS: u64 = 1_000_000;

/// The figures of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyFigures {
    /// The policy in canonical text.
    pub policy: String,
    /// The requests of the log that were denied when they arrived.
    pub denied: u64,
    /// The denied requests that can never be allowed, because their cost exceeds the capacity.
    pub never: u64,
    /// The keys with at least one denied request.
    pub limited_keys: u64,
    /// The longest wait of a denied request in microseconds.
    pub longest_wait_us: u64,
    /// Retries of denied requests, if clients retry.
    pub retries: u64,
    /// Denied requests that were allowed later.
    pub served_later: u64,
    /// Denied requests that gave up.
    pub given_up: u64,
    /// The mean delay of requests that were allowed later, in microseconds.
    pub mean_delay_us: u64,
    /// Keys whose state was evicted too early, because there were more than `max_keys`.
    pub evictions: u64,
}

pub(super) struct Lane {
    limiter: Limiter,
    clock: ManualClock,
    timeline: Timeline,
    retries: Retries,
    figures: PolicyFigures,
    delay_us: u64,
}

impl Lane {
    pub(super) fn new(policy: &Policy, options: &ReplayOptions) -> io::Result<Self> {
        let clock = ManualClock::new();
        let max_keys = options.max_keys.unwrap_or(MAX_KEYS);
        let builder = MemoryStore::builder()
            .max_keys(max_keys)
            .clock(clock.clone());
        let store = builder.build().map_err(io::Error::other)?;
        Ok(Self {
            limiter: Limiter::new(store, policy.clone()),
            clock,
            timeline: Timeline::default(),
            retries: Retries::new(options.clients),
            figures: PolicyFigures {
                policy: policy.to_string(),
                ..PolicyFigures::default()
            },
            delay_us: 0,
        })
    }

    /// Decides a request of the log, after all retries that are due. Returns `true` if it is
    /// allowed.
    pub(super) fn decide(&mut self, at_us: u64, key: &str, cost: Cost) -> bool {
        self.run_retries(at_us);
        let Some(decision) = self.check(at_us, key, cost) else {
            return true;
        };
        let is_allowed = decision.is_allowed();
        self.timeline.add(at_us, is_allowed, decision.remaining());
        if is_allowed {
            return true;
        }
        self.figures.denied += 1;
        self.figures.never += u64::from(decision.outcome() == Outcome::NeverAllowed);
        let wait = decision
            .retry_after()
            .map_or(0, |wait| wait.as_micros() as u64);
        self.figures.longest_wait_us = self.figures.longest_wait_us.max(wait);
        let retry = Retry::first(at_us, key, cost);
        if !self.retries.schedule(retry, at_us, &decision) {
            self.figures.given_up += u64::from(self.retries.is_active());
        }
        false
    }

    fn check(&self, at_us: u64, key: &str, cost: Cost) -> Option<Decision> {
        self.clock.set(Timestamp::from_micros(at_us)?);
        self.limiter.check(key).cost(cost).now().ok()
    }

    fn run_retries(&mut self, until_us: u64) {
        while let Some((at_us, retry)) = self.retries.due(until_us) {
            self.figures.retries += 1;
            let Some(decision) = self.check(at_us, &retry.key, retry.cost) else {
                continue;
            };
            if decision.is_allowed() {
                self.figures.served_later += 1;
                self.delay_us = self.delay_us.saturating_add(at_us - retry.first_us);
            } else if !self.retries.schedule(retry.again(), at_us, &decision) {
                self.figures.given_up += 1;
            }
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        self.limiter.policy()
    }

    pub(super) const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns the figures, after all retries.
    pub(super) fn figures(&mut self, limited_keys: u64) -> PolicyFigures {
        self.run_retries(u64::MAX / 1_000);
        PolicyFigures {
            limited_keys,
            mean_delay_us: self
                .delay_us
                .checked_div(self.figures.served_later)
                .unwrap_or(0),
            evictions: self.limiter.store().stats().evictions,
            ..self.figures.clone()
        }
    }
}

impl ClientBehavior {
    /// Returns the name used on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsLogged => "as-logged",
            Self::Obey => "obey",
            Self::Hammer => "hammer",
            Self::Backoff => "backoff",
        }
    }
}
