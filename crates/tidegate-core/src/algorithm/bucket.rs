//! token_bucket, gcra and leaky_bucket. All three store one number: the time at which the bucket is
//! free again (full of tokens, or an empty queue).
//!
//! Refilling a thousandth of a unit takes period / (1000 × limit), in lowest terms `numerator /
//! denominator` nanoseconds. Times are stored as whole nanoseconds plus a part of the denominator,
//! so nothing is rounded.

use super::divisor::Divisor;
use super::span::Span;
use super::{Algorithm, Answer, Claim};
use crate::cost::THOUSANDTHS;
use crate::identity::BucketNumbers;
use crate::policy::{self, Limit};

/// Longer than the refill time of any bucket, and short enough that another refill can be added.
const LONGEST_AHEAD: u64 = 1 << 62;

/// The time at which the bucket is free again: `free_at` + `part` / denominator. From then on the
/// bucket equals a fresh one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketState {
    pub(crate) free_at: u64,
    pub(crate) part: u64,
    /// Identifies the denominator that `part` was written with, see [`denominator_tag`]. 0 if `part` is 0.
    pub(crate) denominator_tag: u8,
}

/// A bucket whose times are exact in `S`.
#[derive(Clone, Debug)]
pub(crate) struct Bucket<S> {
    numerator: u64,
    denominator: u64,
    denominator_tag: u8,
    /// The time to refill one unit, and the whole bucket.
    unit: S,
    full: S,
    /// The time to refill the burst and the whole debt: the latest free-again time.
    longest: S,
    /// The burst in thousandths.
    capacity_cost: u64,
    /// The burst and the debt in thousandths.
    most_counted: u64,
    queues: bool,
    /// Set if the state may have been written with another rate and capacity, see
    /// [`with_any_rate`](Self::with_any_rate).
    has_any_rate: bool,
    numbers: BucketNumbers,
    /// The burst in units.
    capacity: u64,
    /// The largest cost that [`answer`](Algorithm::answer) handles.
    answered_cost: u64,
    /// Set if the sum of two times in parts of the denominator fits in 64 bits. The fields below are
    /// valid only then.
    is_narrow: bool,
    unit_parts: Divisor,
    full_parts: u64,
    /// The latest free-again time that is not from the future.
    most_parts: u64,
    by_denominator: Divisor,
}

/// Returns `true` if whole nanoseconds are exact for this limit.
pub(crate) fn is_whole(limit: &Limit) -> bool {
    limit
        .period_ns()
        .is_multiple_of(limit.limit() * THOUSANDTHS)
}

impl<S: Span> Bucket<S> {
    pub(crate) fn new(limit: &Limit) -> Self {
        let thousandths = limit.limit() * THOUSANDTHS;
        let shared = gcd(limit.period_ns(), thousandths);
        let (numerator, denominator) = (limit.period_ns() / shared, thousandths / shared);
        let capacity_cost = limit.capacity() * THOUSANDTHS;
        let most_counted = limit.most_counted() * THOUSANDTHS;
        let full_parts = u128::from(capacity_cost) * u128::from(numerator);
        let longest_parts = u128::from(most_counted) * u128::from(numerator);
        let unit_parts = u128::from(THOUSANDTHS) * u128::from(numerator);
        let is_narrow = longest_parts + full_parts.max(unit_parts) <= u128::from(u64::MAX);
        Self {
            numerator,
            denominator,
            denominator_tag: denominator_tag(denominator),
            unit: S::of_parts(unit_parts, denominator),
            full: S::of_parts(full_parts, denominator),
            longest: S::of_parts(longest_parts, denominator),
            capacity_cost,
            most_counted,
            queues: limit.algorithm() == policy::Algorithm::LeakyBucket,
            has_any_rate: false,
            numbers: BucketNumbers::new(limit),
            is_narrow,
            answered_cost: if is_narrow { capacity_cost } else { 0 },
            capacity: capacity_cost / THOUSANDTHS,
            unit_parts: Divisor::new(u64::try_from(unit_parts).unwrap_or(u64::MAX)),
            full_parts: u64::try_from(full_parts).unwrap_or(u64::MAX),
            most_parts: u64::try_from(longest_parts).unwrap_or(u64::MAX),
            by_denominator: Divisor::new(denominator),
        }
    }

    /// Returns the bucket for a key whose rate comes with each request.
    ///
    /// Its state may have been written with any rate. It is never clamped to a smaller capacity: a
    /// free-again time beyond the capacity denies, and nothing is written.
    pub(crate) fn with_any_rate(&self) -> Self {
        Self {
            has_any_rate: true,
            most_parts: LONGEST_AHEAD,
            ..self.clone()
        }
    }

    pub(crate) fn has_any_rate(&self) -> bool {
        self.has_any_rate
    }

    /// Returns the state of a bucket that was just emptied, and owes its whole debt.
    #[cfg(test)]
    pub(crate) fn emptied(&self, now: u64) -> BucketState {
        let mut state = BucketState::default();
        self.set_ahead(&mut state, now, self.longest);
        state
    }

