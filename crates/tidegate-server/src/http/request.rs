//! Requests as JSON.

use std::borrow::Cow;
use std::fmt;

use http::HeaderMap;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tidegate::{Cost, KeyBuf, Subject};

use super::problem::Problem;

/// The maximum length of a key.
const MAX_KEY: usize = 8 * 1024;
/// The maximum number of parts of a key.
const MAX_PARTS: usize = 32;
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

/// A key: a string, or an array of parts.
#[derive(Clone, Debug)]
pub(super) enum JsonKey<'a> {
    Text(JsonText<'a>),
    Parts(Vec<JsonText<'a>>),
}

impl JsonKey<'_> {
    pub(super) fn as_key(&self) -> KeyBuf<'_> {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Parts(parts) => KeyBuf::from_parts(parts.iter().map(JsonText::as_str)),
        }
    }

    /// Returns the length in bytes, without the separators of parts.
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.as_str().len(),
            Self::Parts(parts) => parts.iter().map(|part| part.as_str().len()).sum(),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonKey<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = JsonKey<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or an array of strings")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey::Text(JsonText(Cow::Borrowed(text))))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey::Text(JsonText(Cow::Owned(text.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<JsonKey<'de>, A::Error> {
                let mut list = Vec::new();
                while let Some(part) = parts.next_element()? {
                    if list.len() == MAX_PARTS {
                        return Err(de::Error::custom(format_args!(
                            "too many parts in `key`: expected at most {MAX_PARTS}"
                        )));
                    }
                    list.push(part);
                }
                Ok(JsonKey::Parts(list))
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

/// Deserializes a value that must not be null if it is present.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A check, peek, charge, refund or reset.
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
    key: JsonKey<'a>,
    #[serde(borrow, default, deserialize_with = "given")]
    cost: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tier: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    tenant: Option<JsonText<'a>>,
    /// Set if the response should have a receipt.
    #[serde(default)]
    pub(super) receipt: bool,
    /// Set if the response should have the figures of every limit.
    #[serde(default)]
    pub(super) details: bool,
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
        key: KeyBuf<'a>,
        tenant: Option<&'a str>,
        cost: Cost,
    },
}

impl<'a> CheckTarget<'a> {
    /// Returns the tenant and the key. Requests with different ones never share a counter.
    pub(super) fn client(&self) -> (Option<&'a str>, bool, &[u8]) {
        let (tenant, key) = match self {
            Self::Named(subject) => (subject.tenant, &subject.key),
            Self::Inline { key, tenant, .. } => (*tenant, key),
        };
        let tenant = tenant.filter(|name| !name.is_empty());
        (tenant, key.is_composite(), key.as_bytes())
    }

    /// Returns the name of the policy, or `None` for inline limits.
    pub(super) fn policy(&self) -> Option<&'a str> {
        match self {
            Self::Named(subject) => Some(subject.policy),
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

/// The costs and options that an operation accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CostRule {
    /// A cost, which is 1 if there is none.
    Optional,
    /// A cost, because there is no reasonable default.
    Required,
    /// No cost.
    Forbidden,
}

impl<'a> CheckRequest<'a> {
    /// Fails if a receipt is requested.
    pub(super) fn no_receipt(&self) -> Result<(), Problem> {
        if self.receipt {
            return Err(Problem::bad("`receipt` is for checks: expected none here"));
        }
        Ok(())
    }

    /// Checks everything that needs no store.
    pub(super) fn target(&'a self, may_cost: CostRule) -> Result<CheckTarget<'a>, Problem> {
        let key = self.key.as_key();
        if key.as_bytes().is_empty() {
            return Err(Problem::bad("`key` is empty: expected at least one byte"));
        }
        if self.key.len() > MAX_KEY {
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
            (None, CostRule::Optional) => Cost::ONE,
            (None, CostRule::Forbidden) => Cost::ZERO,
            (None, CostRule::Required) => {
                return Err(Problem::bad("`cost` is missing: expected the cost to take"));
            }
            (Some(_), CostRule::Forbidden) => {
                return Err(Problem::bad(
                    "`cost` is not allowed here: the operation takes nothing",
                ));
            }
            (Some(number), _) => cost(number.get())?,
        };
        let tenant = self.tenant.as_ref().map(JsonText::as_str);
        match (&self.policy, &self.limits) {
            (Some(policy), None) => {
                let tier = self.tier.as_ref().map(JsonText::as_str);
                let subject = Subject {
                    policy: policy.as_str(),
                    key,
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
