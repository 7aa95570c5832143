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

    /// Returns `number` / divisor, rounded down, and the rest.
    #[inline(always)]
    pub(super) fn divide_with_rest(&self, number: u64) -> (u64, u64) {
        let quotient = self.divide(number);
        (quotient, number - quotient * self.divisor)
    }
}

/// A divisor for numbers of up to 128 bits whose quotient has at most [`QUOTIENT_BITS`].
#[derive(Clone, Debug)]
pub(super) struct WideDivisor {
    divisor: u64,
    /// The low bits that are dropped, so that the rest of a number fits in 64 bits.
    dropped_bits: u32,
    /// 2^(64 + dropped_bits) / divisor, rounded down.
    reciprocal: u64,
}

/// The number of bits in the largest quotient of a [`WideDivisor`].
pub(super) const QUOTIENT_BITS: u32 = 34;
/// The number of high bits of the divisor that remain.
const DIVISOR_BITS: u32 = 63 - QUOTIENT_BITS;

impl WideDivisor {
    /// Creates a divisor from 4 to 2^62.
    pub(super) fn new(divisor: u64) -> Self {
        let divisor = divisor.clamp(4, 1 << 62);
        let bits = u64::BITS - divisor.leading_zeros();
        let dropped_bits = bits.saturating_sub(DIVISOR_BITS).max(1);
        let reciprocal = (1_u128 << (64 + dropped_bits)) / u128::from(divisor);
        Self {
            divisor,
            dropped_bits,
            reciprocal: reciprocal as u64,
        }
    }

    /// Returns `number` / divisor, rounded down. The quotient must be below 2^34.
    #[inline(always)]
    pub(super) fn divide(&self, number: u128) -> u64 {
        debug_assert!(number / u128::from(self.divisor) < 1 << QUOTIENT_BITS);
        // From 1 to 63 bits are dropped, so two words suffice.
        let shift = self.dropped_bits & 63;
        let high = (number >> 64) as u64;
        let high = high << ((64 - shift) & 63) | number as u64 >> shift;
        let mut quotient = ((u128::from(high) * u128::from(self.reciprocal)) >> 64) as u64;
        // The reciprocal is too small by less than 1 and so is `high`. The estimate is therefore too
        // small by at most 2.
        // The rest is below three times the divisor, so it fits in 64 bits.
        let rest = (number as u64).wrapping_sub(quotient.wrapping_mul(self.divisor));
        quotient += u64::from(rest >= self.divisor);
        quotient + u64::from(rest >= 2 * self.divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_wide_numbers_as_division_does() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..20_000 {
            let divisor = (random.u64(..) >> random.u32(2..63)).max(4);
            let by = WideDivisor::new(divisor);
            let largest = (1 << QUOTIENT_BITS) - 1;
            let quotients = [0, 1, largest, random.u64(0..=largest) >> random.u32(0..34)];
            for quotient in quotients {
                for rest in [0, 1, divisor - 1, random.u64(0..divisor)] {
                    let number = u128::from(quotient) * u128::from(divisor) + u128::from(rest);
                    assert_eq!(by.divide(number), quotient, "{number} / {divisor}");
                }
            }
        }
    }

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
