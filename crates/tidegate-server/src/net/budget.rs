//! A byte budget that all connections share, for requests and responses in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum number of bytes that may be reserved at a time.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    used: AtomicUsize,
    most: usize,
}

/// Reserved bytes, released when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl ByteBudget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            most,
        })
    }

    /// Returns `true` if this many bytes more could be reserved.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(bytes) <= self.most
    }

    /// Returns an empty reservation.
    pub(crate) fn held(self: &Arc<Self>) -> Reservation {
        Reservation {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }
}

impl Reservation {
    /// Changes the number of reserved bytes. Returns `false`, and changes nothing, if there is no
    /// room.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let used = &self.budget.used;
        if bytes <= self.bytes {
            if bytes < self.bytes {
                used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            }
        } else {
            let more = |used: usize| {
                used.checked_add(bytes - self.bytes)
                    .filter(|used| *used <= self.budget.most)
            };
            if used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
                .is_err()
            {
                return false;
            }
        }
        self.bytes = bytes;
        true
    }

    /// Reserves more bytes. Returns `false`, and changes nothing, if there is no room.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.resize(self.bytes.saturating_add(bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_never_exceed_the_budget_together() {
        let budget = ByteBudget::new(100);
        let (mut one, mut other) = (budget.held(), budget.held());
        assert!(one.grow(90) && other.grow(10));
        assert!(!other.grow(1) && !one.resize(91) && one.resize(90));
        drop(one);
        assert!(other.grow(90) && !other.grow(1) && other.resize(3));
        drop(other);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
