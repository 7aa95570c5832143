//! The most requests of one key that passed within any period: the burst that a limit let through.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tidegate::Timestamp;

/// The number of keys that are followed, and of times per key. More are not counted.
const KEYS: usize = 1_000;
const TIMES: usize = 100_000;

pub(super) struct MostInPeriod {
    period: Duration,
    most: u64,
    keys: HashMap<String, VecDeque<Timestamp>>,
}

impl MostInPeriod {
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            most: 0,
            keys: HashMap::new(),
        }
    }

    /// Counts an allowed request.
    pub(super) fn add(&mut self, at: Timestamp, key: &str) {
        if !self.keys.contains_key(key) {
            if self.keys.len() >= KEYS {
                return;
            }
            self.keys.insert(key.to_owned(), VecDeque::new());
        }
        let Some(times) = self.keys.get_mut(key) else {
            return;
        };
        while times
            .front()
            .is_some_and(|first| at.saturating_since(*first) >= self.period)
        {
            times.pop_front();
        }
        if times.len() < TIMES {
            times.push_back(at);
        }
        self.most = self.most.max(times.len() as u64);
    }

    pub(super) const fn period(&self) -> Duration {
        self.period
    }

    pub(super) const fn most(&self) -> u64 {
        self.most
    }
}
