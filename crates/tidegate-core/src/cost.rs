//! Costs: how much of a limit one request takes.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// The number of thousandths in one unit. Every cost and count is a whole number of thousandths.
pub(crate) const THOUSANDTHS: u64 = 1_000;

/// The cost of a request, in units and steps of 0.001.
///
/// The default is 1. A cost of 0 looks at a limit without taking from it. Costs are created from
/// integers, from floats and from decimal text. A value that is not a whole number of thousandths
/// is an error; nothing is rounded.
///
/// # Examples
///
/// ```
/// use tidegate::Cost;
///
/// assert_eq!(Cost::try_from(2)?, Cost::from_thousandths(2_000)?);
/// assert_eq!(Cost::try_from(2.5)?, "2.5".parse()?);
/// assert!(Cost::try_from(0.0005).is_err());
/// assert!(Cost::try_from(-1).is_err());
/// # Ok::<(), tidegate::CostError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

/// The error for a value that is not a valid [`Cost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// The value is negative. Use `refund` to give a cost back.
    #[error("the cost is negative: expected at least 0")]
    Negative,
    /// The value is NaN, or a text that is not a decimal number.
    #[error("the cost is not a number: expected a decimal such as 1 or 2.5")]
    NotANumber,
    /// The value has more than three decimals.
    #[error("the cost has too many decimals: expected at most three")]
    TooFine,
    /// The value is above [`Cost::MAX`].
    #[error("the cost is too large: expected at most 1,000,000,000")]
    TooLarge,
}

impl Cost {
    /// A cost of 0: looks without taking.
    pub const ZERO: Self = Self(0);
    /// A cost of 1: the default.
    pub const ONE: Self = Self(THOUSANDTHS);
    /// The largest cost: 1,000,000,000 units.
    pub const MAX: Self = Self(1_000_000_000 * THOUSANDTHS);

    /// Creates a cost of `thousandths` / 1,000 units.
    ///
    /// # Errors
    ///
    /// Returns [`CostError::TooLarge`] above [`Cost::MAX`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Cost;
    ///
    /// assert_eq!(Cost::from_thousandths(2_500)?, "2.5".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn from_thousandths(thousandths: u64) -> Result<Self, CostError> {
        if thousandths > Self::MAX.0 {
            return Err(CostError::TooLarge);
        }
        Ok(Self(thousandths))
    }

    /// Returns the cost in thousandths of a unit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Cost;
    ///
    /// assert_eq!(Cost::ONE.thousandths(), 1_000);
    /// ```
    #[must_use]
    pub const fn thousandths(self) -> u64 {
        self.0
    }

    /// Returns `self - other`, or `None` if `other` is larger.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Cost;
    ///
    /// assert_eq!(Cost::ONE.checked_sub(Cost::ONE), Some(Cost::ZERO));
    /// assert_eq!(Cost::ZERO.checked_sub(Cost::ONE), None);
    /// ```
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// Returns the sum. A sum above [`Cost::MAX`] becomes a cost that fits no limit.
    #[doc(hidden)] // For Tidegate's own stores.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        let sum = self.0 + other.0;
        if sum > Self::MAX.0 {
            Self(Self::MAX.0 + 1)
        } else {
            Self(sum)
        }
    }

    fn from_units(units: u64) -> Result<Self, CostError> {
        units
            .checked_mul(THOUSANDTHS)
            .ok_or(CostError::TooLarge)
            .and_then(Self::from_thousandths)
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, thousandths) = (self.0 / THOUSANDTHS, self.0 % THOUSANDTHS);
        if thousandths == 0 {
            return write!(f, "{units}");
        }
        let decimals = format!("{thousandths:03}");
        write!(f, "{units}.{}", decimals.trim_end_matches('0'))
    }
}

/// Parses a plain decimal number such as `7` or `2.5`: no sign, no exponent.
impl FromStr for Cost {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Self, CostError> {
        let (unsigned, negative) = match text.strip_prefix('-') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (whole, decimals) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_digits(whole) || !is_digits(decimals) {
            return Err(CostError::NotANumber);
        }
        if negative {
            return Err(CostError::Negative);
        }
        let decimals = decimals.trim_end_matches('0');
        if decimals.len() > 3 {
            return Err(CostError::TooFine);
        }
        let units: u64 = whole.parse().map_err(|_| CostError::TooLarge)?;
        let thousandths: u64 = format!("{decimals:0<3}")
            .parse()
            .map_err(|_| CostError::NotANumber)?;
        Self::from_thousandths(Self::from_units(units)?.0 + thousandths)
    }
}

