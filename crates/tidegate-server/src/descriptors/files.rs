//! Finds and reads the files of envoyproxy/ratelimit: one file, or a directory with everything
//! below it.

use std::path::{Path, PathBuf};

use super::from_yaml;
use super::source::{DomainSource, RuleError};

/// The maximum size of a file, the maximum number of files, and the maximum depth of directories.
const MAX_FILE: u64 = 16 << 20;
const MAX_FILES: usize = 10_000;
const MAX_DEPTH: usize = 16;
/// The maximum number of attempts to read files that do not change at the same time.
const MAX_READS: usize = 5;

/// The rules of all files.
pub(crate) struct RuleFiles {
    pub(crate) sources: Vec<DomainSource>,
    /// The digest of names and contents, to detect changes.
    pub(crate) digest: String,
}

impl RuleFiles {
    /// Reads a file, or all files below a directory, in the order of their names. Names that start
    /// with a dot are skipped: a ConfigMap has its files a second time below `..data`.
    ///
    /// Reads them again until nothing has changed in the meantime: a swapped link must not mix two
    /// versions.
    pub(crate) fn read(root: &Path) -> Result<Self, RuleError> {
        let mut last = Self::read_once(root)?;
        for _ in 0..MAX_READS {
            let again = Self::read_once(root)?;
            if again.digest == last.digest {
                break;
            }
            last = again;
        }
        Ok(last)
    }

    fn read_once(root: &Path) -> Result<Self, RuleError> {
        let mut files = Vec::new();
        find(root, 0, &mut |path, is_folder| {
            if !is_folder {
                files.push(path.to_owned());
            }
        })?;
        files.sort();
        let mut hasher = blake3::Hasher::new();
        let mut sources = Vec::with_capacity(files.len());
        for file in &files {
            let name = shown(root, file);
            let text = read(file).map_err(|message| RuleError::new(&name, message, None))?;
            hasher.update(name.as_bytes());
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
            sources.push(from_yaml::read(&name, &text)?);
        }
        let digest = hasher.finalize().to_hex().chars().take(16).collect();
        Ok(Self { sources, digest })
    }
}

/// Reads one file. Returns its name and its text.
#[cfg(feature = "limitador")]
pub(crate) fn read_rule_file(path: &Path) -> Result<(String, String), RuleError> {
    let name = shown(path, path);
    let text = read(path).map_err(|message| RuleError::new(&name, message, None))?;
    Ok((name, text))
}

/// Returns every directory below the root, itself included, so that changes can be watched.
pub(crate) fn rule_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.to_owned()];
    // Files that cannot be read are reported when they are loaded.
    let _ = find(root, 0, &mut |path, is_folder| {
        if is_folder {
            folders.push(path.to_owned());
        }
    });
    folders
}

/// Calls `found` with every file and directory below a path.
fn find(path: &Path, depth: usize, found: &mut dyn FnMut(&Path, bool)) -> Result<(), RuleError> {
    let error = |cause: String| {
        let message = format!("error loading config file: {cause}");
        RuleError::new(&path.display().to_string(), message, None)
    };
    let kind = std::fs::metadata(path)
        .map_err(|cause| error(cause.to_string()))?
        .file_type();
    if !kind.is_dir() && !kind.is_file() {
        // Reading a pipe would hang.
        return match depth {
            0 => Err(error("expected a file or a directory".to_owned())),
            _ => Ok(()),
        };
    }
    found(path, kind.is_dir());
    if kind.is_file() {
        return Ok(());
    }
    if depth >= MAX_DEPTH {
        return Err(error(format!("expected at most {MAX_DEPTH} levels")));
    }
    let entries = std::fs::read_dir(path).map_err(|cause| error(cause.to_string()))?;
    for (number, entry) in entries.enumerate() {
        let entry = entry.map_err(|cause| error(cause.to_string()))?;
        if number >= MAX_FILES {
            return Err(error(format!("expected at most {MAX_FILES} files")));
        }
        if !entry.file_name().to_string_lossy().starts_with('.') {
            find(&entry.path(), depth + 1, found)?;
        }
    }
    Ok(())
}

/// Returns the name of a file in errors: its path below the root.
fn shown(root: &Path, file: &Path) -> String {
    let name = file
        .strip_prefix(root)
        .ok()
        .filter(|name| *name != Path::new(""));
    let name = name
        .or_else(|| file.file_name().map(Path::new))
        .unwrap_or(file);
    name.display().to_string()
}

fn read(file: &Path) -> Result<String, String> {
    let failed = |cause: String| format!("error loading config file: {cause}");
    let size = std::fs::metadata(file)
        .map_err(|cause| failed(cause.to_string()))?
        .len();
    if size > MAX_FILE {
        return Err(failed(format!(
            "too large: expected at most {MAX_FILE} bytes"
        )));
    }
    let bytes = std::fs::read(file).map_err(|cause| failed(cause.to_string()))?;
    String::from_utf8(bytes).map_err(|_| failed("expected text in UTF-8".to_owned()))
}
