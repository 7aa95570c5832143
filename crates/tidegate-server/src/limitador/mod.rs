//! Limits in limitador's format: conditions and variables in CEL decide which limits apply to a
//! request, and to which counters.
//!
//! `from_yaml` reads the file, `limits` compiles it, `expression` evaluates CEL, `decide` decides.
//! The protocols are in `grpc/` and `http/`. docs/migrating.md lists what is missing.

mod decide;
mod expression;
mod from_yaml;
mod limits;

pub(crate) use decide::{CheckKind, LimitadorDecision, decide, rate_limit};
pub(crate) use expression::Bindings;
pub(crate) use limits::{Limitador, LimitadorLimit};

pub(crate) use from_yaml::LimitadorSource;

/// Reads a file. Returns its name and its limits.
///
/// # Errors
///
/// Returns the first error, with its position.
pub(crate) fn read_limits(
    path: &std::path::Path,
) -> Result<(String, Vec<LimitadorSource>), crate::descriptors::RuleError> {
    let (name, text) = crate::descriptors::read_rule_file(path)?;
    let sources = from_yaml::read(&name, &text)?;
    Ok((name, sources))
}

/// Reads and compiles a file.
///
/// # Errors
///
/// Returns the first error, with its position.
pub(crate) fn load(
    path: &std::path::Path,
    gate: &tidegate::Gate<tidegate::AnyStore>,
    old: Option<&Limitador>,
) -> Result<Limitador, crate::descriptors::RuleError> {
    let (name, text) = crate::descriptors::read_rule_file(path)?;
    let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
    let sources = from_yaml::read(&name, &text)?;
    Limitador::compile(&name, sources, digest, gate, old)
}
