//! Decides the descriptors of one request.
//!
//! Checks of enforced rules are all or nothing. Shadow rules, rules in quota mode, charges and
//! refunds are decided beside them, each on its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use tidegate::{AnyStore, Cost, Decision, Gate, Key, Limiter};
use tidegate_core::{LimiterRequest, Store};

use super::figures::{
    DecideError, Figures, available, check_together, cost, failed, refund, would_be,
};
use super::rules::{Domain, Domains, Rule};
use super::stats::CountedHits;
use super::target::{Counter, LimitedTarget, Target, find};
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;

/// The maximum number of descriptors in one request.
pub(crate) const MAX_DESCRIPTORS: usize = 32;

/// One descriptor of a request.
pub(crate) struct LimitRequest<'a> {
    pub(crate) entries: &'a [Entry],
    /// The limit that came with it.
    pub(crate) limit: Option<&'a RateLimitOverride>,
    pub(crate) hits: Hits,
}

/// The effect of a descriptor's hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hits {
    /// Takes nothing. Over the limit only if the count exceeds it.
    Look,
    /// Takes the hits if they fit, together with those of all other checks.
    Check(u64),
    /// Takes the hits whatever the limit says.
    Charge(u64),
    /// Gives hits back.
    Refund(u64),
}

/// The settings of decisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecideOptions {
    /// Counts every descriptor on its own, also if it is over the limit, as envoyproxy/ratelimit
    /// does.
    pub(crate) is_independent: bool,
    /// Treats every rule as one in quota mode.
    pub(crate) has_quota_mode: bool,
    /// The share of a limit from which hits count as near it, in thousandths.
    pub(crate) near_limit: u64,
}

/// The decisions of a request.
pub(crate) struct Decided {
    pub(crate) is_over: bool,
    /// Set if all quotas are over.
    pub(crate) are_quotas_over: bool,
    /// In the order of the descriptors.
    pub(crate) decisions: SmallVec<[RuleDecision; 2]>,
}

/// The decision of one descriptor.
pub(crate) enum RuleDecision {
    NoRule,
    Unlimited(Arc<Rule>),
    Limited {
        figures: Figures,
        shown: RateLimit,
        rule: Option<Arc<Rule>>,
        /// Set if it denies only together with all other quotas.
        is_quota: bool,
    },
}

/// Decides all descriptors of a request.
///
/// # Errors
///
/// Returns an error if a descriptor is invalid, before anything is taken, or if the store is
/// unavailable and the failure policy denies.
pub(crate) async fn decide(
    domains: &Domains,
    gate: &Gate<AnyStore>,
    domain: &str,
    requests: &[LimitRequest<'_>],
    options: DecideOptions,
) -> Result<Decided, DecideError> {
    let Some(domain) = domains.domain(domain) else {
        return Ok(Decided {
            is_over: false,
            are_quotas_over: false,
            decisions: requests.iter().map(|_| RuleDecision::NoRule).collect(),
        });
    };
    let targets = find(domain, gate, requests)?;
    let mut run = Run::new(domain, &targets, requests, options, gate.store());
    run.decide_alone().await?;
    run.decide_together().await?;
    Ok(run.finish())
}

/// The place of a descriptor's decision in the whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// No limit.
    Free,
    /// Denies, and is taken together with the others.
    Enforced,
    /// Denies, and was taken alone: a charge or a refund.
    EnforcedAlone,
    /// Denies only if all of its kind are over.
    Quota,
    /// Never denies.
    Shadow,
}

/// The decisions of one request, while they are made.
struct Run<'a> {
    domain: &'a Domain,
    requests: &'a [LimitRequest<'a>],
    targets: &'a [Target<'a>],
    store: &'a AnyStore,
    hits: SmallVec<[Hits; 2]>,
    roles: SmallVec<[Role; 2]>,
    figures: SmallVec<[Option<Figures>; 2]>,
    options: DecideOptions,
}

