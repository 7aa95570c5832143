//! Keys as keyed 128-bit fingerprints: whoever chooses the keys cannot choose where they fall.

use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher13;

use crate::policy::Policy;

/// Stands for a key under a policy's shape. Two different keys meet with a chance of 2^-128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) low: u64,
    pub(super) high: u64,
}

/// Makes fingerprints with a secret of its own.
#[derive(Clone, Debug)]
pub(super) struct Fingerprinter(SipHasher13);

impl Fingerprinter {
    /// With a secret drawn from the system's randomness.
    pub(super) fn random() -> Self {
        // Each hasher has a random key; two answers of one are two numbers that nobody else can know.
        let random = RandomState::new();
        Self(SipHasher13::new_with_keys(random.hash_one(0u8), random.hash_one(1u8)))
    }

    /// One whose fingerprints are those of keys under `policy`'s shape: its algorithms, anchors and periods.
    /// A policy that changes in these starts afresh; one that changes in limit or burst finds what was used.
    pub(super) fn for_shape(&self, policy: &Policy) -> Self {
        let mut shape = Vec::new();
        for limit in policy.limits() {
            shape.push(limit.algorithm() as u8);
            shape.push(u8::from(limit.opens_with_first_hit()));
            shape.extend_from_slice(&limit.period_ns().to_le_bytes());
        }
        let derived = self.fingerprint(&shape);
        Self(SipHasher13::new_with_keys(derived.low, derived.high))
    }

    #[inline]
    pub(super) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        let hash = self.0.hash(key);
        Fingerprint { low: hash.h1, high: hash.h2 }
    }
}
