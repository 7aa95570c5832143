//! Path templates: `/users/{id}/posts`.

use percent_encoding::percent_decode_str;

/// A path template with the parameter that is the key.
pub(super) struct Template {
    /// The part of the stored key that identifies the template and the parameter.
    pub(super) source: Box<str>,
    /// The segments before the parameter; `None` matches any segment.
    before: Vec<Option<Box<str>>>,
    after: Vec<Option<Box<str>>>,
}

impl Template {
    pub(super) fn new(template: &str, parameter: &str) -> Option<Self> {
        let segments: Vec<&str> = template.trim_matches('/').split('/').collect();
        let name = |segment: &str| {
            let name = segment.strip_prefix('{')?.strip_suffix('}')?;
            Some(name == parameter)
        };
        let index = segments.iter().position(|one| name(one) == Some(true))?;
        let literals = |segments: &[&str]| {
            let literal = |segment: &&str| (!segment.starts_with('{')).then(|| Box::from(*segment));
            segments.iter().map(literal).collect()
        };
        Some(Self {
            source: source(template, parameter),
            before: literals(segments.get(..index)?),
            after: literals(segments.get(index + 1..)?),
        })
    }

    /// Returns the parameter's value in a path, or `None` if the path does not match.
    pub(super) fn find<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut segments = path.strip_prefix('/')?.split('/');
        let mut next_matches = |expected: &Option<Box<str>>| {
            let segment = segments.next();
            segment.is_some_and(|segment| is_match(expected.as_deref(), segment))
        };
        if !self.before.iter().all(&mut next_matches) {
            return None;
        }
        let value = segments.next()?;
        let mut next_matches = |expected: &Option<Box<str>>| {
            let segment = segments.next();
            segment.is_some_and(|segment| is_match(expected.as_deref(), segment))
        };
        self.after.iter().all(&mut next_matches).then_some(value)
    }
}

/// Compares a segment, percent-encoded or not.
fn is_match(expected: Option<&str>, segment: &str) -> bool {
    expected.is_none_or(|expected| {
        expected == segment
            || (segment.contains('%') && percent_decode_str(segment).eq(expected.bytes()))
    })
}

/// Returns the identity of a template and a parameter. A `:` or `%` is escaped, so that no two
/// collide.
pub(super) fn source(template: &str, parameter: &str) -> Box<str> {
    let escaped = |text: &str| text.replace('%', "%25").replace(':', "%3A");
    format!("{}:{}", escaped(template), escaped(parameter)).into()
}
