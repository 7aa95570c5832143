//! `record.file`: a bounded trace of checks, for `tidegate replay` and `simulate`.
//!
//! All checks of one in `record.sample` keys are recorded, so that the behaviour of each recorded
//! client is complete. Threads put checks into buffers; one thread writes them. What does not fit is
//! dropped and counted. Keys are hashed with a secret of the file, unless configured otherwise.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tidegate::{Cost, Timestamp};

use super::{Observed, kept_text, sampler};
use crate::config::{ConfigError, RecordConfig};
use crate::error::ServeError;

/// The number of buffers.
const STRIPES: usize = 16;
/// The checks in one buffer, at most.
const MAX_BUFFERED: usize = 8_192;
/// The interval at which buffers are written.
const EVERY: Duration = Duration::from_millis(100);
/// The checks of one interval beyond which fewer keys are recorded: 5,000 per second.
const MAX_PER_ROUND: usize = 500;
/// The number of hexadecimal digits of a hashed key.
const DIGITS: usize = 24;

/// A check to be written.
pub(super) struct Recorded {
    at: Timestamp,
    policy: Box<str>,
    tenant: Option<Box<str>>,
    key: Box<[u8]>,
    cost: Cost,
    is_allowed: bool,
}

impl Recorded {
    pub(super) fn new(at: Timestamp, observed: &Observed<'_>) -> Self {
        Self {
            at,
            policy: kept_text(&observed.label.text()),
            tenant: observed.tenant.map(kept_text),
            key: recorded_key(observed.key),
            cost: observed.cost,
            is_allowed: !observed.is_denied,
        }
    }
}

/// The length of a key that is recorded. A longer one is replaced by its digest.
const MAX_RECORDED_KEY: usize = 1_024;

fn recorded_key(key: &[u8]) -> Box<[u8]> {
    if key.len() <= MAX_RECORDED_KEY {
        return key.into();
    }
    blake3::hash(key).to_hex().as_bytes().into()
}

/// The figures of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecorderStats {
    pub(crate) written: u64,
    pub(crate) dropped: u64,
}

/// Records checks.
pub(super) struct Recorder {
    buffers: Box<[Buffer]>,
    /// Keys with a hash up to this are recorded. It is halved while checks come faster than they may
    /// be recorded, so the keys that remain stay complete.
    threshold: AtomicU64,
    seed: u64,
    is_finished: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[repr(align(128))]
#[derive(Default)]
struct Buffer(Mutex<Vec<Recorded>>);

/// The file and its bound.
struct TraceFile {
    path: PathBuf,
    writer: BufWriter<File>,
    bytes: u64,
    max_bytes: u64,
    secret: Option<[u8; 32]>,
}

impl Recorder {
    /// Opens the file and starts the writer.
    pub(super) fn open(config: &RecordConfig) -> Result<Arc<Self>, ServeError> {
        let path = config.file.clone().unwrap_or_default();
        let random = |bytes: &mut [u8]| {
            getrandom::fill(bytes).map_err(|error| std::io::Error::other(error.to_string()))
        };
        let (mut seed, mut secret) = ([0; 8], [0; 32]);
        random(&mut seed)?;
        random(&mut secret)?;
        let secret = (!config.plain_keys).then_some(secret);
        let max_bytes = config.max_bytes;
        let file = TraceFile::create(&path, max_bytes, secret).map_err(|error| {
            let path = path.display();
            ConfigError::Values(format!("record.file: {path}: {error}"))
        })?;
        let (sample, hashed) = (config.sample, !config.plain_keys);
        tracing::info!(path = %path.display(), sample, hashed, "recording checks");
        let recorder = Arc::new(Self {
            buffers: (0..STRIPES).map(|_| Buffer::default()).collect(),
            threshold: AtomicU64::new(u64::MAX / config.sample.max(1)),
            seed: u64::from_le_bytes(seed),
            is_finished: AtomicBool::new(false),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            writer: Mutex::new(None),
        });
        let shared = Arc::clone(&recorder);
        let thread = std::thread::Builder::new().name("tidegate-record".to_owned());
        let writer = thread.spawn(move || shared.write_all(file))?;
        *recorder.writer.lock() = Some(writer);
        Ok(recorder)
    }

