//! Receipts as clients hold them: an id, and the request it belongs to.
//!
//! The store keeps what was taken, under the id and the key. A forged receipt therefore finds
//! nothing.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tidegate::{Cost, KeyBuf, Subject};

use super::request::CheckTarget;

/// The number of random bytes in an id.
const ID_BYTES: usize = 16;
/// The maximum length of a receipt.
const MAX_LENGTH: usize = 64 * 1024;

/// A receipt: its id, and the request it belongs to.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Receipt {
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<String>,
    key: ReceiptKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
}

/// The key of a receipt: its text, or its encoded parts.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
struct ReceiptKey {
    text: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_parts: bool,
}

impl ReceiptKey {
    fn of(key: &KeyBuf<'_>) -> Option<Self> {
        Some(Self {
            text: String::from_utf8(key.as_bytes().to_vec()).ok()?,
            has_parts: key.is_composite(),
        })
    }

    fn as_key(&self) -> KeyBuf<'_> {
        if self.has_parts {
            KeyBuf::of_encoded_parts(self.text.as_bytes())
        } else {
            self.text.as_str().into()
        }
    }
}

impl Receipt {
    /// Creates a receipt. Returns `None` if the system has no random source.
    pub(super) fn new(target: &CheckTarget<'_>) -> Option<Self> {
        let mut random = [0; ID_BYTES];
        getrandom::fill(&mut random).ok()?;
        let id = URL_SAFE_NO_PAD.encode(random);
        let owned = |text: &str| text.to_owned();
        Some(match target {
            CheckTarget::Named(subject) => Self {
                id,
                policy: Some(owned(subject.policy)),
                limits: None,
                key: ReceiptKey::of(&subject.key)?,
                tier: subject.tier.map(owned),
                tenant: subject.tenant.map(owned),
            },
            CheckTarget::Inline {
                limits,
                key,
                tenant,
                ..
            } => Self {
                id,
                policy: None,
                limits: Some(owned(limits)),
                key: ReceiptKey::of(key)?,
                tier: None,
                tenant: tenant.map(owned),
            },
        })
    }

    /// Returns the text that a client holds.
    pub(super) fn to_text(&self) -> Option<String> {
        Some(URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).ok()?))
    }

    /// Parses the output of [`to_text`](Self::to_text).
    pub(super) fn of_text(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD
            .decode(Some(text).filter(|text| text.len() <= MAX_LENGTH)?)
            .ok()?;
        let receipt: Self = serde_json::from_slice(&bytes).ok()?;
        let is_id = receipt.id.len() <= 2 * ID_BYTES
            && receipt.id.bytes().all(|byte| byte.is_ascii_graphic());
        (is_id
            && !receipt.key.text.is_empty()
            && receipt.policy.is_some() != receipt.limits.is_some())
        .then_some(receipt)
    }

    /// Returns the request it belongs to, at the actual cost.
    pub(super) fn target(&self, cost: Cost) -> CheckTarget<'_> {
        let tenant = self.tenant.as_deref();
        match &self.limits {
            Some(limits) => CheckTarget::Inline {
                limits,
                key: self.key.as_key(),
                tenant,
                cost,
            },
            None => CheckTarget::Named(Subject {
                policy: self.policy.as_deref().unwrap_or_default(),
                key: self.key.as_key(),
                tier: self.tier.as_deref(),
                tenant,
                cost,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a_receipt_round_trips_through_its_text() {
        let target = CheckTarget::Inline {
            limits: "1/s",
            key: "ключ\"".into(),
            tenant: Some("acme"),
            cost: Cost::ONE,
        };
        let receipt = Receipt::new(&target).unwrap();
        let text = receipt.to_text().unwrap();
        assert_eq!(Receipt::of_text(&text), Some(receipt));
        assert_ne!(
            Receipt::new(&target).unwrap().id,
            Receipt::new(&target).unwrap().id
        );
        for wrong in [
            "",
            "x",
            "e30",
            &text[1..],
            &text[..text.len() - 1],
            &"A".repeat(MAX_LENGTH + 1),
        ] {
            assert_eq!(Receipt::of_text(wrong), None, "{wrong}");
        }
    }
}
