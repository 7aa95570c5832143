//! Composes the Lua scripts that decide, from one file per algorithm.
//!
//! # Why scripts are composed
//!
//! Redis creates functions and tables again for every call of a script, and they cost more than
//! everything else. The script of a policy is therefore one sequence of plain statements, without
//! functions or loops over limits.
//!
//! # How sections are combined
//!
//! Each file in `lua/` consists of sections. A line `--@ name` starts the section `name`. Inside a
//! section, these directives insert others:
//!
//! | Directive | Inserts |
//! |---|---|
//! | `--@ include NAME` | the section of `frame.lua`, in the variant that fits the policy |
//! | `--@ each NAME` | the section of every limit's algorithm, one after the other |
//! | `--@ own NAME` | another section of the same algorithm |
//! | `--@ record NAME` | the section of `frame.lua`, once for every limit that is stored in the record |
//! | `--@ all NAME` | the section of every algorithm in use, once |
//!
//! A section `NAME, several` replaces `NAME` if the policy has several limits, and a section `NAME,
//! alone` replaces it in a script for one check. `name$` is a variable of the limit: `name1`,
//! `name2` and so on. Words in capitals are replaced by [`Composer::add_word`].
//!
//! `lua/check.lua` is the script of a policy, `lua/generic.lua` the one for everything else. In the
//! generic script `each` becomes a loop over limits that selects the algorithm, and `name$` becomes
//! `l.name`.
//!
//! `lua/composed/` contains the results, as Redis runs them. A test keeps them up to date.
//!
//! # Why there are few scripts
//!
//! Redis keeps every script for good, and clients can send any limits. Limits are therefore stored
//! in a fixed order, policies of many limits use the generic script, and there are at most 69
//! scripts.

use std::sync::{Arc, LazyLock};

use tidegate_core::remote::stored_limits;
use tidegate_core::{Algorithm, Policy};

/// A script and its SHA-1, by which Redis knows it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: Arc<str>,
    pub(crate) sha: Arc<str>,
}

/// The task of a script call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptTask {
    Check,
    /// Decides without taking.
    Peek,
    Refund,
    /// Gives back what still counts of a request.
    Settle,
    /// Takes as much as the limits and their debt hold.
    Charge,
}

/// The number of checks in a script call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchSize {
    One,
    Many,
}

/// The maximum number of limits of a policy with its own script. Limits are sorted by algorithm, so
/// there are 34 combinations of at most three limits, with two scripts each.
pub(crate) const MAX_LIMITS: usize = 3;

const FRAME: &str = include_str!("lua/frame.lua");
const CHECK: &str = include_str!("lua/check.lua");
const GENERIC: &str = include_str!("lua/generic.lua");

/// The algorithms, in the order of their numbers in the generic script.
const FILES: [&str; 4] = [
    include_str!("lua/bucket.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window_counter.lua"),
    LOG,
];
const LOG: &str = include_str!("lua/sliding_window_log.lua");

/// Returns the number of an algorithm in the generic script.
pub(crate) const fn kind(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => 1,
        Algorithm::FixedWindow => 2,
        Algorithm::SlidingWindowCounter => 3,
        Algorithm::SlidingWindowLog => 4,
        // No section has this number, so the script fails. A test covers every algorithm.
        _ => 0,
    }
}

impl Script {
    /// Returns the script that checks the keys of a policy, or `None` if the policy has too many
    /// limits.
    pub(crate) fn check(policy: &Policy, load: BatchSize) -> Option<Self> {
        let composer = Composer::new(policy, load);
        (composer.parts.len() <= MAX_LIMITS).then(|| Self::of(composer.compose(CHECK)))
    }

