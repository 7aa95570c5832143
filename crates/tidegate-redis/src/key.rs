//! The names that records have in Redis.
//!
//! `tg:tb/1m:{user:42}`, under a policy that has a name `tg:api:tb/1m:{user:42}`: the prefix, the name, the shape of the
//! policy (its algorithms and periods, so that a changed shape starts afresh and a changed limit does not) and the key, as
//! the hash tag that puts all of it in one slot. A brace or percent sign in the key is written as `%7B`, `%7D` or `%25`:
//! nobody steers a slot, and no two keys meet. A long key is written as `tg:tb/1m:#{digest}`.

use tidegate_core::{ANY_RATE, Algorithm, Key, Limit, Policy};

use crate::rate::period_us;

/// Longer keys are stored as a digest of 192 bits.
const LONGEST: usize = 128;

/// The part of a name that comes before the key. A namespace, which has no slash, is never taken for a shape.
pub(crate) fn shape(prefix: &str, namespace: &str, policy: &Policy) -> Vec<u8> {
    let limits: Vec<String> = policy.limits().iter().map(|limit| limit_shape(limit, namespace)).collect();
    let separator = if namespace.is_empty() { "" } else { ":" };
    format!("{prefix}{namespace}{separator}{}:", limits.join("+")).into_bytes()
}

fn limit_shape(limit: &Limit, namespace: &str) -> String {
    let algorithm = match (limit.algorithm(), limit.opens_with_first_hit()) {
        (Algorithm::FixedWindow, false) => "fw",
        (Algorithm::FixedWindow, true) => "ff",
        (Algorithm::SlidingWindowLog, _) => "sl",
        (Algorithm::SlidingWindowCounter, _) => "sc",
        (Algorithm::TokenBucket, _) => "tb",
        (Algorithm::LeakyBucket, _) => "lb",
        (Algorithm::Gcra, _) => "gc",
    };
    if namespace == ANY_RATE {
        return algorithm.to_owned();
    }
    format!("{algorithm}/{}", period(period_us(limit) / 1_000))
}

/// A period in the largest unit that it is a whole number of.
fn period(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match UNITS.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

/// The name of a key's record. Logs beside a record add `:1`, `:2`, … to it.
pub(crate) fn name(shape: &[u8], key: Key<'_>) -> Vec<u8> {
    let key = key.as_bytes();
    let mut name = Vec::with_capacity(shape.len() + key.len().min(LONGEST) + 4);
    name.extend_from_slice(shape);
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

/// Redis Cluster's slot of a name that was made here: of what is between its braces.
pub(crate) fn slot(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| name.get(open + 1..)).unwrap_or(name);
    let tag = tag.strip_suffix(b"}").unwrap_or(tag);
    crc16::State::<crc16::XMODEM>::calculate(tag) % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(policy: &str, key: &[u8]) -> String {
        let shape = shape("tg:", "", &policy.parse().unwrap());
        String::from_utf8_lossy(&name(&shape, Key::new(key).unwrap())).into_owned()
    }

    #[test]
    fn names_say_what_they_are() {
        assert_eq!(named("100/minute", b"user:42"), "tg:tb/1m:{user:42}");
        assert_eq!(named("gcra 1/s; sliding_window_log 5 per 90 s", b"a"), "tg:gc/1s+sl/90s:{a}");
        assert_eq!(named("fixed_window 1/day anchor=first_hit", b"a"), "tg:ff/1d:{a}");
        assert_eq!(
            named("leaky_bucket 1/ms; fixed_window 1/2h; sliding_window 3/1500ms", b"a"),
            "tg:lb/1ms+fw/2h+sc/1500ms:{a}"
        );
    }

    #[test]
    fn no_two_keys_meet_and_nobody_steers_a_slot() {
        let keys: [&[u8]; 9] = [b"{", b"}", b"{}", b"%7B", b"%", b"a}b", b"}{x}", b"\0\xff\r\n", b"a{b}c"];
        let names: std::collections::HashSet<String> = keys.iter().map(|key| named("1/s", key)).collect();
        assert_eq!(names.len(), keys.len());
        for name in &names {
            assert_eq!((name.matches('{').count(), name.matches('}').count()), (1, 1), "{name}");
        }
        let (long, other) = ([b'k'; 129], [b'l'; 1_000_000]);
        assert_eq!(named("1/s", &long).len(), "tg:tb/1s:#{}".len() + 48);
        assert_ne!(named("1/s", &long), named("1/s", &other));
        assert_ne!(slot(b"tg:tb/1s:{x%7D1}"), slot(b"tg:tb/1s:{x%7D2}"));
        // As `redis-cli cluster keyslot` says.
        assert_eq!(slot(b"tg:tb/1s:{user:42}"), crc16::State::<crc16::XMODEM>::calculate(b"user:42") % 16_384);
        assert_eq!(slot(b"{123456789}"), 12_739);
    }
}
