//! Costs as JSON numbers. Decisions are written by [`tidegate_http::DecisionJson`].

use serde::Serialize;
use tidegate::Cost;

/// A cost as an exact JSON number.
pub(crate) struct JsonCost(pub(crate) Cost);

impl Serialize for JsonCost {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let thousandths = self.0.thousandths();
        if thousandths.is_multiple_of(1_000) {
            return serializer.serialize_u64(thousandths / 1_000);
        }
        // A double holds 15 digits; a cost has at most 13.
        serializer.serialize_f64(thousandths as f64 / 1e3)
    }
}
