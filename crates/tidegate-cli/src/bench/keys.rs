//! The keys of a load: uniform, Zipf or one.

use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Distribution {
    Uniform,
    Zipf,
    Hot,
}

/// Random keys of one caller.
pub(super) struct Keys {
    distribution: Distribution,
    count: u64,
    random: fastrand::Rng,
}

impl Keys {
    pub(super) fn new(distribution: Distribution, count: u64, seed: u64) -> Self {
        Self {
            distribution,
            count,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        match self.distribution {
            Distribution::Hot => 0,
            Distribution::Uniform => self.random.u64(..self.count),
            // The inverse of the distribution of 1/x, which is that of Zipf with exponent 1.
            Distribution::Zipf => {
                let power = (self.count as f64).powf(self.random.f64());
                (power as u64).saturating_sub(1).min(self.count - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_prefers_the_first_keys_and_stays_in_range() {
        let mut keys = Keys::new(Distribution::Zipf, 1_000, 1);
        let drawn: Vec<u64> = (0..10_000).map(|_| keys.next()).collect();
        assert!(drawn.iter().all(|key| *key < 1_000));
        let first = drawn.iter().filter(|key| **key == 0).count();
        assert!((800..1_300).contains(&first), "{first}");
        let mut hot = Keys::new(Distribution::Hot, 1_000, 1);
        assert!((0..100).all(|_| hot.next() == 0));
    }
}
