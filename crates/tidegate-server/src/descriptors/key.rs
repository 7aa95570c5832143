//! The key of a descriptor's counter: its entries, encoded so that no two descriptors share one.

use smallvec::SmallVec;

use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

/// An encoded key, on the stack if it is short.
pub(crate) type DescriptorKey = SmallVec<[u8; 64]>;

/// Encodes entries as `key=value;key=value`. Where all values of a pattern share a counter, the
/// pattern stands for the value: `key*=pattern`. Characters with a meaning are percent-encoded.
///
/// A key does not start with `@`, so limiters store it unchanged.
pub(crate) fn encode(entries: &[Entry], shared: &[Option<&str>]) -> DescriptorKey {
    let mut bytes = DescriptorKey::new();
    for (place, entry) in entries.iter().enumerate() {
        if place > 0 {
            bytes.push(b';');
        }
        escape(&entry.key, b"%;=*@", &mut bytes);
        let value = match shared.get(place).copied().flatten() {
            Some(pattern) => {
                bytes.push(b'*');
                pattern
            }
            None => &entry.value,
        };
        bytes.push(b'=');
        escape(value, b"%;", &mut bytes);
    }
    bytes
}

/// Encodes a list of values as `value;value`. The first must not start with `@`.
#[cfg(feature = "limitador")]
pub(crate) fn encode_values<'a>(values: impl IntoIterator<Item = &'a str>) -> DescriptorKey {
    let mut bytes = DescriptorKey::new();
    for (place, value) in values.into_iter().enumerate() {
        if place > 0 {
            bytes.push(b';');
        }
        escape(value, b"%;", &mut bytes);
    }
    bytes
}

fn escape(text: &str, special: &[u8], bytes: &mut DescriptorKey) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if special.contains(&byte) {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            bytes.extend_from_slice(&[b'%', HEX[high], HEX[low]]);
        } else {
            bytes.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_descriptors_share_a_key() {
        let texts = [
            "", "a", "b", "a_b", "b_c", "a=b", "a;b", "*", "a*", "%", "%3B", "@", "@a",
        ];
        let entry = |key: &str, value: &str| Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let mut seen = std::collections::HashMap::new();
        for key in texts {
            for value in texts {
                let one = vec![entry(key, value)];
                let two = vec![entry(key, value), entry("a", "b")];
                let three = vec![entry("a", "b"), entry(key, value)];
                for entries in [one, two, three] {
                    for pattern in [None, Some("a*"), Some("*")] {
                        let bytes = encode(&entries, &[pattern]);
                        assert_ne!(bytes.first(), Some(&b'@'));
                        // All values of one pattern share a key.
                        let mut counted = entries.clone();
                        if let Some(pattern) = pattern {
                            counted[0].value = pattern.to_owned();
                        }
                        let known = (counted, pattern.is_some());
                        let before = seen.insert(bytes.to_vec(), known.clone());
                        assert!(before.is_none_or(|before| before == known), "{known:?}");
                    }
                }
            }
        }
    }
}
