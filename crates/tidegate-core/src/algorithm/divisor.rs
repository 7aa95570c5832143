//! Division by a constant, at the cost of a multiplication.

/// A divisor with its reciprocal. The processor's division takes longer than the rest of a check's
/// arithmetic.
#[derive(Clone, Debug)]
pub(super) struct Divisor {
    divisor: u64,
    /// 2^64 / divisor, rounded down.
    reciprocal: u64,
}

impl Divisor {
    /// Creates a divisor of at least 2.
    pub(super) fn new(divisor: u64) -> Self {
        let reciprocal = (1u128 << 64) / u128::from(divisor.max(2));
        Self {
            divisor: divisor.max(2),
            reciprocal: reciprocal as u64,
        }
    }

    /// Returns `number` / divisor, rounded down.
    #[inline(always)]
    pub(super) fn divide(&self, number: u64) -> u64 {
        // The reciprocal is too small by less than 1, so the estimate is too small by at most 1.
        let estimate = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64;
        estimate + u64::from(number - estimate * self.divisor >= self.divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_as_division_does() {
        let mut random = fastrand::Rng::with_seed(1);
        let edges = [
            2,
            3,
            5,
            7,
            1_000,
            1_000_000_007,
            1 << 32,
            (1 << 63) - 1,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        let drawn: Vec<u64> = (0..1_000)
            .map(|_| random.u64(..) >> random.u32(0..63))
            .collect();
        for divisor in edges
            .into_iter()
            .chain(drawn)
            .filter(|divisor| *divisor >= 2)
        {
            let by = Divisor::new(divisor);
            let near = [
                0,
                1,
                divisor - 1,
                divisor,
                divisor.saturating_add(1),
                u64::MAX,
            ];
            let far: Vec<u64> = (0..100)
                .map(|_| random.u64(..) >> random.u32(0..63))
                .collect();
            for number in near.into_iter().chain(far) {
                assert_eq!(by.divide(number), number / divisor, "{number} / {divisor}");
            }
        }
    }
}
