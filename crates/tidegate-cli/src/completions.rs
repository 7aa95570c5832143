//! `tidegate completions` and the manual pages.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::Cli;

/// Print completions for a shell, or write them and the manual pages to a directory
#[derive(Args)]
#[command(after_help = EXAMPLES, group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct CompletionsOptions {
    /// Shell to print completions for
    #[arg(group = "what", value_enum)]
    shell: Option<Shell>,
    /// Directory for the completions of all shells and the manual pages
    #[arg(long, group = "what", value_name = "DIR")]
    write: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate completions bash > /etc/bash_completion.d/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish
  tidegate completions --write ./share";

pub(crate) fn run(options: &CompletionsOptions) -> anyhow::Result<()> {
    let mut command = Cli::command();
    if let Some(shell) = options.shell {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "tidegate", &mut script);
        let mut stdout = std::io::stdout().lock();
        return stdout.write_all(&script).context("standard output");
    }
    let Some(folder) = &options.write else {
        return Ok(());
    };
    let (completions, manuals) = (folder.join("completions"), folder.join("man/man1"));
    for folder in [&completions, &manuals] {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "tidegate", &completions)
            .with_context(|| completions.display().to_string())?;
    }
    command.build();
    write_manual(&command, "tidegate", &manuals)
}

/// Writes the page of a command and those of its subcommands.
fn write_manual(command: &Command, name: &str, folder: &Path) -> anyhow::Result<()> {
    let mut page = Vec::new();
    // A manual page has a name without spaces.
    let owned: &'static str = name.to_owned().leak();
    clap_mangen::Man::new(command.clone().name(owned)).render(&mut page)?;
    let file = folder.join(format!("{name}.1"));
    std::fs::write(&file, page).with_context(|| file.display().to_string())?;
    for subcommand in command
        .get_subcommands()
        .filter(|one| one.get_name() != "help")
    {
        write_manual(
            subcommand,
            &format!("{name}-{}", subcommand.get_name()),
            folder,
        )?;
    }
    Ok(())
}
