//! Rounding of durations for clients: up, so that a request made after that time is allowed.

use std::time::Duration;

/// Rounds a duration up to whole seconds.
#[must_use]
pub fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Rounds a wait up to whole seconds, at least one: the value of `Retry-After`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tidegate_http::retry_after_seconds(Duration::from_millis(1_001)), 2);
/// assert_eq!(tidegate_http::retry_after_seconds(Duration::ZERO), 1);
/// ```
#[must_use]
pub fn retry_after_seconds(wait: Duration) -> u64 {
    seconds(wait).max(1)
}

/// Rounds a duration up to whole microseconds.
#[must_use]
pub fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
