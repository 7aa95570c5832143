//! Where limits counted an admitted request: what a receipt remembers, so that only what still counts is given back.

use smallvec::SmallVec;

/// Where one limit counted a request.
///
/// - fixed_window and sliding_window_counter: `time` is the end of the window.
/// - sliding_window_log: `time` is the time of the entry.
/// - buckets: `time` and `part` are the instant at which the bucket is free again after the request.
#[doc(hidden)] // For Tidegate's own stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Nanoseconds since the epoch.
    pub time: u64,
    /// The rest, in parts of the bucket's denominator.
    pub part: u64,
}

/// The claims of a request on the limits of a policy, in their order.
#[doc(hidden)] // For Tidegate's own stores.
pub type Claims = SmallVec<[Claim; 2]>;
