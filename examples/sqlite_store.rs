//! A store over SQLite, for several processes on one machine:
//! `cargo run -p tidegate-examples --bin sqlite_store`.
//!
//! Any database with compare-and-swap can be a store: implement `CasBackend`, as `Sqlite` does
//! here. `tests/sqlite_store.rs` runs the worked cases of all stores on it.

use std::path::Path;
use std::sync::Mutex;

use rusqlite::{Connection, OptionalExtension, params};
use tidegate::store::{CasBackend, CasStore};
use tidegate::{Clock, Limiter, Timestamp};

/// A table of values with a version, which every write increments.
pub(crate) struct Sqlite {
    connection: Mutex<Connection>,
    clock: Clock,
}

impl Sqlite {
    /// Opens a database file, and creates the table.
    pub(crate) fn open(path: &Path, clock: Clock) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE IF NOT EXISTS limits (
                 key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
                 expires_at INTEGER NOT NULL
             ) WITHOUT ROWID;
             CREATE INDEX IF NOT EXISTS limits_by_expiry ON limits (expires_at);",
        )?;
        Ok(Self {
            connection: Mutex::new(connection),
            clock,
        })
    }

    /// Deletes expired values. Call it now and then.
    pub(crate) fn sweep(&self) -> rusqlite::Result<usize> {
        let now = micros(self.clock.now());
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        connection.execute("DELETE FROM limits WHERE expires_at <= ?1", params![now])
    }
}

/// SQLite's integers are signed, so times are in microseconds, rounded up.
fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

impl CasBackend for Sqlite {
    type Version = i64;
    type Error = rusqlite::Error;

    async fn load(&self, key: &[u8]) -> rusqlite::Result<Option<(Vec<u8>, i64)>> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        let mut select =
            connection.prepare_cached("SELECT value, version FROM limits WHERE key = ?1")?;
        select
            .query_row(params![key], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
    }

    async fn swap(
        &self,
        key: &[u8],
        expected: Option<&i64>,
        value: &[u8],
        expires_at: Timestamp,
    ) -> rusqlite::Result<bool> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        let until = micros(expires_at);
        let changed = match expected {
            Some(version) => connection
                .prepare_cached(
                    "UPDATE limits SET value = ?2, version = version + 1, expires_at = ?3
                 WHERE key = ?1 AND version = ?4",
                )?
                .execute(params![key, value, until, version])?,
            None => connection
                .prepare_cached("INSERT INTO limits VALUES (?1, ?2, 1, ?3) ON CONFLICT DO NOTHING")?
                .execute(params![key, value, until])?,
        };
        Ok(changed == 1)
    }

    async fn remove(&self, key: &[u8], expected: &i64) -> rusqlite::Result<bool> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        let deleted = connection.execute(
            "DELETE FROM limits WHERE key = ?1 AND version = ?2",
            params![key, expected],
        )?;
        Ok(deleted == 1)
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }
}

#[allow(dead_code)] // The test uses only the store.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join("tidegate-example.sqlite");
    let store = CasStore::new(Sqlite::open(&path, Clock::system())?);
    let limiter = Limiter::new(store.clone(), "5/minute".parse()?);
    let decision = limiter.check("user:42").blocking()?;
    println!(
        "allowed: {}, {} left",
        decision.is_allowed(),
        decision.remaining()
    );
    println!("run this again: the counter is in {}", path.display());
    println!("{} expired values deleted", store.backend().sweep()?);
    Ok(())
}
