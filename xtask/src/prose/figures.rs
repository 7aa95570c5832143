//! Figures about the language: clause openers, words, documentation share, function lengths.

use std::collections::BTreeMap;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::rules::opens_with_clause;
use super::text::{Kind, Passage, collect, tracked_files};

/// Crates that users add to their own.
const PUBLIC: [&str; 7] = [
    "", "-core", "-redis", "-http", "-tower", "-actix", "-macros",
];

/// Prints the figures of the repository at `root`.
pub(crate) fn print(root: &Path) -> anyhow::Result<()> {
    let passages = collect(root)?;
    let docs = of_kind(&passages, &[Kind::Doc]);
    let comments = of_kind(&passages, &[Kind::Doc, Kind::Comment]);
    let prose = of_kind(&passages, &[Kind::Doc, Kind::Comment, Kind::Markdown]);
    println!("clause openers, doc comments    {:5.1} %", openers(&docs));
    println!(
        "clause openers, all comments    {:5.1} %",
        openers(&comments)
    );
    println!(
        "\"returns\" per 1,000 doc words   {:6.2}",
        frequency(&docs, &["returns"])
    );
    println!(
        "nobody/somebody per 1,000 words {:6.2}",
        frequency(&prose, &PERSONS)
    );
    println!(
        "who/whom per 1,000 words        {:6.2}",
        frequency(&prose, &["who", "whom"])
    );
    println!(
        "whose per 1,000 words           {:6.2}",
        frequency(&prose, &["whose"])
    );
    println!(
        "documentation, public crates    {:5.1} % of lines",
        documentation_share(root)?
    );
    functions(root)
}

const PERSONS: [&str; 5] = ["nobody", "somebody", "everybody", "anybody", "whoever"];

fn of_kind<'a>(passages: &'a [Passage], kinds: &[Kind]) -> Vec<&'a Passage> {
    passages
        .iter()
        .filter(|passage| kinds.contains(&passage.kind))
        .collect()
}

fn openers(passages: &[&Passage]) -> f64 {
    let found = passages
        .iter()
        .filter(|passage| opens_with_clause(passage))
        .count();
    100.0 * found as f64 / passages.len().max(1) as f64
}

fn frequency(passages: &[&Passage], words: &[&str]) -> f64 {
    let mut all = 0_usize;
    let mut found = 0_usize;
    for passage in passages {
        let of_passage = passage.words();
        all += of_passage.len();
        found += of_passage
            .iter()
            .filter(|word| words.contains(&word.as_str()))
            .count();
    }
    1_000.0 * found as f64 / all.max(1) as f64
}

/// Returns the share of non-empty lines under `src/` of the public crates that are doc comments.
fn documentation_share(root: &Path) -> anyhow::Result<f64> {
    let mut lines = 0_usize;
    let mut documentation = 0_usize;
    for file in tracked_files(root)?.iter().filter(|file| is_public(file)) {
        let text = std::fs::read_to_string(root.join(file))?;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            lines += 1;
            documentation += usize::from(line.starts_with("///") || line.starts_with("//!"));
        }
    }
    Ok(100.0 * documentation as f64 / lines.max(1) as f64)
}

fn is_public(file: &str) -> bool {
    let is_test = file.contains("/tests/") || file.ends_with("tests.rs");
    let of_crate = |name: &&str| file.starts_with(&format!("crates/tidegate{name}/src/"));
    file.ends_with(".rs") && !is_test && PUBLIC.iter().any(of_crate)
}

/// Prints the tokens per function, the longest functions and type names that occur twice.
fn functions(root: &Path) -> anyhow::Result<()> {
    let mut sizes = Vec::new();
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in tracked_files(root)? {
        if !file.ends_with(".rs") || !file.contains("/src/") || file.contains("/tests/") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&file))?;
        if let Ok(tokens) = text.parse::<TokenStream>() {
            read_items(&file, tokens, &mut sizes, &mut types);
        }
    }
    sizes.sort();
    let at = |share: usize| {
        sizes
            .get(sizes.len() * share / 100)
            .map_or(0, |(size, _)| *size)
    };
    println!(
        "tokens per function             p50 {}, p90 {}, p99 {} ({} functions)",
        at(50),
        at(90),
        at(99),
        sizes.len()
    );
    for (size, name) in sizes.iter().rev().take(10) {
        println!("    {size:5} {name}");
    }
    types.retain(|_, files| files.len() > 1);
    println!("type names used twice           {}", types.len());
    for (name, files) in types {
        println!("    {name}: {}", files.join(", "));
    }
    Ok(())
}

fn read_items(
    file: &str,
    tokens: TokenStream,
    sizes: &mut Vec<(usize, String)>,
    types: &mut BTreeMap<String, Vec<String>>,
) {
    let mut function = None;
    let mut before = String::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let is_body = group.delimiter() == Delimiter::Brace;
                if let Some(name) = function.take_if(|_| is_body) {
                    sizes.push((count(group.stream()), format!("{file}: {name}")));
                }
                read_items(file, group.stream(), sizes, types);
                before.clear();
            }
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                match before.as_str() {
                    "fn" => function = Some(name.clone()),
                    "struct" | "enum" | "trait" => {
                        types.entry(name.clone()).or_default().push(file.to_owned());
                    }
                    _ => {}
                }
                before = name;
            }
            TokenTree::Punct(punct) => {
                if punct.as_char() == ';' {
                    function = None;
                }
                before.clear();
            }
            TokenTree::Literal(_) => before.clear(),
        }
    }
}

/// Counts the tokens of a body; a pair of delimiters counts as two.
fn count(tokens: TokenStream) -> usize {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Group(group) => 2 + count(group.stream()),
            _ => 1,
        })
        .sum()
}
