//! The trace as it is read: line by line, with a bound on the line and a sign of life on a terminal.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// No line of a trace is longer. What is, is not a trace, and is not read to its end.
const LONGEST_LINE: u64 = 1 << 20;
/// Some editors begin a file with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// How often the progress bar is told, in lines: it costs more than a line does.
const LINES_A_TICK: u64 = 1 << 12;

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
    pub(super) fn open(path: &str) -> anyhow::Result<Self> {
        let (name, reader, length): (_, Box<dyn Read>, _) = if path == "-" {
            (
                "standard input".to_owned(),
                Box::new(std::io::stdin()),
                None,
            )
        } else {
            let file = File::open(path).with_context(|| format!("--trace {path}"))?;
            let metadata = file.metadata().with_context(|| format!("--trace {path}"))?;
            if metadata.is_dir() {
                bail!("--trace {path}: is a folder: expected a file of JSON lines, or -");
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

    /// Whether the next line may have to be waited for.
    pub(super) fn is_drained(&self) -> bool {
        self.reader.buffer().is_empty()
    }

    /// The next line that has something in it, and where it stands.
    pub(super) fn next_line(&mut self) -> anyhow::Result<Option<(&[u8], Place<'_>)>> {
        loop {
            self.line.clear();
            self.number += 1;
            let place = Place {
                name: &self.name,
                line: self.number,
            };
            let read = (&mut self.reader)
                .take(LONGEST_LINE + 1)
                .read_until(b'\n', &mut self.line)
                .with_context(|| place.to_string())? as u64;
            if read > LONGEST_LINE {
                bail!("{place}: longer than 1 MiB: expected one JSON object a line");
            }
            if read == 0 {
                return Ok(None);
            }
            self.bytes += read;
            if self.number.is_multiple_of(LINES_A_TICK) {
                self.progress.set_position(self.bytes);
                self.progress.set_message(format!("{} lines", self.number));
            }
            if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some((self.line.trim_ascii(), place)));
            }
        }
    }
}

/// A line of a trace, by its number.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    name: &'a str,
    line: u64,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {}", self.name, self.line)
    }
}

/// Also where a line is not right: what is said of it must not stand behind a bar.
impl Drop for Input {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// On a terminal, on standard error: a bar where the length is known, a count of lines where it is not.
fn progress(length: Option<u64>) -> ProgressBar {
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
