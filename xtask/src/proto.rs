//! Generates the code of the server's protocol definitions, and the descriptors that reflection
//! returns. Both are committed, so that a build needs neither this nor `protoc`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use prost::Message;

const DEFINITIONS: &str = "crates/tidegate-server/proto";
const GENERATED: &str = "crates/tidegate-server/src/proto";

pub(crate) fn generate(root: &Path) -> anyhow::Result<()> {
    let (definitions, generated) = (root.join(DEFINITIONS), root.join(GENERATED));
    let mut files = Vec::new();
    find(&definitions, &mut files)?;
    files.sort();
    let descriptors = protox::compile(&files, [&definitions])?;
    let bytes = descriptors.encode_to_vec();
    std::fs::create_dir_all(&generated)?;
    tonic_prost_build::configure()
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .include_file("mod.rs")
        .out_dir(&generated)
        .compile_fds(descriptors)?;
    std::fs::write(generated.join("descriptors.bin"), bytes)?;
    std::fs::write(generated.join("digest.txt"), digest(&definitions, &files)?)?;
    Ok(())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the digest that a test compares, so that the generated code is not forgotten.
fn digest(definitions: &Path, files: &[PathBuf]) -> anyhow::Result<String> {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let name = file.strip_prefix(definitions).context("a file elsewhere")?;
        let content = std::fs::read(file)?;
        hasher.update(name.to_string_lossy().as_bytes());
        hasher.update(&(content.len() as u64).to_le_bytes());
        hasher.update(&content);
    }
    Ok(format!("{}\n", hasher.finalize().to_hex()))
}
