//! Samples of a contender on several threads.

use std::sync::Barrier;
use std::time::Duration;

use super::contenders::Contender;
use super::stream::Stream;

/// Measures one sample. Returns millions of checks a second, summed over all threads.
pub(super) fn sample(
    contender: &dyn Contender,
    streams: &[Stream],
    round: usize,
    duration: Duration,
) -> f64 {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let barrier = Barrier::new(streams.len());
    let rates: Vec<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(index, stream)| {
                let (barrier, core) = (&barrier, cores.get(index % cores.len().max(1)).copied());
                scope.spawn(move || {
                    core.map(core_affinity::set_for_current);
                    let from = round * 104_729 + index * 524_287;
                    barrier.wait();
                    let (checks, elapsed) = contender.check_for(stream, from, duration);
                    checks as f64 / elapsed.as_secs_f64() / 1e6
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a measurement does not panic"))
            .collect()
    });
    rates.iter().sum()
}
