//! The Lua that decides, put together for the limits of a policy of one file an algorithm.
//!
//! Functions and tables are made anew with every call of a script, and they cost more than all else. So the script that
//! checks the keys of a policy is one run of plain statements: the sections of each limit's file, one after the other, with
//! names of their own. `lua/frame.lua` says which sections there are and what the words in capitals mean.
//!
//! Redis keeps every script for good. So there are few: policies of many limits, and everything but a check, use one generic
//! script (`lua/generic.lua`), made of the same sections.

use std::sync::{Arc, LazyLock};

use tidegate_core::remote::stored_limits;
use tidegate_core::{Algorithm, Policy};

/// A script and the name that Redis knows it by.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: Arc<str>,
    pub(crate) sha: Arc<str>,
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Check,
    Refund,
    /// Gives back what still counts of a request.
    Settle,
    /// Takes what fits.
    Charge,
}

/// How many checks a call of a script makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    One,
    Many,
}

/// Policies of more limits than this use the generic script. Limits are sorted by their algorithm, so that there are 34
/// shapes of at most three limits, with two scripts each: that bounds what Redis keeps of them.
pub(crate) const MOST_LIMITS: usize = 3;

const FRAME: &str = include_str!("lua/frame.lua");
const CHECK: &str = include_str!("lua/check.lua");
const GENERIC: &str = include_str!("lua/generic.lua");

/// The kinds of limits, by the number that the generic script knows them by.
const FILES: [&str; 4] = [
    include_str!("lua/bucket.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window_counter.lua"),
    LOG,
];
const LOG: &str = include_str!("lua/sliding_window_log.lua");

/// The number that the generic script knows an algorithm by.
pub(crate) const fn kind(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => 1,
        Algorithm::FixedWindow => 2,
        Algorithm::SlidingWindowCounter => 3,
        Algorithm::SlidingWindowLog => 4,
    }
}

impl Script {
    /// The script that checks the keys of one policy; `None` for a policy of too many limits.
    pub(crate) fn check(policy: &Policy, load: Load) -> Option<Self> {
        let composer = Composer::new(policy, load);
        (composer.parts.len() <= MOST_LIMITS).then(|| Self::of(composer.compose(CHECK)))
    }

    /// The script for everything else. There is one.
    pub(crate) fn generic() -> &'static Self {
        static GENERIC_SCRIPT: LazyLock<Script> =
            LazyLock::new(|| Script::of(Composer::generic().compose(GENERIC)));
        &GENERIC_SCRIPT
    }

    fn of(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().into();
        Self {
            text: text.into(),
            sha,
        }
    }
}

/// A limit as the script knows it.
#[derive(Clone, Copy)]
struct Part {
    file: &'static str,
    is_log: bool,
    /// Where the key of a log is, from the check's first one on.
    log_at: usize,
}

struct Composer {
    load: Load,
    /// Empty in the generic script, which learns the limits from its arguments.
    parts: Vec<Part>,
    record_count: usize,
    log_count: usize,
    text: String,
    /// How many numbers of the first argument have names.
    numbers: usize,
}

/// The owner of some lines: a limit by its number from 1 on, or any limit of one algorithm in the generic script.
#[derive(Clone, Copy)]
struct Scope {
    limit: usize,
    file: &'static str,
}

impl Composer {
    fn new(policy: &Policy, load: Load) -> Self {
        let algorithms: Vec<Algorithm> = stored_limits(policy)
            .map(|limit| limit.algorithm())
            .collect();
        let is_log = |algorithm| algorithm == Algorithm::SlidingWindowLog;
        let log_count = algorithms
            .iter()
            .filter(|algorithm| is_log(**algorithm))
            .count();
        let record_count = algorithms.len() - log_count;
        let mut log_at = usize::from(record_count > 0);
        let mut parts = Vec::new();
        for algorithm in algorithms {
            let file = FILES[usize::from(kind(algorithm)) - 1];
            parts.push(Part {
                file,
                is_log: is_log(algorithm),
                log_at,
            });
            log_at += usize::from(is_log(algorithm));
        }
        Self {
            load,
            parts,
            record_count,
            log_count,
            text: String::new(),
            numbers: 0,
        }
    }

    fn generic() -> Self {
        Self {
            load: Load::Many,
            parts: Vec::new(),
            record_count: 0,
            log_count: 0,
            text: String::new(),
            numbers: 0,
        }
    }

    fn is_generic(&self) -> bool {
        self.parts.is_empty()
    }

    fn compose(mut self, file: &'static str) -> String {
        self.add(file, None);
        self.text
    }

