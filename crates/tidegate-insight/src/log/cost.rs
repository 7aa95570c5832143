//! Expressions for the cost of a request: `2.5`, `bytes`, `bytes/1000`, `field:usage.tokens`.

use std::str::FromStr;

use tidegate_core::Cost;

use super::{ExpressionError, Field, Record};

/// Selects the cost of a request.
///
/// # Examples
///
/// ```
/// use tidegate_core::Cost;
/// use tidegate_insight::log::{CostExpression, LogFormat};
///
/// let line = br#"192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 2500"#;
/// let record = LogFormat::Combined.parse(line)?;
/// let expression: CostExpression = "bytes/1000".parse()?;
/// assert_eq!(expression.of(&record), Some("2.5".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostExpression {
    source: CostSource,
    /// The number by which a field is divided.
    divisor: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CostSource {
    Constant(Cost),
    Field(Field),
}

impl FromStr for CostExpression {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Self, ExpressionError> {
        let invalid = || ExpressionError {
            text: text.to_owned(),
            expected: "a number, bytes, bytes/1000, field:NAME, field:NAME/1000, header:NAME or cost",
        };
        if let Ok(cost) = text.parse() {
            return Ok(Self {
                source: CostSource::Constant(cost),
                divisor: 1,
            });
        }
        let (field, divisor) = match text.rsplit_once('/') {
            Some((field, divisor)) => (field, divisor.parse().map_err(|_| invalid())?),
            None => (text, 1),
        };
        let field: Field = field.parse().map_err(|_| invalid())?;
        if divisor == 0 {
            return Err(invalid());
        }
        Ok(Self {
            source: CostSource::Field(field),
            divisor,
        })
    }
}

impl CostExpression {
    /// Returns the cost of a request, rounded up to thousandths; `None` if it is invalid. A trace
    /// without a cost has cost 1.
    #[must_use]
    pub fn of(&self, record: &Record<'_>) -> Option<Cost> {
        let field = match &self.source {
            CostSource::Constant(cost) => return Some(*cost),
            CostSource::Field(field) => field,
        };
        let Some(text) = record.field(field) else {
            return (*field == Field::Cost).then_some(Cost::ONE);
        };
        if let (1, Ok(cost)) = (self.divisor, text.parse::<Cost>()) {
            return Some(cost);
        }
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let whole: u128 = whole.parse().ok()?;
        let digits = format!("{:0<3}", fraction.get(..fraction.len().min(3))?);
        let thousandths = whole
            .checked_mul(1_000)?
            .checked_add(digits.parse().ok()?)?;
        let divided = thousandths.div_ceil(u128::from(self.divisor));
        Cost::from_thousandths(u64::try_from(divided).ok()?).ok()
    }
}
