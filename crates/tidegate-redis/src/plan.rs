//! A policy prepared for Redis: its script, the numbers of its limits, and the names of its
//! records.

use std::sync::Arc;

use tidegate_core::remote::{claim_in_micros, stored_limits};
use tidegate_core::{ANY_RATE, Algorithm, BucketNumbers, Claim, Cost, Key, Limit, Policy};

use crate::command::command;
use crate::key;
use crate::lease::LeasePlan;
use crate::operation::{Operation, OperationKind};
use crate::rate::{Refill, RefillTime, period_us};
use crate::script::{BatchSize, Script, kind};

/// A policy prepared for Redis. [`RedisStore`](crate::RedisStore) creates it. Clones share their
/// data.
#[derive(Clone, Debug)]
pub struct RedisPlan(Arc<PlanParts>);

#[derive(Debug)]
struct PlanParts {
    policy: Policy,
    /// The scripts for one check and for many; `None` for a policy that uses the generic script.
    check_one: Option<Script>,
    check: Option<Script>,
    stem: Vec<u8>,
    /// The kinds of the limits, in stored order.
    kinds: Vec<u8>,
    /// The packed numbers of each limit.
    limits: Vec<u8>,
    /// The refill times of each bucket, in order; `None` for other limits.
    refills: Vec<Option<Refill>>,
    log_count: usize,
    keys_per_check: usize,
    weight: usize,
    lease: Option<LeasePlan>,
}

/// The work of a log, which is searched, relative to other limits.
const LOG_WEIGHT: usize = 8;

impl RedisPlan {
    /// Creates a plan without leases.
    pub(crate) fn new(prefix: &str, namespace: &str, policy: &Policy) -> Self {
        Self::with_stem(
            key::stem(prefix, namespace, policy),
            namespace,
            policy,
            None,
        )
    }

