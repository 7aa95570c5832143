//! Rounds of samples, and what is said of them.

use std::sync::Barrier;
use std::time::Duration;

use super::contenders::Contender;
use super::stream::Stream;

/// Millions of checks a second, of all threads together, for one sample.
pub(super) fn sample(contender: &dyn Contender, streams: &[Stream], round: usize, duration: Duration) -> f64 {
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
        threads.into_iter().map(|thread| thread.join().expect("a measurement does not panic")).collect()
    });
    rates.iter().sum()
}

/// The middle of some figures, with the least and the greatest.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Spread {
    pub(super) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self { median: at(sorted.len() / 2), least: at(0), most: at(sorted.len().saturating_sub(1)) }
    }

    /// Of the ratios round by round: neighbours in time saw the same machine.
    pub(super) fn of_ratios(figures: &[f64], base: &[f64]) -> Self {
        let ratios: Vec<f64> = figures.iter().zip(base).map(|(figure, base)| figure / base).collect();
        Self::of(&ratios)
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}-{:.2})", self.median, self.least, self.most)
    }
}
