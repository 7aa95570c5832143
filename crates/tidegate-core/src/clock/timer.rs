//! Timers without an async runtime: one thread wakes all sleepers. It is started by the first one.
#![allow(clippy::disallowed_methods)] // This is the clock module.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The sleepers of this process.
struct Timer {
    sleepers: Mutex<Sleepers>,
    changed: Condvar,
}

#[derive(Default)]
struct Sleepers {
    /// By the end of the sleep. The number tells apart those that end at the same time.
    by_end: BTreeMap<(Instant, u64), Waker>,
    next_number: u64,
    is_running: bool,
}

static TIMER: LazyLock<Timer> = LazyLock::new(|| Timer {
    sleepers: Mutex::default(),
    changed: Condvar::new(),
});

/// The longest sleep of a thread that cannot start the timer.
const SHORT: Duration = Duration::from_millis(10);

impl Timer {
    /// Wakes sleepers until the process ends.
    fn run(&self) {
        let mut sleepers = self.sleepers.lock();
        loop {
            let now = Instant::now();
            let mut due = Vec::new();
            while let Some(first) = sleepers.by_end.first_entry() {
                if first.key().0 > now {
                    break;
                }
                due.push(first.remove());
            }
            if !due.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut sleepers, || {
                    due.into_iter().for_each(Waker::wake);
                });
                continue;
            }
            match sleepers.by_end.first_key_value() {
                Some(((end, _), _)) => {
                    let end = *end;
                    self.changed.wait_until(&mut sleepers, end);
                }
                None => self.changed.wait(&mut sleepers),
            }
        }
    }

    /// Starts the thread if it is not running. Returns `false` if it cannot be started.
    fn start(&'static self, sleepers: &mut Sleepers) -> bool {
        if !sleepers.is_running {
            let builder = thread::Builder::new().name("tidegate-timer".to_owned());
            sleepers.is_running = builder.spawn(|| self.run()).is_ok();
        }
        sleepers.is_running
    }
}

/// A sleep until an instant.
pub(crate) struct SystemSleep {
    end: Instant,
    number: Option<u64>,
}

impl SystemSleep {
    pub(super) fn new(duration: Duration) -> Self {
        let now = Instant::now();
        // A sleep of more than a century is one of a century.
        let end = now.checked_add(duration);
        let end = end.unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 86_400));
        Self { end, number: None }
    }
}

impl Future for SystemSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        if now >= self.end {
            return Poll::Ready(());
        }
        let mut sleepers = TIMER.sleepers.lock();
        if !TIMER.start(&mut sleepers) {
            // Without a timer thread, this thread sleeps.
            drop(sleepers);
            thread::sleep((self.end - now).min(SHORT));
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let number = *self.number.get_or_insert_with(|| {
            sleepers.next_number += 1;
            sleepers.next_number
        });
        sleepers
            .by_end
            .insert((self.end, number), context.waker().clone());
        let is_first =
            sleepers.by_end.first_key_value().map(|(key, _)| *key) == Some((self.end, number));
        drop(sleepers);
        if is_first {
            TIMER.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for SystemSleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            TIMER.sleepers.lock().by_end.remove(&(self.end, number));
        }
    }
}
