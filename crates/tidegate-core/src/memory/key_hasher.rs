//! Keyed 128-bit hashes of keys, for the tables of other crates.

use std::hash::{BuildHasher, RandomState};

use super::fingerprint::{Fingerprinter, Secret};

/// Computes 128-bit hashes that differ in every process, so that no client can choose colliding
/// keys.
#[derive(Clone)]
pub struct KeyHasher(Fingerprinter);

impl KeyHasher {
    /// Creates a hasher with a random secret.
    #[must_use]
    pub fn random() -> Self {
        let seed = RandomState::new();
        Self(Fingerprinter::new(Secret([
            seed.hash_one(0),
            seed.hash_one(1),
        ])))
    }

    /// Returns a hasher for the keys of one domain. Keys of different domains have different hashes.
    #[must_use]
    pub fn for_domain(&self, domain: &[u8]) -> Self {
        Self(self.0.for_domain(domain))
    }

    /// Returns the hash of a key.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u128 {
        self.0.fingerprint(key).as_u128()
    }
}

/// Prints nothing of the secret.
impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashers_and_domains_differ() {
        let hasher = KeyHasher::random();
        for key in [&b"short"[..], b"a key that is longer than fifteen bytes"] {
            assert_eq!(hasher.hash(key), hasher.clone().hash(key));
            assert_ne!(hasher.hash(key), KeyHasher::random().hash(key));
            let [one, other] = [b"one", b"two"].map(|domain| hasher.for_domain(domain).hash(key));
            assert_ne!(one, other);
            assert_eq!(one, hasher.for_domain(b"one").hash(key));
        }
    }
}
