//! A line of a trace.

use std::borrow::Cow;

use anyhow::{Context, bail};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tidegate::{Cost, Timestamp};

/// A parsed line of a trace.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(super) at_us: u64,
    pub(super) at: Timestamp,
    pub(super) key: Cow<'a, str>,
    pub(super) action: StepAction<'a>,
}

/// The action of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepAction<'a> {
    /// A look at the remaining units of generated traffic, for a chart. It is not a request.
    Sample,
    Check(Cost),
    Refund(Cost),
    Charge(Cost),
    /// A check that requests a receipt with this name.
    Admit(Cost, Cow<'a, str>),
    /// Settles the receipt with this name at the actual cost.
    Settle(Cow<'a, str>, Cost),
}

/// The fields of a line. The fields of the output are accepted too, so that the output of one
/// simulation can be the input of another. Any other field is an error, so that a misspelled one is
/// noticed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceLine<'a> {
    #[serde(deserialize_with = "at_us")]
    at_us: u64,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "present")]
    cost: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    refund: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    charge: Option<&'a RawValue>,
    #[serde(borrow)]
    receipt: Option<Cow<'a, str>>,
    #[serde(borrow)]
    settle: Option<Cow<'a, str>>,
    #[serde(rename = "policy")]
    _policy: Option<serde::de::IgnoredAny>,
    #[serde(rename = "allowed")]
    _allowed: Option<serde::de::IgnoredAny>,
    #[serde(rename = "limit")]
    _limit: Option<serde::de::IgnoredAny>,
    #[serde(rename = "remaining")]
    _remaining: Option<serde::de::IgnoredAny>,
    #[serde(rename = "retry_after_us")]
    _retry_after_us: Option<serde::de::IgnoredAny>,
    #[serde(rename = "reset_after_us")]
    _reset_after_us: Option<serde::de::IgnoredAny>,
    #[serde(rename = "delay_us")]
    _delay_us: Option<serde::de::IgnoredAny>,
}

/// Parses a time, with an error that says so.
fn at_us<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    u64::deserialize(deserializer).map_err(|_| {
        serde::de::Error::custom("at_us is invalid: expected whole microseconds since 1970")
    })
}

/// Distinguishes a field that is null from one that is missing.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Step<'a> {
    pub(crate) fn read(line: &'a [u8]) -> anyhow::Result<Self> {
        // The deserializer would accept a list of values in the right order too.
        if line.first() != Some(&b'{') {
            bail!(r#"expected a JSON object such as {{"at_us": 1700000000000000, "key": "a"}}"#);
        }
        let line: TraceLine<'a> =
            serde_json::from_slice(line).map_err(|error| anyhow::anyhow!(in_line(&error)))?;
        let at = Timestamp::from_micros(line.at_us)
            .context("at_us is out of range: expected a time before the year 2554")?;
        let number = |name: &str, text: &RawValue| {
            text.get()
                .parse::<Cost>()
                .with_context(|| format!("{name} {}", shown(text)))
        };
        let cost = line.cost.map(|text| number("cost", text)).transpose()?;
        if let Some(charge) = line.charge {
            if cost.is_some()
                || line.refund.is_some()
                || line.receipt.is_some()
                || line.settle.is_some()
            {
                bail!("charge with cost, refund, receipt or settle: expected it alone");
            }
            return Ok(Self {
                at_us: line.at_us,
                at,
                key: line.key,
                action: StepAction::Charge(number("charge", charge)?),
            });
        }
        let action = match (line.refund, line.receipt, line.settle) {
            (None, None, None) => StepAction::Check(cost.unwrap_or(Cost::ONE)),
            (None, Some(receipt), None) => StepAction::Admit(cost.unwrap_or(Cost::ONE), receipt),
            (None, None, Some(receipt)) => StepAction::Settle(
                receipt,
                cost.context("settle without cost: expected the actual cost")?,
            ),
            (Some(refund), None, None) if cost.is_none() => {
                StepAction::Refund(number("refund", refund)?)
            }
            (Some(_), None, None) => bail!("both cost and refund: expected one"),
            _ => bail!("expected only one of refund, receipt and settle"),
        };
        Ok(Self {
            at_us: line.at_us,
            at,
            key: line.key,
            action,
        })
    }
}

