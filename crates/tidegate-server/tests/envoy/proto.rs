//! The committed code of the protocol definitions is up to date.

use std::path::{Path, PathBuf};

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|name| name == "proto") {
            files.push(path);
        }
    }
}

#[test]
fn the_generated_code_is_that_of_the_definitions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let definitions = root.join("proto");
    let mut files = Vec::new();
    find(&definitions, &mut files);
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in &files {
        let name = file.strip_prefix(&definitions).unwrap();
        let content = std::fs::read(file).unwrap();
        hasher.update(name.to_string_lossy().as_bytes());
        hasher.update(&(content.len() as u64).to_le_bytes());
        hasher.update(&content);
    }
    let committed = std::fs::read_to_string(root.join("src/proto/digest.txt")).unwrap();
    assert_eq!(
        committed.trim(),
        hasher.finalize().to_hex().as_str(),
        "run `cargo xtask proto`"
    );
}
