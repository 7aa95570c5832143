//! `--output jsonl`: one line a step, in order.

use std::io::{BufWriter, Write};

use anyhow::Context;
use serde::Serialize;
use tidegate::Decision;

use super::Sink;
use super::trace::{Act, Step};
use crate::figures::{Figures, Number};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle: Option<&'a str>,
    #[serde(flatten)]
    figures: Figures,
}

impl<W: Write> Answers<W> {
    pub(super) fn new(writer: W) -> Self {
        Self {
            writer: BufWriter::with_capacity(1 << 16, writer),
        }
    }
}

impl<W: Write> Sink for Answers<W> {
    fn add(&mut self, step: &Step<'_>, decision: &Decision) -> anyhow::Result<()> {
        let (cost, refund, receipt, settle) = match &step.act {
            Act::Check(cost) => (Some(Number(*cost)), None, None, None),
            Act::Refund(cost) => (None, Some(Number(*cost)), None, None),
            Act::Admit(cost, receipt) => (Some(Number(*cost)), None, Some(&**receipt), None),
            Act::Settle(receipt, cost) => (Some(Number(*cost)), None, None, Some(&**receipt)),
        };
        let figures = Figures::of(decision);
        let answer = Answer {
            at_us: step.at_us,
            key: &step.key,
            cost,
            refund,
            receipt,
            settle,
            figures,
        };
        serde_json::to_writer(&mut self.writer, &answer)
            .map_err(std::io::Error::from)
            .context("standard output")?;
        self.writer.write_all(b"\n").context("standard output")
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.writer.flush().context("standard output")
    }
}
