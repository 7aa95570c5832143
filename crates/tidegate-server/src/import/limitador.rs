//! Converts limitador's limits: those with equal conditions and variables become one policy.

use std::path::Path;

use super::{Output, PolicyText};
use crate::descriptors::MAX_COUNT;
use crate::limitador::{LimitadorSource, read_limits};

pub(super) fn convert(path: &Path, output: &mut Output) -> Result<(), String> {
    let (file, sources) = read_limits(path).map_err(|error| error.to_string())?;
    crate::limitador::load(path, &super::scratch_gate()?, None)
        .map_err(|error| error.to_string())?;
    let mut groups: Vec<Vec<&LimitadorSource>> = Vec::new();
    for source in &sources {
        let is_same = |group: &&mut Vec<&LimitadorSource>| {
            group.first().is_some_and(|first| {
                first.namespace == source.namespace
                    && first.conditions == source.conditions
                    && first.variables == source.variables
            })
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(source),
            None => groups.push(vec![source]),
        }
    }
    for group in groups {
        add(&file, &group, output);
    }
    Ok(())
}

fn add(file: &str, group: &[&LimitadorSource], output: &mut Output) {
    let Some(first) = group.first() else { return };
    let mut limits = Vec::new();
    for source in group {
        match source.max_value {
            0 => output.note(
                file,
                Some(source.at),
                "max_value 0: deny these requests in the application",
            ),
            max => limits.push(format!(
                "fixed_window {}/{} seconds anchor=first_hit",
                max.min(MAX_COUNT.into()),
                source.seconds
            )),
        }
    }
    if limits.is_empty() {
        return;
    }
    if !first.conditions.is_empty() {
        output.note(
            file,
            Some(first.at),
            "conditions: the application must check the policy only if they hold",
        );
    }
    let key = match &first.variables[..] {
        [] => "the same for all requests, for example \"all\"".to_owned(),
        variables => variables.join(", "),
    };
    let mut comments = vec![format!("Namespace {}.", first.namespace)];
    let conditions = first.conditions.iter();
    comments.extend(conditions.map(|condition| format!("Only if: {condition}")));
    comments.push(format!("Key: {key}"));
    let named = group.iter().find_map(|source| source.name.as_deref());
    let name = match named {
        Some(name) => format!("{}-{name}", first.namespace),
        None => first.namespace.clone(),
    };
    output.add(&PolicyText {
        name: &name,
        comments: &comments,
        limits: &limits.join("; "),
        is_shadow: false,
        exceptions: &[],
    });
}
