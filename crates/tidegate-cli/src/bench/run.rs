//! Runs the callers, and collects their latencies.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use tidegate::Clock;

use super::keys::Keys;
use super::target::{BenchCaller, Target};
use super::{BenchOptions, shown_target};
use crate::interrupt::Interrupt;

/// The time before the measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// Consecutive errors after which a caller gives up.
const MAX_ERRORS: u64 = 100;

/// The figures of all callers.
pub(super) struct Measured {
    pub(super) histogram: Histogram<u64>,
    pub(super) checks: u64,
    pub(super) denied: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) elapsed: Duration,
    pub(super) is_partial: bool,
}

/// The state that callers share.
struct SharedRun {
    clock: Clock,
    is_measuring: AtomicBool,
    is_over: AtomicBool,
    checks: AtomicU64,
    /// The number of the next check of an open loop.
    next: AtomicU64,
    started_ns: AtomicU64,
    first_error: Mutex<Option<String>>,
}

/// The figures of one caller.
struct CallerFigures {
    histogram: Histogram<u64>,
    checks: u64,
    denied: u64,
    errors: u64,
}

pub(super) fn measure(
    options: &BenchOptions,
    target: &Target,
    interrupt: &Interrupt,
) -> anyhow::Result<Measured> {
    let shared = Arc::new(SharedRun {
        clock: Clock::system(),
        is_measuring: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        checks: AtomicU64::new(0),
        next: AtomicU64::new(0),
        started_ns: AtomicU64::new(0),
        first_error: Mutex::new(None),
    });
    let mut callers = Vec::new();
    for _ in 0..options.callers {
        callers.push(
            target
                .connect()
                .with_context(|| shown_target(&options.target))?,
        );
    }
    let barrier = Barrier::new(callers.len() + 1);
    let figures = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, caller) in callers.into_iter().enumerate() {
            let (shared, barrier) = (&shared, &barrier);
            let keys = Keys::new(options.distribution, options.keys, number as u64 + 1);
            threads.push(scope.spawn(move || {
                barrier.wait();
                call_all(caller, keys, options, shared)
            }));
        }
        shared.start(&barrier);
        let elapsed = watch(options, &shared, interrupt);
        let figures = threads.into_iter().filter_map(|thread| thread.join().ok());
        (figures.collect::<Vec<_>>(), elapsed)
    });
    let (figures, elapsed) = figures;
    let first_error = shared.first_error.lock().map(|error| error.clone());
    let mut measured = Measured {
        histogram: histogram(),
        checks: 0,
        denied: 0,
        errors: 0,
        first_error: first_error.unwrap_or_default(),
        elapsed,
        is_partial: interrupt.is_set(),
    };
    for caller in &figures {
        let _ = measured.histogram.add(&caller.histogram);
        measured.checks += caller.checks;
        measured.denied += caller.denied;
        measured.errors += caller.errors;
    }
    if measured.checks == 0
        && let Some(error) = &measured.first_error
    {
        anyhow::bail!("{}: {error}", shown_target(&options.target));
    }
    Ok(measured)
}

/// A histogram from a nanosecond to an hour, with three digits.
fn histogram() -> Histogram<u64> {
    // The numbers are valid.
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
        .unwrap_or_else(|_| unreachable!("valid bounds"))
}

impl SharedRun {
    fn start(&self, barrier: &Barrier) {
        self.started_ns
            .store(self.clock.now().as_nanos(), Ordering::Relaxed);
        barrier.wait();
    }

    fn note(&self, error: String) {
        if let Ok(mut first) = self.first_error.lock() {
            first.get_or_insert(error);
        }
    }
}

/// Waits for the end, and shows the rate on a terminal. Returns the measured time.
fn watch(options: &BenchOptions, shared: &SharedRun, interrupt: &Interrupt) -> Duration {
    let is_live = std::io::stderr().is_terminal();
    let sleep = |duration: Duration| {
        let end = shared.clock.now().saturating_add(duration);
        while shared.clock.now() < end && !interrupt.is_set() {
            std::thread::sleep(Duration::from_millis(20).min(duration));
        }
    };
    sleep(WARM_UP);
    shared.is_measuring.store(true, Ordering::Relaxed);
    let begun = shared.clock.now();
    let mut last = shared.checks.load(Ordering::Relaxed);
    while !interrupt.is_set() {
        let left = options
            .duration
            .saturating_sub(shared.clock.now().saturating_since(begun));
        if left.is_zero() {
            break;
        }
        sleep(left.min(Duration::from_secs(1)));
        let now = shared.checks.load(Ordering::Relaxed);
        if is_live {
            let rate = tidegate_insight::text::count(now - last);
            let elapsed = shared.clock.now().saturating_since(begun).as_secs();
            eprint!("\r{elapsed:>4} s  {rate:>12} checks/s ");
        }
        last = now;
    }
    let elapsed = shared.clock.now().saturating_since(begun);
    shared.is_over.store(true, Ordering::Relaxed);
    if is_live {
        eprint!("\r{:40}\r", "");
    }
    elapsed
}

/// Sends checks until the end.
fn call_all(
    mut caller: Box<dyn BenchCaller>,
    mut keys: Keys,
    options: &BenchOptions,
    shared: &SharedRun,
) -> CallerFigures {
    let mut figures = CallerFigures {
        histogram: histogram(),
        checks: 0,
        denied: 0,
        errors: 0,
    };
    let mut failing = 0;
    while !shared.is_over.load(Ordering::Relaxed) && failing < MAX_ERRORS {
        let begun = match options.rate {
            Some(rate) => match due(shared, rate, options.pipeline) {
                Some(due) => due,
                None => break,
            },
            None => shared.clock.now().as_nanos(),
        };
        let result = caller.call(&mut || keys.next());
        let took = shared.clock.now().as_nanos().saturating_sub(begun);
        let is_measuring = shared.is_measuring.load(Ordering::Relaxed);
        match result {
            Ok(answer) => {
                failing = 0;
                shared.checks.fetch_add(answer.checks, Ordering::Relaxed);
                if is_measuring {
                    figures.checks += answer.checks;
                    figures.denied += answer.denied;
                    let _ = figures.histogram.record_n(took.max(1), answer.checks);
                }
            }
            Err(error) => {
                failing += 1;
                figures.errors += 1;
                shared.note(format!("{error:#}"));
            }
        }
    }
    figures
}

/// Waits until the next check of an open loop is due, and returns that time. Returns `None` at the
/// end.
fn due(shared: &SharedRun, rate: u64, pipeline: u64) -> Option<u64> {
    let number = shared.next.fetch_add(pipeline, Ordering::Relaxed);
    let after = u128::from(number) * 1_000_000_000 / u128::from(rate);
    let due = shared.started_ns.load(Ordering::Relaxed) + u64::try_from(after).ok()?;
    loop {
        let now = shared.clock.now().as_nanos();
        if now >= due {
            return Some(due);
        }
        if shared.is_over.load(Ordering::Relaxed) {
            return None;
        }
        std::thread::sleep(Duration::from_nanos(due - now).min(Duration::from_millis(50)));
    }
}
