//! Paths of the clients in other languages that `cargo xtask test` installs.

use std::path::{Path, PathBuf};

/// Returns the folder that `cargo xtask test` installs them in.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools")
}

/// Returns a Python interpreter with redis-py.
#[must_use]
pub fn python() -> PathBuf {
    there("python/bin/python")
}

/// Returns schemathesis, which tests a server against its OpenAPI document.
#[must_use]
pub fn schemathesis() -> PathBuf {
    there("python/bin/schemathesis")
}

/// Returns the folder in which Node.js finds ioredis and node-redis.
#[must_use]
pub fn node_modules() -> PathBuf {
    there("node/node_modules")
}

fn there(path: &str) -> PathBuf {
    let path = folder().join(path);
    assert!(
        path.exists(),
        "{} is missing: `cargo xtask test` installs it",
        path.display()
    );
    path
}
