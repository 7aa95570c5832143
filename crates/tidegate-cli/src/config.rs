//! `tidegate config`: what a server would be told.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use tidegate_server::{Config, Source};

use crate::serve::SourceOptions;

/// Check a configuration, show what it amounts to, or describe what can be set
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether a file is a good configuration: what is wrong in it, and in which line
    ///
    /// Exit code: 0 if it is, 2 if it is not. Files that it names (certificates, tokens) are not read.
    Check {
        /// The file
        file: PathBuf,
    },
    /// Show the configuration that `serve` would use: the file, the environment, flags and defaults together
    ///
    /// Passwords in URLs are left out.
    Show(SourceOptions),
    /// Print a JSON schema of the file, for editors and checks
    Schema,
}

pub(crate) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    let text = match command {
        ConfigCommand::Check { file } => {
            let config = Source {
                file: Some(file.clone()),
                ..Source::default()
            }
            .load()?;
            let policies = config.policies.len();
            let are = if policies == 1 { "policy" } else { "policies" };
            format!(
                "{}: good, {policies} {are}, hash {}\n",
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
