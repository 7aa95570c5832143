//! The names of records in Redis.
//!
//! `tg:api:fw/1m:{user:42}` under the policy `api`, `tg::tb/100/1m:{user:42}` under a limit without
//! a name: the prefix, the policy's name, the [identity](tidegate_core::identity) of its limits,
//! and the key as the hash tag that puts everything into one slot. Names and identities contain no
//! `:`, so names of different prefixes, policies and limits never collide.
//!
//! A brace or percent sign in the key is written as `%7B`, `%7D` or `%25`, so no client can choose
//! a slot and no two keys collide. A long key is written as `tg:api:fw/1m:#{digest}`.

use tidegate_core::{Key, Policy, identity};

/// The maximum length of a key. Longer keys are stored as a digest of 192 bits.
const LONGEST: usize = 128;

/// Returns the part of a name before the key.
pub(crate) fn stem(prefix: &str, namespace: &str, policy: &Policy) -> Vec<u8> {
    format!("{prefix}:{namespace}:{}:", identity(policy, namespace)).into_bytes()
}

/// Returns the name of a key's record. Logs beside a record append `:1`, `:2`, … to it.
pub(crate) fn name(stem: &[u8], key: Key<'_>) -> Vec<u8> {
    let key = key.as_bytes();
    let mut name = Vec::with_capacity(stem.len() + key.len().min(LONGEST) + 4);
    name.extend_from_slice(stem);
    if key.len() > LONGEST {
        name.extend_from_slice(b"#{");
        name.extend(blake3::hash(key).to_hex().bytes().take(48));
    } else {
        name.push(b'{');
        for byte in key {
            match byte {
                b'{' => name.extend_from_slice(b"%7B"),
                b'}' => name.extend_from_slice(b"%7D"),
                b'%' => name.extend_from_slice(b"%25"),
                other => name.push(*other),
            }
        }
    }
    name.push(b'}');
    name
}

/// Returns the cluster slot of a name: that of the text between its braces.
pub(crate) fn slot(name: &[u8]) -> u16 {
    let tag = name
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| name.get(open + 1..))
        .unwrap_or(name);
    let tag = tag
        .iter()
        .position(|byte| *byte == b'}')
        .and_then(|close| tag.get(..close))
        .unwrap_or(tag);
    crc16::State::<crc16::XMODEM>::calculate(tag) % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(policy: &str, key: &[u8]) -> String {
        name_in("tg", "", policy, key)
    }

    fn name_in(prefix: &str, namespace: &str, policy: &str, key: &[u8]) -> String {
        let stem = stem(prefix, namespace, &policy.parse().unwrap());
        String::from_utf8_lossy(&name(&stem, Key::new(key).unwrap())).into_owned()
    }

    #[test]
    fn names_contain_the_policy_and_the_key() {
        assert_eq!(named("100/minute", b"user:42"), "tg::tb/100/1m:{user:42}");
        assert_eq!(
            name_in("tg", "api", "fixed_window 100/minute", b"user:42"),
            "tg:api:fw/1m:{user:42}"
        );
        assert_eq!(
            name_in("tg", "api~gold", "100/minute burst=7", b"a"),
            "tg:api~gold:tb/100/1m/7:{a}"
        );
        assert_eq!(
            named("fixed_window 1/day anchor=first_hit", b"a"),
            "tg::ff/1/1d:{a}"
        );
    }

    /// Every combination of prefix, policy name, limits and key has its own name.
    #[test]
    fn a7_no_two_of_prefix_policy_limits_and_key_meet() {
        let prefixes = ["tg", "tg:", "tg:api", "tg:api:", "tg:api::", "t", ""];
        let namespaces = ["", "api", "g", "api~gold", "gold"];
        let limits = [
            "1/m",
            "fixed_window 1/m",
            "1/m burst=2",
            "1/m; fixed_window 1/m",
        ];
        let keys = ["k", ":k", "api:k", "{k}", "%7Bk%7D", "tb/1/1m:{k}"];
        let mut seen = std::collections::HashSet::new();
        for prefix in prefixes {
            for namespace in namespaces {
                for limits in limits {
                    for key in keys {
                        let name = name_in(prefix, namespace, limits, key.as_bytes());
                        assert!(
                            seen.insert(name.clone()),
                            "{prefix} {namespace} {limits} {key}: {name}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn keys_never_collide_and_clients_cannot_choose_a_slot() {
        let keys: [&[u8]; 9] = [
            b"{",
            b"}",
            b"{}",
            b"%7B",
            b"%",
            b"a}b",
            b"}{x}",
            b"\0\xff\r\n",
            b"a{b}c",
        ];
        let names: std::collections::HashSet<String> =
            keys.iter().map(|key| named("1/s", key)).collect();
        assert_eq!(names.len(), keys.len());
        for name in &names {
            assert_eq!(
                (name.matches('{').count(), name.matches('}').count()),
                (1, 1),
                "{name}"
            );
        }
        let (long, other) = ([b'k'; 129], [b'l'; 1_000_000]);
        assert_eq!(named("1/s", &long).len(), "tg::tb/1/1s:#{}".len() + 48);
        assert_ne!(named("1/s", &long), named("1/s", &other));
        assert_ne!(slot(b"tg:tb/1s:{x%7D1}"), slot(b"tg:tb/1s:{x%7D2}"));
        // As `redis-cli cluster keyslot` returns.
        assert_eq!(
            slot(b"tg:tb/1s:{user:42}"),
            crc16::State::<crc16::XMODEM>::calculate(b"user:42") % 16_384
        );
        assert_eq!(slot(b"{123456789}"), 12_739);
        assert_eq!(
            slot(b"tg::tb/1/1s:{123456789}:r:id"),
            12_739,
            "receipts are beside their key"
        );
    }
}
