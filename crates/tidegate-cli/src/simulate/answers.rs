//! `--output jsonl`: one line a step, in order.

use std::io::{BufWriter, Write};

use anyhow::Context;
use serde::Serialize;
use tidegate::{Cost, Decision, Outcome};

use super::Sink;
use super::trace::{Act, Step};

/// Writes what went in and what came out, durations rounded up to microseconds.
pub(super) struct Answers<W: Write> {
    writer: BufWriter<W>,
}

#[derive(Serialize)]
struct Answer<'a> {
    at_us: u64,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund: Option<Number>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
}

/// A cost as a JSON number, exactly.
struct Number(Cost);

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let thousandths = self.0.thousandths();
        if thousandths.is_multiple_of(1_000) {
            return serializer.serialize_u64(thousandths / 1_000);
        }
        // A double holds 15 digits; a cost has at most 13.
        serializer.serialize_f64(thousandths as f64 / 1e3)
    }
}

impl<W: Write> Answers<W> {
    pub(super) fn new(writer: W) -> Self {
        Self { writer: BufWriter::with_capacity(1 << 16, writer) }
    }
}

impl<W: Write> Sink for Answers<W> {
    fn add(&mut self, step: &Step<'_>, decision: &Decision) -> anyhow::Result<()> {
        let (cost, refund) = match step.act {
            Act::Check(cost) => (Some(Number(cost)), None),
            Act::Refund(cost) => (None, Some(Number(cost))),
        };
        let answer = Answer {
            at_us: step.at_us,
            key: &step.key,
            cost,
            refund,
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after_us: match decision.outcome() {
                Outcome::Allowed { .. } => Some(0),
                Outcome::Denied { retry_after } => Some(micros(retry_after)),
                Outcome::NeverAllowed => None,
            },
            reset_after_us: micros(decision.reset_after()),
            delay_us: micros(decision.delay()),
        };
        serde_json::to_writer(&mut self.writer, &answer).map_err(std::io::Error::from).context("standard output")?;
        self.writer.write_all(b"\n").context("standard output")
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.writer.flush().context("standard output")
    }
}

/// Rounded up, so that who waits that long has waited long enough. A decision's durations are below 2^64 ns: they fit.
fn micros(duration: std::time::Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000) as u64
}