    /// Adds some lines, and what they ask for.
    fn add(&mut self, lines: &str, scope: Option<Scope>) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line
                .strip_prefix("--@ ")
                .map(|directive| directive.split_once(' ').unwrap_or((directive, "")))
            {
                Some(("include", name)) if self.is_generic() => {
                    self.add(section(FRAME, name), scope)
                }
                Some(("include", name)) => self.add(self.frame_section(name), scope),
                Some(("own", name)) => {
                    if let Some(Scope { file, .. }) = scope {
                        self.add(section(file, name), scope);
                    }
                }
                Some(("each", name)) if self.is_generic() => self.add_for_any(name),
                Some(("each", name)) => {
                    for (limit, part) in (1..).zip(self.parts.clone()) {
                        self.add(
                            self.own_section(part.file, name),
                            Some(Scope {
                                limit,
                                file: part.file,
                            }),
                        );
                    }
                }
                Some(("record", name)) => {
                    for (limit, part) in (1..)
                        .zip(self.parts.clone())
                        .filter(|(_, part)| !part.is_log)
                    {
                        self.add(
                            section(FRAME, name),
                            Some(Scope {
                                limit,
                                file: part.file,
                            }),
                        );
                    }
                }
                Some(("all", name)) => {
                    let files = FILES.iter().filter(|file| {
                        self.is_generic()
                            || self
                                .parts
                                .iter()
                                .any(|part| std::ptr::eq(part.file, **file))
                    });
                    for file in files.copied().collect::<Vec<_>>() {
                        self.add(section(file, name), None);
                    }
                }
                _ if line.starts_with("--") => {}
                _ => self.add_line(line, scope),
            }
        }
    }

    /// The section of an algorithm for policies of as many limits as this one has.
    fn own_section(&self, file: &'static str, name: &str) -> &'static str {
        let several = format!("{name}, several");
        if self.parts.len() > 1 && has_section(file, &several) {
            section(file, &several)
        } else {
            section(file, name)
        }
    }

    /// The section of every algorithm, in a loop that chooses by the limit's kind.
    fn add_for_any(&mut self, name: &str) {
        self.text
            .push_str("for limit = 1, #limits do\nlocal l = limits[limit]\n");
        for (number, file) in FILES.into_iter().enumerate() {
            let several = format!("{name}, several");
            let scope = Some(Scope { limit: 0, file });
            self.text.push_str(&format!(
                "{} l.kind == {} then\n",
                if number == 0 { "if" } else { "elseif" },
                number + 1
            ));
            if has_section(file, &several) {
                self.text.push_str("if l.is_alone then\n");
                self.add(section(file, name), scope);
                self.text.push_str("else\n");
                self.add(section(file, &several), scope);
                self.text.push_str("end\n");
            } else {
                self.add(section(file, name), scope);
            }
        }
        self.text.push_str("end\nend\n");
    }

    /// A section of the frame, of those that there are several of the one that fits.
    fn frame_section(&self, name: &str) -> &'static str {
        let chosen = match (name, self.record_count, self.log_count) {
            ("texts" | "joined" | "keep" | "write values", 0, _) | ("logs" | "no logs", _, 0) => {
                return "";
            }
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

    fn add_line(&mut self, line: &str, scope: Option<Scope>) {
        let (names, values) = line.split_once('=').unwrap_or((line, ""));
        let mut line = line.to_owned();
        if self.is_generic()
            && names.contains('$')
            && let Some(names) = names.strip_prefix("local ")
        {
            // In a table nothing is declared.
            if values.is_empty() {
                return;
            }
            line = format!("{names}={values}");
            if values.trim() == "NUMBERS" {
                let formats = "I8".repeat(names.matches('$').count());
                line = format!(
                    "{}, number_at = unpack_numbers('>{formats}', ARGV[1], number_at)",
                    names.trim()
                );
            } else if values.trim() == "IDENTITY" {
                line = format!(
                    "{names}= string.sub(ARGV[1], number_at, number_at + 15)\nnumber_at = number_at + 16"
                );
            }
        }
        let count = names.matches('$').count();
        let mut rest = &line[..];
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
            let (before, from) = rest.split_at(start);
            let end = from
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$'))
                .unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            self.text.push_str(before);
            self.add_word(word, scope, count);
            rest = after;
        }
        self.text.push_str(rest);
        self.text.push('\n');
    }

    fn add_word(&mut self, word: &str, scope: Option<Scope>, names: usize) {
        let keys_a_check = self.log_count + usize::from(self.record_count > 0);
        let limit = scope.map_or(0, |scope| scope.limit);
        let word = match word {
            "NUMBERS" => {
                // The time and how long to keep have no `$`.
                let names = if names == 0 { 2 } else { names };
                let from = 1 + 8 * self.numbers;
                self.numbers += names;
                format!("unpack_numbers('>{}', ARGV[1], {from})", "I8".repeat(names))
            }
            "IDENTITY" => {
                let from = 1 + 8 * self.numbers;
                self.numbers += 2;
                format!("string.sub(ARGV[1], {from}, {})", from + 15)
            }
            "VERDICT" if self.load == Load::One => "verdict".to_owned(),
            "VERDICT" => "verdicts[check]".to_owned(),
            "KEYS_A_CHECK" => keys_a_check.to_string(),
            "LOG_COUNT" => self.log_count.to_string(),
            "LOG_KIND" => kind(Algorithm::SlidingWindowLog).to_string(),
            "LOG" if self.is_generic() => "l.log_at".to_owned(),
            "LOG" => self
                .parts
                .get(limit.wrapping_sub(1))
                .map_or(0, |part| part.log_at)
                .to_string(),
            _ => match word.strip_suffix('$') {
                Some(name) if self.is_generic() => format!("l.{name}"),
                Some(name) => format!("{name}{limit}"),
                None => word.to_owned(),
            },
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
    let Some(start) = file.find(&header).map(|at| at + header.len()) else {
        return "";
    };
    let Some(text) = file.get(start..) else {
        return "";
    };
    let mut end = text.len();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let is_header = line.strip_prefix("--@ ").is_some_and(|rest| {
            !["include ", "each ", "own ", "record ", "all "]
                .iter()
                .any(|directive| rest.starts_with(directive))
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
        let policies = [
            "gcra 1/s",
            "sliding_window_log 1/s",
            "gcra 1/s; sliding_window_log 2/s; fixed_window 3/m",
        ];
        let mut scripts = vec![Script::generic().clone()];
        for policy in policies {
            scripts.extend(
                [Load::One, Load::Many]
                    .map(|load| Script::check(&policy.parse().unwrap(), load).unwrap()),
            );
        }
        for script in scripts {
            let text = script.text.replace("'^%d+$'", "");
            for left in [
                "$",
                "--",
                "NUMBERS",
                "IDENTITY",
                "VERDICT",
                "KEYS_A_CHECK",
                "LOG_",
            ] {
                assert!(!text.contains(left), "{left} is left in:\n{text}");
            }
        }
    }

    /// The scripts as Redis runs them, for a reader: `lua/composed/`. `TIDEGATE_UPDATE_GOLDEN=1 cargo test -p tidegate-redis
    /// golden` writes them anew.
    #[test]
    fn golden_scripts_are_what_redis_runs() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lua/composed");
        let check = |policy: &str, load| Script::check(&policy.parse().unwrap(), load).unwrap();
        let mut scripts = vec![("generic".to_owned(), Script::generic().clone())];
        for (name, policy) in [
            ("bucket", "gcra 1/s"),
            ("fixed_window", "fixed_window 1/s"),
            ("sliding_window_counter", "sliding_window_counter 1/s"),
            ("sliding_window_log", "sliding_window_log 1/s"),
            (
                "bucket_window_and_log",
                "gcra 1/s; fixed_window 1/m; sliding_window_log 1/h",
            ),
        ] {
            scripts.push((format!("{name}.one"), check(policy, Load::One)));
            scripts.push((format!("{name}.many"), check(policy, Load::Many)));
        }
        for (name, script) in scripts {
            let path = folder.join(format!("{name}.lua"));
            if std::env::var_os("TIDEGATE_UPDATE_GOLDEN").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &*script.text).unwrap();
            }
            let golden = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                golden == *script.text,
                "{} is not what Redis runs: see this test",
                path.display()
            );
        }
    }

    /// Whatever limits clients send: their order, their numbers and their count make no more scripts than this.
    #[test]
    fn a4_the_number_of_scripts_is_bounded() {
        let kinds = [
            "gcra 1/s",
            "leaky_bucket 2/s",
            "fixed_window 2/s",
            "sliding_window_counter 3/s",
            "sliding_window_log 4/s",
        ];
        let mut shas = std::collections::HashSet::from([Script::generic().sha.clone()]);
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = Script::generic().text.len();
        for _ in 0..5_000 {
            let limits: Vec<&str> = (0..random.usize(1..=8))
                .map(|_| *random.choice(&kinds).unwrap())
                .collect();
            let policy = limits.join("; ").parse().unwrap();
            for load in [Load::One, Load::Many] {
                if let Some(script) = Script::check(&policy, load)
                    && shas.insert(script.sha)
                {
                    bytes += script.text.len();
                }
            }
        }
        assert_eq!(shas.len(), 2 * 34 + 1);
        assert!(bytes < 500_000, "{bytes}");
    }
}
