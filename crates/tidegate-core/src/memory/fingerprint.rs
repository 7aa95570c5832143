//! Keyed 128-bit fingerprints of keys, so that an attacker cannot choose where keys are stored.

use siphasher::sip128::SipHasher13;

use super::cache_line::SLOTS;
use crate::hardware::BlockCipher;
use crate::identity;
use crate::policy::Policy;

/// The fingerprint of a key under a policy. Two keys collide with a probability of 2^-128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint {
    pub(super) low: u64,
    /// 56 bits of the hash, and in the low byte the policy's group.
    pub(super) high: u64,
    /// The other eight bits of the hash, independent of the home line and the group.
    pub(super) tag: u8,
}

impl Fingerprint {
    #[inline]
    fn new(low: u64, high: u64, group: Group) -> Self {
        Self {
            low,
            high: high & !0xff | u64::from(group.0),
            tag: high as u8,
        }
    }

    /// Returns the fingerprint of one of several entries of a key: in the same home line and group.
    #[inline(always)]
    pub(super) fn with_offset(self, offset: u64) -> Self {
        Self {
            low: self.low,
            high: self.high ^ (offset & !0xff),
            tag: self.tag ^ offset as u8,
        }
    }

    /// Returns the hash without the group.
    #[inline]
    pub(super) fn as_u128(self) -> u128 {
        let high = self.high & !0xff | u64::from(self.tag);
        u128::from(high) << 64 | u128::from(self.low)
    }

    /// Returns `true` for the fingerprint of an empty slot.
    pub(super) fn is_zero(self) -> bool {
        (self.low, self.high, self.tag) == (0, 0, 0)
    }

    /// Returns the group whose share of the table the entry belongs to.
    #[inline]
    pub(super) fn group(self) -> Group {
        Group(self.high as u8)
    }
}

/// A named policy, or all limits without a name. Each has a share of the table, see `evict.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(pub(super) u8);

/// Computes fingerprints with a secret key: one AES block for short keys if the processor has AES,
/// SipHash-1-3 for all others.
#[derive(Clone)]
pub(super) struct Fingerprinter {
    short: Option<BlockCipher>,
    any: SipHasher13,
    group: Group,
}

/// The secret of a store's fingerprints. With it, keys can be chosen that are stored in one place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secret(pub(super) [u64; 2]);

impl Secret {
    /// Draws a secret from the system's random source. Returns `None` if there is none.
    pub(super) fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        let number = u128::from_le_bytes(bytes);
        Some(Self([number as u64, (number >> 64) as u64]))
    }
}

impl Fingerprinter {
    pub(super) fn new(Secret([one, other]): Secret) -> Self {
        Self::of_secret(SipHasher13::new_with_keys(one, other), Group(0))
    }

    /// Returns `true` if short keys are hashed with AES.
    pub(super) fn has_cipher(&self) -> bool {
        self.short.is_some()
    }

    /// Derives all keys from the secret.
    fn of_secret(secret: SipHasher13, group: Group) -> Self {
        let draw = |number: u8| secret.hash(&[number]).as_u128();
        let round_keys = std::array::from_fn(|round| draw(round as u8 + 1));
        let sip = secret.hash(&[0]);
        Self {
            short: BlockCipher::new(round_keys),
            any: SipHasher13::new_with_keys(sip.h1, sip.h2),
            group,
        }
    }

    /// Returns a fingerprinter for the keys of one namespace and one
    /// [identity](identity::identity). Keys under different ones have different fingerprints.
    pub(super) fn for_policy(&self, policy: &Policy, namespace: &str, group: Group) -> Self {
        // An identity contains no `:`, so the text is unambiguous.
        let text = format!("{}:{namespace}", identity::identity(policy, namespace));
        Self {
            group,
            ..self.for_domain(text.as_bytes())
        }
    }

    /// Returns a fingerprinter with a secret of its own.
    pub(super) fn for_domain(&self, domain: &[u8]) -> Self {
        let derived = self.any.hash(domain);
        let secret = SipHasher13::new_with_keys(derived.h1, derived.h2);
        Self::of_secret(secret, self.group)
    }

