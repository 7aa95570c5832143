//! Striped counters: threads that count at the same time write to different cache lines.
//!
//! Up to eight threads have a stripe of their own, to which no other thread writes. They count
//! without an atomic read-modify-write, which costs as much as a third of a check. All other
//! threads share one more stripe.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The number of stripes that belong to one thread each.
const OWNED: usize = 8;
/// The index of the stripe that all other threads share.
const SHARED: usize = OWNED;
const STRIPES: usize = OWNED + 1;

/// `N` counters that many threads increment at the same time.
#[doc(hidden)] // For Tidegate's own counters.
#[derive(Debug)]
pub struct StripedCounters<const N: usize> {
    stripes: [Stripe<N>; STRIPES],
}

/// One copy of the counters, on its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for StripedCounters<N> {
    fn default() -> Self {
        let stripe = || Stripe(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            stripes: std::array::from_fn(|_| stripe()),
        }
    }
}

impl<const N: usize> StripedCounters<N> {
    /// Adds `amount` to one counter. An index out of range is ignored.
    #[inline]
    pub fn add(&self, index: usize, amount: u64) {
        let index_of_stripe = stripe_of_thread();
        let stripe = self.stripes.get(index_of_stripe);
        let Some(counter) = stripe.and_then(|stripe| stripe.0.get(index)) else {
            return;
        };
        if index_of_stripe == SHARED {
            counter.fetch_add(amount, Ordering::Relaxed);
        } else {
            // No other thread writes to this stripe.
            let count = counter.load(Ordering::Relaxed);
            counter.store(count.wrapping_add(amount), Ordering::Relaxed);
        }
    }

    /// Returns the value of one counter, or 0 if the index is out of range.
    #[must_use]
    pub fn sum(&self, index: usize) -> u64 {
        let counters = self.stripes.iter().filter_map(|stripe| stripe.0.get(index));
        counters
            .map(|counter| counter.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }
}

thread_local! {
    /// The stripe of this thread, or `usize::MAX` before it has one.
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Gives the stripe back when the thread ends.
    static OWNERSHIP: Cell<Option<Ownership>> = const { Cell::new(None) };
}

/// Returns the stripe of the current thread.
#[inline]
fn stripe_of_thread() -> usize {
    match STRIPE.get() {
        usize::MAX => assign_stripe(),
        stripe => stripe,
    }
}

/// The stripes that no thread owns. The lock orders the last count of one owner before the first
/// of the next.
static FREE: Mutex<[bool; OWNED]> = Mutex::new([true; OWNED]);

/// The ownership of a stripe by a thread.
struct Ownership(usize);

impl Drop for Ownership {
    fn drop(&mut self) {
        // Counts made while the thread ends go to the shared stripe.
        STRIPE.set(SHARED);
        if let Some(free) = FREE.lock().get_mut(self.0) {
            *free = true;
        }
    }
}

#[cold]
fn assign_stripe() -> usize {
    let mut free = FREE.lock();
    let own = free.iter().position(|is_free| *is_free);
    if let Some(stripe) = own.and_then(|own| free.get_mut(own)) {
        *stripe = false;
    }
    drop(free);
    let owned = own.filter(|own| {
        // Fails if the thread is ending already.
        let is_kept = OWNERSHIP.try_with(|ownership| ownership.set(Some(Ownership(*own))));
        is_kept.is_ok()
    });
    let stripe = owned.unwrap_or(SHARED);
    STRIPE.set(stripe);
    stripe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_counted() {
        let counters = StripedCounters::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| (0..1_000).for_each(|_| counters.add(1, 5)));
            }
        });
        counters.add(2, 1);
        assert_eq!([0, 1, 2].map(|index| counters.sum(index)), [0, 90_000, 0]);
    }

    #[test]
    fn stripes_are_given_back_and_no_count_is_lost() {
        let counters = StripedCounters::<1>::default();
        for _ in 0..50 {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| counters.add(0, 1));
                }
            });
        }
        assert_eq!(counters.sum(0), 150);
    }
}
