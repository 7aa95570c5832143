//! The requests of all logs, merged by time.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;
use tidegate::Cost;
use tidegate_insight::log::{CostExpression, KeyExpression, LineError, LogFormat};

use super::options::ReplayOptions;
use super::report::Unreadable;
use crate::interrupt::Interrupt;
use crate::simulate::input::{InterruptibleStdin, progress};

/// The maximum length of a line. The rest of a longer one is skipped.
const MAX_LINE: usize = 1 << 20;
/// The requests of one second that are spread over it. More stay at its end.
const SPREAD: usize = 200_000;
/// The policies of a trace that are named in a warning.
const POLICIES_SEEN: usize = 5;
/// The number of lines between updates of the progress bar.
const LINES_PER_UPDATE: u64 = 1 << 13;
const SECOND_US: u64 = 1_000_000;

/// A request of a log.
pub(super) struct LoggedRequest {
    pub(super) at_us: u64,
    pub(super) key: String,
    pub(super) cost: Cost,
}

/// All logs.
pub(super) struct LogInput {
    sources: Vec<LogSource>,
    /// The next request of each log.
    next: Vec<Option<LoggedRequest>>,
    shared: Shared,
}

/// The settings and counters of all logs.
struct Shared {
    key: Option<KeyExpression>,
    defaults: Defaults,
    cost: Option<CostExpression>,
    recorded: Option<String>,
    /// The policies of a trace, up to a few.
    policies_seen: BTreeSet<String>,
    spreads: bool,
    was_spread: bool,
    unreadable: Unreadable,
    lines: u64,
    bytes_read: Arc<AtomicU64>,
    progress: ProgressBar,
}

impl LogInput {
    pub(super) fn open(options: &ReplayOptions, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        let mut length = Some(0);
        let mut sources = Vec::new();
        for path in &options.logs {
            let (source, bytes) = LogSource::open(path, options, interrupt, &bytes_read)?;
            sources.push(source);
            length = length.zip(bytes).map(|(sum, bytes)| sum + bytes);
        }
        let mut input = Self {
            next: Vec::new(),
            sources,
            shared: Shared {
                key: options.key.clone(),
                defaults: Defaults::new()?,
                cost: options.cost.clone(),
                recorded: options.recorded.clone(),
                policies_seen: BTreeSet::new(),
                spreads: !options.no_spread,
                was_spread: false,
                unreadable: Unreadable::default(),
                lines: 0,
                bytes_read,
                progress: progress(length),
            },
        };
        for source in &mut input.sources {
            input.next.push(source.next_request(&mut input.shared)?);
        }
        Ok(input)
    }

    /// Returns the earliest request that no log has returned yet.
    pub(super) fn next_request(&mut self) -> anyhow::Result<Option<LoggedRequest>> {
        let heads = self.next.iter().enumerate();
        let heads = heads.filter_map(|(index, head)| Some((head.as_ref()?.at_us, index)));
        let Some((_, index)) = heads.min() else {
            return Ok(None);
        };
        let following = self.sources[index].next_request(&mut self.shared)?;
        Ok(std::mem::replace(&mut self.next[index], following))
    }

    pub(super) const fn was_spread(&self) -> bool {
        self.shared.was_spread
    }

    /// Ends the progress bar and returns the lines that could not be read.
    pub(super) fn finish(mut self) -> Unreadable {
        self.shared.progress.finish_and_clear();
        if self.shared.policies_seen.len() > 1 {
            let names: Vec<&str> = self
                .shared
                .policies_seen
                .iter()
                .map(String::as_str)
                .collect();
            eprintln!(
                "tidegate: the trace has checks of several policies ({}), which count together here; \
                 --recorded NAME selects one",
                names.join(", ")
            );
        }
        self.shared.unreadable.lines = self.shared.lines;
        std::mem::take(&mut self.shared.unreadable)
    }
}

/// Clears the progress bar, also before an error is printed.
impl Drop for LogInput {
    fn drop(&mut self) {
        self.shared.progress.finish_and_clear();
    }
}

/// One log.
struct LogSource {
    name: String,
    reader: Box<dyn BufRead>,
    format: Option<LogFormat>,
    line: Vec<u8>,
    number: u64,
    /// Requests that were read and spread, and the one behind them.
    ready: VecDeque<LoggedRequest>,
    held: Option<(LoggedRequest, bool)>,
}

impl LogSource {
    fn open(
        path: &str,
        options: &ReplayOptions,
        interrupt: &Interrupt,
        bytes_read: &Arc<AtomicU64>,
    ) -> anyhow::Result<(Self, Option<u64>)> {
        let (name, reader, length): (_, Box<dyn Read>, _) = if path == "-" {
            let stdin = InterruptibleStdin::new(interrupt);
            ("standard input".to_owned(), Box::new(stdin), None)
        } else {
            let file = File::open(path).with_context(|| path.to_owned())?;
            let metadata = file.metadata().with_context(|| path.to_owned())?;
            if metadata.is_dir() {
                bail!("{path}: is a directory: expected log files, or -");
            }
            let length = metadata.is_file().then_some(metadata.len());
            (path.to_owned(), Box::new(file), length)
        };
        let counted = Counted {
            reader,
            bytes_read: Arc::clone(bytes_read),
        };
        let mut reader = BufReader::with_capacity(1 << 17, counted);
        let start = reader.fill_buf().with_context(|| name.clone())?;
        let is_gzip = start.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> = match is_gzip {
            true => Box::new(BufReader::with_capacity(
                1 << 17,
                MultiGzDecoder::new(reader),
            )),
            false => Box::new(reader),
        };
        let source = Self {
            name,
            reader,
            format: options.format.known(),
            line: Vec::new(),
            number: 0,
            ready: VecDeque::new(),
            held: None,
        };
        Ok((source, length))
    }