    /// Returns the offset of the entries of one limit, see [`Fingerprint::with_offset`].
    pub(super) fn offset(&self, index: usize, numbers: Option<[u8; 16]>) -> u64 {
        let text = [&[index as u8][..], &numbers.unwrap_or_default()].concat();
        let hash = self.any.hash(&text).h1;
        // The entries of one key have different tags.
        hash & !(SLOTS as u64 - 1) | (index % SLOTS) as u64
    }

    #[inline]
    pub(super) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        match (&self.short, short_block(key)) {
            (Some(cipher), Some(block)) => {
                let (low, high) = cipher.hash(block);
                Fingerprint::new(low, high, self.group)
            }
            _ => {
                let hash = self.any.hash(key);
                Fingerprint::new(hash.h1, hash.h2, self.group)
            }
        }
    }
}

/// Returns a key of at most 15 bytes as a block: its bytes, zeroes, and its length in the last
/// byte.
#[inline]
fn short_block(key: &[u8]) -> Option<u128> {
    let length = key.len();
    let (low, high) = if let (8..=15, Some(head), Some(tail)) =
        (length, key.first_chunk(), key.last_chunk())
    {
        // The last eight bytes, without those that are also among the first eight.
        (
            u64::from_le_bytes(*head),
            (u64::from_le_bytes(*tail) >> 8) >> (8 * (15 - length)),
        )
    } else if let (4..8, Some(head), Some(tail)) = (length, key.first_chunk(), key.last_chunk()) {
        // Two overlapping halves; the overlapping bytes are equal.
        let (head, tail) = (u32::from_le_bytes(*head), u32::from_le_bytes(*tail));
        (u64::from(head) | u64::from(tail) << (8 * (length - 4)), 0)
    } else if let (1..4, [first, .., last] | [first @ last]) = (length, key) {
        let middle = u64::from(key.get(length / 2).copied().unwrap_or(0)) << (8 * (length / 2));
        (
            u64::from(*first) | middle | u64::from(*last) << (8 * (length - 1)),
            0,
        )
    } else {
        return None;
    };
    Some(u128::from(high | (length as u64) << 56) << 64 | u128::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_blocks_hold_the_key_and_its_length() {
        let bytes: Vec<u8> = (1..=20).collect();
        for length in 1..=15 {
            let mut expected = [0; 16];
            expected[..length].copy_from_slice(&bytes[..length]);
            expected[15] = length as u8;
            assert_eq!(
                short_block(&bytes[..length]),
                Some(u128::from_le_bytes(expected)),
                "{length}"
            );
        }
        for length in [0, 16, 20] {
            assert_eq!(short_block(&bytes[..length]), None);
        }
    }

    #[test]
    fn every_length_and_every_bit_counts() {
        let prints = Fingerprinter::new(Secret::random().unwrap());
        let mut seen = std::collections::HashSet::new();
        for length in 1..=64 {
            let zeroes = vec![0; length];
            assert!(seen.insert(prints.fingerprint(&zeroes).low));
            for bit in 0..length * 8 {
                let mut key = zeroes.clone();
                key[bit / 8] |= 1 << (bit % 8);
                assert!(
                    seen.insert(prints.fingerprint(&key).low),
                    "length {length} bit {bit}"
                );
            }
        }
    }

    #[test]
    fn secrets_and_shapes_differ() {
        let [one, other] = [
            Fingerprinter::new(Secret::random().unwrap()),
            Fingerprinter::new(Secret::random().unwrap()),
        ];
        let [minute, hour] = ["1/minute", "1/hour"].map(|text| text.parse().unwrap());
        for key in [&b"short"[..], b"a key that is longer than fifteen bytes"] {
            assert_ne!(one.fingerprint(key), other.fingerprint(key));
            assert_ne!(
                one.for_policy(&minute, "", Group(0)).fingerprint(key),
                one.for_policy(&hour, "", Group(0)).fingerprint(key)
            );
            assert_eq!(
                one.for_policy(&minute, "", Group(0)).fingerprint(key),
                one.for_policy(&minute, "", Group(0)).fingerprint(key)
            );
            assert_ne!(
                one.for_policy(&minute, "a", Group(0)).fingerprint(key),
                one.for_policy(&minute, "b", Group(0)).fingerprint(key)
            );
        }
    }
}