    pub(crate) fn numbers(&self) -> BucketNumbers {
        self.numbers
    }

    pub(crate) fn denominator(&self) -> u64 {
        self.denominator
    }

    /// Returns the time that refilling `cost` takes.
    #[inline]
    fn span_of(&self, cost: u64) -> S {
        if cost == THOUSANDTHS {
            return self.unit;
        }
        S::of_parts(
            u128::from(cost) * u128::from(self.numerator),
            self.denominator,
        )
    }

    /// Returns the cost that takes this time to refill, rounded up to a thousandth.
    fn cost_of(&self, span: S) -> u64 {
        let (ns, part) = span.split();
        let parts = u128::from(ns) * u128::from(self.denominator) + u128::from(part);
        u64::try_from(parts.div_ceil(u128::from(self.numerator))).unwrap_or(u64::MAX)
    }

    /// Returns the time until the bucket is free again.
    #[inline]
    fn ahead(&self, state: &BucketState, now: u64) -> S {
        if state.free_at < now {
            return S::default();
        }
        let ahead = state.free_at - now;
        if self.has_any_rate {
            return self.ahead_of_any_rate(state, ahead);
        }
        // A part is below the denominator unless the state is corrupt.
        S::join(ahead, state.part.min(self.denominator - 1))
    }

    /// Rounds a part of another rate's denominator up to a whole nanosecond, so that no capacity is
    /// gained.
    fn ahead_of_any_rate(&self, state: &BucketState, ahead: u64) -> S {
        let ahead = ahead.min(LONGEST_AHEAD);
        let is_foreign = state.part != 0
            && (state.denominator_tag != self.denominator_tag || state.part >= self.denominator);
        if is_foreign {
            S::join(ahead + 1, 0)
        } else {
            S::join(ahead, state.part)
        }
    }

    #[inline]
    fn set_ahead(&self, state: &mut BucketState, now: u64, ahead: S) {
        let (ns, part) = ahead.split();
        let denominator_tag = if part == 0 { 0 } else { self.denominator_tag };
        *state = BucketState {
            free_at: now.saturating_add(ns),
            part,
            denominator_tag,
        };
    }

    /// Returns the state of a bucket that is free again at `micros` + `part` / `denominator`
    /// microseconds.
    ///
    /// `denominator` must be a multiple of this bucket's own, as it is for the same rate in
    /// microseconds.
    pub(crate) fn state_of_micros(&self, micros: u64, part: u64, denominator: u64) -> BucketState {
        let (parts, denominator) = (u128::from(part) * 1_000, u128::from(denominator.max(1)));
        let rest = (parts % denominator) * u128::from(self.denominator) / denominator;
        let nanos = u64::try_from(parts / denominator).unwrap_or(u64::MAX);
        let part = u64::try_from(rest).unwrap_or(0);
        let denominator_tag = if part == 0 { 0 } else { self.denominator_tag };
        BucketState {
            free_at: micros.saturating_mul(1_000).saturating_add(nanos),
            part,
            denominator_tag,
        }
    }
}

/// The time until a bucket is free again.
struct PartsAhead {
    parts: u64,
    /// In nanoseconds, rounded up.
    ceil: u64,
}

/// Arithmetic in parts of a nanosecond, for a narrow bucket.
impl<S: Span> Bucket<S> {
    /// Returns the parts until the bucket is free again, or `None` if the state is from the future,
    /// damaged or of another rate.
    #[inline(always)]
    fn parts_ahead(&self, state: &BucketState, now: u64) -> Option<PartsAhead> {
        if state.part != 0 && !self.is_own_part(state) {
            return None;
        }
        let (ns, part) = match state.free_at.checked_sub(now) {
            Some(ns) => (ns, state.part),
            None => (0, 0),
        };
        let parts = if S::HAS_PARTS {
            ns.checked_mul(self.denominator)?.checked_add(part)?
        } else {
            ns
        };
        let ahead = PartsAhead {
            parts,
            ceil: ns + u64::from(part > 0),
        };
        (parts <= self.most_parts).then_some(ahead)
    }

    /// Returns `true` if the part is one of this bucket's denominator.
    fn is_own_part(&self, state: &BucketState) -> bool {
        let is_of_other_rate = self.has_any_rate && state.denominator_tag != self.denominator_tag;
        !is_of_other_rate && state.part < self.denominator
    }

    /// Returns whole nanoseconds and the rest.
    #[inline(always)]
    fn split_parts(&self, parts: u64) -> (u64, u64) {
        if S::HAS_PARTS {
            self.by_denominator.divide_with_rest(parts)
        } else {
            // The denominator is 1.
            (parts, 0)
        }
    }
}

impl<S: Span> Algorithm for Bucket<S> {
    type State = BucketState;

    #[inline]
    fn capacity_cost(&self) -> u64 {
        self.capacity_cost
    }

