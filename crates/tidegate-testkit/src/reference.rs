//! A naive limiter, written from the definition of a decision.
//!
//! It uses only whole numbers and decides by the definition's own inequality. It finds `remaining`,
//! `retry_after` and `reset_after` by searching, not by a formula.

use std::collections::HashMap;

use tidegate_core::{Algorithm, Cost, Limit, Policy};

use crate::{Act, Answer};

/// A naive limiter with one policy. Its tick is a nanosecond.
pub struct Reference {
    limits: Vec<Rule>,
    keys: HashMap<String, Vec<Usage>>,
}

/// One limit in plain numbers: amounts in thousandths, times in nanoseconds.
struct Rule {
    algorithm: Algorithm,
    opens_with_first_hit: bool,
    limit: i128,
    period: i128,
    capacity: i128,
    /// The capacity and the debt.
    most: i128,
}

/// The usage under one limit.
#[derive(Clone)]
enum Usage {
    /// The time at which the bucket is free again, in fractions of a nanosecond: `limit` (in
    /// thousandths) of them make one.
    Bucket { free_at: i128 },
    /// The start of a window, and its count.
    Window { start: i128, count: i128 },
    /// The start of a window, its count and the count of the previous window.
    Counter {
        start: i128,
        current: i128,
        previous: i128,
    },
    /// The time and cost of every admitted request.
    Log(Vec<(i128, i128)>),
}

const FAR_PAST: i128 = i128::MIN / 4;

impl Reference {
    /// Creates a limiter without usage.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            limits: policy.limits().iter().map(Rule::new).collect(),
            keys: HashMap::new(),
        }
    }

    /// Runs one operation on a key at a time. Durations in the result are in nanoseconds.
    pub fn act(&mut self, at_ns: u64, key: &str, act: Act) -> Answer {
        let now = i128::from(at_ns);
        let fresh = || self.limits.iter().map(Rule::fresh).collect();
        let usages = self.keys.entry(key.to_owned()).or_insert_with(fresh);
        for (rule, usage) in self.limits.iter().zip(&mut *usages) {
            rule.bring_back(usage, now);
        }
        match act {
            Act::Check(cost) => check(&self.limits, usages, now, thousandths(cost)),
            Act::Refund(cost) => {
                // A refund of 0 changes nothing, like a check of cost 0.
                for (rule, usage) in self
                    .limits
                    .iter()
                    .zip(&mut *usages)
                    .filter(|_| cost > Cost::ZERO)
                {
                    rule.give_back(usage, now, thousandths(cost));
                }
                check(&self.limits, usages, now, 0)
            }
            Act::Charge(cost) => {
                for (rule, usage) in self.limits.iter().zip(&mut *usages) {
                    rule.charge(usage, now, thousandths(cost));
                }
                check(&self.limits, usages, now, 0)
            }
            Act::Admit(..) | Act::Settle(..) => panic!("the reference does not support receipts"),
        }
    }
}

fn thousandths(cost: Cost) -> i128 {
    i128::from(cost.thousandths())
}

fn check(limits: &[Rule], usages: &mut [Usage], now: i128, cost: i128) -> Answer {
    let all_fit = limits
        .iter()
        .zip(&*usages)
        .all(|(rule, usage)| rule.fits(usage, now, cost));
    let delay = limits
        .iter()
        .zip(&*usages)
        .map(|(rule, usage)| rule.delay(usage, now))
        .max()
        .unwrap_or(0);
    let waits: Vec<Option<i128>> = limits
        .iter()
        .zip(&*usages)
        .map(|(rule, usage)| rule.wait_for(usage, now, cost))
        .collect();
    if all_fit && cost > 0 {
        for (rule, usage) in limits.iter().zip(&mut *usages) {
            rule.take(usage, now, cost);
        }
    }
    let remaining: Vec<i128> = limits
        .iter()
        .zip(&*usages)
        .map(|(rule, usage)| rule.remaining(usage, now))
        .collect();
    let reset_after = limits
        .iter()
        .zip(&*usages)
        .map(|(rule, usage)| rule.reset_after(usage, now))
        .max()
        .unwrap_or(0);
    // The reported limit has the least remaining or, on a denial, the longest wait. Never is the
    // longest. The first wins a tie.
    let longest = |wait: &Option<i128>| wait.unwrap_or(i128::MAX);
    let mut speaks = 0;
    for index in 1..limits.len() {
        let is_more = if all_fit {
            remaining[index] < remaining[speaks]
        } else {
            longest(&waits[index]) > longest(&waits[speaks])
        };
        if is_more {
            speaks = index;
        }
    }
    let number = |value: i128| u64::try_from(value).expect("a value of a decision fits in 64 bits");
    Answer {
        allowed: all_fit,
        limit: number(limits[speaks].capacity / 1_000),
        remaining: number(remaining[speaks]),
        retry_after: if all_fit {
            Some(0)
        } else {
            waits[speaks].map(number)
        },
        reset_after: number(reset_after),
        delay: if all_fit { number(delay) } else { 0 },
    }
}

