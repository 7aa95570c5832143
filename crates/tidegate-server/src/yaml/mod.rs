//! YAML as the Go programs read it whose files we accept: a tree of nodes with positions, and
//! scalars with the meaning of YAML 1.1.
//!
//! `010` is 8, `1_000` is 1,000 and `yes` is true, as for the program that the file was written
//! for. Input that the two versions of YAML read differently, and that cannot be resolved, is an
//! error with its line and column. Depth and size are bounded.

mod scalar;
mod tree;

pub(crate) use scalar::Scalar;
pub(crate) use tree::{Content, Node, parse};

/// A position in a file. Both numbers count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}
