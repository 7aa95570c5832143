//! The Lua that decides, put together for the limits of a policy of one file an algorithm.
//!
//! In Redis what a script does not do is what makes it fast: functions and tables are made anew with every call. So a
//! policy's script is one run of plain statements: the sections of each limit's file, one after the other, with names of
//! their own. Which sections there are and what the words in capitals mean is said in `lua/frame.lua`.

use std::sync::Arc;

use tidegate_core::{Algorithm, Policy};

/// A script and the name that Redis knows it by.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: Arc<str>,
    pub(crate) sha: Arc<str>,
}

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Check,
    Refund,
}

/// How many checks a call of a script makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    One,
    Many,
}

/// Lua has room for 200 names at a time. Policies of more limits than this keep theirs in a table.
const MOST_NAMED: usize = 8;

const FRAME: &str = include_str!("lua/frame.lua");

impl Task {
    const fn file(self) -> &'static str {
        match self {
            Self::Check => include_str!("lua/check.lua"),
            Self::Refund => include_str!("lua/refund.lua"),
        }
    }
}

const fn file(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => include_str!("lua/fixed_window.lua"),
        Algorithm::SlidingWindowLog => include_str!("lua/sliding_window_log.lua"),
        Algorithm::SlidingWindowCounter => include_str!("lua/sliding_window_counter.lua"),
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => include_str!("lua/bucket.lua"),
    }
}

impl Script {
    pub(crate) fn new(policy: &Policy, task: Task, load: Load) -> Self {
        Self::of(Composer::new(policy, load).compose(task))
    }

    pub(crate) fn of(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().into();
        Self { text: text.into(), sha }
    }
}

/// A limit as the script knows it.
struct Part {
    file: &'static str,
    is_log: bool,
    /// Where the key of a log is, from the check's first one on.
    log_at: usize,
}

struct Composer {
    load: Load,
    parts: Vec<Part>,
    record_count: usize,
    log_count: usize,
    text: String,
    /// How many numbers of the first argument have names.
    numbers: usize,
}

impl Composer {
    fn new(policy: &Policy, load: Load) -> Self {
        let is_log = |algorithm| algorithm == Algorithm::SlidingWindowLog;
        let algorithms: Vec<Algorithm> = policy.limits().iter().map(|limit| limit.algorithm()).collect();
        let log_count = algorithms.iter().filter(|algorithm| is_log(**algorithm)).count();
        let record_count = algorithms.len() - log_count;
        let mut log_at = usize::from(record_count > 0);
        let mut parts = Vec::new();
        for algorithm in algorithms {
            parts.push(Part { file: file(algorithm), is_log: is_log(algorithm), log_at });
            log_at += usize::from(is_log(algorithm));
        }
        Self { load, parts, record_count, log_count, text: String::new(), numbers: 0 }
    }

    fn compose(mut self, task: Task) -> String {
        if self.parts.len() > MOST_NAMED {
            self.text.push_str("local s = {}\n");
        }
        self.add(task.file(), None);
        self.text
    }

