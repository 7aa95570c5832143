//! Builds the binary for distribution. It is static, so it runs on any Linux kernel.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Builds the binary and prints its path.
pub(crate) fn dist(root: &Path) -> anyhow::Result<()> {
    if !cfg!(target_os = "linux") {
        bail!(
            "static binaries can be built on Linux only; use `cargo build --release --bin tidegate`"
        );
    }
    let host = host()?;
    let target = root.join("target/dist");
    let folder = target.display().to_string();
    // A separate target folder, because these flags rebuild every dependency.
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
    // Completions and manual pages are shipped beside it.
    let share = target.join("share");
    let written = Command::new(&binary)
        .args(["completions", "--write"])
        .arg(&share)
        .status()?;
    if !written.success() {
        bail!(
            "completions and manual pages cannot be written to {}",
            share.display()
        );
    }
    let bytes = std::fs::metadata(&binary)?.len();
    println!(
        "{} ({} MB, static)",
        binary.display(),
        bytes.div_ceil(1_000_000)
    );
    Ok(())
}

/// Returns the host's target triple.
fn host() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .context("rustc -vV")?;
    let text = String::from_utf8(output.stdout).context("rustc -vV")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host
        .context("rustc -vV: expected a line `host: …`")?
        .to_owned())
}
