//! The programs that the tests run beside our own, and the packages that bring them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::bail;

/// A program, what it is for, and the Debian package that it is in.
struct Tool {
    program: &'static str,
    purpose: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 13] = [
    Tool {
        program: "bash",
        purpose: "pipes and bounds on memory",
        package: "bash",
    },
    Tool {
        program: "script",
        purpose: "a real terminal",
        package: "bsdutils",
    },
    Tool {
        program: "curl",
        purpose: "a client that does as Retry-After says",
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
        purpose: "a client for RESP that asks much",
        package: "redis-tools",
    },
    Tool {
        program: "promtool",
        purpose: "what Prometheus thinks of metrics",
        package: "prometheus",
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
        purpose: "what these need",
        package: "npm",
    },
];

/// Clients of other languages, at the versions that were tried.
const PYTHON: [&str; 2] = ["redis==8.1.0", "schemathesis==4.32.5"];
const NODE: [&str; 2] = ["ioredis@6.0.0", "redis@6.3.1"];

/// Sees to it that clients of other languages are in target/tools, which tests look for them in.
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
        bail!(
            "clients of other languages could not be installed from PyPI and npm: the tests of the server need them"
        );
    }
    std::fs::write(note, wanted)?;
    Ok(())
}

/// What `bench server` needs beside them.
const SERVER_TOOLS: [Tool; 2] = [
    Tool {
        program: "wrk",
        purpose: "a load over HTTP",
        package: "wrk",
    },
    Tool {
        program: "protoc",
        purpose: "throttlecrab-server is built with it",
        package: "protobuf-compiler",
    },
];

/// Sees to it that every tool is there: installed by apt where that can be, named where it cannot.
pub(crate) fn ensure() -> anyhow::Result<()> {
    ensure_all(&TOOLS)
}

/// The same for what `bench server` needs.
pub(crate) fn ensure_for_server() -> anyhow::Result<()> {
    ensure_all(&SERVER_TOOLS)
}

fn ensure_all(tools: &[Tool]) -> anyhow::Result<()> {
    let missing: Vec<&Tool> = tools
        .iter()
        .filter(|tool| !is_there(tool.program))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    if is_there("apt-get")
        && install(&packages)
        && missing.iter().all(|tool| is_there(tool.program))
    {
        return Ok(());
    }
    for tool in &missing {
        eprintln!("missing: {} ({})", tool.program, tool.purpose);
    }
    bail!(
        "install these and try again; on Debian or Ubuntu: sudo apt-get install {}",
        packages.join(" ")
    )
}

fn is_there(program: &str) -> bool {
    let finds = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status();
    finds.is_ok_and(|status| status.success())
}

/// By apt: as root, or by sudo where that asks for no password. Whatever fails is told by apt itself.
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
