//! Callers that each send the next check as soon as they have the last decision.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::contenders::{Contender, name_of};

/// The result of one sample.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    /// Checks a second.
    pub(super) rate: f64,
    /// The median latency, in microseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// Runs `callers` for `duration`, with uniformly drawn keys.
pub(super) async fn sample(
    contender: &Contender,
    callers: usize,
    keys: usize,
    duration: Duration,
) -> Sample {
    let local = tokio::task::LocalSet::new();
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(1 << 16)));
    let count = Rc::new(Cell::new(0_u64));
    let names: Rc<Vec<String>> = Rc::new((0..keys).map(name_of).collect());
    let started = Instant::now();
    let end = started + duration;
    for caller in 0..callers {
        let (mut contender, names) = (contender.clone(), Rc::clone(&names));
        let (latencies, count) = (Rc::clone(&latencies), Rc::clone(&count));
        let mut random = fastrand::Rng::with_seed(caller as u64);
        local.spawn_local(async move {
            let mut check_started = Instant::now();
            while check_started < end {
                contender.check(&names[random.usize(..names.len())]).await;
                let check_ended = Instant::now();
                latencies
                    .borrow_mut()
                    .push((check_ended - check_started).as_nanos() as u32);
                count.set(count.get() + 1);
                check_started = check_ended;
            }
        });
    }
    local.await;
    let elapsed = started.elapsed();
    let mut latencies = latencies.borrow_mut();
    latencies.sort_unstable();
    let quantile =
        |part: f64| f64::from(latencies[((latencies.len() - 1) as f64 * part) as usize]) / 1e3;
    Sample {
        rate: count.get() as f64 / elapsed.as_secs_f64(),
        p50: quantile(0.5),
        p99: quantile(0.99),
    }
}
