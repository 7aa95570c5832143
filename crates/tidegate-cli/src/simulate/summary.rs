//! `--output table`: a summary by key, for people.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use tidegate::{Decision, Outcome, Policy};

use super::trace::{Step, StepAction};

/// The number of keys that are counted exactly. With more keys, the least busy are dropped, so that
/// memory is bounded.
const KEYS_COUNTED: usize = 100_000;
/// The maximum number of characters of a key that are shown.
const KEY_SHOWN: usize = 60;

#[derive(Clone, Copy, Default)]
struct KeyCounts {
    requests: u64,
    denied: u64,
    /// Denied requests whose cost exceeded the capacity.
    never: u64,
    longest_wait: Duration,
}

pub(super) struct Summary {
    top: usize,
    total: KeyCounts,
    refunds: u64,
    charges: u64,
    /// The earliest and the latest time. A clock may step back.
    span_us: Option<(u64, u64)>,
    keys: HashMap<String, KeyCounts>,
    /// The number of dropped keys, and the most requests of one of them.
    keys_dropped: u64,
    max_dropped: u64,
}

impl Summary {
    /// Returns the requests, and how many were allowed.
    pub(super) const fn totals(&self) -> (u64, u64) {
        (self.total.requests, self.total.requests - self.total.denied)
    }

    /// Returns the longest wait of a denied request.
    pub(super) const fn longest_wait(&self) -> Duration {
        self.total.longest_wait
    }

    pub(super) fn new(top: usize) -> Self {
        Self {
            top,
            total: KeyCounts::default(),
            refunds: 0,
            charges: 0,
            span_us: None,
            keys: HashMap::new(),
            keys_dropped: 0,
            max_dropped: 0,
        }
    }

    /// Keeps the busiest keys, and among equally busy ones as many as there is room for.
    fn drop_least_busy(&mut self) {
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
        self.keys_dropped += (before - self.keys.len()) as u64;
        self.max_dropped = self.max_dropped.max(threshold);
    }

    pub(super) fn rendered(&self, policy: &Policy) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_totals(&mut text, policy);
        let _ = self.write_busiest(&mut text);
        text
    }

    fn write_totals(&self, text: &mut String, policy: &Policy) -> std::fmt::Result {
        let KeyCounts {
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
        for (count, name) in [(self.refunds, "refund"), (self.charges, "charge")] {
            if count > 0 {
                write!(text, ", {}", plural(count, name))?;
            }
        }
        writeln!(text)?;
        match self.keys_dropped {
            0 => writeln!(text, "keys      {}", self.keys.len())?,
            _ => writeln!(text, "keys      more than {}", self.keys.len())?,
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
                "          {} can never be allowed: the cost exceeds the capacity",
                plural(never, "request")
            )?;
        }
        Ok(())
    }

    fn write_busiest(&self, text: &mut String) -> std::fmt::Result {
        let mut busiest: Vec<(&String, &KeyCounts)> = self.keys.iter().collect();
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
                KeyCounts { denied: 0, .. } => "-".to_owned(),
                KeyCounts { never: 1.., .. } => "never".to_owned(),
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
        if self.keys_dropped > 0 {
            writeln!(
                text,
                " A key with up to {} requests more than shown may be missing.",
                self.max_dropped
            )?;
        }
        Ok(())
    }

    pub(super) fn add(&mut self, step: &Step<'_>, decision: &Decision) {
        let (first, last) = self.span_us.unwrap_or((step.at_us, step.at_us));
        self.span_us = Some((first.min(step.at_us), last.max(step.at_us)));
        let is_request = matches!(step.action, StepAction::Check(_) | StepAction::Admit(..));
        match step.action {
            StepAction::Charge(_) => self.charges += 1,
            _ if is_request => self.total.add(decision),
            _ => self.refunds += 1,
        }
        let counts = match self.keys.get_mut(&*step.key) {
            Some(counts) => counts,
            None => {
                self.drop_least_busy();
                self.keys.entry(step.key.clone().into_owned()).or_default()
            }
        };
        if is_request {
            counts.add(decision);
        }
    }
}

impl KeyCounts {
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

/// Formats a duration in its one or two largest units.
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

/// Returns a key that a terminal can show: control characters are escaped, a long key is cut.
pub(crate) fn printable(key: &str) -> String {
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
