//! `tidegate config`: checks, shows and describes configurations.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use tidegate_server::{Config, ConfigSource};

use crate::serve::SourceOptions;

/// Check, show or describe a server's configuration
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file
    ///
    /// Exit code: 0 if it is valid, 2 if not. Files that it names (certificates, tokens) are not
    /// read.
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
}

pub(crate) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    let text = match command {
        ConfigCommand::Check { file } => {
            let config = ConfigSource {
                file: Some(file.clone()),
                ..ConfigSource::default()
            }
            .load()?;
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
    };
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("standard output")
}
