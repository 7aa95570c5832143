//! The worked cases in `vectors/`, and the code that runs them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::{Cost, Policy};

use crate::{Act, Answer, Subject};

/// The tick of the vectors: their durations are in microseconds.
pub const TICK_NS: u64 = 1_000;

/// One case. It starts with an empty store.
#[derive(Deserialize)]
pub struct Case {
    /// The policy, as a user would write it.
    pub policy: String,
    /// The operations and their expected results, in order.
    pub steps: Vec<Step>,
    /// A note about the case, or an empty string.
    #[serde(default)]
    pub note: String,
    /// The file and line of the case.
    #[serde(skip)]
    pub place: String,
}

/// One step of a case.
#[derive(Deserialize)]
pub struct Step {
    /// The time, in microseconds since the epoch.
    pub at_us: u64,
    /// The key.
    pub key: String,
    cost: Option<Box<RawValue>>,
    refund: Option<Box<RawValue>>,
    charge: Option<Box<RawValue>>,
    receipt: Option<String>,
    settle: Option<String>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
}

impl Step {
    /// Returns the operation of the step.
    #[must_use]
    pub fn act(&self) -> Act {
        let cost = |text: &RawValue| {
            text.get()
                .parse::<Cost>()
                .expect("a vector's cost is valid")
        };
        let number = |name: &str| {
            name.trim_start_matches('r')
                .parse()
                .expect("receipts are named r1, r2, …")
        };
        if let Some(text) = &self.charge {
            return Act::Charge(cost(text));
        }
        match (&self.cost, &self.refund, &self.receipt, &self.settle) {
            (Some(text), None, None, None) => Act::Check(cost(text)),
            (None, Some(text), None, None) => Act::Refund(cost(text)),
            (Some(text), None, Some(name), None) => Act::Admit(cost(text), number(name)),
            (Some(text), None, None, Some(name)) => Act::Settle(number(name), cost(text)),
            _ => panic!("invalid step: expected a cost, a refund or a charge"),
        }
    }

    /// Returns the expected result.
    #[must_use]
    pub fn expected(&self) -> Answer {
        Answer {
            allowed: self.allowed,
            limit: self.limit,
            remaining: self.remaining,
            retry_after: self.retry_after_us,
            reset_after: self.reset_after_us,
            delay: self.delay_us,
        }
    }
}

/// Returns the folder of the vectors.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
}

/// Returns every case of every file, in the order of the file names.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("the folder vectors/ is in the repository")
        .map(|entry| entry.expect("its entries can be read").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .collect();
    files.sort();
    let cases: Vec<Case> = files.iter().flat_map(|file| cases(file)).collect();
    assert!(
        cases.len() > 500,
        "only {} cases: are files missing from vectors/?",
        cases.len()
    );
    cases
}

fn cases(file: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(file).expect("a vector file can be read");
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let read = |(index, line): (usize, &str)| {
        let mut case: Case = serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("{name}:{}: {error}", index + 1));
        case.place = format!("{name}:{}", index + 1);
        case
    };
    text.lines().enumerate().map(read).collect()
}

/// Runs every case. `start` creates one subject per case. Panics at the first difference in any
/// field.
pub fn run<S: Subject>(mut start: impl FnMut(Policy) -> S) {
    for case in all() {
        let policy = case
            .policy
            .parse()
            .unwrap_or_else(|error| panic!("{}: {error}", case.place));
        let mut subject = start(policy);
        for (index, step) in case.steps.iter().enumerate() {
            let decision = subject.act(step.at_us * TICK_NS, &step.key, step.act());
            let answer = Answer::of(&decision, TICK_NS);
            assert_eq!(
                answer,
                step.expected(),
                "{} step {} ({}): {:?} at {} µs of {:?}",
                case.place,
                index + 1,
                case.policy,
                step.act(),
                step.at_us,
                step.key
            );
        }
    }
}
