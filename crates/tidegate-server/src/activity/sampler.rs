//! Chooses the decisions to look at. A thread looks at each of its first decisions in a tenth of a
//! second, at one in about 64 after that, and at fewer the more there are. Each counts for those that
//! were skipped.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The decisions of a thread in an epoch that are all looked at.
const ALL: u32 = 256;
/// The mean number of decisions for each one that is looked at after that.
const FIRST_MEAN: u32 = 64;
/// The mean doubles each time this many were looked at.
const DOUBLES: u32 = 64;
/// The number of times it doubles.
const MAX_DOUBLINGS: u32 = 4;

#[derive(Clone, Copy)]
struct Sampler {
    epoch: u32,
    seen: u32,
    /// The number of decisions to skip.
    skip: u32,
    /// The number that the next sample counts for.
    weight: u32,
    /// The state of a small random number generator, which avoids patterns of clients.
    random: u32,
}

thread_local! {
    static SAMPLER: Cell<Sampler> = const {
        Cell::new(Sampler { epoch: 0, seen: 0, skip: 0, weight: 1, random: 0x9e37_79b9 })
    };
    static NUMBER: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// Returns a number of this thread.
pub(super) fn thread_number() -> usize {
    NUMBER.with(|number| *number)
}

/// Skips this many decisions and returns `true`, if none of them is looked at.
#[inline]
pub(super) fn skips(epoch: u32, decisions: u32) -> bool {
    SAMPLER.with(|cell| {
        let mut sampler = cell.get();
        let skips = sampler.epoch == epoch && sampler.skip >= decisions;
        if skips {
            sampler.skip -= decisions;
            cell.set(sampler);
        }
        skips
    })
}

/// Returns the number of decisions that this one counts for, or `None` to skip it.
#[inline]
pub(super) fn weight(epoch: u32) -> Option<u32> {
    SAMPLER.with(|cell| {
        let mut sampler = cell.get();
        if sampler.skip > 0 && sampler.epoch == epoch {
            sampler.skip -= 1;
            cell.set(sampler);
            return None;
        }
        let weight = sampler.next(epoch);
        cell.set(sampler);
        Some(weight)
    })
}

impl Sampler {
    fn next(&mut self, epoch: u32) -> u32 {
        if self.epoch != epoch {
            // The decisions that were still to be skipped did not come.
            (self.epoch, self.seen) = (epoch, 0);
            (self.skip, self.weight) = (0, 1);
        }
        let weight = self.weight;
        self.seen += 1;
        if self.seen >= ALL {
            // xorshift32
            self.random ^= self.random << 13;
            self.random ^= self.random >> 17;
            self.random ^= self.random << 5;
            let doublings = ((self.seen - ALL) / DOUBLES).min(MAX_DOUBLINGS);
            self.skip = self.random % (2 * (FIRST_MEAN << doublings) - 1);
            self.weight = self.skip + 1;
        }
        weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_MEAN: u32 = FIRST_MEAN << MAX_DOUBLINGS;

    #[test]
    fn weights_add_up_to_the_decisions() {
        for decisions in [10_u32, 256, 300, 100_000, 10_000_000] {
            let mut sampler = Sampler {
                epoch: 0,
                seen: 0,
                skip: 0,
                weight: 1,
                random: 7,
            };
            let (mut sum, mut samples) = (0, 0);
            for _ in 0..decisions {
                if sampler.skip > 0 {
                    sampler.skip -= 1;
                    continue;
                }
                sum += sampler.next(1);
                samples += 1;
            }
            let most_skipped = 2 * MAX_MEAN;
            assert!(
                sum.abs_diff(decisions) <= most_skipped,
                "{sum} of {decisions}"
            );
            let most = ALL + 5 * DOUBLES + decisions / (MAX_MEAN / 2);
            assert!(samples <= most, "{samples} of {decisions}");
        }
    }
}
