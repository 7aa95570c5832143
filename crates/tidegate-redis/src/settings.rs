//! The settings of a store, and the bounds on its load.

use std::time::Duration;

use crate::operation::ManualTime;

/// The maximum number of round trips in flight to one node. More would not make Redis faster;
/// operations that wait share the next one.
pub(crate) const MAX_IN_FLIGHT: usize = 4;

/// The maximum weight of the operations in one round trip. Redis does nothing else in that time,
/// about half a millisecond.
pub(crate) const MAX_BATCH_WEIGHT: usize = 128;

/// The maximum weight of one caller's operations in flight, however many it has. So no caller keeps
/// Redis from answering others within their timeout.
pub(crate) const MAX_CALLER_WEIGHT: usize = 256;

/// The settings of a store.
#[derive(Clone, Debug)]
pub(crate) struct RedisSettings {
    /// Every key in Redis starts with this prefix and a `:`.
    pub(crate) prefix: String,
    /// The time within which a check is answered, by Redis or by the failure policy.
    pub(crate) timeout: Duration,
    /// Set if the URL or the program has set the timeout.
    pub(crate) has_timeout: bool,
    /// The time that connecting may take.
    pub(crate) connect_timeout: Duration,
    /// The maximum number of operations that wait for one node.
    pub(crate) max_waiting: usize,
    pub(crate) manual_time: Option<ManualTime>,
    pub(crate) lease: LeaseSettings,
}

/// The settings of quota leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseSettings {
    pub(crate) is_on: bool,
    /// The longest time in which a slice of a bucket is spent, in whole milliseconds.
    pub(crate) lifetime: Duration,
    /// The most of a limit that all processes together may hold, in per cent.
    pub(crate) share: u64,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            is_on: false,
            lifetime: Duration::from_millis(100),
            share: 10,
        }
    }
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            prefix: "tg".to_owned(),
            timeout: Duration::from_millis(50),
            has_timeout: false,
            connect_timeout: Duration::from_millis(500),
            max_waiting: 4_096,
            manual_time: None,
            lease: LeaseSettings::default(),
        }
    }
}