impl<'a> Run<'a> {
    fn new(
        domain: &'a Domain,
        targets: &'a [Target<'a>],
        requests: &'a [LimitRequest<'a>],
        options: DecideOptions,
        store: &'a AnyStore,
    ) -> Self {
        let hits = requests.iter().map(|request| match request.hits {
            Hits::Check(hits) if options.is_independent => Hits::Charge(hits),
            hits => hits,
        });
        let hits: SmallVec<[Hits; 2]> = hits.collect();
        let role = |(target, hits): (&Target<'_>, &Hits)| match target {
            Target::None | Target::Unlimited(_) => Role::Free,
            Target::Limited(LimitedTarget { rule, .. }) => {
                if rule.is_some_and(|rule| rule.is_shadow) {
                    Role::Shadow
                } else if options.has_quota_mode || rule.is_some_and(|rule| rule.is_quota) {
                    Role::Quota
                } else if options.is_independent
                    || matches!(hits, Hits::Charge(_) | Hits::Refund(_))
                {
                    Role::EnforcedAlone
                } else {
                    Role::Enforced
                }
            }
        };
        Self {
            roles: targets.iter().zip(&hits).map(role).collect(),
            figures: targets.iter().map(|_| None).collect(),
            domain,
            requests,
            targets,
            store,
            hits,
            options,
        }
    }

    /// Decides every descriptor that does not depend on others.
    async fn decide_alone(&mut self) -> Result<(), DecideError> {
        let is_alone = |role: &Role| !matches!(role, Role::Free | Role::Enforced);
        if !self.roles.iter().any(is_alone) {
            return Ok(());
        }
        let places: SmallVec<[usize; 2]> = (0..self.roles.len())
            .filter(|place| is_alone(&self.roles[*place]))
            .collect();
        if self.store.is_remote() && self.have_own_counters(&places) {
            let all = places.iter().map(|place| self.decide_one(*place));
            let decided = join_all(all).await;
            for (place, figures) in places.into_iter().zip(decided) {
                self.figures[place] = Some(figures?);
            }
        } else {
            for place in places {
                self.figures[place] = Some(self.decide_one(place).await?);
            }
        }
        Ok(())
    }

    /// Returns `true` if no two descriptors have a key in common. Those that do are decided in
    /// order.
    fn have_own_counters(&self, places: &[usize]) -> bool {
        let key = |place: &usize| match &self.targets[*place] {
            Target::Limited(limited) => Some(limited.counter.key()),
            Target::None | Target::Unlimited(_) => None,
        };
        let is_own = |(number, place): (usize, &usize)| {
            let mut later = places[number + 1..].iter();
            later.all(|other| key(other) != key(place))
        };
        places.iter().enumerate().all(is_own)
    }

    /// Decides one descriptor on its own.
    async fn decide_one(&self, place: usize) -> Result<Figures, DecideError> {
        let Target::Limited(LimitedTarget { counter, .. }) = &self.targets[place] else {
            return Err(DecideError::Invalid(
                "a descriptor without a limit".to_owned(),
            ));
        };
        let hits = self.hits[place];
        let (limiter, key) = match counter {
            Counter::Blocked(limiter, key, period) => {
                let is_over = match is_blocked(limiter, key, hits).await {
                    // A shadow rule never fails a request.
                    Err(DecideError::Unavailable) if self.roles[place] == Role::Shadow => false,
                    is_over => is_over?,
                };
                return Ok(self.blocked(*period, is_over));
            }
            Counter::Limited(limiter, key) => (limiter, &key[..]),
        };
        let decision = match hits {
            Hits::Look => limiter.check(key).cost(Cost::ZERO).await,
            Hits::Check(hits) => limiter.check(key).cost(cost(hits)).await,
            Hits::Charge(hits) => limiter.charge(key, cost(hits)).await.map(Decision::from),
            Hits::Refund(hits) => refund(limiter, key, cost(hits)).await,
        };
        let decision = decision.map_err(failed)?;
        match self.roles[place] {
            Role::Shadow => Ok(Figures::of(&decision)),
            _ => available(decision).map(|decision| Figures::of(&decision)),
        }
    }

    /// Decides the checks and looks of enforced rules, all or nothing. If another descriptor denies
    /// already, nothing is taken.
    async fn decide_together(&mut self) -> Result<(), DecideError> {
        let mut is_denied = self.is_over();
        let mut requests: SmallVec<[(usize, LimiterRequest<'_, AnyStore>); 2]> = SmallVec::new();
        for (place, target) in self.targets.iter().enumerate() {
            let Target::Limited(LimitedTarget { counter, .. }) = target else {
                continue;
            };
            if self.roles[place] != Role::Enforced {
                continue;
            }
            match counter {
                Counter::Blocked(limiter, key, period) => {
                    let is_over = is_blocked(limiter, key, self.hits[place]).await?;
                    is_denied |= is_over;
                    self.figures[place] = Some(self.blocked(*period, is_over));
                }
                Counter::Limited(limiter, key) => {
                    let key = Key::new(key).map_err(|error| failed(error.into()))?;
                    let cost = match self.hits[place] {
                        Hits::Check(hits) => cost(hits),
                        _ => Cost::ZERO,
                    };
                    requests.push((place, LimiterRequest { limiter, key, cost }));
                }
            }
        }
        if is_denied {
            for (place, request) in requests {
                self.figures[place] = Some(would_be(&request).await?);
            }
        } else {
            let (places, mut requests): (SmallVec<[usize; 2]>, SmallVec<[_; 2]>) =
                requests.into_iter().unzip();
            let more = use_smallest_limits(&mut requests);
            let decided = check_together(&requests).await?;
            for ((place, mut figures), more) in places.into_iter().zip(decided).zip(more) {
                if !figures.is_over {
                    figures.remaining += more;
                }
                self.figures[place] = Some(figures);
            }
        }
        if self.is_over() {
            self.give_back_quotas().await?;
        }
        Ok(())
    }

    /// Gives back what checks in quota mode took for a request that is denied.
    async fn give_back_quotas(&mut self) -> Result<(), DecideError> {
        for place in 0..self.roles.len() {
            let (Role::Quota, Hits::Check(hits)) = (self.roles[place], self.hits[place]) else {
                continue;
            };
            let is_taken = self.figures[place].is_some_and(|figures| !figures.is_over);
            if let Target::Limited(LimitedTarget { counter, .. }) = &self.targets[place]
                && let Counter::Limited(limiter, key) = counter
                && is_taken
            {
                let decision = refund(limiter, key, cost(hits)).await.map_err(failed)?;
                self.figures[place] = Some(Figures::of(&decision));
            }
        }
        Ok(())
    }

    /// Returns the figures of a rule that denies everything.
    fn blocked(&self, period: Duration, is_over: bool) -> Figures {
        let now = Duration::from_nanos(self.store.now().as_nanos());
        let into_window = now.as_nanos() % period.as_nanos().max(1);
        let into_window = Duration::from_nanos(u64::try_from(into_window).unwrap_or(0));
        Figures {
            is_over,
            remaining: 0,
            reset_after: period.saturating_sub(into_window),
            retry_after: None,
            degraded: None,
        }
    }

    /// Returns `true` if the request is denied, as far as it is decided.
    fn is_over(&self) -> bool {
        let is_enforced = |role: &Role| matches!(role, Role::Enforced | Role::EnforcedAlone);
        let mut decided = self.roles.iter().zip(&self.figures);
        let is_denied = decided.any(|(role, figures)| is_enforced(role) && is_exceeded(figures));
        is_denied || self.are_quotas_over()
    }

    /// Returns `true` if there are quotas, and all of them are over.
    fn are_quotas_over(&self) -> bool {
        // A descriptor without a rule has passed, if all are in quota mode.
        let passes = |role: &Role| self.options.has_quota_mode && *role == Role::Free;
        let is_quota = |role: &Role| *role == Role::Quota;
        let mut quotas = self.roles.iter().zip(&self.figures);
        self.roles.iter().any(is_quota)
            && !self.roles.iter().any(passes)
            && quotas.all(|(role, figures)| !is_quota(role) || is_exceeded(figures))
    }

    fn finish(self) -> Decided {
        let (is_over, are_quotas_over) = (self.is_over(), self.are_quotas_over());
        let mut decisions = SmallVec::new();
        for (place, target) in self.targets.iter().enumerate() {
            decisions.push(match (target, self.figures[place]) {
                (Target::Unlimited(rule), _) => RuleDecision::Unlimited(Arc::clone(rule)),
                (Target::Limited(limited), Some(figures)) => {
                    self.count(limited, place, figures);
                    let is_shadow = self.roles[place] == Role::Shadow;
                    RuleDecision::Limited {
                        figures: Figures {
                            is_over: figures.is_over && !is_shadow,
                            ..figures
                        },
                        shown: limited.shown.clone().into_owned(),
                        rule: limited.rule.cloned(),
                        is_quota: self.roles[place] == Role::Quota,
                    }
                }
                _ => RuleDecision::NoRule,
            });
        }
        Decided {
            is_over,
            are_quotas_over,
            decisions,
        }
    }

    /// Counts the hits of a rule. Looks and refunds are not hits.
    fn count(&self, limited: &LimitedTarget<'_>, place: usize, figures: Figures) {
        let (Hits::Check(hits) | Hits::Charge(hits)) = self.hits[place] else {
            return;
        };
        let Some(rule) = limited.rule else { return };
        let counted = CountedHits {
            hits,
            limit: u64::from(limited.shown.requests_per_unit),
            remaining: figures.remaining,
            is_over: figures.is_over,
            is_shadow: rule.is_shadow,
        };
        let entries = self.requests[place].entries;
        let path = || self.domain.stat_path(entries, rule.stats.values());
        rule.stats.count(counted, self.options.near_limit, path);
    }
}

/// Makes descriptors that share a counter use the smallest of their limits: a counter has one limit
/// in a decision. Returns how much more each of them allows.
fn use_smallest_limits(requests: &mut [LimiterRequest<'_, AnyStore>]) -> SmallVec<[u64; 2]> {
    let mut more = smallvec![0; requests.len()];
    for place in 1..requests.len() {
        for earlier in 0..place {
            let [one, other] = [&requests[earlier], &requests[place]];
            if one.key.as_bytes() != other.key.as_bytes() || !is_same_window(one, other) {
                continue;
            }
            let [limit, other_limit] = [capacity(one), capacity(other)];
            let (larger, smaller) = if limit > other_limit {
                (earlier, place)
            } else {
                (place, earlier)
            };
            more[larger] += limit.abs_diff(other_limit);
            requests[larger].limiter = requests[smaller].limiter;
        }
    }
    more
}

fn is_same_window(
    one: &LimiterRequest<'_, AnyStore>,
    other: &LimiterRequest<'_, AnyStore>,
) -> bool {
    let [one, other] = [one, other].map(|request| {
        let limit = request.limiter.policy().limits().first();
        limit.map(|limit| (limit.algorithm(), limit.period()))
    });
    one == other
}

fn capacity(request: &LimiterRequest<'_, AnyStore>) -> u64 {
    let limit = request.limiter.policy().limits().first();
    limit.map_or(0, tidegate::Limit::capacity)
}

fn is_exceeded(figures: &Option<Figures>) -> bool {
    figures.is_some_and(|figures| figures.is_over)
}

/// Returns `true` if hits are over a limit of 0: hits always are, a look only if hits were counted.
async fn is_blocked(
    limiter: &Limiter<AnyStore>,
    key: &[u8],
    hits: Hits,
) -> Result<bool, DecideError> {
    let decision = match hits {
        Hits::Check(1..) => return Ok(true),
        Hits::Charge(hits) => {
            let charged = limiter.charge(key, cost(hits)).await;
            return charged.map(|_| true).map_err(failed);
        }
        Hits::Refund(hits) => refund(limiter, key, cost(hits)).await,
        Hits::Look | Hits::Check(0) => limiter.check(key).cost(Cost::ZERO).await,
    };
    let decision = available(decision.map_err(failed)?)?;
    Ok(decision.is_denied() || decision.remaining() == 0)
}
