//! Reads a trace line by line, with a maximum length, and shows progress on a terminal.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::interrupt::Interrupt;

/// The maximum length of a line. A longer one is not read to its end.
const MAX_LINE: u64 = 1 << 20;
/// A mark that some editors write at the start of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The number of lines between updates of the progress bar, which cost more than a line.
const LINES_PER_UPDATE: u64 = 1 << 12;

pub(super) struct Input {
    name: String,
    reader: BufReader<Box<dyn Read>>,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    progress: ProgressBar,
}

impl Input {
    /// Opens a file, or standard input for `-`.
    ///
    /// Reading standard input ends when Ctrl-C is pressed, even while no line arrives.
    pub(super) fn open(path: &str, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let (name, reader, length): (_, Box<dyn Read>, _) = if path == "-" {
            let reader = InterruptibleStdin::new(interrupt);
            ("standard input".to_owned(), Box::new(reader), None)
        } else {
            let file = File::open(path).with_context(|| format!("--trace {path}"))?;
            let metadata = file.metadata().with_context(|| format!("--trace {path}"))?;
            if metadata.is_dir() {
                bail!("--trace {path}: is a directory: expected a file of JSON lines, or -");
            }
            let length = metadata.is_file().then_some(metadata.len());
            (path.to_owned(), Box::new(file), length)
        };
        let reader = BufReader::with_capacity(1 << 16, reader);
        Ok(Self {
            name,
            reader,
            line: Vec::new(),
            number: 0,
            bytes: 0,
            progress: progress(length),
        })
    }

    /// Returns `true` if reading the next line may block.
    pub(super) fn is_drained(&self) -> bool {
        self.reader.buffer().is_empty()
    }

    /// Returns the next non-empty line, and its position.
    pub(super) fn next_line(&mut self) -> anyhow::Result<Option<(&[u8], LinePosition<'_>)>> {
        loop {
            self.line.clear();
            self.number += 1;
            let position = LinePosition {
                name: &self.name,
                line: self.number,
            };
            let read = (&mut self.reader)
                .take(MAX_LINE + 1)
                .read_until(b'\n', &mut self.line)
                .with_context(|| position.to_string())? as u64;
            if read > MAX_LINE {
                bail!(
                    "{position}: the line is longer than 1 MiB: expected one JSON object per line"
                );
            }
            if read == 0 {
                return Ok(None);
            }
            self.bytes += read;
            if self.number.is_multiple_of(LINES_PER_UPDATE) {
                self.progress.set_position(self.bytes);
                self.progress.set_message(format!("{} lines", self.number));
            }
            if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some((self.line.trim_ascii(), position)));
            }
        }
    }
}

/// The time between looks at the interruption.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Standard input. A read that waits for input ends when it is interrupted.
pub(crate) struct InterruptibleStdin {
    interrupt: Interrupt,
}

impl InterruptibleStdin {
    pub(crate) fn new(interrupt: &Interrupt) -> Self {
        Self {
            interrupt: interrupt.clone(),
        }
    }
}

impl Read for InterruptibleStdin {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let stdin = std::io::stdin();
        loop {
            if self.interrupt.is_set() {
                return Ok(0);
            }
            let mut input = [PollFd::new(&stdin, PollFlags::IN)];
            match rustix::event::poll(&mut input, Some(&POLL)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(rustix::io::read(&stdin, &mut *buffer)?),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A line of a trace, by its number.
#[derive(Clone, Copy)]
pub(super) struct LinePosition<'a> {
    name: &'a str,
    line: u64,
}

impl fmt::Display for LinePosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {}", self.name, self.line)
    }
}

/// Clears the progress bar, also before an error is printed.
impl Drop for Input {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// Creates the progress on standard error: a bar if the length is known, otherwise a count of
/// lines.
pub(crate) fn progress(length: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (
            ProgressBar::new(length),
            "{bar:40} {percent} % {msg}, {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {msg}, {elapsed}"),
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = bar.with_style(style).with_message("0 lines");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