impl TryFrom<f64> for Cost {
    type Error = CostError;

    /// Converts a float that stands for a whole number of thousandths.
    #[allow(clippy::float_arithmetic)] // The only place where a float enters; decisions use none.
    fn try_from(units: f64) -> Result<Self, CostError> {
        if units.is_nan() {
            return Err(CostError::NotANumber);
        }
        if units < 0.0 {
            return Err(CostError::Negative);
        }
        if units > 1e9 {
            return Err(CostError::TooLarge);
        }
        // At most 10^12, so the value is exact as a float and as an integer.
        let thousandths = (units * 1e3).round();
        #[allow(clippy::float_cmp)] // Exact equality is intended.
        if thousandths / 1e3 != units {
            return Err(CostError::TooFine);
        }
        Self::from_thousandths(thousandths as u64)
    }
}

macro_rules! cost_from_unsigned {
    ($($int:ty),*) => {$(
        impl TryFrom<$int> for Cost {
            type Error = CostError;
            fn try_from(units: $int) -> Result<Self, CostError> {
                u64::try_from(units).map_err(|_| CostError::TooLarge).and_then(Self::from_units)
            }
        }
    )*};
}

macro_rules! cost_from_signed {
    ($($int:ty),*) => {$(
        impl TryFrom<$int> for Cost {
            type Error = CostError;
            fn try_from(units: $int) -> Result<Self, CostError> {
                if units < 0 {
                    return Err(CostError::Negative);
                }
                u64::try_from(units).map_err(|_| CostError::TooLarge).and_then(Self::from_units)
            }
        }
    )*};
}

cost_from_unsigned!(u8, u16, u32, u64, u128, usize);
cost_from_signed!(i8, i16, i32, i64, i128, isize);

/// Allows `.cost(c)` to accept a [`Cost`] in the same way as a number.
impl From<Infallible> for CostError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_or_refused() {
        for thousandths in (0..5_000).chain([999_999_999_999, 1_000_000_000_000]) {
            let cost = Cost::from_thousandths(thousandths).unwrap();
            assert_eq!(cost.to_string().parse(), Ok(cost));
            assert_eq!(
                Cost::try_from(cost.to_string().parse::<f64>().unwrap()),
                Ok(cost)
            );
        }
        for (units, error) in [
            (0.0005, CostError::TooFine),
            (1.000_1, CostError::TooFine),
            (1e-300, CostError::TooFine),
            (f64::from_bits(1.0f64.to_bits() + 1), CostError::TooFine),
            (-0.001, CostError::Negative),
            (f64::NEG_INFINITY, CostError::Negative),
            (f64::INFINITY, CostError::TooLarge),
            (1e9 + 1.0, CostError::TooLarge),
            (f64::NAN, CostError::NotANumber),
        ] {
            assert_eq!(Cost::try_from(units), Err(error), "{units}");
        }
        assert_eq!(Cost::try_from(-0.0), Ok(Cost::ZERO));
    }

    #[test]
    fn texts_are_plain_decimals() {
        assert_eq!("1.5000".parse(), Cost::from_thousandths(1_500));
        assert_eq!("007".parse(), Cost::from_thousandths(7_000));
        let not_a_number = [
            "", " 5 ", "1e3", "0x10", "1_000", "nan", "inf", "+5", ".5", "5.", "1.2.3", "٣", "--1",
        ];
        for text in not_a_number {
            assert_eq!(text.parse::<Cost>(), Err(CostError::NotANumber), "{text:?}");
        }
        assert_eq!("-1".parse::<Cost>(), Err(CostError::Negative));
        assert_eq!("0.0001".parse::<Cost>(), Err(CostError::TooFine));
        assert_eq!(
            "1.00000000000000000001".parse::<Cost>(),
            Err(CostError::TooFine)
        );
        for text in ["1000000000.001", "18446744073709551616", &"9".repeat(400)] {
            assert_eq!(text.parse::<Cost>(), Err(CostError::TooLarge), "{text}");
        }
    }

    #[test]
    fn integers_of_any_width() {
        assert_eq!(Cost::try_from(3u8), Cost::from_thousandths(3_000));
        assert_eq!(Cost::try_from(1_000_000_000u32), Ok(Cost::MAX));
        assert_eq!(Cost::try_from(1_000_000_001u64), Err(CostError::TooLarge));
        assert_eq!(Cost::try_from(u128::MAX), Err(CostError::TooLarge));
        assert_eq!(Cost::try_from(i64::MIN), Err(CostError::Negative));
        assert_eq!(Cost::try_from(i128::MAX), Err(CostError::TooLarge));
    }
}
