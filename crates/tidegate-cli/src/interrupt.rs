//! Ctrl-C and SIGTERM: the first one ends a long command with partial results, the second one at
//! once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use tidegate::Clock;

/// Signals within this time count as one: some tools signal a process and its group.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// The exit code after Ctrl-C, as shells expect it.
pub(crate) const INTERRUPTED: u8 = 130;

/// The error of a command that Ctrl-C ended.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// The time of the first signal, or 0. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicU64>);

impl Interrupt {
    /// Handles Ctrl-C from now on.
    pub(crate) fn handled() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let first = Arc::clone(&interrupt.0);
        let clock = Clock::system();
        let handler = move || {
            let now = clock.now().as_nanos();
            let earlier = first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
            if earlier.is_err_and(|at| now.saturating_sub(at) > ONE_SIGNAL.as_nanos() as u64) {
                std::process::exit(INTERRUPTED.into());
            }
        };
        ctrlc::set_handler(handler).context("Ctrl-C")?;
        Ok(interrupt)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Returns [`Interrupted`] if Ctrl-C was pressed.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_set() {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}
