//! Striped counters: threads that count at the same time write to different cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of stripes.
const STRIPES: usize = 8;

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
        let stripe = self.stripes.get(stripe_of_thread());
        if let Some(counter) = stripe.and_then(|stripe| stripe.0.get(index)) {
            counter.fetch_add(amount, Ordering::Relaxed);
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

/// Returns the stripe of the current thread.
fn stripe_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static OWN: Cell<usize> = const { Cell::new(usize::MAX) } }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        own.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_counted() {
        let counters = StripedCounters::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| counters.add(1, 5));
            }
        });
        counters.add(2, 1);
        assert_eq!([0, 1, 2].map(|index| counters.sum(index)), [0, 80, 0]);
    }
}
