//! The `tidegate` command.

mod simulate;
mod store_url;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Rate limiting that is exact: try policies before they limit anybody.
#[derive(Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Simulate(simulate::Options),
}

/// What went wrong on the way, as opposed to what was answered: a line of its own and this code.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Simulate(options) => simulate::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough, as in `tidegate simulate … | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::from(FAILURE)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