/// Returns the smallest number from 0 to `most` for which `holds` is true. It must be true for all
/// larger numbers up to `most`.
fn smallest(most: i128, mut holds: impl FnMut(i128) -> bool) -> i128 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

impl Rule {
    fn new(limit: &Limit) -> Self {
        Self {
            algorithm: limit.algorithm(),
            opens_with_first_hit: limit.opens_with_first_hit(),
            limit: i128::from(limit.limit()) * 1_000,
            period: limit
                .period()
                .as_nanos()
                .try_into()
                .expect("a period fits in 128 bits"),
            capacity: i128::from(limit.capacity()) * 1_000,
            most: i128::from(limit.capacity() + limit.max_debt()) * 1_000,
        }
    }

    fn fresh(&self) -> Usage {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
                Usage::Bucket { free_at: FAR_PAST }
            }
            Algorithm::FixedWindow => Usage::Window {
                start: FAR_PAST,
                count: 0,
            },
            Algorithm::SlidingWindowCounter => Usage::Counter {
                start: FAR_PAST,
                current: 0,
                previous: 0,
            },
            Algorithm::SlidingWindowLog => Usage::Log(Vec::new()),
            other => unreachable!("the reference lacks {other:?}"),
        }
    }

    fn window_of(&self, now: i128) -> i128 {
        if self.opens_with_first_hit {
            now
        } else {
            now.div_euclid(self.period) * self.period
        }
    }

    /// Clamps a state from the future to now.
    fn bring_back(&self, usage: &mut Usage, now: i128) {
        match usage {
            Usage::Bucket { free_at } => {
                *free_at = (*free_at).min(now * self.limit + self.most * self.period)
            }
            Usage::Window { start, .. } | Usage::Counter { start, .. } if *start > now => {
                *start = self.window_of(now)
            }
            Usage::Window { .. } | Usage::Counter { .. } => {}
            Usage::Log(log) => log.iter_mut().for_each(|(at, _)| *at = (*at).min(now)),
        }
    }

    /// Returns the counts of the current and the previous window at `now`, which must not be before
    /// `start`.
    fn counts(&self, start: i128, current: i128, previous: i128, now: i128) -> (i128, i128) {
        match (now - start) / self.period {
            0 => (current, previous),
            1 => (0, current),
            _ => (0, 0),
        }
    }

    /// Returns true if `cost` more fits at `now`, by the definition.
    fn fits(&self, usage: &Usage, now: i128, cost: i128) -> bool {
        self.fits_in(usage, now, cost, self.capacity)
    }

    /// Returns true if usage and `cost` are at most `most`.
    fn fits_in(&self, usage: &Usage, now: i128, cost: i128, most: i128) -> bool {
        match usage {
            Usage::Bucket { free_at } => {
                let used_and_cost = (free_at - now * self.limit).max(0) + cost * self.period;
                used_and_cost <= most * self.period
            }
            Usage::Window { start, count } => {
                let live = if now - start < self.period { *count } else { 0 };
                live + cost <= most
            }
            Usage::Counter {
                start,
                current,
                previous,
            } => {
                let elapsed = now - self.window_of(now);
                let (current, previous) = self.counts(*start, *current, *previous, now);
                previous * (self.period - elapsed) + (current + cost) * self.period
                    <= most * self.period
            }
            Usage::Log(log) => self.live(log, now) + cost <= most,
        }
    }

    fn live(&self, log: &[(i128, i128)], now: i128) -> i128 {
        log.iter()
            .filter(|(at, _)| now - at < self.period)
            .map(|(_, cost)| cost)
            .sum()
    }

    /// Returns the time after which all usage has expired.
    fn horizon(&self) -> i128 {
        let refill = self.most * self.period / self.limit + 1;
        refill.max(2 * self.period)
    }

    fn wait_for(&self, usage: &Usage, now: i128, cost: i128) -> Option<i128> {
        (cost <= self.capacity)
            .then(|| smallest(self.horizon(), |wait| self.fits(usage, now + wait, cost)))
            .map(|wait| {
                if self.fits(usage, now, cost) {
                    -1
                } else {
                    wait
                }
            })
    }

    fn reset_after(&self, usage: &Usage, now: i128) -> i128 {
        smallest(self.horizon(), |wait| {
            self.fits(usage, now + wait, self.capacity)
        })
    }

    fn remaining(&self, usage: &Usage, now: i128) -> i128 {
        let does_not_fit = |more: i128| !self.fits(usage, now, more * 1_000);
        (smallest(self.capacity / 1_000 + 1, does_not_fit) - 1).max(0)
    }

    fn delay(&self, usage: &Usage, now: i128) -> i128 {
        match usage {
            Usage::Bucket { free_at } if self.algorithm == Algorithm::LeakyBucket => {
                let ahead = (free_at - now * self.limit).max(0);
                (ahead + self.limit - 1) / self.limit
            }
            _ => 0,
        }
    }

    fn take(&self, usage: &mut Usage, now: i128, cost: i128) {
        match usage {
            Usage::Bucket { free_at } => {
                *free_at = (*free_at).max(now * self.limit) + cost * self.period
            }
            Usage::Window { start, count } => {
                if now - *start >= self.period {
                    (*start, *count) = (self.window_of(now), 0);
                }
                *count += cost;
            }
            Usage::Counter {
                start,
                current,
                previous,
            } => {
                (*current, *previous) = self.counts(*start, *current, *previous, now);
                *start = self.window_of(now);
                *current += cost;
            }
            Usage::Log(log) => {
                log.retain(|(at, _)| now - at < self.period);
                log.push((now, cost));
            }
        }
    }

    /// Takes the largest part of `cost` with which usage is at most the capacity and the debt. A
    /// bucket takes any fraction; the others take whole thousandths.
    fn charge(&self, usage: &mut Usage, now: i128, cost: i128) {
        if let Usage::Bucket { free_at } = usage {
            let latest = now * self.limit + self.most * self.period;
            let charged = (*free_at).max(now * self.limit) + cost * self.period;
            if cost > 0 {
                *free_at = charged.min(latest).max(*free_at);
            }
            return;
        }
        let does_not_fit = |amount: i128| !self.fits_in(usage, now, amount, self.most);
        let fits = (smallest(cost + 1, does_not_fit) - 1).max(0);
        // A charge writes the state as of now, even if nothing fits.
        if cost > 0 {
            self.take(usage, now, fits);
        }
    }

    fn give_back(&self, usage: &mut Usage, now: i128, cost: i128) {
        match usage {
            Usage::Bucket { free_at } => {
                // Moves `free_at` back, but not before now. A bucket that is already free stays
                // unchanged.
                *free_at = (*free_at - cost * self.period)
                    .max(now * self.limit)
                    .min(*free_at);
            }
            Usage::Window { start, count } => {
                if now - *start >= self.period {
                    (*start, *count) = (FAR_PAST, 0);
                }
                *count = (*count - cost).max(0);
                if *count == 0 {
                    *start = FAR_PAST;
                }
            }
            Usage::Counter {
                start,
                current,
                previous,
            } => {
                (*current, *previous) = self.counts(*start, *current, *previous, now);
                *start = self.window_of(now);
                let from_current = cost.min(*current);
                *current -= from_current;
                *previous = (*previous - (cost - from_current)).max(0);
            }
            Usage::Log(log) => {
                log.retain(|(at, _)| now - at < self.period);
                let mut left = cost;
                while let Some((_, last)) = log.last_mut().filter(|_| left > 0) {
                    let taken = left.min(*last);
                    *last -= taken;
                    left -= taken;
                    if *last == 0 {
                        log.pop();
                    }
                }
            }
        }
    }
}
