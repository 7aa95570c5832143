//! Claims: where limits counted an admitted request. A receipt stores them, so that settling gives
//! back only what still counts.

use smallvec::SmallVec;

/// The place where one limit counted a request.
///
/// - fixed_window and sliding_window_counter: `time` is the end of the window.
/// - sliding_window_log: `time` is the time of the entry.
/// - buckets: `time` and `part` are the free-again time after the request.
#[doc(hidden)] // For Tidegate's own stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// The fraction, in parts of the bucket's denominator.
    pub part: u64,
}

/// The claims of one request on the limits of a policy, in the policy's order.
#[doc(hidden)] // For Tidegate's own stores.
pub type Claims = SmallVec<[Claim; 2]>;