    /// Returns the next request. Requests of one whole second are spread over it.
    fn next_request(&mut self, shared: &mut Shared) -> anyhow::Result<Option<LoggedRequest>> {
        if let Some(request) = self.ready.pop_front() {
            return Ok(Some(request));
        }
        let first = match self.held.take() {
            Some(held) => Some(held),
            None => self.read_request(shared)?,
        };
        let Some((first, is_whole_second)) = first else {
            return Ok(None);
        };
        if !shared.spreads || !is_whole_second {
            return Ok(Some(first));
        }
        let second = first.at_us;
        self.ready.push_back(first);
        while self.ready.len() < SPREAD {
            match self.read_request(shared)? {
                Some((request, true)) if request.at_us == second => self.ready.push_back(request),
                other => {
                    self.held = other;
                    break;
                }
            }
        }
        let count = self.ready.len() as u64;
        shared.was_spread |= count > 1;
        for (index, request) in self.ready.iter_mut().enumerate() {
            request.at_us += SECOND_US * index as u64 / count;
        }
        Ok(self.ready.pop_front())
    }

    /// Reads lines until one is a request. The flag is set if its time has whole seconds only.
    fn read_request(
        &mut self,
        shared: &mut Shared,
    ) -> anyhow::Result<Option<(LoggedRequest, bool)>> {
        while let Some(is_whole) = self.read_line().with_context(|| self.name.clone())? {
            self.number += 1;
            shared.lines += 1;
            if shared.lines.is_multiple_of(LINES_PER_UPDATE) {
                shared.show_progress();
            }
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            let parsed = match is_whole {
                true => self.parse(shared),
                false => Err(LineError::TooLong),
            };
            match parsed {
                Ok(request) => return Ok(Some(request)),
                Err(error) => shared.unreadable.add(&self.name, self.number, error),
            }
        }
        Ok(None)
    }

    fn parse(&mut self, shared: &mut Shared) -> Result<(LoggedRequest, bool), LineError> {
        let line = self.line.trim_ascii();
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let format = self.format.unwrap_or_else(|| LogFormat::of_line(line));
        let record = format.parse(line)?;
        if let Some(policy) = record.recorded_policy() {
            shared.see(policy)?;
        }
        let mut key = String::new();
        let expression = match &shared.key {
            Some(expression) => expression,
            None if format == LogFormat::Trace => &shared.defaults.trace_key,
            None => &shared.defaults.key,
        };
        if !expression.write(&record, &mut key) {
            return Err(LineError::NoKey);
        }
        let cost = match &shared.cost {
            Some(expression) => expression.of(&record),
            None if format == LogFormat::Trace => shared.defaults.trace_cost.of(&record),
            None => Some(Cost::ONE),
        };
        let request = LoggedRequest {
            at_us: record.at_us,
            key,
            cost: cost.ok_or(LineError::NoCost)?,
        };
        Ok((request, record.is_whole_second))
    }

    /// Reads a line. Returns `Some(false)` if it was too long and its end was skipped, and `None` at
    /// the end of the log.
    fn read_line(&mut self) -> std::io::Result<Option<bool>> {
        self.line.clear();
        let mut is_whole = true;
        let mut has_any = false;
        loop {
            let buffer = match self.reader.fill_buf() {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                return Ok(has_any.then_some(is_whole));
            }
            has_any = true;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            if self.line.len() + taken <= MAX_LINE {
                self.line.extend_from_slice(&buffer[..taken]);
            } else {
                is_whole = false;
            }
            self.reader.consume(taken);
            if end.is_some() {
                return Ok(Some(is_whole));
            }
        }
    }
}

/// The expressions for logs and traces, unless others are given.
struct Defaults {
    key: KeyExpression,
    trace_key: KeyExpression,
    trace_cost: CostExpression,
}

impl Defaults {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            key: "address".parse()?,
            trace_key: "key".parse()?,
            trace_cost: "cost".parse()?,
        })
    }
}

impl Shared {
    /// Notes the policy of a recorded check, and rejects those of other policies.
    fn see(&mut self, policy: &str) -> Result<(), LineError> {
        if self
            .recorded
            .as_deref()
            .is_some_and(|wanted| wanted != policy)
        {
            return Err(LineError::OtherPolicy);
        }
        if self.policies_seen.len() < POLICIES_SEEN && !self.policies_seen.contains(policy) {
            self.policies_seen.insert(policy.to_owned());
        }
        Ok(())
    }

    fn show_progress(&self) {
        self.progress
            .set_position(self.bytes_read.load(Ordering::Relaxed));
        self.progress.set_message(format!("{} lines", self.lines));
    }
}

/// Counts the bytes that are read, before they are decompressed.
struct Counted {
    reader: Box<dyn Read>,
    bytes_read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
