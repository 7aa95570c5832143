//! Development tasks: `cargo xtask test`, `cargo xtask lint`, `cargo xtask bench` and others.

mod dist;
mod picture;
mod prose;
#[cfg(feature = "proto")]
mod proto;
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};

/// Run a development task of this repository
#[derive(Parser)]
#[command(bin_name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every test; install what they need first
    Test,
    /// Check format, lints, documentation, prose and dependencies
    Lint,
    /// Print figures about the language: clause openers, documentation share, function lengths
    Prose {
        /// Another checkout, to compare
        tree: Option<PathBuf>,
        /// Check the rules instead, as `lint` does
        #[arg(long)]
        check: bool,
    },
    /// Build a static release binary: target/dist/tidegate
    Dist,
    /// Generate crates/tidegate-server/src/proto from the protocol definitions
    Proto,
    /// Draw the pictures in docs/: a real session, and simulations
    Picture,
    /// Attack a release binary on loopback for a few minutes and print the results
    Attack {
        /// Options of the attack: `--seconds N`, `--only NAME`, `--help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure against peers: `cargo xtask bench memory`, `redis`, `failures`, `tower`, `server`,
    /// `grpc` or `insight`
    Bench {
        /// The benchmark and its options: `memory`, `redis`, `failures`, `tower`, `server`, `grpc`,
        /// `insight`, `memory --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test => test(),
        Task::Lint => lint(),
        Task::Prose { tree, check } => root().and_then(|root| {
            let tree = tree.as_deref().unwrap_or(root);
            if check {
                prose::lint(tree)
            } else {
                prose::print(tree)
            }
        }),
        Task::Dist => root().and_then(dist::dist),
        Task::Proto => generate_proto(),
        Task::Picture => picture(),
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

#[cfg(feature = "proto")]
fn generate_proto() -> anyhow::Result<()> {
    proto::generate(root()?)
}

/// Builds this program again with the generator, which no other task needs.
#[cfg(not(feature = "proto"))]
fn generate_proto() -> anyhow::Result<()> {
    let run = ["run", "--package", "xtask", "--features", "proto", "--"];
    cargo(&[&run[..], &["proto"]].concat(), &[])
}

fn test() -> anyhow::Result<()> {
    tools::ensure()?;
    tools::ensure_clients(root()?)?;
    // One command for all tests, doctests included: separate ones would rebuild dependencies with
    // other features.
    cargo(&["test", "--workspace", "--locked"], &[])?;
    // loom runs the lock-free code in every interleaving. A separate target directory keeps both
    // builds cached.
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
    prose::lint(root()?)?;
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
    // Each feature alone must compile.
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
        "serde",
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
    // The binary alone: dev-dependencies of the workspace turn on other features.
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
    )?;
    deny()
}

/// Checks the dependencies against deny.toml. Advisories need the network and are left out.
fn deny() -> anyhow::Result<()> {
    let program = tools::ensure_deny(root()?)?;
    let status = Command::new(&program)
        .args(["--locked", "check", "bans", "licenses", "sources"])
        .current_dir(root()?)
        .status()
        .with_context(|| program.display().to_string())?;
    if !status.success() {
        bail!("cargo deny failed: expected dependencies that deny.toml accepts");
    }
    Ok(())
}

fn picture() -> anyhow::Result<()> {
    let build = [
        "build",
        "--release",
        "--locked",
        "--package",
        "tidegate-cli",
    ];
    cargo(&build, &[])?;
    picture::draw(root()?)?;
    picture::plot(root()?)
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
        Some("grpc") => {
            tools::ensure_for_server()?;
            tools::ensure_clients(root()?)?;
        }
        Some("insight") => tools::ensure_for_server()?,
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

/// Runs cargo in the repository and prints the command.
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
