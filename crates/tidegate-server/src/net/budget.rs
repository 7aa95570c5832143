//! A budget of bytes that all connections share: what is held of requests and responses that take their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that may be held at a time.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    most: usize,
}

/// Bytes that are held, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            most,
        })
    }

    /// Returns true if so many bytes more could be held.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(bytes) <= self.most
    }

    /// Nothing yet.
    pub(crate) fn held(self: &Arc<Self>) -> Held {
        Held {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }
}

impl Held {
    /// Holds so many bytes, more or fewer than before. False, and as before, if there is no room for more.
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

    /// Holds so many bytes more.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.resize(self.bytes.saturating_add(bytes))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_as_much_as_it_says() {
        let budget = Budget::new(100);
        let (mut one, mut other) = (budget.held(), budget.held());
        assert!(one.grow(90) && other.grow(10));
        assert!(!other.grow(1) && !one.resize(91) && one.resize(90));
        drop(one);
        assert!(other.grow(90) && !other.grow(1) && other.resize(3));
        drop(other);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