    /// Adds some lines, and what they ask for. `limit` is the number of the limit that they are of, from 1 on.
    fn add(&mut self, lines: &str, limit: Option<usize>) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.strip_prefix("--@ ").map(|directive| directive.split_once(' ').unwrap_or((directive, ""))) {
                Some(("include", name)) => self.add(self.frame_section(name), limit),
                Some(("each", name)) => {
                    for index in 0..self.parts.len() {
                        self.add(section(self.parts[index].file, name), Some(index + 1));
                    }
                }
                Some(("record", name)) => {
                    for index in (0..self.parts.len()).filter(|index| !self.parts[*index].is_log).collect::<Vec<_>>() {
                        self.add(section(FRAME, name), Some(index + 1));
                    }
                }
                Some(("all", name)) => {
                    let mut files: Vec<&str> = self.parts.iter().map(|part| part.file).collect();
                    files.sort_unstable();
                    files.dedup();
                    for file in files {
                        self.add(section(file, name), None);
                    }
                }
                _ if line.starts_with("--") => {}
                _ => self.add_line(line, limit),
            }
        }
    }

    /// A section of the frame, of those that there are several of the one that fits.
    fn frame_section(&self, name: &str) -> &'static str {
        let chosen = match (name, self.record_count, self.log_count) {
            ("texts" | "joined" | "keep" | "write values", 0, _) | ("logs" | "no logs", _, 0) => return "",
            ("values", 0, _) => "no values",
            ("values", _, _) if self.load == Load::One => "values",
            ("values", _, 0) => "values of one",
            ("values", _, _) => "values of several",
            ("answer", _, 0) => "answer without logs",
            ("answer", _, _) => "answer with logs",
            ("texts", 1, _) => "texts of one",
            ("texts", _, _) => "texts of several",
            ("joined", 1, _) => "joined of one",
            ("joined", _, _) => "joined of several",
            _ => name,
        };
        if self.load == Load::One && has_section(FRAME, &format!("{chosen}, alone")) {
            return section(FRAME, &format!("{chosen}, alone"));
        }
        section(FRAME, chosen)
    }

    fn add_line(&mut self, line: &str, limit: Option<usize>) {
        let mut line = line;
        // How many numbers are wanted.
        let names = line.split('=').next().unwrap_or_default().matches(',').count() + 1;
        // In a table nothing is declared.
        let is_tabled = self.parts.len() > MOST_NAMED;
        if is_tabled
            && line.split('=').next().is_some_and(|names| names.contains('$'))
            && let Some(names) = line.strip_prefix("local ")
        {
            if !names.contains('=') {
                return;
            }
            line = names;
        }
        let mut rest = line;
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
            let (before, from) = rest.split_at(start);
            let end = from.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$')).unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            self.text.push_str(before);
            self.add_word(word, limit, names);
            rest = after;
        }
        self.text.push_str(rest);
        self.text.push('\n');
    }

    /// A name as the limit's own.
    fn named(&self, word: &str, limit: Option<usize>) -> String {
        let number = limit.unwrap_or_default();
        match word.strip_suffix('$') {
            Some(name) if self.parts.len() > MOST_NAMED => format!("s.{name}{number}"),
            Some(name) => format!("{name}{number}"),
            None => word.to_owned(),
        }
    }

    fn add_word(&mut self, word: &str, limit: Option<usize>, names: usize) {
        let keys_a_check = self.log_count + usize::from(self.record_count > 0);
        let word = match word {
            "NUMBERS" => {
                let from = 1 + 8 * self.numbers;
                self.numbers += names;
                format!("unpack_numbers('>{}', ARGV[1], {from})", "I8".repeat(names))
            }
            "VERDICT" if self.load == Load::One => "verdict".to_owned(),
            "VERDICT" => "verdicts[check]".to_owned(),
            "KEYS_A_CHECK" => keys_a_check.to_string(),
            "LOG_COUNT" => self.log_count.to_string(),
            "LOG" => limit.and_then(|limit| self.parts.get(limit - 1)).map_or(0, |part| part.log_at).to_string(),
            _ => self.named(word, limit),
        };
        self.text.push_str(&word);
    }
}

fn has_section(file: &str, name: &str) -> bool {
    file.contains(&format!("\n--@ {name}\n"))
}

/// A section of a file: from the line that names it to the next that names one. Nothing where there is none.
fn section(file: &'static str, name: &str) -> &'static str {
    let header = format!("\n--@ {name}\n");
    let Some(start) = file.find(&header).map(|at| at + header.len()) else { return "" };
    let Some(text) = file.get(start..) else { return "" };
    let mut end = text.len();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let is_header = line.strip_prefix("--@ ").is_some_and(|rest| {
            !["include ", "each ", "record ", "all "].iter().any(|directive| rest.starts_with(directive))
        });
        if is_header {
            end = at;
            break;
        }
        at += line.len();
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_replaced() {
        let many = ["gcra 1/s; fixed_window 2/s; sliding_window_counter 3/s; sliding_window_log 4/s"; 5].join("; ");
        let policies =
            ["gcra 1/s", "sliding_window_log 1/s", "gcra 1/s; sliding_window_log 2/s; fixed_window 3/m", &many];
        for policy in policies {
            for (task, load) in [(Task::Check, Load::One), (Task::Check, Load::Many), (Task::Refund, Load::Many)] {
                let script = Script::new(&policy.parse().unwrap(), task, load).text.replace("'^%d+$'", "");
                for left in ["$", "--", "NUMBERS", "VERDICT", "KEYS_A_CHECK", "LOG"] {
                    assert!(!script.contains(left), "{left} is left in the script of {policy}:\n{script}");
                }
            }
        }
    }
}
