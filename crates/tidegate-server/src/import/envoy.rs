//! Converts the rules of envoyproxy/ratelimit: each key below a descriptor becomes a policy, and
//! the values with rules of their own become its exceptions.

use std::path::Path;

use super::{Output, PolicyText, quoted};
use crate::descriptors::{DescriptorSource, LimitSource, MAX_COUNT, RuleFiles};

pub(super) fn convert(path: &Path, output: &mut Output) -> Result<(), String> {
    let files = RuleFiles::read(path).map_err(|error| error.to_string())?;
    super::check_descriptors(&files, true)?;
    for source in &files.sources {
        let above = Above {
            file: &source.name,
            name: source.domain.clone(),
            key_parts: Vec::new(),
            fixed: vec![format!("domain `{}`", source.domain)],
        };
        level(&source.descriptors, &above, output);
    }
    Ok(())
}

/// The entries above a level.
#[derive(Clone)]
struct Above<'a> {
    file: &'a str,
    /// The start of the policies' names.
    name: String,
    /// The entries without a value in the rules: parts of the key.
    key_parts: Vec<String>,
    /// The entries with a value, for comments.
    fixed: Vec<String>,
}

impl<'a> Above<'a> {
    fn below(&self, rule: &DescriptorSource) -> Self {
        let mut below = self.clone();
        below.name = format!("{}-{}", below.name, rule.key);
        if rule.value.is_empty() {
            below.key_parts.push(rule.key.clone());
        } else {
            below.name = format!("{}-{}", below.name, rule.value);
            below
                .fixed
                .push(format!("`{}` = `{}`", rule.key, rule.value));
        }
        below
    }

    /// Returns the comments of a policy below this level.
    fn comments(&self) -> Vec<String> {
        let key = match &self.key_parts[..] {
            [] => "the same for all requests, for example \"all\"".to_owned(),
            [one] => format!("the value of `{one}`"),
            many => format!("the list of the values of `{}`", many.join("`, `")),
        };
        vec![
            format!("For requests with {}.", self.fixed.join(" and ")),
            format!("Key: {key}."),
        ]
    }
}

/// Converts the rules of one level.
fn level(rules: &[DescriptorSource], above: &Above<'_>, output: &mut Output) {
    for rule in rules {
        note_settings(rule, above, output);
        let below = above.below(rule);
        let any = rules
            .iter()
            .find(|other| other.key == rule.key && is_general(other));
        let is_value = !rule.value.is_empty() && !rule.value.contains('*');
        let is_exception = is_value && above.key_parts.is_empty() && any.is_some();
        if is_exception && any.is_some_and(|any| any.shadow_mode != rule.shadow_mode) {
            let message = "shadow_mode: an exception has that of its policy";
            output.note(above.file, rule.at, message);
        }
        if let Some(limit) = &rule.rate_limit
            && !is_exception
        {
            let exceptions = exceptions(rules, rule, above);
            add(rule, limit, &below, &exceptions, output);
        }
        level(&rule.descriptors, &below, output);
    }
}

/// Returns `true` for a rule of every value, with a limit that a policy can have.
fn is_general(rule: &DescriptorSource) -> bool {
    let limit = rule.rate_limit.as_ref();
    rule.value.is_empty()
        && limit.is_some_and(|limit| !limit.is_unlimited && limit.requests_per_unit > 0)
}

fn add(
    rule: &DescriptorSource,
    limit: &LimitSource,
    below: &Above<'_>,
    exceptions: &[String],
    output: &mut Output,
) {
    let at = limit.at.or(rule.at);
    if limit.is_unlimited {
        return output.note(
            below.file,
            at,
            "unlimited without a general limit: send no check for it",
        );
    }
    if limit.requests_per_unit == 0 {
        return output.note(
            below.file,
            at,
            "requests_per_unit 0 for every value: deny these requests in the application",
        );
    }
    if rule.value.contains('*') {
        output.note(
            below.file,
            at,
            "a wildcard: the application must match the value and choose the policy",
        );
    }
    let name = match limit.name.as_str() {
        "" => below.name.as_str(),
        name => name,
    };
    output.add(&PolicyText {
        name,
        comments: &below.comments(),
        limits: &limits(limit),
        is_shadow: rule.shadow_mode,
        exceptions,
    });
}

/// Returns the rules of single values beside a rule for every value.
fn exceptions(
    rules: &[DescriptorSource],
    general: &DescriptorSource,
    above: &Above<'_>,
) -> Vec<String> {
    if !general.value.is_empty() || !above.key_parts.is_empty() {
        return Vec::new();
    }
    let others = rules.iter().filter(|rule| {
        rule.key == general.key && !rule.value.is_empty() && !rule.value.contains('*')
    });
    others
        .filter_map(|rule| {
            let limit = rule.rate_limit.as_ref()?;
            let key = quoted(&rule.value);
            Some(if limit.is_unlimited {
                format!("{{ key = {key}, unlimited = true }}")
            } else if limit.requests_per_unit == 0 {
                format!("{{ key = {key}, blocked = true }}")
            } else {
                format!("{{ key = {key}, limits = {} }}", quoted(&limits(limit)))
            })
        })
        .collect()
}

fn limits(limit: &LimitSource) -> String {
    let extensions = &limit.extensions;
    let algorithm = extensions.algorithm.as_deref().unwrap_or("fixed_window");
    let unit = limit.unit.to_ascii_lowercase();
    let per = match extensions.unit_multiplier {
        None | Some(1) => unit,
        Some(multiplier) => format!("{multiplier} {unit}"),
    };
    let requests = limit.requests_per_unit.min(MAX_COUNT);
    let mut text = format!("{algorithm} {requests}/{per}");
    for (name, value) in [("burst", extensions.burst), ("debt", extensions.debt)] {
        if let Some(value) = value {
            text.push_str(&format!(" {name}={value}"));
        }
    }
    text
}

/// Notes the settings that policies do not have.
fn note_settings(rule: &DescriptorSource, above: &Above<'_>, output: &mut Output) {
    let replaces = rule
        .rate_limit
        .as_ref()
        .is_some_and(|limit| !limit.replaces.is_empty());
    for (is_set, message) in [
        (
            rule.quota_mode,
            "quota_mode: every policy denies on its own",
        ),
        (
            replaces,
            "replaces: the application must choose which policies it checks",
        ),
        (
            rule.share_threshold,
            "share_threshold: use one key for all values of the pattern",
        ),
        (rule.metadata.is_some(), "metadata: policies have none"),
        (
            rule.detailed_metric || rule.value_to_metric,
            "detailed_metric, value_to_metric: no metric has a key as a label",
        ),
    ] {
        if is_set {
            output.note(above.file, rule.at, message);
        }
    }
}
