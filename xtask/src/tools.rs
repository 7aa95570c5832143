//! The programs that the tests run beside our own, and the packages that bring them.

use std::process::{Command, Stdio};

use anyhow::bail;

/// A program, what it is for, and the Debian package that it is in.
struct Tool {
    program: &'static str,
    purpose: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 7] = [
    Tool { program: "bash", purpose: "pipes and bounds on memory", package: "bash" },
    Tool { program: "script", purpose: "a real terminal", package: "bsdutils" },
    Tool { program: "curl", purpose: "a client that does as Retry-After says", package: "curl" },
    Tool { program: "redis-server", purpose: "real servers and clusters", package: "redis-server" },
    Tool { program: "redis-sentinel", purpose: "real failovers", package: "redis-sentinel" },
    Tool { program: "taskset", purpose: "a core for each side of a measurement", package: "util-linux" },
    Tool { program: "openssl", purpose: "certificates for TLS", package: "openssl" },
];

/// Sees to it that every tool is there: installed by apt where that can be, named where it cannot.
pub(crate) fn ensure() -> anyhow::Result<()> {
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !is_there(tool.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    if is_there("apt-get") && install(&packages) && missing.iter().all(|tool| is_there(tool.program)) {
        return Ok(());
    }
    for tool in &missing {
        eprintln!("missing: {} ({})", tool.program, tool.purpose);
    }
    bail!("install these and try again; on Debian or Ubuntu: sudo apt-get install {}", packages.join(" "))
}

fn is_there(program: &str) -> bool {
    let finds = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
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
    let status = Command::new("sh").args(["-c", &commands]).env("DEBIAN_FRONTEND", "noninteractive").status();
    status.is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