    /// Returns `true` if the checks of a key are recorded.
    #[inline]
    pub(super) fn takes(&self, key: &[u8]) -> bool {
        quick_hash(self.seed, key) <= self.threshold.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn push(&self, recorded: Recorded) {
        let mut buffer = self.buffers[sampler::thread_number() % STRIPES].0.lock();
        if buffer.len() < MAX_BUFFERED {
            buffer.push(recorded);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn stats(&self) -> RecorderStats {
        RecorderStats {
            written: self.written.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    /// Writes everything and ends the writer.
    pub(super) fn finish(&self) {
        self.is_finished.store(true, Ordering::Release);
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }

    fn write_all(&self, mut file: TraceFile) {
        let mut is_failing = false;
        loop {
            let is_last = self.is_finished.load(Ordering::Acquire);
            let mut all: Vec<Recorded> = Vec::new();
            for buffer in &self.buffers {
                all.append(&mut buffer.0.lock());
            }
            if all.len() > MAX_PER_ROUND {
                let threshold = self.threshold.load(Ordering::Relaxed);
                self.threshold.store(threshold / 2, Ordering::Relaxed);
                tracing::info!("more checks than may be recorded, recording half of the keys");
            }
            all.sort_by_key(|recorded| recorded.at);
            match file.write(&all) {
                Ok(()) => {
                    self.written.fetch_add(all.len() as u64, Ordering::Relaxed);
                    is_failing = false;
                }
                Err(error) => {
                    self.dropped.fetch_add(all.len() as u64, Ordering::Relaxed);
                    if !is_failing {
                        tracing::warn!(%error, path = %file.path.display(), "recording failed, dropping checks");
                    }
                    is_failing = true;
                }
            }
            if is_last {
                return;
            }
            std::thread::sleep(EVERY);
        }
    }
}

/// A quick hash with a secret seed, for sampling only.
#[inline]
fn quick_hash(seed: u64, key: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(ODD);
    let (words, rest) = key.as_chunks::<8>();
    let mut hash = seed ^ key.len() as u64;
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    hash = match key.last_chunk::<8>() {
        // Some bytes are read twice, which is quicker than a loop over the last ones.
        Some(last) => mix(hash, u64::from_le_bytes(*last)),
        None => mix(
            hash,
            rest.iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte)),
        ),
    };
    // The last steps of splitmix64, so that all bits depend on all bytes.
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    at_us: u64,
    key: &'a str,
    cost: Option<&'a serde_json::value::RawValue>,
    policy: &'a str,
    allowed: bool,
}

impl TraceFile {
    fn create(path: &Path, max_bytes: u64, secret: Option<[u8; 32]>) -> std::io::Result<Self> {
        let mut options = File::options();
        options.create(true).write(true).truncate(true);
        // Traces are about clients: only the owner reads them.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Self {
            path: path.to_owned(),
            writer: BufWriter::with_capacity(1 << 16, options.open(path)?),
            bytes: 0,
            max_bytes,
            secret,
        })
    }

    fn write(&mut self, all: &[Recorded]) -> std::io::Result<()> {
        for recorded in all {
            let line = self.line(recorded)?;
            if self.bytes + line.len() as u64 > self.max_bytes / 2 {
                self.rotate()?;
            }
            self.bytes += line.len() as u64;
            self.writer.write_all(line.as_bytes())?;
        }
        self.writer.flush()
    }

    /// Moves the file to `FILE.1`, which is replaced, and starts again. Both together have at most
    /// `max_bytes`.
    fn rotate(&mut self) -> std::io::Result<()> {
        self.writer.flush()?;
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        match std::fs::rename(&self.path, old) {
            // An earlier attempt moved it, and could not create the next one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            moved => moved?,
        }
        *self = Self::create(&self.path, self.max_bytes, self.secret)?;
        Ok(())
    }

    fn line(&self, recorded: &Recorded) -> std::io::Result<String> {
        let key = match &self.secret {
            Some(secret) => {
                let mut hasher = blake3::Hasher::new_keyed(secret);
                if let Some(tenant) = &recorded.tenant {
                    hasher.update(&(tenant.len() as u64).to_le_bytes());
                    hasher.update(tenant.as_bytes());
                }
                hasher.update(&recorded.key);
                hasher.finalize().to_hex()[..DIGITS].to_owned()
            }
            None => {
                let key = String::from_utf8_lossy(&recorded.key);
                match &recorded.tenant {
                    Some(tenant) => format!("{tenant} {key}"),
                    None => key.into_owned(),
                }
            }
        };
        let cost = recorded.cost.to_string();
        let mut line = serde_json::to_string(&Line {
            at_us: recorded.at.as_nanos() / 1_000,
            key: &key,
            cost: serde_json::from_str(&cost).ok(),
            policy: &recorded.policy,
            allowed: recorded.is_allowed,
        })
        .map_err(std::io::Error::other)?;
        line.push('\n');
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_ten_keys_is_taken() {
        for seed in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
            let keys = (0..10_000).map(|number| format!("user:{number}"));
            let is_taken = |key: &String| quick_hash(seed, key.as_bytes()) <= u64::MAX / 10;
            let taken = keys.filter(is_taken).count();
            assert!((850..1_150).contains(&taken), "{taken}");
        }
    }
}
