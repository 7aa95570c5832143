//! Random policies and requests that look for edge cases.

use fastrand::Rng;
use tidegate_core::{Algorithm, Anchor, Cost, Limit, Policy, Rate};

use crate::{Act, Answer};

/// Returns a random limit of an algorithm. Most have everyday sizes, some are at the bounds.
pub fn limit(random: &mut Rng, algorithm: Algorithm) -> Limit {
    loop {
        let units = units(
            random,
            if algorithm == Algorithm::SlidingWindowLog {
                1_000_000
            } else {
                1_000_000_000
            },
        );
        let mut limit = Limit::new(algorithm, Rate::new(units, period(random)));
        if algorithm.is_bucket() && random.bool() {
            limit = limit.burst(self::units(random, 1_000_000_000));
        }
        if algorithm == Algorithm::FixedWindow && random.bool() {
            limit = limit.anchor(Anchor::FirstHit);
        }
        if random.bool() {
            limit = limit.debt(self::units(random, 1_000_000_000));
        }
        // A burst that takes more than a century to refill is invalid: draw again.
        if Policy::new([limit]).is_ok() {
            return limit;
        }
    }
}

fn units(random: &mut Rng, most: u64) -> u64 {
    match random.u8(0..10) {
        0..7 => random.u64(1..=20),
        7 => random.u64(1..=1_000),
        8 => random.u64(1..=most),
        _ => most - random.u64(0..3),
    }
}

fn period(random: &mut Rng) -> std::time::Duration {
    const LONGEST_MS: u64 = 366 * 86_400_000;
    std::time::Duration::from_millis(match random.u8(0..8) {
        0 => 1,
        1..4 => 1_000,
        4 => 60_000,
        5 => random.u64(1..=100_000),
        6 => random.u64(1..=LONGEST_MS),
        _ => LONGEST_MS - random.u64(0..3),
    })
}

/// A random walk. The next request depends on the last result.
pub struct Walk {
    random: Rng,
    now: u64,
    capacity: u64,
    period: u64,
    last: Option<Answer>,
    /// True if the clock may also step back.
    pub steps_back: bool,
}

impl Walk {
    /// Creates a walk for a policy that starts at a random time in this century.
    pub fn new(random: &mut Rng, policy: &Policy) -> Self {
        let tightest = policy
            .limits()
            .iter()
            .map(Limit::capacity)
            .min()
            .unwrap_or(1);
        let period = policy
            .limits()
            .first()
            .map_or(1, |limit| limit.period().as_nanos() as u64);
        let now =
            random.u64(1_500_000_000..2_000_000_000) * 1_000_000_000 + random.u64(0..1_000_000_000);
        Self {
            random: random.fork(),
            now,
            capacity: tightest,
            period,
            last: None,
            steps_back: false,
        }
    }

    /// Returns the time and the operation of the next step.
    pub fn next_step(&mut self) -> (u64, Act) {
        self.step_time();
        let cost = self.cost();
        let act = match self.random.u8(0..16) {
            0..2 => Act::Refund(cost),
            2..4 => Act::Charge(cost),
            _ => Act::Check(cost),
        };
        (self.now, act)
    }

    /// Records the result of the last step.
    pub fn learn(&mut self, answer: Answer) {
        self.last = Some(answer);
    }

    fn step_time(&mut self) {
        let random = &mut self.random;
        let edges = self.last.map_or([0, 0], |last| {
            [last.retry_after.unwrap_or(0), last.reset_after]
        });
        let window_end = self.period - self.now % self.period;
        let forward = match random.u8(0..16) {
            0..5 => 0,
            5 => random.u64(1..5),
            6 => edges[0],
            7 => edges[0].saturating_sub(1),
            8 => edges[1],
            9 => edges[1].saturating_sub(1),
            10 => window_end,
            11 => window_end - 1,
            12 => self.period,
            13 => random.u64(0..self.period),
            14 => random.u64(0..self.period / 8 + 1),
            _ => random.u64(0..3 * self.period),
        };
        if self.steps_back && random.u8(0..10) == 0 {
            let back = random.u64(0..3 * self.period).min(self.now);
            self.now -= back;
            return;
        }
        // Stays in this millennium, so that no value saturates.
        self.now = self
            .now
            .saturating_add(forward)
            .min(9_000_000_000_000_000_000);
    }

    fn cost(&mut self) -> Cost {
        let random = &mut self.random;
        let whole = self.capacity * 1_000;
        let thousandths = match random.u8(0..12) {
            0..6 => 1_000,
            6 => 0,
            7 => random.u64(0..3_000),
            8 => whole,
            9 if random.bool() => whole * 3,
            9 => whole + 1,
            10 => random.u64(0..=whole),
            _ => whole / 2,
        };
        Cost::from_thousandths(thousandths.min(Cost::MAX.thousandths())).unwrap_or(Cost::ONE)
    }
}