    /// Returns the script for everything else. There is one.
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

/// A limit as the script sees it.
#[derive(Clone, Copy)]
struct LimitSections {
    file: &'static str,
    is_log: bool,
    /// The index of a log's key, counted from the check's first key.
    log_at: usize,
}

struct Composer {
    load: BatchSize,
    /// Empty for the generic script, which gets the limits from its arguments.
    parts: Vec<LimitSections>,
    record_count: usize,
    log_count: usize,
    text: String,
    /// The count of named numbers in the first argument.
    numbers: usize,
}

/// The limit that lines belong to, by its number from 1 on, or an algorithm in the generic script.
#[derive(Clone, Copy)]
struct SectionScope {
    limit: usize,
    file: &'static str,
}

impl Composer {
    fn new(policy: &Policy, load: BatchSize) -> Self {
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
            parts.push(LimitSections {
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
            load: BatchSize::Many,
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

    /// Adds lines, and the sections that their directives insert.
    fn add(&mut self, lines: &str, scope: Option<SectionScope>) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let directive = line.strip_prefix("--@ ");
            match directive.map(|text| text.split_once(' ').unwrap_or((text, ""))) {
                Some((directive, name)) => self.add_directive(directive, name, scope),
                None if line.starts_with("--") => {}
                None => self.add_line(line, scope),
            }
        }
    }

    fn add_directive(&mut self, directive: &str, name: &str, scope: Option<SectionScope>) {
        match directive {
            "include" if self.is_generic() => self.add(section(FRAME, name), scope),
            "include" => self.add(self.frame_section(name), scope),
            "own" => {
                if let Some(SectionScope { file, .. }) = scope {
                    self.add(section(file, name), scope);
                }
            }
            "each" if self.is_generic() => self.add_for_any(name),
            "each" => {
                for (limit, LimitSections { file, .. }) in (1..).zip(self.parts.clone()) {
                    let text = self.own_section(file, name);
                    self.add(text, Some(SectionScope { limit, file }));
                }
            }
            "record" => {
                for (limit, part) in (1..).zip(self.parts.clone()) {
                    if !part.is_log {
                        let file = part.file;
                        self.add(section(FRAME, name), Some(SectionScope { limit, file }));
                    }
                }
            }
            "all" => {
                for file in FILES
                    .into_iter()
                    .filter(|file| self.uses(file))
                    .collect::<Vec<_>>()
                {
                    self.add(section(file, name), None);
                }
            }
            _ => {}
        }
    }

    /// Returns `true` if a limit uses the algorithm of this file.
    fn uses(&self, file: &'static str) -> bool {
        let is_used = |part: &LimitSections| std::ptr::eq(part.file, file);
        self.is_generic() || self.parts.iter().any(is_used)
    }

    /// Returns the section of an algorithm for policies with this number of limits.
    fn own_section(&self, file: &'static str, name: &str) -> &'static str {
        let several = format!("{name}, several");
        if self.parts.len() > 1 && has_section(file, &several) {
            section(file, &several)
        } else {
            section(file, name)
        }
    }

    /// Adds the section of every algorithm, in a loop that selects by the limit's kind.
    fn add_for_any(&mut self, name: &str) {
        self.text
            .push_str("for limit = 1, #limits do\nlocal l = limits[limit]\n");
        for (number, file) in FILES.into_iter().enumerate() {
            let several = format!("{name}, several");
            let scope = Some(SectionScope { limit: 0, file });
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

    /// Returns a section of the frame, in the variant that fits the policy.
    fn frame_section(&self, name: &str) -> &'static str {
        let chosen = match (name, self.record_count, self.log_count) {
            ("texts" | "joined" | "keep" | "write values", 0, _) | ("logs" | "no logs", _, 0) => {
                return "";
            }
            ("values", 0, _) => "no values",
            ("values", _, _) if self.load == BatchSize::One => "values",
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
        if self.load == BatchSize::One && has_section(FRAME, &format!("{chosen}, alone")) {
            return section(FRAME, &format!("{chosen}, alone"));
        }
        section(FRAME, chosen)
    }

    fn add_line(&mut self, connection: &str, scope: Option<SectionScope>) {
        let (names, values) = connection.split_once('=').unwrap_or((connection, ""));
        let mut connection = connection.to_owned();
        if self.is_generic()
            && names.contains('$')
            && let Some(names) = names.strip_prefix("local ")
        {
            // A table needs no declaration.
            if values.is_empty() {
                return;
            }
            connection = format!("{names}={values}");
            if values.trim() == "NUMBERS" {
                let formats = "I8".repeat(names.matches('$').count());
                connection = format!(
                    "{}, number_at = unpack_numbers('>{formats}', ARGV[1], number_at)",
                    names.trim()
                );
            } else if values.trim() == "IDENTITY" {
                connection = format!(
                    "{names}= string.sub(ARGV[1], number_at, number_at + 15)\nnumber_at = number_at + 16"
                );
            }
        }
        let count = names.matches('$').count();
        let mut rest = &connection[..];
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

    fn add_word(&mut self, word: &str, scope: Option<SectionScope>, names: usize) {
        let keys_per_check = self.log_count + usize::from(self.record_count > 0);
        let limit = scope.map_or(0, |scope| scope.limit);
        let word = match word {
            "NUMBERS" => {
                // The time and the time to keep have no `$`.
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
            "VERDICT" if self.load == BatchSize::One => "verdict".to_owned(),
            "VERDICT" => "verdicts[check]".to_owned(),
            "KEYS_PER_CHECK" => keys_per_check.to_string(),
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

/// Returns a section of a file: from the line that names it to the next one. Returns nothing if
/// there is none.
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
    for connection in text.split_inclusive('\n') {
        let is_header = connection.strip_prefix("--@ ").is_some_and(|rest| {
            !["include ", "each ", "own ", "record ", "all "]
                .iter()
                .any(|directive| rest.starts_with(directive))
        });
        if is_header {
            end = at;
            break;
        }
        at += connection.len();
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
                [BatchSize::One, BatchSize::Many]
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
                "KEYS_PER_CHECK",
                "LOG_",
            ] {
                assert!(!text.contains(left), "{left} is left in:\n{text}");
            }
        }
    }

    /// Compares `lua/composed/` with the composed scripts. To update the files, run
    /// `TIDEGATE_UPDATE_GOLDEN=1 cargo test -p tidegate-redis golden`.
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
            scripts.push((format!("{name}.one"), check(policy, BatchSize::One)));
            scripts.push((format!("{name}.many"), check(policy, BatchSize::Many)));
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
                "{} is out of date: run TIDEGATE_UPDATE_GOLDEN=1 cargo test -p tidegate-redis golden",
                path.display()
            );
        }
    }

    #[test]
    fn every_algorithm_has_sections() {
        for algorithm in Algorithm::ALL {
            assert_ne!(kind(algorithm), 0, "{algorithm:?}");
        }
    }

    /// Clients cannot create more scripts than this: not by the order, numbers or count of limits.
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
            for load in [BatchSize::One, BatchSize::Many] {
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