    #[inline(always)]
    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn is_from_future(&self, state: &BucketState, now: u64) -> bool {
        !self.has_any_rate && self.ahead(state, now) > self.longest
    }

    #[inline]
    fn clamp(&self, state: &mut BucketState, now: u64) {
        self.set_ahead(state, now, self.longest);
    }

    #[inline]
    fn wait(&self, state: &BucketState, now: u64, cost: u64) -> Option<u64> {
        let wanted = self
            .ahead(state, now)
            .plus(self.span_of(cost), self.denominator);
        (wanted > self.full).then(|| wanted.minus(self.full, self.denominator).ceil())
    }

    #[inline(always)]
    fn answer(&self, state: &BucketState, now: u64, cost: u64) -> Option<Answer<BucketState>> {
        // A cost of 0 wraps.
        if cost.wrapping_sub(1) >= self.answered_cost {
            return None;
        }
        let ceil = |(ns, part)| ns + u64::from(part > 0);
        let ahead = self.parts_ahead(state, now)?;
        let wanted = ahead.parts + cost * self.numerator;
        if wanted > self.full_parts {
            return Some(Answer {
                taken: None,
                wait: ceil(self.split_parts(wanted - self.full_parts)),
                remaining: self
                    .unit_parts
                    .divide(self.full_parts.saturating_sub(ahead.parts)),
                reset_after: ahead.ceil,
            });
        }
        let (ns, part) = self.split_parts(wanted);
        Some(Answer {
            taken: Some(BucketState {
                free_at: now.checked_add(ns)?,
                part,
                denominator_tag: if part == 0 { 0 } else { self.denominator_tag },
            }),
            wait: if self.queues { ahead.ceil } else { 0 },
            remaining: self.unit_parts.divide(self.full_parts - wanted),
            reset_after: ceil((ns, part)),
        })
    }

    #[inline]
    fn delay(&self, state: &BucketState, now: u64) -> u64 {
        if self.queues {
            self.ahead(state, now).ceil()
        } else {
            0
        }
    }

    #[inline]
    fn take(&self, state: &mut BucketState, now: u64, cost: u64) {
        let ahead = self
            .ahead(state, now)
            .plus(self.span_of(cost), self.denominator);
        self.set_ahead(state, now, ahead);
    }

    #[inline]
    fn refund_cost(&self, state: &mut BucketState, now: u64, cost: u64) {
        let (ahead, cost) = (self.ahead(state, now), cost.min(self.most_counted));
        // A bucket that is already free keeps its time. Moved forward to now, it would be from the
        // future after a clock step back.
        if ahead > S::default() {
            self.set_ahead(
                state,
                now,
                ahead.minus(self.span_of(cost), self.denominator),
            );
        }
    }

    fn claim(&self, state: &BucketState, _now: u64) -> Claim {
        Claim {
            time: state.free_at,
            part: state.part,
        }
    }

    fn refund_claimed(&self, state: &mut BucketState, now: u64, claim: Claim, cost: u64) {
        let (ahead, cost) = (self.ahead(state, now), cost.min(self.most_counted));
        let claimed = self.ahead(
            &BucketState {
                free_at: claim.time,
                part: claim.part,
                denominator_tag: self.denominator_tag,
            },
            now,
        );
        if ahead > S::default() {
            self.set_ahead(
                state,
                now,
                ahead.minus(self.span_of(cost).min(claimed), self.denominator),
            );
        }
    }

    fn charge(&self, state: &mut BucketState, now: u64, cost: u64) -> u64 {
        let ahead = self.ahead(state, now);
        // More than the bucket can ever count is dropped before anything is added.
        let addable = cost.min(self.most_counted);
        let charged = ahead.plus(self.span_of(addable), self.denominator);
        if ahead < self.longest {
            self.set_ahead(state, now, charged.min(self.longest));
        }
        let excess = charged.minus(self.longest.max(ahead), self.denominator);
        cost - addable + self.cost_of(excess)
    }

    fn trial_copy(&self, state: &BucketState, _now: u64) -> BucketState {
        *state
    }

    #[inline]
    fn remaining(&self, state: &BucketState, now: u64) -> u64 {
        let (ns, part) = self
            .full
            .minus(self.ahead(state, now), self.denominator)
            .split();
        if self.is_narrow {
            return self.unit_parts.divide(ns * self.denominator + part);
        }
        let parts = u128::from(ns) * u128::from(self.denominator) + u128::from(part);
        // At most the capacity, so it fits.
        (parts / (u128::from(self.numerator) * u128::from(THOUSANDTHS))) as u64
    }

    #[inline]
    fn reset_after(&self, state: &BucketState, now: u64) -> u64 {
        self.ahead(state, now).ceil()
    }
}

/// Returns eight mixed bits of a denominator. Two denominators with the same bits cause an error of
/// less than a nanosecond.
fn denominator_tag(denominator: u64) -> u8 {
    (denominator.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
