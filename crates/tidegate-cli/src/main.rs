//! The `tidegate` command.

mod bench;
mod check;
mod completions;
mod config;
mod doctor;
mod explain;
mod interrupt;
mod json;
mod plot_file;
mod remote;
mod replay;
mod serve;
mod simulate;
mod top;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exact rate limiting: run a server for any language, check one key from the shell, explain a
/// policy, try it on generated traffic or on an access log, and watch who is limited
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::ServeOptions),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Check(check::CheckOptions),
    /// Show the decision that a request would get, without taking anything
    ///
    /// Exit code: 0 if the request would be allowed now, 1 if not, 2 on an error or if the store
    /// does not answer.
    Peek(check::CheckOptions),
    /// Take a cost whatever the limit says, for costs known only afterwards
    ///
    /// Usage may exceed the capacity by the policy's debt. Exit code: 0 if requests are still
    /// allowed, 1 if the key is in debt, 2 on an error or if the store does not answer.
    Charge(check::CheckOptions),
    /// Give back the cost of a request that did not happen
    ///
    /// Exit code: 0, or 2 on an error or if the store does not answer.
    Refund(check::CheckOptions),
    /// Delete the usage of a key
    ///
    /// A counter without a name is identified by the policy's text. Use --policy-name for a policy
    /// of a server. Processes with a cached denial of the key keep denying it for up to a second.
    Reset(check::KeyOptions),
    Explain(explain::ExplainOptions),
    Simulate(simulate::SimulateOptions),
    Replay(Box<replay::ReplayOptions>),
    Top(top::TopOptions),
    Bench(bench::BenchOptions),
    Doctor(doctor::DoctorOptions),
    Verify(verify::VerifyOptions),
    Completions(completions::CompletionsOptions),
}

/// The exit code of an error, as opposed to a denial.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(options) => serve::serve(&options).map(|()| ExitCode::SUCCESS),
        Command::Config(command) => config::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Check(options) => check::check(&options),
        Command::Peek(options) => check::peek(&options),
        Command::Charge(options) => check::charge(&options),
        Command::Refund(options) => check::refund(&options),
        Command::Reset(options) => check::reset(&options),
        Command::Explain(options) => explain::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Simulate(options) => simulate::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Top(options) => top::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Completions(options) => completions::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Bench(options) => bench::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Doctor(options) => doctor::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Replay(options) => replay::run(&options).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        // The reader of our output has closed it, as in `tidegate simulate … | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref::<serve::Reported>().is_some() => ExitCode::from(FAILURE),
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            let is_interrupted = error.downcast_ref::<interrupt::Interrupted>().is_some();
            ExitCode::from(if is_interrupted {
                interrupt::INTERRUPTED
            } else {
                FAILURE
            })
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
