//! The requests of a replay in a temporary file, which is deleted as soon as it is open.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// The keys of a sample, at least, and the number of keys that are counted for it.
const LEAST_KEYS: u64 = 1_000;
const MAX_KEYS: usize = 100_000;
/// The bytes of one request.
const SIZE: usize = 24;

/// A request in a [`Spool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpooledRequest {
    /// The time in microseconds since 1970.
    pub at_us: u64,
    /// A hash of the key.
    pub key: u64,
    /// The cost in thousandths.
    pub cost: u64,
}

/// The requests of a log, in order.
pub struct Spool {
    writer: BufWriter<File>,
    requests: u64,
    span_us: Option<(u64, u64)>,
    /// Some of the keys, to know whether there are many.
    keys: HashSet<u64>,
}

impl Spool {
    /// Creates an empty temporary file.
    ///
    /// # Errors
    ///
    /// Returns an error if that fails. `TMPDIR` chooses the directory.
    pub fn new() -> io::Result<Self> {
        let name = format!(
            "tidegate-replay-{}-{:016x}",
            std::process::id(),
            fastrand::u64(..)
        );
        let path = std::env::temp_dir().join(name);
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Self {
            writer: BufWriter::with_capacity(1 << 16, file),
            requests: 0,
            span_us: None,
            keys: HashSet::new(),
        })
    }

    /// Appends a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub fn push(&mut self, request: SpooledRequest) -> io::Result<()> {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&request.at_us.to_le_bytes());
        bytes[8..16].copy_from_slice(&request.key.to_le_bytes());
        bytes[16..].copy_from_slice(&request.cost.to_le_bytes());
        self.requests += 1;
        if self.keys.len() < MAX_KEYS {
            self.keys.insert(request.key);
        }
        let first = self.span_us.map_or(request.at_us, |(first, _)| first);
        self.span_us = Some((first, request.at_us));
        self.writer.write_all(&bytes)
    }

    /// Returns the number of requests.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.requests
    }

    /// Returns `true` if there are no requests.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Returns the times of the first and of the last request.
    #[must_use]
    pub fn span_us(&self) -> (u64, u64) {
        self.span_us.unwrap_or_default()
    }

    /// Calls a function with every request in order.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn each(&mut self, mut visit: impl FnMut(SpooledRequest)) -> io::Result<()> {
        self.writer.flush()?;
        let file = self.writer.get_mut();
        file.seek(SeekFrom::Start(0))?;
        let mut reader = BufReader::with_capacity(SIZE << 12, &mut *file);
        let mut bytes = [0; SIZE];
        for _ in 0..self.requests {
            reader.read_exact(&mut bytes)?;
            let number = |from: usize| {
                let mut part = [0; 8];
                part.copy_from_slice(&bytes[from..from + 8]);
                u64::from_le_bytes(part)
            };
            visit(SpooledRequest {
                at_us: number(0),
                key: number(8),
                cost: number(16),
            });
        }
        file.seek(SeekFrom::End(0))?;
        Ok(())
    }

    /// Returns the share of keys, as `1 in n`, with which about `most` requests remain, and at least
    /// a thousand keys.
    #[must_use]
    pub fn sample_for(&self, most: u64) -> u64 {
        // A sample of a few keys would say little.
        let share = self.requests.div_ceil(most);
        share.min(self.keys.len() as u64 / LEAST_KEYS).max(1)
    }
}

impl SpooledRequest {
    /// Returns `true` if the key belongs to a sample of one in `share`.
    #[must_use]
    pub const fn is_in_sample(&self, share: u64) -> bool {
        // Bits that hash tables do not use for their buckets.
        (self.key >> 20).is_multiple_of(share)
    }
}