/// Returns the parser's message with only the column, because it sees a single line.
fn in_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let what = message.split(" at line ").next().unwrap_or(&message);
    if error.column() == 0 {
        what.to_owned()
    } else {
        format!("{what} (column {})", error.column())
    }
}

fn shown(value: &RawValue) -> String {
    value.get().chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> anyhow::Result<Step<'_>> {
        Step::read(line.as_bytes())
    }

    #[test]
    fn valid_lines_are_parsed() {
        let cost = |text: &str| text.parse::<Cost>().unwrap();
        let cases = [
            (r#"{"at_us": 5, "key": "a"}"#, StepAction::Check(Cost::ONE)),
            (
                r#"{"at_us":5,"key":"a","cost":2.5}"#,
                StepAction::Check(cost("2.5")),
            ),
            (
                r#"{"key":"a","cost":0,"at_us":5}"#,
                StepAction::Check(Cost::ZERO),
            ),
            (
                r#"{"at_us":5,"key":"a","refund":0.001}"#,
                StepAction::Refund(cost("0.001")),
            ),
            (
                r#"{"at_us":5,"key":"a","charge":1.5}"#,
                StepAction::Charge(cost("1.5")),
            ),
            (
                r#"{"at_us":5,"key":"a","cost":1,"allowed":true,"retry_after_us":null}"#,
                StepAction::Check(Cost::ONE),
            ),
        ];
        for (line, action) in cases {
            let step = read(line).unwrap();
            assert_eq!(
                (step.at_us, &*step.key, step.action),
                (5, "a", action),
                "{line}"
            );
        }
        assert_eq!(read(r#"{"at_us":5,"key":"\u00e9\n"}"#).unwrap().key, "é\n");
    }

    #[test]
    fn invalid_lines_report_the_error() {
        let cases = [
            ("", "expected a JSON object"),
            ("nonsense", "expected a JSON object"),
            (
                r#"[5,"a",null,null,null,null,null,null,null,null]"#,
                "expected a JSON object",
            ),
            ("{", "EOF"),
            ("{}", "missing field `at_us`"),
            (r#"{"at_us":5}"#, "missing field `key`"),
            (r#"{"at_us":-5,"key":"a"}"#, "expected whole microseconds"),
            (r#"{"at_us":5.5,"key":"a"}"#, "expected whole microseconds"),
            (r#"{"at_us":"5","key":"a"}"#, "expected whole microseconds"),
            (r#"{"at_us":18446744073709551615,"key":"a"}"#, "2554"),
            (r#"{"at_us":5,"key":7}"#, "expected"),
            (r#"{"at_us":5,"key":"a","cots":1}"#, "unknown field `cots`"),
            (
                r#"{"at_us":5,"key":"a","cost":1,"cost":2}"#,
                "duplicate field",
            ),
            (r#"{"at_us":5,"key":"a","cost":1,"refund":1}"#, "both"),
            (
                r#"{"at_us":5,"key":"a","cost":1,"charge":1}"#,
                "expected it alone",
            ),
            (
                r#"{"at_us":5,"key":"a","charge":1,"refund":1}"#,
                "expected it alone",
            ),
            (r#"{"at_us":5,"key":"a"} x"#, "trailing"),
        ];
        for (line, expected) in cases {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(expected), "{line}: {error}");
        }
        for cost in [
            "-1",
            "0.0005",
            "1e3",
            "1e400",
            "1000000001",
            "null",
            "true",
            "\"1\"",
            "[]",
            "{}",
            "1.00000000000000000001",
        ] {
            let line = format!(r#"{{"at_us":5,"key":"a","cost":{cost}}}"#);
            assert!(
                format!("{:#}", read(&line).unwrap_err()).contains("the cost"),
                "{cost}"
            );
            let line = format!(r#"{{"at_us":5,"key":"a","charge":{cost}}}"#);
            assert!(read(&line).is_err(), "{cost}");
        }
        assert!(Step::read(b"{\"at_us\":5,\"key\":\"\xff\"}").is_err());
    }
}
