//! `--output jsonl`: one line per step, in order.

use std::io::{BufWriter, Write};

use anyhow::Context;
use serde::Serialize;
use tidegate::{Decision, Policy};

use tidegate_http::DecisionJson;

use super::trace::{Step, StepAction};
use crate::json::JsonCost;

/// Writes the input and the decision of each step, with durations rounded up to microseconds.
pub(super) struct JsonLines<W: Write> {
    writer: BufWriter<W>,
    /// Set if there are several policies: each line names its own.
    names_policy: bool,
}

#[derive(Serialize)]
struct JsonStep<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    at_us: u64,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<JsonCost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund: Option<JsonCost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    charge: Option<JsonCost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle: Option<&'a str>,
    #[serde(flatten)]
    decision: DecisionJson,
}

impl<W: Write> JsonLines<W> {
    pub(super) fn new(writer: W, names_policy: bool) -> Self {
        Self {
            names_policy,
            writer: BufWriter::with_capacity(1 << 16, writer),
        }
    }

    pub(super) fn add(
        &mut self,
        step: &Step<'_>,
        decision: &Decision,
        policy: &Policy,
    ) -> anyhow::Result<()> {
        let mut line = JsonStep {
            policy: self.names_policy.then(|| policy.to_string()),
            at_us: step.at_us,
            key: &step.key,
            cost: None,
            refund: None,
            charge: None,
            receipt: None,
            settle: None,
            decision: DecisionJson::from(decision),
        };
        match &step.action {
            StepAction::Sample => {}
            StepAction::Check(cost) => line.cost = Some(JsonCost(*cost)),
            StepAction::Refund(cost) => line.refund = Some(JsonCost(*cost)),
            StepAction::Charge(cost) => line.charge = Some(JsonCost(*cost)),
            StepAction::Admit(cost, receipt) => {
                (line.cost, line.receipt) = (Some(JsonCost(*cost)), Some(&**receipt));
            }
            StepAction::Settle(receipt, cost) => {
                (line.cost, line.settle) = (Some(JsonCost(*cost)), Some(&**receipt));
            }
        }
        serde_json::to_writer(&mut self.writer, &line)
            .map_err(std::io::Error::from)
            .context("standard output")?;
        self.writer.write_all(b"\n").context("standard output")
    }

    /// Flushes the output: there is no more input for the moment, or at all.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        self.writer.flush().context("standard output")
    }
}
