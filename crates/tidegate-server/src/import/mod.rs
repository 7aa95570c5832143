//! Converts the configurations of other rate limiters to policies of ours.
//!
//! A policy has a name and a key, a descriptor has entries. The comments of the output say which
//! value a client sends as the key; notes say what could not be converted.

mod envoy;
#[cfg(feature = "limitador")]
mod limitador;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use tidegate::{AnyStore, Gate, MemoryStore, PolicySet};

use crate::config::Config;
use crate::descriptors::{RuleFiles, compile};
use crate::yaml::Position;

/// A converted configuration.
#[derive(Debug)]
pub struct Imported {
    /// The policies, as a configuration file.
    pub toml: String,
    /// The number of policies.
    pub policies: usize,
    /// The settings that could not be converted, with their positions.
    pub notes: Vec<String>,
}

/// The format of a configuration to convert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportFormat {
    /// The rules of envoyproxy/ratelimit.
    Envoy,
    /// The limits of limitador.
    Limitador,
}

/// Converts files, or directories with everything below them.
///
/// # Errors
///
/// Returns an error if a file cannot be read or is invalid.
pub fn import(format: ImportFormat, paths: &[&Path]) -> Result<Imported, String> {
    let mut output = Output::default();
    for path in paths {
        match format {
            ImportFormat::Envoy => envoy::convert(path, &mut output)?,
            #[cfg(feature = "limitador")]
            ImportFormat::Limitador => limitador::convert(path, &mut output)?,
            #[cfg(not(feature = "limitador"))]
            ImportFormat::Limitador => {
                return Err(
                    "this program was built without limitador: expected the feature `limitador`"
                        .to_owned(),
                );
            }
        }
    }
    Ok(Imported {
        toml: output.toml,
        policies: output.names.len(),
        notes: output.notes,
    })
}

/// Checks the rules that a configuration names: those of envoyproxy/ratelimit and of limitador.
///
/// # Errors
///
/// Returns the first error, with its file and position.
pub fn check_rules(config: &Config) -> Result<(), String> {
    if let Some(path) = &config.envoy.config {
        let files = RuleFiles::read(path).map_err(|error| error.to_string())?;
        check_descriptors(&files, config.envoy.merge_domains)?;
    }
    #[cfg(feature = "limitador")]
    if let Some(path) = &config.limitador.config {
        let limits = crate::limitador::load(path, &scratch_gate()?, None);
        limits.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Compiles rules, only to find their errors.
fn check_descriptors(files: &RuleFiles, merges: bool) -> Result<(), String> {
    let compiled = compile(&files.sources, merges, &scratch_gate()?, None);
    compiled.map(drop).map_err(|error| error.to_string())
}

/// Returns a gate that decides nothing.
fn scratch_gate() -> Result<Gate<AnyStore>, String> {
    let store = MemoryStore::builder().max_keys(1).build();
    let store = store.map_err(|error| error.to_string())?;
    Ok(Gate::new(AnyStore::Memory(store), PolicySet::new()))
}

/// The longest name of a policy.
const LONGEST_NAME: usize = 64;

/// Policies and notes, as they are collected.
#[derive(Default)]
struct Output {
    toml: String,
    names: BTreeSet<String>,
    notes: Vec<String>,
}

/// One policy of the output.
struct PolicyText<'a> {
    name: &'a str,
    comments: &'a [String],
    limits: &'a str,
    is_shadow: bool,
    /// Lines of TOML tables, each an exception.
    exceptions: &'a [String],
}

impl Output {
    fn note(&mut self, file: &str, at: Option<Position>, message: &str) {
        let at = at.map_or_else(String::new, |at| format!(":{}:{}", at.line, at.column));
        self.notes.push(format!("{file}{at}: {message}"));
    }

    fn add(&mut self, policy: &PolicyText<'_>) {
        let name = self.free_name(policy.name);
        let toml = &mut self.toml;
        if !toml.is_empty() {
            toml.push('\n');
        }
        // Writing to a string cannot fail.
        for comment in policy.comments {
            let _ = writeln!(toml, "# {}", comment.replace(['\n', '\r'], " "));
        }
        let _ = writeln!(toml, "[policies.{}]", quoted(&name));
        let _ = writeln!(toml, "limits = {}", quoted(policy.limits));
        if policy.is_shadow {
            toml.push_str("shadow = true\n");
        }
        if !policy.exceptions.is_empty() {
            toml.push_str("exceptions = [\n");
            for exception in policy.exceptions {
                let _ = writeln!(toml, "    {exception},");
            }
            toml.push_str("]\n");
        }
        self.names.insert(name);
    }

    /// Returns a valid name that no other policy has.
    fn free_name(&self, wanted: &str) -> String {
        let is_good = |symbol: char| symbol.is_ascii_alphanumeric() || ".-_".contains(symbol);
        let name = wanted.replace(|symbol: char| !is_good(symbol), "-");
        let name = match name.as_str() {
            "" => "policy".to_owned(),
            name => name.chars().take(LONGEST_NAME - 4).collect(),
        };
        if !self.names.contains(&name) {
            return name;
        }
        let mut numbers = 2_usize..;
        let free = numbers.find(|number| !self.names.contains(&format!("{name}-{number}")));
        format!("{name}-{}", free.unwrap_or_default())
    }
}

/// Returns a text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
