//! `--output table`: what became of whom, for people.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use tidegate::{Decision, Outcome, Policy};

use super::Sink;
use super::trace::{Act, Step};

/// How many keys are counted exactly. A trace of more is summed up in bounded memory: the least busy are let go.
const KEYS_COUNTED: usize = 100_000;
/// The most characters of a key that are shown.
const KEY_SHOWN: usize = 60;

#[derive(Clone, Copy, Default)]
struct Counts {
    requests: u64,
    denied: u64,
    /// Of the denied, those that cost more than the capacity.
    never: u64,
    longest_wait: Duration,
}

pub(super) struct Summary {
    top: usize,
    total: Counts,
    refunds: u64,
    /// The earliest and the latest time: a clock may step back.
    span_us: Option<(u64, u64)>,
    keys: HashMap<String, Counts>,
    /// How many keys were let go, and the most requests that one of them had had.
    keys_let_go: u64,
    most_let_go: u64,
}

impl Summary {
    pub(super) fn new(top: usize) -> Self {
        Self {
            top,
            total: Counts::default(),
            refunds: 0,
            span_us: None,
            keys: HashMap::new(),
            keys_let_go: 0,
            most_let_go: 0,
        }
    }

    /// Keeps the busiest, and of those that are equally busy as many as there is room for.
    fn let_least_busy_go(&mut self) {
        if self.keys.len() < 2 * KEYS_COUNTED {
            return;
        }
        let mut requests: Vec<u64> = self.keys.values().map(|counts| counts.requests).collect();
        let (busier, threshold, _) = requests.select_nth_unstable_by(KEYS_COUNTED, |a, b| b.cmp(a));
        let threshold = *threshold;
        let mut ties = KEYS_COUNTED
            - busier
                .iter()
                .filter(|requests| **requests > threshold)
                .count();
        let before = self.keys.len();
        self.keys.retain(|_, counts| {
            let is_tie = counts.requests == threshold && ties > 0;
            ties -= usize::from(is_tie);
            is_tie || counts.requests > threshold
        });
        self.keys_let_go += (before - self.keys.len()) as u64;
        self.most_let_go = self.most_let_go.max(threshold);
    }

    pub(super) fn rendered(&self, policy: &Policy) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_totals(&mut text, policy);
        let _ = self.write_busiest(&mut text);
        text
    }

    fn write_totals(&self, text: &mut String, policy: &Policy) -> std::fmt::Result {
        let Counts {
            requests,
            denied,
            never,
            longest_wait,
        } = self.total;
        let (first, last) = self.span_us.unwrap_or_default();
        writeln!(text, "policy    {policy}")?;
        write!(
            text,
            "trace     {} in {}",
            plural(requests, "request"),
            short(Duration::from_micros(last - first))
        )?;
        match self.refunds {
            0 => writeln!(text)?,
            refunds => writeln!(text, ", {}", plural(refunds, "refund"))?,
        }
        match self.keys_let_go {
            0 => writeln!(text, "keys      {}", self.keys.len())?,
            _ => writeln!(
                text,
                "keys      more than {}, too many to count each",
                self.keys.len()
            )?,
        }
        writeln!(text, "allowed   {}", share(requests - denied, requests))?;
        writeln!(text, "denied    {}", share(denied, requests))?;
        if denied > never {
            writeln!(
                text,
                "          longest retry-after {}",
                short(longest_wait)
            )?;
        }
        if never > 0 {
            writeln!(
                text,
                "          {} can never pass: more than the whole capacity",
                plural(never, "request")
            )?;
        }
        Ok(())
    }

    fn write_busiest(&self, text: &mut String) -> std::fmt::Result {
        let mut busiest: Vec<(&String, &Counts)> = self.keys.iter().collect();
        busiest.sort_unstable_by(|(a_key, a), (b_key, b)| {
            b.requests.cmp(&a.requests).then(a_key.cmp(b_key))
        });
        let left_out = busiest.len().saturating_sub(self.top);
        busiest.truncate(self.top);
        if busiest.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "busiest keys",
            "requests",
            "allowed",
            "denied",
            "longest retry-after",
        ]);
        for (key, counts) in busiest {
            let wait = match counts {
                Counts { denied: 0, .. } => "-".to_owned(),
                Counts { never: 1.., .. } => "never".to_owned(),
                _ => short(counts.longest_wait),
            };
            let figures = [
                counts.requests,
                counts.requests - counts.denied,
                counts.denied,
            ]
            .map(|n| n.to_string());
            let cells = figures
                .into_iter()
                .chain([wait])
                .map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
            table.add_row(std::iter::once(Cell::new(printable(key))).chain(cells));
        }
        writeln!(text)?;
        for line in table.lines() {
            writeln!(text, "{}", line.trim_end())?;
        }
        if left_out > 0 {
            writeln!(text, " … and {left_out} more keys (--top N shows more)")?;
        }
        if self.keys_let_go > 0 {
            writeln!(
                text,
                " A key with up to {} requests more than shown may be missing.",
                self.most_let_go
            )?;
        }
        Ok(())
    }
}

impl Sink for Summary {
    fn add(&mut self, step: &Step<'_>, decision: &Decision) -> anyhow::Result<()> {
        let (first, last) = self.span_us.unwrap_or((step.at_us, step.at_us));
        self.span_us = Some((first.min(step.at_us), last.max(step.at_us)));
        let is_refund = matches!(step.act, Act::Refund(_) | Act::Settle(..));
        if is_refund {
            self.refunds += 1;
        } else {
            self.total.add(decision);
        }
        let counts = match self.keys.get_mut(&*step.key) {
            Some(counts) => counts,
            None => {
                self.let_least_busy_go();
                self.keys.entry(step.key.clone().into_owned()).or_default()
            }
        };
        if !is_refund {
            counts.add(decision);
        }
        Ok(())
    }
}

impl Counts {
    fn add(&mut self, decision: &Decision) {
        self.requests += 1;
        self.denied += u64::from(decision.is_denied());
        self.never += u64::from(decision.outcome() == Outcome::NeverAllowed);
        self.longest_wait = self
            .longest_wait
            .max(decision.retry_after().unwrap_or_default());
    }
}

fn plural(count: u64, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

fn share(part: u64, whole: u64) -> String {
    // Rounded to the nearest.
    let tenths = (u128::from(part) * 2_000 + u128::from(whole))
        .checked_div(2 * u128::from(whole))
        .unwrap_or(0);
    format!("{part} ({}.{} %)", tenths / 10, tenths % 10)
}

/// A duration in the one or two units that matter most.
fn short(duration: Duration) -> String {
    let (days, seconds) = (duration.as_secs() / 86_400, duration.as_secs());
    match seconds {
        0 if duration.as_micros() < 1_000 => format!("{} µs", duration.as_nanos().div_ceil(1_000)),
        0 => format!("{} ms", duration.as_nanos().div_ceil(1_000_000)),
        1..60 => format!("{}.{} s", seconds, duration.subsec_millis() / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{days} d {} h", seconds % 86_400 / 3_600),
    }
}

/// A key as a terminal can show it: control characters made visible, the end of a long one cut off.
fn printable(key: &str) -> String {
    let mut shown: String = key
        .chars()
        .take(KEY_SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if key.chars().nth(KEY_SHOWN).is_some() {
        let _ = write!(shown, "… ({} bytes)", key.len());
    }
    shown
}
