//! The behaviour of clients after a denial: a log shows requests that were allowed, so retries must
//! be assumed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::{Cost, Decision};

/// The number of requests that may wait for a retry. More give up at once.
const MAX_WAITING: usize = 1_000_000;
const SECOND_US: u64 = 1_000_000;

/// The behaviour of clients after a denied request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientBehavior {
    /// A denied request is lost. The log has the requests that clients sent.
    #[default]
    AsLogged,
    /// Clients retry after `Retry-After`, up to ten times.
    Obey,
    /// Clients retry every second, up to sixty times.
    Hammer,
    /// Clients retry after 1, 2, 4, 8, 16, 32 and 64 seconds.
    Backoff,
}

/// A denied request that will be sent again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Retry {
    pub(super) first_us: u64,
    pub(super) key: Box<str>,
    pub(super) cost: Cost,
    tries: u32,
}

impl Retry {
    pub(super) fn first(at_us: u64, key: &str, cost: Cost) -> Self {
        Self {
            first_us: at_us,
            key: key.into(),
            cost,
            tries: 0,
        }
    }

    pub(super) const fn again(mut self) -> Self {
        self.tries += 1;
        self
    }
}

/// The retries in the order of time.
pub(super) struct Retries {
    behavior: ClientBehavior,
    waiting: BinaryHeap<Reverse<(u64, u64, Retry)>>,
    /// Keeps retries of one instant in order.
    sequence: u64,
}

impl Retries {
    pub(super) const fn new(behavior: ClientBehavior) -> Self {
        Self {
            behavior,
            waiting: BinaryHeap::new(),
            sequence: 0,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.behavior != ClientBehavior::AsLogged
    }

    /// Schedules the next try. Returns `false` if the client gives up.
    pub(super) fn schedule(&mut self, retry: Retry, now_us: u64, decision: &Decision) -> bool {
        let wait = decision
            .retry_after()
            .map(|wait| wait.as_nanos().div_ceil(1_000) as u64);
        let wait = match (self.behavior, wait) {
            (ClientBehavior::Obey, Some(wait)) if retry.tries < 10 => wait,
            (ClientBehavior::Hammer, Some(_)) if retry.tries < 60 => SECOND_US,
            (ClientBehavior::Backoff, Some(_)) if retry.tries < 7 => SECOND_US << retry.tries,
            _ => return false,
        };
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        self.sequence += 1;
        let at_us = now_us.saturating_add(wait.max(1));
        self.waiting.push(Reverse((at_us, self.sequence, retry)));
        true
    }

    /// Returns the next retry that is due.
    pub(super) fn due(&mut self, until_us: u64) -> Option<(u64, Retry)> {
        let Reverse((at_us, ..)) = self.waiting.peek()?;
        if *at_us > until_us {
            return None;
        }
        let Reverse((at_us, _, retry)) = self.waiting.pop()?;
        Some((at_us, retry))
    }
}
