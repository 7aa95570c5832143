//! `tidegate config`: checks, shows, describes and converts configurations.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use tidegate_server::import::{ImportFormat, check_rules, import};
use tidegate_server::{Config, ConfigSource};

use crate::serve::SourceOptions;

/// Check, show, describe or convert a server's configuration
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file
    ///
    /// Exit code: 0 if it is valid, 2 if not. The rules that it names (envoy.config,
    /// limitador.config) are checked too; certificates and tokens are not read.
    Check {
        /// Configuration file
        file: PathBuf,
    },
    /// Show the configuration that `serve` would use: file, environment, flags and defaults
    ///
    /// Passwords in URLs are omitted.
    Show(Box<SourceOptions>),
    /// Print a JSON schema of the file, for editors
    Schema,
    /// Convert the configuration of another rate limiter to policies
    ///
    /// Prints a configuration file on standard output, and on standard error what could not be
    /// converted. Exit code: 0, or 2 if a file is invalid. `serve --envoy-config` runs the rules of
    /// envoyproxy/ratelimit as they are.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import {
        /// The other rate limiter
        #[arg(value_enum)]
        format: Format,
        /// Files, or directories with everything below them
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  tidegate config import envoy ratelimit/config > tidegate.toml
  tidegate config import limitador limits.yaml > tidegate.toml
  tidegate config check tidegate.toml";

/// A rate limiter whose configuration can be converted.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// Rules of envoyproxy/ratelimit
    Envoy,
    /// Limits of limitador
    Limitador,
}

pub(crate) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    let text = match command {
        ConfigCommand::Check { file } => {
            let config = ConfigSource {
                file: Some(file.clone()),
                ..ConfigSource::default()
            }
            .load()?;
            check_rules(&config).map_err(anyhow::Error::msg)?;
            let policies = config.policies.len();
            let are = if policies == 1 { "policy" } else { "policies" };
            format!(
                "{}: valid, {policies} {are}, hash {}\n",
                file.display(),
                config.hash()
            )
        }
        ConfigCommand::Show(options) => options.source().load()?.shown(),
        ConfigCommand::Schema => Config::schema() + "\n",
        ConfigCommand::Import { format, files } => converted(*format, files)?,
    };
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("standard output")
}

/// Converts files. Prints what could not be converted on standard error.
fn converted(format: Format, files: &[PathBuf]) -> anyhow::Result<String> {
    let format = match format {
        Format::Envoy => ImportFormat::Envoy,
        Format::Limitador => ImportFormat::Limitador,
    };
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let imported = import(format, &paths).map_err(anyhow::Error::msg)?;
    for note in &imported.notes {
        eprintln!("note: {note}");
    }
    let (policies, notes) = (imported.policies, imported.notes.len());
    eprintln!("{policies} policies, {notes} notes");
    Ok(imported.toml)
}
