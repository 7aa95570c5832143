//! Replays the requests of a log through policies, in one pass and bounded memory.
//!
//! [`Replay::add`] decides each request with a real limiter at the log's own time. The requests are
//! also written to a [`Spool`], a temporary file, from which [`Curve`] and [`find`] read them as
//! often as they need.

mod clients;
mod curve;
pub mod find;
mod keys;
mod lane;
mod spool;

use std::io;

use serde::Serialize;
use tidegate_core::{Cost, Policy};

pub use clients::ClientBehavior;
pub use curve::{Curve, CurvePoint};
pub use keys::{Denials, KeyFigures, KeyOrder};
pub use lane::PolicyFigures;
pub use spool::{Spool, SpooledRequest};

use crate::Timeline;
use keys::KeyTable;
use lane::Lane;

/// The number of policies in one replay.
const MAX_POLICIES: usize = 8;

/// The settings of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// The behaviour of clients after a denial.
    pub clients: ClientBehavior,
    /// The number of keys whose state is kept, a million by default.
    pub max_keys: Option<u64>,
}

/// A replay in progress.
pub struct Replay {
    lanes: Vec<Lane>,
    keys: KeyTable,
    spool: Spool,
    hasher: std::hash::RandomState,
    requests: u64,
    out_of_order: u64,
    span_us: Option<(u64, u64)>,
}

/// The results of a replay, without the curve and the recommendation.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// The number of requests.
    pub requests: u64,
    /// The number of requests whose time was before that of an earlier line. They count at the
    /// earlier line's time.
    pub out_of_order: u64,
    /// The number of distinct keys.
    pub keys: u64,
    /// False if there were so many keys that some were no longer counted.
    pub is_exact: bool,
    /// The time of the first request in microseconds since 1970.
    pub first_us: u64,
    /// The time of the last request.
    pub last_us: u64,
    /// The figures of each policy.
    pub policies: Vec<PolicyFigures>,
}

impl Replay {
    /// Starts a replay.
    ///
    /// # Errors
    ///
    /// Returns an error if there are more than eight policies, if the number of keys is invalid, or
    /// if no temporary file can be created.
    pub fn new(policies: &[Policy], options: &ReplayOptions) -> io::Result<Self> {
        if policies.len() > MAX_POLICIES {
            let message = format!(
                "{} policies: expected at most {MAX_POLICIES}",
                policies.len()
            );
            return Err(io::Error::other(message));
        }
        let lanes = policies.iter().map(|policy| Lane::new(policy, options));
        Ok(Self {
            lanes: lanes.collect::<io::Result<_>>()?,
            keys: KeyTable::new(policies.len()),
            spool: Spool::new()?,
            hasher: std::hash::RandomState::new(),
            requests: 0,
            out_of_order: 0,
            span_us: None,
        })
    }

    /// Decides one request. Requests come in the order of time; one that is earlier than the last
    /// counts at the time of the last.
    ///
    /// # Errors
    ///
    /// Returns an error if the temporary file cannot be written.
    pub fn add(&mut self, at_us: u64, key: &str, cost: Cost) -> io::Result<()> {
        let (first, last) = self.span_us.unwrap_or((at_us, at_us));
        self.out_of_order += u64::from(at_us < last);
        let at_us = at_us.max(last);
        self.span_us = Some((first, at_us));
        self.requests += 1;
        let hash = std::hash::BuildHasher::hash_one(&self.hasher, key);
        self.spool.push(SpooledRequest {
            at_us,
            key: hash,
            cost: cost.thousandths(),
        })?;
        let mut denied_by = 0;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            denied_by |= u8::from(!lane.decide(at_us, key, cost)) << index;
        }
        self.keys.add(at_us, key, hash, denied_by);
        Ok(())
    }

    /// Returns the figures so far.
    #[must_use]
    pub fn report(&mut self) -> ReplayReport {
        let (first_us, last_us) = self.span_us.unwrap_or_default();
        let (keys, is_exact) = self.keys.distinct();
        let limited: Vec<u64> = (0..self.lanes.len())
            .map(|lane| self.keys.limited(lane))
            .collect();
        let lanes = self.lanes.iter_mut().zip(limited);
        ReplayReport {
            requests: self.requests,
            out_of_order: self.out_of_order,
            keys,
            is_exact,
            first_us,
            last_us,
            policies: lanes.map(|(lane, limited)| lane.figures(limited)).collect(),
        }
    }

    /// Returns the first `count` keys in an order.
    #[must_use]
    pub fn top(&self, order: KeyOrder, count: usize) -> Vec<KeyFigures> {
        self.keys.top(order, count)
    }

    /// Returns the requests over time of each policy.
    #[must_use]
    pub fn timelines(&self) -> Vec<(&Policy, &Timeline)> {
        let lanes = self.lanes.iter();
        lanes.map(|lane| (lane.policy(), lane.timeline())).collect()
    }

    /// Returns the requests, to read them again.
    pub fn into_spool(self) -> Spool {
        self.spool
    }
}
