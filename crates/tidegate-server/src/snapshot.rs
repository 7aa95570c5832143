//! Snapshots of a memory store on disk: written at an interval and at the end, atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::{AnyStore, MemoryStore};
use tokio_util::sync::CancellationToken;

use crate::error::ServeError;
use crate::server::Server;

/// A lock that keeps other servers from the same file until it is dropped.
pub(crate) struct Lock(#[allow(dead_code)] File);

/// Locks the snapshot for this server.
pub(crate) fn lock(path: &Path) -> Result<Lock, ServeError> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(of(path, &"the directory does not exist"));
    }
    refuse_others_than_files(path)?;
    let lock = beside(path, ".lock");
    refuse_others_than_files(&lock)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = not_followed(&mut options)
        .open(&lock)
        .map_err(|error| of(&lock, &error))?;
    // A program that can open the file can lock it.
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .map_err(|error| of(&lock, &error))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(of(
            path,
            &"another server uses the file: expected a file of its own",
        )),
        Err(error) => Err(of(path, &error)),
    }
}

/// Rejects everything but regular files. A device may have no end, a pipe no writer, and a link may
/// lead to a file of another owner.
fn refuse_others_than_files(path: &Path) -> Result<(), ServeError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(of(
            path,
            &"it is a symbolic link: expected a file, delete the link",
        )),
        Ok(found) if !found.is_file() => {
            Err(of(path, &"it is not a file: expected a file, or none yet"))
        }
        _ => Ok(()),
    }
}

/// Follows no symbolic link and does not block. A new file is readable by its owner only.
fn not_followed(options: &mut OpenOptions) -> &mut OpenOptions {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    options.mode(0o600).custom_flags(flags.bits().cast_signed())
}

/// Reads the snapshot. Returns `None` if there is no file yet.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, ServeError> {
    let read = || {
        let mut bytes = Vec::new();
        not_followed(OpenOptions::new().read(true))
            .open(path)?
            .read_to_end(&mut bytes)?;
        Ok::<Vec<u8>, io::Error>(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Checks now, and not at the end, that the file can be written.
            let probe = beside(path, ".new");
            let _ = create(&probe).map_err(|error| of(path, &error))?;
            fs::remove_file(&probe).map_err(|error| of(path, &error))?;
            Ok(None)
        }
        Err(error) => Err(of(path, &error)),
    }
}

fn of(path: &Path, error: &dyn std::fmt::Display) -> ServeError {
    ServeError::SnapshotFile {
        path: path.to_owned(),
        error: error.to_string(),
    }
}

/// Returns a file in the same directory, where a rename is atomic.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// Creates a file that only its owner can read: it contains the store's secret.
fn create(path: &Path) -> io::Result<File> {
    // A file left by a crash may have other permissions.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    options.mode(0o600).open(path)
}

/// Replaces the snapshot, and returns the number of keys.
fn write(store: &MemoryStore, path: &Path) -> io::Result<u64> {
    let new = beside(path, ".new");
    let written = write_new(store, &new).and_then(|keys| fs::rename(&new, path).map(|()| keys));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    // Makes the rename durable.
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        File::open(folder)?.sync_all()?;
    }
    written
}

fn write_new(store: &MemoryStore, path: &Path) -> io::Result<u64> {
    let mut file = BufWriter::with_capacity(256 * 1024, create(path)?);
    let keys = store.write_snapshot(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()?;
    Ok(keys)
}

/// Writes snapshots until the server ends, and one more then. Returns an error if the last one
/// fails.
pub(crate) async fn keep(
    server: Arc<Server>,
    ended: CancellationToken,
    _lock: Option<Lock>,
) -> Result<(), ServeError> {
    let (path, interval) = {
        let active = server.active();
        let store = &active.config.store;
        let Some(path) = &store.snapshot else {
            return Ok(());
        };
        (path.clone(), store.snapshot_interval.0)
    };
    let mut was_good = true;
    loop {
        let is_last = tokio::select! {
            () = tokio::time::sleep(interval) => false,
            () = ended.cancelled() => true,
        };
        let written = tokio::task::spawn_blocking({
            let (server, path) = (Arc::clone(&server), path.clone());
            move || match server.active().gate.store() {
                AnyStore::Memory(store) => write(store, &path),
                _ => Ok(0),
            }
        });
        let written = written
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let now_s = server.clock.now().as_nanos() / 1_000_000_000;
        server
            .metrics
            .snapshot(written.as_ref().ok().map(|_| now_s));
        match &written {
            Ok(keys) if is_last => tracing::info!(keys, path = %path.display(), "snapshot written"),
            Ok(_) if !was_good => {
                tracing::info!(path = %path.display(), "snapshot written again after an error")
            }
            Ok(_) => {}
            Err(error) if was_good || is_last => {
                tracing::error!(%error, path = %path.display(), "cannot write snapshot");
            }
            Err(_) => {}
        }
        was_good = written.is_ok();
        if is_last {
            return written.map(drop).map_err(|error| of(&path, &error));
        }
    }
}
