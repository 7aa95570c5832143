//! A8: measures the slowest check while a million of five million keys expire and new ones arrive.
//!
//! Slow checks can be the machine's. So the same loop runs without a store, too, and each slow check
//! is compared with the scheduler's record of the thread.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate::{Limiter, MemoryStore};

use super::stream::key;
use crate::spread::Spread;

const LIVE: u64 = 4_000_000;
const EXPIRING: u64 = 1_000_000;
/// The same for both runs, so that both see as much other load on the machine.
const RUN: Duration = Duration::from_secs(8);

pub(super) fn measure() {
    let store = MemoryStore::builder()
        .max_keys(LIVE + EXPIRING)
        .build()
        .expect("the table fits in memory");
    let long = Limiter::new(
        store,
        "1_000/day burst=1_000"
            .parse()
            .expect("the policy is valid"),
    );
    let short = long.with_policy("2/second".parse().expect("the policy is valid"));
    for number in 0..LIVE {
        let _ = black_box(long.check(key(number)).now().expect("the key is valid"));
    }
    let idle = run(None, &long, RUN);
    let quiet = run(Some(&long), &long, RUN);
    for number in 0..EXPIRING {
        let _ = black_box(
            short
                .check(format!("short:{number}"))
                .now()
                .expect("the key is valid"),
        );
    }
    let before = long.store().stats();
    let busy = run(Some(&long), &short, RUN);
    let after = long.store().stats();
    let (expired, evicted) = (
        after.expiries - before.expiries,
        after.evictions - before.evictions,
    );
    println!("\nA8: 5M keys; {expired} expired and {evicted} were evicted during the run.");
    println!(
        "Bars: 99.999 % of checks take no longer than without expiry; rate of the slowest 100 ms at \
         least 0.5 of the median.\n"
    );
    println!(
        "| load | slowest check | 99.999 % of checks below | 99.99 % | slowest 100 ms / median | \
         checks above {} µs | of them preempted |\n|---|---:|---:|---:|---:|---:|---:|",
        SLOW.as_micros()
    );
    for (name, figures) in [
        ("no check, only the clock", idle),
        ("no key expires", quiet),
        ("a million keys expire", busy),
    ] {
        let spread = Spread::of(&figures.rates);
        let [slowest, five_nines, four_nines] =
            figures.slowest.map(|time| time.as_nanos() as f64 / 1e3);
        println!(
            "| {name} | {slowest:.0} µs | {five_nines:.1} µs | {four_nines:.1} µs | {:.2} | {} | {} |",
            spread.least / spread.median,
            figures.slow,
            figures.preempted,
        );
    }
}

/// Checks that take longer are compared with the scheduler's record.
const SLOW: Duration = Duration::from_micros(50);

struct Figures {
    /// The time that all, 99.999 % and 99.99 % of the checks take at most.
    slowest: [Duration; 3],
    rates: Vec<f64>,
    /// The number of slow checks, and of those during which another thread ran on this core.
    slow: u64,
    preempted: u64,
}

/// The times of single checks.
struct Times {
    all: Vec<Duration>,
    last: Instant,
    slow: u64,
    preempted: u64,
    switches: String,
}

impl Times {
    fn start() -> Self {
        Self {
            all: Vec::with_capacity(80_000_000),
            last: Instant::now(),
            slow: 0,
            preempted: 0,
            switches: switches(),
        }
    }

    /// Ends a check.
    fn push(&mut self) {
        let now = Instant::now();
        let time = now - self.last;
        // Without checks there are more times than room. Growing would take seconds.
        if self.all.len() < self.all.capacity() {
            self.all.push(time);
        }
        self.last = now;
        if time >= SLOW {
            self.slow += 1;
            let switches = switches();
            self.preempted += u64::from(switches != self.switches);
            self.switches = switches;
            self.last = Instant::now();
        }
    }
}

/// Returns the context switches of this thread, as the kernel counts them.
fn switches() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
    lines.collect()
}

/// Checks live keys on `limiter`, and a new key on `newcomers` every eighth time. Without a limiter
/// it only reads the clock.
fn run(limiter: Option<&Limiter>, newcomers: &Limiter, duration: Duration) -> Figures {
    let keys: Vec<String> = (0..LIVE).step_by(3).map(key).collect();
    let mut random = fastrand::Rng::with_seed(7);
    let mut samples = Vec::new();
    let mut times = Times::start();
    let started = Instant::now();
    while started.elapsed() < duration {
        let (sample_started, mut checks) = (Instant::now(), 0u32);
        times.last = sample_started;
        times.switches = switches();
        while times.last - sample_started < Duration::from_millis(100) {
            let key = &keys[random.usize(0..keys.len())];
            if let Some(limiter) = limiter {
                let _ = black_box(&limiter.check(key).now());
            }
            times.push();
            let is_other = limiter.is_some_and(|limiter| !std::ptr::eq(limiter, newcomers));
            if is_other && checks % 8 == 0 {
                let _ = black_box(&newcomers.check(&random.u128(..).to_le_bytes()).now());
                times.push();
            }
            checks += 1;
        }
        samples.push(f64::from(checks));
    }
    let Times {
        mut all,
        slow,
        preempted,
        ..
    } = times;
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    Figures {
        slowest: [1.0, 0.99999, 0.9999].map(at),
        rates: samples,
        slow,
        preempted,
    }
}