    /// Creates a plan whose names start with `stem`.
    pub(crate) fn with_stem(
        stem: Vec<u8>,
        namespace: &str,
        policy: &Policy,
        lease: Option<LeasePlan>,
    ) -> Self {
        let limits: Vec<&Limit> = stored_limits(policy).collect();
        let log_count = limits
            .iter()
            .filter(|limit| limit.algorithm() == Algorithm::SlidingWindowLog)
            .count();
        let mut numbers = Vec::new();
        let mut refills = Vec::new();
        for limit in &limits {
            let refill = limit.algorithm().is_bucket().then(|| Refill::new(limit));
            if let Some(refill) = &refill {
                let full = refill.full();
                let longest = if namespace == ANY_RATE {
                    RefillTime::NEVER
                } else {
                    refill.longest()
                };
                let all = [
                    full.us,
                    full.part,
                    refill.denominator,
                    longest.us,
                    longest.part,
                ];
                numbers.extend(all.into_iter().flat_map(u64::to_be_bytes));
                if limits.len() > 1 {
                    numbers.extend(BucketNumbers::new(limit).to_bytes());
                }
            } else {
                numbers.extend(
                    [limit.limit() * 1_000, period_us(limit)]
                        .into_iter()
                        .flat_map(u64::to_be_bytes),
                );
            }
            if limit.algorithm() == Algorithm::FixedWindow {
                numbers.extend(u64::from(limit.opens_with_first_hit()).to_be_bytes());
            }
            refills.push(refill);
        }
        Self(Arc::new(PlanParts {
            check: Script::check(policy, BatchSize::Many),
            check_one: Script::check(policy, BatchSize::One),
            stem,
            kinds: limits.iter().map(|limit| kind(limit.algorithm())).collect(),
            limits: numbers,
            refills,
            log_count,
            keys_per_check: log_count + usize::from(log_count < limits.len()),
            weight: limits.len() + log_count * (LOG_WEIGHT - 1),
            policy: policy.clone(),
            lease,
        }))
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns how the policy's quota is leased, or `None` if it is not.
    pub(crate) fn lease(&self) -> Option<&LeasePlan> {
        self.0.lease.as_ref()
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }

    fn limit_count(&self) -> usize {
        self.0.kinds.len()
    }

    /// Returns the work of a check for Redis, where a check of one limit is 1.
    pub(crate) fn weight(&self) -> usize {
        self.0.weight
    }

    /// Returns the policy's own script, or `None` if it uses the generic one.
    pub(crate) fn check_script(&self, load: BatchSize) -> Option<&Script> {
        match load {
            BatchSize::One => self.0.check_one.as_ref(),
            BatchSize::Many => self.0.check.as_ref(),
        }
    }

    /// Returns the name of a key's record.
    pub(crate) fn name(&self, key: Key<'_>) -> Vec<u8> {
        key::name(&self.0.stem, key)
    }

    /// Returns the number of logs, each in its own list.
    pub(crate) fn log_count(&self) -> usize {
        self.0.log_count
    }

    /// Returns `true` if a limit is stored in the record itself.
    pub(crate) fn has_record(&self) -> bool {
        self.0.log_count < self.limit_count()
    }

    /// Returns the number of names of a key.
    pub(crate) fn keys_per_check(&self) -> usize {
        self.0.keys_per_check
    }

    /// Adds all names of a key: its record's, and those of its logs.
    pub(crate) fn add_names(&self, name: &[u8], command: &mut redis::Cmd) {
        command.arg(name);
        for log in 1..self.0.keys_per_check {
            command.arg([name, format!(":{log}").as_bytes()].concat());
        }
    }

    /// Returns the first argument of a check script: the manual time, the time to keep, and the
    /// numbers of the limits.
    pub(crate) fn numbers(&self, now_us: u64, keep_ms: u64) -> Vec<u8> {
        [
            &now_us.to_be_bytes()[..],
            &keep_ms.to_be_bytes(),
            &self.0.limits,
        ]
        .concat()
    }

    /// Adds the limits in the form that the generic script expects.
    pub(crate) fn add_limits(&self, numbers: &mut Vec<u8>) {
        numbers.extend([self.limit_count() as u8, u8::from(self.has_record())]);
        numbers.extend(&self.0.kinds);
        numbers.extend(&self.0.limits);
    }

    /// Adds a cost, and its refill time for each bucket. If this is not a check, the refill time is
    /// at most that of the whole bucket and its debt.
    pub(crate) fn add_cost(&self, cost: Cost, is_check: bool, costs: &mut Vec<u8>) {
        costs.extend(cost.thousandths().to_be_bytes());
        for refill in self.0.refills.iter().flatten() {
            let span = if is_check {
                refill.span(cost)
            } else {
                refill.span_at_most_longest(cost)
            };
            costs.extend(span.us.to_be_bytes());
            costs.extend(span.part.to_be_bytes());
        }
    }

    /// Adds the most that each limit can count, for a charge.
    pub(crate) fn add_most_counted(&self, costs: &mut Vec<u8>) {
        for limit in stored_limits(&self.0.policy) {
            costs.extend((limit.most_counted() * 1_000).to_be_bytes());
        }
    }

    /// Adds where each limit counted a request.
    pub(crate) fn add_claims(&self, claims: &[Claim], costs: &mut Vec<u8>) {
        for (index, refill) in self.0.refills.iter().enumerate() {
            let denominator = refill.as_ref().map_or(1, |refill| refill.denominator);
            let (us, part) = claim_in_micros(&self.0.policy, claims, index, denominator);
            costs.extend(us.to_be_bytes());
            costs.extend(part.to_be_bytes());
        }
    }

    /// Returns the script's text, and the arguments of a call for one check. For measurements.
    #[doc(hidden)]
    #[must_use]
    pub fn raw_call(&self, key: Key<'_>) -> (String, Vec<Vec<u8>>) {
        let operation = Operation::new(self, OperationKind::Check, key, Cost::ONE);
        let words = command(&[&operation], false, None).map(|command| {
            let word = |argument: redis::Arg<&[u8]>| match argument {
                redis::Arg::Simple(word) => Some(word.to_vec()),
                _ => None,
            };
            command.args_iter().filter_map(word).collect()
        });
        (
            self.0
                .check_one
                .as_ref()
                .map_or_else(String::new, |script| script.text.to_string()),
            words.unwrap_or_default(),
        )
    }
}
