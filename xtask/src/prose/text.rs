//! Collects the prose of the repository: comments, string literals and Markdown paragraphs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use proc_macro2::{TokenStream, TokenTree};

/// The kind of text that a passage comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A documentation comment: `///` or `//!`.
    Doc,
    /// A plain comment in Rust, Lua, TOML or a shell script.
    Comment,
    /// A string literal in Rust: an error, a log event, a help text.
    Message,
    /// A paragraph, list item or table row of a Markdown page.
    Markdown,
}

/// A run of prose: one comment block, one literal, one paragraph.
#[derive(Debug)]
pub(crate) struct Passage {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

impl Passage {
    /// Returns the words of this passage without code spans.
    pub(crate) fn words(&self) -> Vec<String> {
        let prose = without_code(&self.text);
        prose
            .split(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '_'))
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect()
    }

    /// Returns the first 100 characters, for a message.
    pub(crate) fn excerpt(&self) -> String {
        self.text.chars().take(100).collect()
    }
}

/// Returns every passage of the files that git tracks.
pub(crate) fn collect(root: &Path) -> anyhow::Result<Vec<Passage>> {
    let mut passages = Vec::new();
    for file in tracked_files(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else {
            continue;
        };
        match file.rsplit_once('.').map(|(_, extension)| extension) {
            Some("rs") => {
                comments(&file, &text, "//", &mut passages);
                messages(&file, &text, &mut passages);
            }
            Some("lua") if !file.contains("/composed/") => {
                comments(&file, &text, "--", &mut passages);
            }
            Some("toml" | "sh" | "yml" | "yaml" | "service") => {
                comments(&file, &text, "#", &mut passages);
            }
            Some("md") => markdown(&file, &text, &mut passages),
            _ => {}
        }
    }
    Ok(passages)
}

/// Returns the paths that git tracks, without the licences.
pub(crate) fn tracked_files(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let listed = String::from_utf8(output.stdout).context("git ls-files")?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// Collects whole-line comments. Consecutive lines with the same marker are one passage.
fn comments(file: &str, text: &str, marker: &str, passages: &mut Vec<Passage>) {
    let mut open: Option<(Passage, String)> = None;
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        let Some((used, rest)) = comment_of(line.trim_start(), marker) else {
            passages.extend(open.take().map(|(passage, _)| passage));
            in_code = false;
            passages.extend(trailing(line, marker).map(|rest| Passage {
                file: file.to_owned(),
                line: index + 1,
                kind: Kind::Comment,
                text: rest.to_owned(),
            }));
            continue;
        };
        if rest.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if in_code {
            continue;
        }
        match &mut open {
            Some((passage, marker)) if *marker == used => {
                passage.text.push('\n');
                passage.text.push_str(rest);
            }
            _ => {
                passages.extend(open.take().map(|(passage, _)| passage));
                let kind = if used.len() > marker.len() {
                    Kind::Doc
                } else {
                    Kind::Comment
                };
                let passage = Passage {
                    file: file.to_owned(),
                    line: index + 1,
                    kind,
                    text: rest.to_owned(),
                };
                open = Some((passage, used));
            }
        }
    }
    passages.extend(open.map(|(passage, _)| passage));
}

/// Returns the comment behind code on the same line. A marker inside a string is not one.
fn trailing<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    let (code, comment) = line.split_once(&format!(" {marker} "))?;
    let is_in_string = code.matches('"').count() % 2 == 1;
    (!is_in_string && !code.trim().is_empty()).then_some(comment)
}

/// Splits a line into the comment marker it starts with and the text behind it.
fn comment_of<'a>(line: &'a str, marker: &str) -> Option<(String, &'a str)> {
    let rest = line.strip_prefix(marker)?;
    if marker == "//" {
        for longer in ["/", "!"] {
            if let Some(text) = rest.strip_prefix(longer) {
                return Some((format!("//{longer}"), text.trim()));
            }
        }
    }
    Some((marker.to_owned(), rest.trim()))
}

/// Collects string literals that look like prose: at least two words.
fn messages(file: &str, text: &str, passages: &mut Vec<Passage>) {
    // The files under tests/ui of the macros do not compile on purpose, but they all have tokens.
    if let Ok(tokens) = text.parse::<TokenStream>() {
        literals(file, tokens, passages);
    }
}

fn literals(file: &str, tokens: TokenStream, passages: &mut Vec<Passage>) {
    let mut after_doc = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => literals(file, group.stream(), passages),
            // Documentation comments are `doc = "…"` here; they have been collected as comments.
            TokenTree::Ident(ident) => after_doc = ident == "doc",
            TokenTree::Literal(literal) => {
                let shown = literal.to_string();
                if shown.starts_with(['"', 'r']) && shown.contains(' ') && !after_doc {
                    let line = literal.span().start().line;
                    let text = shown.trim_matches(['r', '#', '"']).to_owned();
                    passages.push(Passage {
                        file: file.to_owned(),
                        line,
                        kind: Kind::Message,
                        text,
                    });
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// Collects the paragraphs, list items and table rows outside of code blocks.
fn markdown(file: &str, text: &str, passages: &mut Vec<Passage>) {
    let mut in_code = false;
    let mut open: Option<Passage> = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            in_code = !in_code;
        }
        let starts = ["- ", "* ", "|", "#", "```"]
            .iter()
            .any(|start| trimmed.starts_with(start));
        if in_code || trimmed.is_empty() || starts {
            passages.extend(open.take());
        }
        if in_code || trimmed.is_empty() || trimmed.starts_with("```") {
            continue;
        }
        let content = trimmed.trim_start_matches(['-', '*', '|', '#', ' ']);
        match &mut open {
            Some(passage) => {
                passage.text.push('\n');
                passage.text.push_str(content);
            }
            None => {
                open = Some(Passage {
                    file: file.to_owned(),
                    line: index + 1,
                    kind: Kind::Markdown,
                    text: content.to_owned(),
                });
            }
        }
    }
    passages.extend(open);
}

/// Removes code spans (`…`) from a text.
pub(crate) fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Returns the Markdown lines wider than 100 columns, except tables, code and link definitions.
pub(crate) fn wide_lines(root: &Path) -> anyhow::Result<Vec<(String, usize)>> {
    let mut wide = Vec::new();
    for file in tracked_files(root)? {
        if !file.ends_with(".md") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&file))?;
        let mut in_code = false;
        for (index, line) in text.lines().enumerate() {
            in_code ^= line.trim_start().starts_with("```");
            let is_free = in_code || line.starts_with('|') || line.starts_with('[');
            if !is_free && line.chars().count() > 100 {
                wide.push((file.clone(), index + 1));
            }
        }
    }
    Ok(wide)
}
