//! What is done with this repository, in one place: `cargo xtask test`, `cargo xtask bench`.

mod dist;
mod prose;
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};

/// What is done with this repository
#[derive(Parser)]
#[command(bin_name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the tests need and run every test there is
    Test,
    /// Check the format, the lints and the documentation
    Lint,
    /// Print figures about the language: clause openers, documentation share, function lengths
    Prose {
        /// Another checkout, to compare
        tree: Option<PathBuf>,
    },
    /// Build the static binary that is handed out: target/dist/tidegate
    Dist,
    /// Attack a release binary on loopback for a few minutes and print what held
    Attack {
        /// Options of the campaign: `--seconds N`, `--only NAME`, `--help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure against peers in the same run: `cargo xtask bench memory`, `redis`, `failures`, `tower` or `server`
    Bench {
        /// What to measure, and its options: `memory`, `redis`, `failures`, `tower`, `server`, `memory --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test => test(),
        Task::Lint => lint(),
        Task::Prose { tree } => {
            root().and_then(|root| prose::print(tree.as_deref().unwrap_or(root)))
        }
        Task::Dist => root().and_then(dist::dist),
        Task::Attack { arguments } => bench(&[&["attack".to_owned()][..], &arguments].concat()),
        Task::Bench { arguments } => bench(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> anyhow::Result<()> {
    tools::ensure()?;
    tools::ensure_clients(root()?)?;
    // Documentation's as well, in one command: in one of their own, other features of what we use would be built.
    cargo(&["test", "--workspace", "--locked"], &[])?;
    // What is lock-free, in every order that threads can take it. In a folder of its own, so that going to and fro does
    // not build everything anew.
    let loom = [
        "test",
        "--release",
        "--locked",
        "--package",
        "tidegate-core",
        "--lib",
        "--target-dir",
        "target/loom",
        "loom",
    ];
    cargo(&loom, &[("RUSTFLAGS", "--cfg tidegate_loom")])
}

fn lint() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "--deny",
            "warnings",
        ],
        &[],
    )?;
    // Each feature alone: what it leaves out must not be missed.
    for feature in [
        "",
        "redis",
        "tower",
        "axum",
        "tonic",
        "actix",
        "macros",
        "prometheus",
        "opentelemetry",
        "tracing",
    ] {
        let alone = [
            "clippy",
            "--package",
            "tidegate",
            "--no-default-features",
            "--features",
            feature,
            "--locked",
        ];
        cargo(&[&alone[..], &["--", "--deny", "warnings"]].concat(), &[])?;
    }
    // What is shipped is built without what the tests turn on.
    cargo(
        &[
            "clippy",
            "--package",
            "tidegate-cli",
            "--locked",
            "--",
            "--deny",
            "warnings",
        ],
        &[],
    )?;
    cargo(
        &["doc", "--workspace", "--no-deps", "--locked"],
        &[("RUSTDOCFLAGS", "--deny warnings")],
    )
}

fn bench(arguments: &[String]) -> anyhow::Result<()> {
    tools::ensure()?;
    let mut command = vec![
        "run",
        "--quiet",
        "--profile",
        "bench",
        "--locked",
        "--package",
        "tidegate-bench",
        "--",
    ];
    command.extend(arguments.iter().map(String::as_str));
    match arguments.first().map(String::as_str) {
        Some("server") => tools::ensure_for_server()?,
        Some("attack") => {}
        _ => return cargo(&command, &[]),
    }
    cargo(
        &[
            "build",
            "--quiet",
            "--profile",
            "bench",
            "--locked",
            "--package",
            "tidegate-cli",
        ],
        &[],
    )?;
    let target = match std::env::var("CARGO_TARGET_DIR") {
        Ok(folder) => folder,
        Err(_) => root()?.join("target").display().to_string(),
    };
    cargo(
        &command,
        &[("TIDEGATE_BIN", &format!("{target}/release/tidegate"))],
    )
}

fn root() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask is in the repository")
}

/// Runs cargo in the repository, and shows how.
fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let shown: Vec<String> = environment
        .iter()
        .map(|(name, value)| format!("{name}='{value}' "))
        .collect();
    eprintln!("> {}cargo {}", shown.concat(), arguments.join(" "));
    let root = root()?;
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(root)
        .status()?;
    if !status.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(())
}
