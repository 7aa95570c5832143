//! Ctrl-C: the first one ends a long command with partial results, the second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

/// The exit code after Ctrl-C, as shells expect it.
pub(crate) const INTERRUPTED: u8 = 130;

/// The error of a command that Ctrl-C ended.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Tells whether Ctrl-C was pressed. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Handles Ctrl-C from now on.
    pub(crate) fn handled() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let pressed = Arc::clone(&interrupt.0);
        let handler = move || {
            if pressed.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED.into());
            }
        };
        ctrlc::set_handler(handler).context("Ctrl-C")?;
        Ok(interrupt)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns [`Interrupted`] if Ctrl-C was pressed.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_set() {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}
