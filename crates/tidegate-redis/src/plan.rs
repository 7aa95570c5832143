//! What is worked out of a policy once: its script, the numbers of its limits, and the names of its records.

use std::sync::Arc;

use tidegate_core::{Algorithm, Cost, Key, Policy};

use crate::command::{Act, Ask, command};
use crate::key;
use crate::rate::{Refill, period_us};
use crate::script::{Load, Script, Task};

/// A policy, worked out for Redis. Made by [`RedisStore`](crate::RedisStore). Clones share.
#[derive(Clone, Debug)]
pub struct RedisPlan(Arc<Numbers>);

#[derive(Debug)]
struct Numbers {
    policy: Policy,
    check: Script,
    check_one: Script,
    refund: Script,
    shape: Vec<u8>,
    /// The numbers of each limit, packed.
    limits: Vec<u8>,
    /// Of the limits that are buckets, in order.
    refills: Vec<Refill>,
    log_count: usize,
    keys_a_check: usize,
}

impl RedisPlan {
    pub(crate) fn new(prefix: &str, namespace: &str, policy: &Policy) -> Self {
        let limits = policy.limits();
        let log_count = limits.iter().filter(|limit| limit.algorithm() == Algorithm::SlidingWindowLog).count();
        let mut numbers = Vec::new();
        let mut refills = Vec::new();
        for limit in limits {
            if limit.algorithm().is_bucket() {
                let refill = Refill::new(limit);
                let full = refill.full();
                numbers.extend([full.us, full.part, refill.denominator]);
                refills.push(refill);
            } else {
                numbers.extend([limit.limit() * 1_000, period_us(limit)]);
            }
            if limit.algorithm() == Algorithm::FixedWindow {
                numbers.push(u64::from(limit.opens_with_first_hit()));
            }
        }
        Self(Arc::new(Numbers {
            check: Script::new(policy, Task::Check, Load::Many),
            check_one: Script::new(policy, Task::Check, Load::One),
            refund: Script::new(policy, Task::Refund, Load::Many),
            shape: key::shape(prefix, namespace, policy),
            limits: numbers.into_iter().flat_map(u64::to_be_bytes).collect(),
            refills,
            log_count,
            keys_a_check: log_count + usize::from(log_count < limits.len()),
            policy: policy.clone(),
        }))
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The script for so many of a task.
    pub(crate) fn script(&self, task: Task, load: Load) -> &Script {
        match (task, load) {
            (Task::Check, Load::One) => &self.0.check_one,
            (Task::Check, Load::Many) => &self.0.check,
            (Task::Refund, _) => &self.0.refund,
        }
    }

    /// The name of a key's record.
    pub(crate) fn name(&self, key: Key<'_>) -> Vec<u8> {
        key::name(&self.0.shape, key)
    }

    /// How many of its limits are logs, each in a list of its own.
    pub(crate) fn log_count(&self) -> usize {
        self.0.log_count
    }

    /// Whether any limit is kept in the record itself.
    pub(crate) fn has_record(&self) -> bool {
        self.0.log_count < self.0.policy.limits().len()
    }

    /// How many names a key has.
    pub(crate) fn keys_a_check(&self) -> usize {
        self.0.keys_a_check
    }

    /// Adds all names of a key: its record's own, and those of the logs beside it.
    pub(crate) fn add_names(&self, name: &[u8], command: &mut redis::Cmd) {
        command.arg(name);
        for log in 1..self.0.keys_a_check {
            command.arg([name, format!(":{log}").as_bytes()].concat());
        }
    }

    /// The first argument: the time that is given, how long to keep what is written then, and the numbers of the limits.
    pub(crate) fn numbers(&self, now_us: u64, keep_ms: u64) -> Vec<u8> {
        [&now_us.to_be_bytes()[..], &keep_ms.to_be_bytes(), &self.0.limits].concat()
    }

    /// Adds a run of checks of one cost: the last of them, the cost, and the time it takes to refill for each bucket; of
    /// what is given back, no more than a whole bucket's.
    pub(crate) fn add_run(&self, last: u32, cost: Cost, task: Task, runs: &mut Vec<u8>) {
        runs.extend(last.to_be_bytes());
        runs.extend(cost.thousandths().to_be_bytes());
        for refill in &self.0.refills {
            let span = match task {
                Task::Check => refill.span(cost),
                Task::Refund => refill.span_at_most_full(cost),
            };
            runs.extend(span.us.to_be_bytes());
            runs.extend(span.part.to_be_bytes());
        }
    }

    /// The script's text, and the words of a call of it for one check: for measurements of the call itself.
    #[doc(hidden)]
    #[must_use]
    pub fn raw_call(&self, key: Key<'_>) -> (String, Vec<Vec<u8>>) {
        let ask = Ask { plan: self.clone(), act: Act::CHECK, name: self.name(key), cost: Cost::ONE };
        let words = command(&[&ask], None).map(|command| {
            let word = |argument: redis::Arg<&[u8]>| match argument {
                redis::Arg::Simple(word) => Some(word.to_vec()),
                _ => None,
            };
            command.args_iter().filter_map(word).collect()
        });
        (self.0.check_one.text.to_string(), words.unwrap_or_default())
    }
}
