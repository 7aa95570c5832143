//! The `tidegate` command.

mod config;
mod figures;
mod one;
mod remote;
mod serve;
mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Rate limiting that is exact: a server for every language, one decision from the shell, or a whole trace before it limits
/// anybody.
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::ServeOptions),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Check(one::CheckOptions),
    /// What is left of a key's limit? Takes nothing
    ///
    /// Exit code: 0 if a request of cost 1 would be allowed now, 1 if not, 2 if something is not right or the store does
    /// not answer.
    Peek(one::KeyOptions),
    /// Forget what a key has used
    ///
    /// The policy says under which name it is kept: its algorithms and periods count, its limits do not. Processes that
    /// remember a denial of the key go on denying it for up to a second.
    Reset(one::KeyOptions),
    Simulate(simulate::Options),
}

/// What went wrong on the way, as opposed to what was answered: a line of its own and this code.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(options) => serve::serve(&options).map(|()| ExitCode::SUCCESS),
        Command::Config(command) => config::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Check(options) => one::check(&options),
        Command::Peek(options) => one::peek(&options),
        Command::Reset(options) => one::reset(&options),
        Command::Simulate(options) => simulate::run(&options).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
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
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
