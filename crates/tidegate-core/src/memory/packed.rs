//! The states of one limit as stored in a slot: 64 bits of time and 48 bits of amount.

use super::cache_line::{AMOUNT_BITS, Kind, LockedLine, Slot};
use crate::algorithm::{
    Algorithm, Answer, Bucket, BucketState, CounterState, FixedWindow, SlidingWindowCounter, Span,
    WindowState,
};

/// An algorithm whose state fits in a slot.
pub(super) trait Packed: Algorithm {
    /// The kind of slot.
    const KIND: Kind;

    fn pack(&self, state: &Self::State) -> Slot;

    /// Set if the amount of a slot changes when a request is admitted.
    const HAS_AMOUNT: bool = true;

    /// Returns the state in a slot of this kind.
    fn unpack(&self, slot: Slot) -> Self::State;

    /// Packs the state after a request, with the slot and the state before it.
    #[inline(always)]
    fn repack(&self, _slot: Slot, _before: &Self::State, state: &Self::State) -> Slot {
        self.pack(state)
    }
}

/// Answers a check of one limit in its slot, with the slot of an admitted request. Returns `None` if
/// [`Algorithm::answer`] does. The slot is of the limit's kind.
#[inline(always)]
pub(super) fn answer_in_slot<A: Packed>(
    step: &A,
    slot: Slot,
    now: u64,
    cost: u64,
) -> Option<Answer<Slot>> {
    debug_assert_eq!(slot.kind, A::KIND);
    let before = step.unpack(slot);
    let answer = step.answer(&before, now, cost)?;
    Some(Answer {
        taken: answer.taken.map(|state| step.repack(slot, &before, &state)),
        wait: answer.wait,
        remaining: answer.remaining,
        reset_after: answer.reset_after,
    })
}

/// Like [`answer_in_slot`], with the slot, for a slot of any kind.
#[inline(always)]
pub(super) fn answer_at<A: Packed>(
    step: &A,
    line: &LockedLine<'_>,
    at: usize,
    now: u64,
    cost: u64,
) -> Option<(Slot, Answer<Slot>)> {
    let slot = line.slot_of_kind(at, A::KIND)?;
    Some((slot, answer_in_slot(step, slot, now, cost)?))
}

/// A part is below 10^12, 40 bits. The denominator's tag is stored above it.
const PART_BITS: u32 = 40;

impl<S: Span> Packed for Bucket<S> {
    const KIND: Kind = Kind::Plain;

    const HAS_AMOUNT: bool = S::HAS_PARTS;

    #[inline]
    fn pack(&self, state: &BucketState) -> Slot {
        Slot {
            kind: Self::KIND,
            time: state.free_at,
            amount: u64::from(state.denominator_tag) << PART_BITS | state.part,
        }
    }

    #[inline]
    fn unpack(&self, slot: Slot) -> BucketState {
        let part = slot.amount & ((1 << PART_BITS) - 1);
        BucketState {
            free_at: slot.time,
            part,
            denominator_tag: (slot.amount >> PART_BITS) as u8,
        }
    }
}

impl Packed for FixedWindow {
    const KIND: Kind = Kind::Plain;

    #[inline]
    fn pack(&self, state: &WindowState) -> Slot {
        // Counts are at most 10^12.
        Slot {
            kind: Self::KIND,
            time: state.end,
            amount: state.count & ((1 << AMOUNT_BITS) - 1),
        }
    }

    #[inline]
    fn unpack(&self, slot: Slot) -> WindowState {
        WindowState {
            end: slot.time,
            count: slot.amount,
        }
    }
}

/// A packed counter: the millisecond at which it equals a fresh one (45 bits, until the year 3084),
/// two counts of 33 bits, and one unused bit. Windows start and end at whole milliseconds, as
/// periods do.
const COUNT_BITS: u32 = 33;
const HIGH_BITS: u32 = 19;
const LOW_BITS: u32 = COUNT_BITS - HIGH_BITS;
const NS_IN_MS: u64 = 1_000_000;

/// The largest limit in thousandths whose counts fit in a slot. Larger ones are stored as records.
pub(super) const LARGEST_PACKED_COUNT: u64 = (1 << COUNT_BITS) - 1;

pub(super) fn counter_expires_at(time: u64) -> u64 {
    (time >> HIGH_BITS).saturating_mul(NS_IN_MS)
}

/// Returns the counter moved by `by_ns`.
pub(super) fn counter_shifted(time: u64, by_ns: i64) -> u64 {
    let counts = time & ((1 << HIGH_BITS) - 1);
    (time >> HIGH_BITS).saturating_add_signed(by_ns / NS_IN_MS.cast_signed()) << HIGH_BITS | counts
}

impl Packed for SlidingWindowCounter {
    const KIND: Kind = Kind::Counter;

    #[inline(always)]
    fn repack(&self, slot: Slot, before: &CounterState, state: &CounterState) -> Slot {
        let is_same_window = before.end == state.end && before.current > 0;
        if !is_same_window || state.current > LARGEST_PACKED_COUNT {
            return self.pack(state);
        }
        // Only the current count differs, in the low bits.
        Slot {
            amount: slot.amount + (state.current - before.current),
            ..slot
        }
    }

    #[inline]
    fn pack(&self, state: &CounterState) -> Slot {
        // The stored time is the end of the next window, or of the current one if that is empty.
        let expires_at = if state.current > 0 {
            state.end.saturating_add(self.period())
        } else {
            state.end
        };
        let (previous, current) = (
            state.previous & LARGEST_PACKED_COUNT,
            state.current & LARGEST_PACKED_COUNT,
        );
        let time = (expires_at / NS_IN_MS) << HIGH_BITS | previous >> LOW_BITS;
        let amount = (previous & ((1 << LOW_BITS) - 1)) << COUNT_BITS | current;
        Slot {
            kind: Self::KIND,
            time,
            amount,
        }
    }

    #[inline]
    fn unpack(&self, slot: Slot) -> CounterState {
        let current = slot.amount & LARGEST_PACKED_COUNT;
        let previous = (slot.time & ((1 << HIGH_BITS) - 1)) << LOW_BITS | slot.amount >> COUNT_BITS;
        let expires_at = counter_expires_at(slot.time);
        let end = if current > 0 {
            expires_at.saturating_sub(self.period())
        } else {
            expires_at
        };
        CounterState {
            end,
            current,
            previous,
        }
    }
}
