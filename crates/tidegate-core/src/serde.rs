//! `Serialize` and `Deserialize` for policies, costs and decisions.
//!
//! A policy is its text. A cost is a number, or text such as `"2.5"`. A decision is an object with
//! durations in nanoseconds; it is only written.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::cost::Cost;
use crate::decision::{Decision, LimitFigures, Outcome};
use crate::policy::{Limit, Policy};

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PolicyText;

        impl Visitor<'_> for PolicyText {
            type Value = Policy;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a policy such as \"100/minute\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Policy, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(PolicyText)
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Text formats keep all digits of a float below 2^53 thousandths.
        match self.thousandths() {
            whole if whole.is_multiple_of(1_000) => serializer.serialize_u64(whole / 1_000),
            fraction => serializer.serialize_f64(to_units(fraction)),
        }
    }
}

#[allow(clippy::float_arithmetic)] // No decision depends on it.
fn to_units(thousandths: u64) -> f64 {
    thousandths as f64 / 1_000.0
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostNumber;

        impl Visitor<'_> for CostNumber {
            type Value = Cost;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a cost such as 1, 2.5 or \"2.5\"")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Cost, E> {
                Cost::try_from(number).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Cost, E> {
                Cost::try_from(number).map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Cost, E> {
                Cost::try_from(number).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Cost, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(CostNumber)
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let retry_after = match self.outcome() {
            Outcome::Allowed { .. } => Some(0),
            Outcome::Denied { retry_after } => Some(nanos(retry_after)),
            Outcome::NeverAllowed => None,
        };
        let mut fields = serializer.serialize_struct("Decision", 10)?;
        fields.serialize_field("allowed", &self.is_allowed())?;
        fields.serialize_field("limit", &self.limit())?;
        fields.serialize_field("remaining", &self.remaining())?;
        fields.serialize_field("retry_after_ns", &retry_after)?;
        fields.serialize_field("reset_after_ns", &nanos(self.reset_after()))?;
        fields.serialize_field("delay_ns", &nanos(self.delay()))?;
        fields.serialize_field("limit_index", &self.limit_index())?;
        fields.serialize_field("limit_reset_after_ns", &nanos(self.limit_reset_after()))?;
        fields.serialize_field("reason", &self.reason().map(|reason| reason.name()))?;
        fields.serialize_field("degraded", &self.degraded().map(|reason| reason.name()))?;
        fields.end()
    }
}

impl Serialize for LimitFigures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let retry_after = match self.retry_after() {
            Some(wait) => Some(nanos(wait)),
            None => self.is_allowed().then_some(0),
        };
        let mut fields = serializer.serialize_struct("LimitFigures", 5)?;
        fields.serialize_field("allowed", &self.is_allowed())?;
        fields.serialize_field("limit", &self.limit())?;
        fields.serialize_field("remaining", &self.remaining())?;
        fields.serialize_field("retry_after_ns", &retry_after)?;
        fields.serialize_field("reset_after_ns", &nanos(self.reset_after()))?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limiter, ManualClock, MemoryStore};

    #[test]
    fn policies_and_costs_survive_json_and_mistakes_are_errors() {
        for text in [
            "100/minute",
            "gcra 3/min burst=6 debt=3; fixed_window 5/day",
        ] {
            let policy: Policy = text.parse().unwrap();
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
        }
        let error = serde_json::from_str::<Policy>("\"100/fortnight\"").unwrap_err();
        assert!(error.to_string().contains("unknown unit"), "{error}");
        for (json, thousandths) in [
            ("1", 1_000),
            ("2.5", 2_500),
            ("\"0.001\"", 1),
            ("1.001", 1_001),
        ] {
            let cost: Cost = serde_json::from_str(json).unwrap();
            assert_eq!(cost.thousandths(), thousandths);
            let written = serde_json::to_string(&cost).unwrap();
            assert_eq!(serde_json::from_str::<Cost>(&written).unwrap(), cost);
        }
        for json in [
            "-1",
            "1e400",
            "0.0005",
            "null",
            "\"x\"",
            "1000000001",
            "[1]",
        ] {
            assert!(serde_json::from_str::<Cost>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_decision_is_written_with_all_its_figures() {
        let store = MemoryStore::builder()
            .clock(ManualClock::new())
            .build()
            .unwrap();
        let limiter = Limiter::new(store, "2/second".parse().unwrap());
        let decision = limiter.check("k").cost(3).now().unwrap();
        let json = serde_json::to_value(decision).unwrap();
        assert_eq!(json["reason"], "cost_above_capacity");
        assert_eq!(json["retry_after_ns"], serde_json::Value::Null);
        let decision = limiter.check("k").now().unwrap();
        let json = serde_json::to_value(decision).unwrap();
        assert_eq!(
            (&json["remaining"], &json["reset_after_ns"]),
            (&1.into(), &500_000_000.into())
        );
    }
}
