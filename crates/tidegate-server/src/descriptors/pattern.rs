//! Values with wildcards: `*` stands for any run of characters, anywhere, any number of times.

/// A value with at least one `*`.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    text: Box<str>,
}

impl Pattern {
    /// Returns the pattern of a value, or `None` if it has no wildcard.
    pub(crate) fn of(value: &str) -> Option<Self> {
        value.contains('*').then(|| Self { text: value.into() })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn matches(&self, value: &str) -> bool {
        let mut parts = self.text.split('*');
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else {
            return false;
        };
        let Some(rest) = value.strip_prefix(first) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(last) else {
            return false;
        };
        // The earliest place of each part leaves most for the others.
        for part in parts.filter(|part| !part.is_empty()) {
            let Some((_, after)) = rest.split_once(part) else {
                return false;
            };
            rest = after;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_any_run_of_characters() {
        for (pattern, value, expected) in [
            ("foo*", "foo", true),
            ("foo*", "foo1", true),
            ("foo*", "xfoo", false),
            ("bar*b", "barb", true),
            ("bar*b", "bar", false),
            ("bar*b", "barbar", false),
            ("ab*ba", "aba", false),
            ("foo*bar*baz", "foobarbaz", true),
            ("foo*bar*baz", "foo-bar-bar-baz", true),
            ("foo*bar*baz", "foobaz", false),
            ("*", "", true),
            ("**", "x", true),
            ("*a*", "bab", true),
            ("*a*", "bb", false),
            ("a**b", "ab", true),
        ] {
            let is_match = Pattern::of(pattern).unwrap().matches(value);
            assert_eq!(is_match, expected, "{pattern} {value}");
        }
        assert!(Pattern::of("plain").is_none());
    }
}
