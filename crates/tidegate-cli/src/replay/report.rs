//! The results as JSON, and the lines that could not be read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tidegate_insight::log::LineError;
use tidegate_insight::replay::{Curve, KeyFigures, ReplayReport, find};

use super::Results;
use super::table::policy_block;

/// The unreadable lines that are shown.
const SHOWN: usize = 5;

/// The lines that could not be read.
#[derive(Default, Serialize)]
pub(super) struct Unreadable {
    /// All lines.
    #[serde(skip)]
    pub(super) lines: u64,
    /// The number of lines by reason.
    reasons: BTreeMap<String, u64>,
    /// The first ones.
    first: Vec<String>,
}

impl Unreadable {
    pub(super) fn add(&mut self, name: &str, line: u64, error: LineError) {
        let reason = error.to_string();
        if self.first.len() < SHOWN {
            self.first.push(format!("{name}: line {line}: {reason}"));
        }
        *self.reasons.entry(reason).or_default() += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.reasons.values().sum()
    }

    /// Prints the first ones on standard error.
    pub(super) fn warn(&self) {
        for line in &self.first {
            eprintln!("tidegate: {line}");
        }
        let more = self.count().saturating_sub(self.first.len() as u64);
        if more > 0 {
            eprintln!("tidegate: {more} more lines were left out");
        }
    }

    /// Returns the error for a log without a request.
    pub(super) fn nothing_read(&self) -> String {
        let mut text = match self.lines {
            0 => return "the log is empty: expected one request per line".to_owned(),
            lines => format!("none of {lines} lines is a request"),
        };
        if let Some((reason, count)) = self.reasons.iter().max_by_key(|(_, count)| **count) {
            let _ = write!(text, "; {count}: {reason}");
        }
        text
    }
}

/// The JSON output.
#[derive(Serialize)]
pub(super) struct JsonReport<'a> {
    #[serde(flatten)]
    report: &'a ReplayReport,
    clients: &'static str,
    unreadable_lines: u64,
    unreadable: &'a Unreadable,
    is_partial: bool,
    keys_shown: &'a [KeyFigures],
    curve: Option<&'a Curve>,
    found: Option<&'a find::Found>,
    configuration: Option<String>,
}

impl<'a> JsonReport<'a> {
    pub(super) fn of(results: &'a Results<'_>) -> Self {
        Self {
            report: &results.report,
            clients: results.options.clients().name(),
            unreadable_lines: results.unreadable.count(),
            unreadable: &results.unreadable,
            is_partial: results.is_partial,
            keys_shown: &results.top,
            curve: results.curve.as_ref(),
            found: results.found.as_ref(),
            configuration: results
                .found
                .as_ref()
                .map(|found| policy_block(results.options.name.as_str(), &found.policy)),
        }
    }
}
