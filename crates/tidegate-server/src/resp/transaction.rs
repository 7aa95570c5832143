//! `MULTI` and `EXEC`, which redis-py's pipelines send by default.
//!
//! Commands between them are checked and queued, and `EXEC` runs them in order. If one is invalid,
//! `EXEC` runs none. Unlike in Redis, commands of other clients may run in between.

use super::frame::Words;

/// The maximum number of queued commands, and of their bytes.
const MAX_COMMANDS: usize = 1_000;
const MAX_BYTES: usize = 64 * 1024;

/// A command that waits for `EXEC`.
pub(super) type QueuedCommand = Vec<Box<[u8]>>;

/// The commands since `MULTI`.
#[derive(Default)]
pub(super) struct Transaction {
    commands: Vec<QueuedCommand>,
    bytes: usize,
    is_aborted: bool,
}

/// A command that controls the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionCommand {
    Multi,
    Exec,
    Discard,
}

impl TransactionCommand {
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        Some(match name.len() {
            5 if name.eq_ignore_ascii_case(b"MULTI") => Self::Multi,
            4 if name.eq_ignore_ascii_case(b"EXEC") => Self::Exec,
            7 if name.eq_ignore_ascii_case(b"DISCARD") => Self::Discard,
            _ => return None,
        })
    }
}

impl Transaction {
    /// Queues a command. Returns an error, and aborts, if there are too many.
    pub(super) fn queue(&mut self, words: &Words<'_>) -> Result<(), &'static str> {
        let bytes: usize = words
            .iter()
            .map(|word| word.len() + size_of::<Box<[u8]>>())
            .sum();
        if self.commands.len() == MAX_COMMANDS || self.bytes + bytes > MAX_BYTES {
            self.is_aborted = true;
            return Err("ERR too many commands in a transaction");
        }
        self.bytes += bytes;
        let words = words.iter().map(|word| Box::from(*word));
        self.commands.push(words.collect());
        Ok(())
    }

    /// Makes `EXEC` fail, because a command is invalid.
    pub(super) fn abort(&mut self) {
        self.is_aborted = true;
    }

    /// Returns the commands, or `None` if the transaction was aborted.
    pub(super) fn into_commands(self) -> Option<Vec<QueuedCommand>> {
        (!self.is_aborted).then_some(self.commands)
    }
}
