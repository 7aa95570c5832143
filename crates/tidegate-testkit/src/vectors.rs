//! The worked cases in `vectors/`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::{Cost, Policy};

use crate::{Act, Answer, Subject};

/// Durations in the vectors are in microseconds.
pub const TICK_NS: u64 = 1_000;

/// One case: it starts with nothing stored.
#[derive(Deserialize)]
pub struct Case {
    /// The policy, as a person would write it.
    pub policy: String,
    /// What goes in and what must come out, in order.
    pub steps: Vec<Step>,
    /// What the case shows, where that is said.
    #[serde(default)]
    pub note: String,
    /// The file and line it stands in.
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
    /// What the step does.
    #[must_use]
    pub fn act(&self) -> Act {
        let cost = |text: &RawValue| text.get().parse::<Cost>().expect("a vector's cost is one");
        let number = |name: &str| {
            name.trim_start_matches('r')
                .parse()
                .expect("receipts are called r1, r2, …")
        };
        match (&self.cost, &self.refund, &self.receipt, &self.settle) {
            (Some(text), None, None, None) => Act::Check(cost(text)),
            (None, Some(text), None, None) => Act::Refund(cost(text)),
            (Some(text), None, Some(name), None) => Act::Admit(cost(text), number(name)),
            (Some(text), None, None, Some(name)) => Act::Settle(number(name), cost(text)),
            _ => panic!("a step has either a cost or a refund"),
        }
    }

    /// What must come out.
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

/// The folder that the vectors are in.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
}

/// Every case of every file, in order of their names.
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
        cases.len() > 400,
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

/// Runs every case through subjects that `start` makes, one a case, and panics at the first difference in any field.
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
