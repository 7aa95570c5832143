//! What can be set, and what holds where it is not.

use std::time::Duration;

use crate::command::GivenTime;

/// Trips to one node that may be under way at once. More of them would not make Redis faster; what waits meanwhile goes
/// together on the next.
pub(crate) const MAX_FLIGHTS: usize = 4;

/// The weight of the checks that go on one trip, where so many wait. Redis does nothing else at that time: this is about half
/// a millisecond.
pub(crate) const MAX_BATCH: usize = 128;

/// The weight of the checks of one caller that are on their way at a time, however many it asks for at once. So no caller keeps
/// Redis from answering the others within their deadline.
pub(crate) const MAX_PARCEL: usize = 256;

/// So many trips in a row without an answer open the breaker.
pub(crate) const MAX_FAILURES: u32 = 3;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Every name in Redis begins with it and a `:`.
    pub(crate) prefix: String,
    /// A check is answered within it, by Redis or without.
    pub(crate) deadline: Duration,
    /// How long making a connection may take.
    pub(crate) connect_timeout: Duration,
    /// How many checks may wait for a trip, a node.
    pub(crate) max_waiting: usize,
    pub(crate) given: Option<GivenTime>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "tg".to_owned(),
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(500),
            max_waiting: 4_096,
            given: None,
        }
    }
}
