//! Clients of other languages, where `cargo xtask test` has put them.

use std::path::{Path, PathBuf};

/// The folder that `cargo xtask test` puts them in.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools")
}

/// A Python that has redis-py.
#[must_use]
pub fn python() -> PathBuf {
    there("python/bin/python")
}

/// schemathesis, which asks a server what its OpenAPI document says it answers.
#[must_use]
pub fn schemathesis() -> PathBuf {
    there("python/bin/schemathesis")
}

/// The folder that Node.js finds ioredis and node-redis in.
#[must_use]
pub fn node_modules() -> PathBuf {
    there("node/node_modules")
}

fn there(path: &str) -> PathBuf {
    let path = folder().join(path);
    assert!(
        path.exists(),
        "{} is not there: `cargo xtask test` installs it",
        path.display()
    );
    path
}
