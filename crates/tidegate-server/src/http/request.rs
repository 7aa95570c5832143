//! Requests as JSON.

use std::borrow::Cow;
use std::fmt;

use http::HeaderMap;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;
use tidegate::{Cost, Subject};

use super::problem::Problem;

/// The maximum length of a key.
const MAX_KEY: usize = 8 * 1024;
/// The maximum length of a policy's name, a tier and a tenant.
const MAX_NAME: usize = 256;

/// A string that is borrowed if it has no escapes.
#[derive(Clone, Debug)]
pub(super) struct JsonText<'a>(Cow<'a, str>);

impl JsonText<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = JsonText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<JsonText<'de>, E> {
                Ok(JsonText(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<JsonText<'de>, E> {
                Ok(JsonText(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrow)
    }
}

/// Deserializes a value that must not be null if it is present.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A check, peek, refund or reset.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"policy\": \"api\", \"key\": \"user:42\"}"
)]
pub(super) struct CheckRequest<'a> {
    #[serde(borrow, default, deserialize_with = "given")]
    policy: Option<JsonText<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    limits: Option<JsonText<'a>>,
    #[serde(borrow)]
    key: JsonText<'a>,
    #[serde(borrow, default, deserialize_with = "given")]
    cost: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tier: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    tenant: Option<JsonText<'a>>,
    /// Set if the response should have a receipt.
    #[serde(default)]
    pub(super) receipt: bool,
}

/// A receipt to settle, and the actual cost.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"receipt\": \"…\", \"cost\": 1}"
)]
pub(super) struct SettleRequest<'a> {
    #[serde(borrow)]
    receipt: JsonText<'a>,
    #[serde(borrow)]
    cost: &'a RawValue,
}

impl SettleRequest<'_> {
    pub(super) fn receipt(&self) -> &str {
        self.receipt.as_str()
    }

    pub(super) fn cost(&self) -> Result<Cost, Problem> {
        cost(self.cost.get())
    }
}

/// Several checks, each on its own or all together.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"checks\": [...]}"
)]
pub(super) struct BatchRequest<'a> {
    #[serde(borrow)]
    pub(super) checks: Vec<CheckRequest<'a>>,
    #[serde(default)]
    pub(super) together: bool,
}

/// The policy or the limits that a request is checked against.
pub(super) enum CheckTarget<'a> {
    /// A named policy.
    Named(Subject<'a>),
    /// Limits that came with the request.
    Inline {
        limits: &'a str,
        key: &'a str,
        tenant: Option<&'a str>,
        cost: Cost,
    },
}

impl<'a> CheckTarget<'a> {
    /// Returns the tenant and the key. Requests with different ones never share a counter.
    pub(super) fn client(&self) -> (Option<&'a str>, &'a [u8]) {
        let (tenant, key) = match self {
            Self::Named(subject) => (subject.tenant, subject.key),
            Self::Inline { key, tenant, .. } => (*tenant, key.as_bytes()),
        };
        (tenant.filter(|name| !name.is_empty()), key)
    }

    /// Returns the subject of a named policy.
    pub(super) fn subject(&self) -> Option<Subject<'a>> {
        match self {
            Self::Named(subject) => Some(*subject),
            Self::Inline { .. } => None,
        }
    }
}

/// Parses a body.
pub(super) fn parse<'a, T: Deserialize<'a>>(
    fields: &HeaderMap,
    body: &'a [u8],
) -> Result<T, Problem> {
    if let Some(encoding) = fields.get(http::header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        let detail = "the body is encoded: expected plain JSON";
        return Err(Problem::new(
            http::StatusCode::UNSUPPORTED_MEDIA_TYPE,
            detail,
        ));
    }
    if body.is_empty() {
        return Err(Problem::bad(
            "the body is empty: expected JSON such as {\"policy\": \"api\", \"key\": \"user:42\"}",
        ));
    }
    serde_json::from_slice(body)
        .map_err(|error| Problem::bad(format!("the body is invalid: {error}")))
}

/// Permission for a request to have a cost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CostRule {
    /// The request may have a cost.
    Allowed,
    /// The request takes nothing.
    Forbidden,
}

impl<'a> CheckRequest<'a> {
    /// Checks everything that needs no store.
    pub(super) fn target(&'a self, may_cost: CostRule) -> Result<CheckTarget<'a>, Problem> {
        let key = self.key.as_str();
        if key.is_empty() {
            return Err(Problem::bad("`key` is empty: expected at least one byte"));
        }
        if key.len() > MAX_KEY {
            return Err(Problem::bad(format!(
                "`key` is too long: expected at most {MAX_KEY} bytes"
            )));
        }
        for (name, text) in [
            ("policy", &self.policy),
            ("tier", &self.tier),
            ("tenant", &self.tenant),
        ] {
            if text
                .as_ref()
                .is_some_and(|text| text.as_str().len() > MAX_NAME)
            {
                return Err(Problem::bad(format!(
                    "`{name}` is too long: expected at most {MAX_NAME} bytes"
                )));
            }
        }
        let cost = match (self.cost, may_cost) {
            (None, CostRule::Allowed) => Cost::ONE,
            (None, CostRule::Forbidden) => Cost::ZERO,
            (Some(_), CostRule::Forbidden) => {
                return Err(Problem::bad(
                    "`cost` is not allowed here: the operation takes nothing",
                ));
            }
            (Some(number), CostRule::Allowed) => cost(number.get())?,
        };
        let tenant = self.tenant.as_ref().map(JsonText::as_str);
        match (&self.policy, &self.limits) {
            (Some(policy), None) => {
                let tier = self.tier.as_ref().map(JsonText::as_str);
                let subject = Subject {
                    policy: policy.as_str(),
                    key: key.as_bytes(),
                    tier,
                    tenant,
                    cost,
                };
                Ok(CheckTarget::Named(subject))
            }
            (None, Some(_)) if self.tier.is_some() => Err(Problem::bad(
                "`tier` needs a policy: expected `policy` instead of `limits`",
            )),
            (None, Some(limits)) => Ok(CheckTarget::Inline {
                limits: limits.as_str(),
                key,
                tenant,
                cost,
            }),
            (None, None) => Err(Problem::bad(
                "expected `policy`, the name of one, or `limits` such as \"100/minute\"",
            )),
            (Some(_), Some(_)) => Err(Problem::bad(
                "expected either `policy` or `limits`, not both",
            )),
        }
    }
}

/// Parses a cost from its text, to the thousandth. A float would change it.
fn cost(text: &str) -> Result<Cost, Problem> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
        return Err(Problem::bad(
            "`cost` is not a number: expected one such as 1 or 2.5",
        ));
    }
    text.parse()
        .map_err(|error| Problem::bad(format!("`cost`: {error}")))
}
