//! The language of this repository: a lint for the words and openers that our style rules out, and
//! the figures by which it is measured.
//!
//! `cargo xtask lint` fails on a finding of [`rules`]. `cargo xtask prose` prints the figures of
//! [`figures`]. Both read the text that [`text`] collects: comments, string literals and Markdown.

mod figures;
mod rules;
mod text;

use std::path::Path;

use anyhow::bail;

pub(crate) use figures::print;

/// Checks every comment, message and page against the rules.
pub(crate) fn lint(root: &Path) -> anyhow::Result<()> {
    let mut findings = 0;
    for passage in text::collect(root)? {
        for rule in rules::broken_by(&passage) {
            eprintln!("{}:{}: {rule}", passage.file, passage.line);
            eprintln!("    {}", passage.excerpt());
            findings += 1;
        }
    }
    for (file, line) in text::wide_lines(root)? {
        eprintln!("{file}:{line}: wider than 100 columns: wrap it");
        findings += 1;
    }
    if findings > 0 {
        bail!("{findings} findings in the prose: see \"How we write\" in CONTRIBUTING.md");
    }
    Ok(())
}
