//! The binary that is handed out: static, so that it runs wherever there is a kernel.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Builds it, and tells where it is.
pub(crate) fn dist(root: &Path) -> anyhow::Result<()> {
    if !cfg!(target_os = "linux") {
        bail!(
            "static binaries are built on Linux; elsewhere: cargo build --release --bin tidegate"
        );
    }
    let host = host()?;
    let target = root.join("target/dist");
    let folder = target.display().to_string();
    // In a folder of its own: with these flags everything is built anew.
    let arguments = [
        "build",
        "--release",
        "--locked",
        "--bin",
        "tidegate",
        "--target",
        &host,
        "--target-dir",
        &folder,
    ];
    crate::cargo(
        &arguments,
        &[("RUSTFLAGS", "-C target-feature=+crt-static")],
    )?;
    let built = target.join(&host).join("release/tidegate");
    let binary = target.join("tidegate");
    std::fs::copy(&built, &binary).with_context(|| built.display().to_string())?;
    if !Command::new(&binary).arg("--version").status()?.success() {
        bail!("{} does not run", binary.display());
    }
    let bytes = std::fs::metadata(&binary)?.len();
    println!(
        "{} ({} MB, static)",
        binary.display(),
        bytes.div_ceil(1_000_000)
    );
    Ok(())
}

/// What this machine is called by the compiler.
fn host() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .context("rustc -vV")?;
    let text = String::from_utf8(output.stdout).context("rustc -vV")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV says no host")?.to_owned())
}
