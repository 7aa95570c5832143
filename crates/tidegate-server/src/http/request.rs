//! What is asked, as JSON.

use std::borrow::Cow;
use std::fmt;

use http::HeaderMap;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;
use tidegate::{Cost, Subject};

use super::problem::Problem;

/// Keys are names, not documents.
const LONGEST_KEY: usize = 8 * 1024;
/// So are tiers and tenants.
const LONGEST_NAME: usize = 256;

/// A text that is borrowed where it has no escapes.
#[derive(Clone, Debug)]
pub(super) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrow)
    }
}

/// What is there is a value: null is none.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// One request that is asked about.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"policy\": \"api\", \"key\": \"user:42\"}"
)]
pub(super) struct Question<'a> {
    #[serde(borrow, default, deserialize_with = "given")]
    policy: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    limits: Option<Text<'a>>,
    #[serde(borrow)]
    key: Text<'a>,
    #[serde(borrow, default, deserialize_with = "given")]
    cost: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tier: Option<Text<'a>>,
    #[serde(borrow, default)]
    tenant: Option<Text<'a>>,
    /// Set if the answer is to have a receipt.
    #[serde(default)]
    pub(super) receipt: bool,
}

/// A receipt to settle, and what the request cost in the end.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"receipt\": \"…\", \"cost\": 1}"
)]
pub(super) struct Settle<'a> {
    #[serde(borrow)]
    receipt: Text<'a>,
    #[serde(borrow)]
    cost: &'a RawValue,
}

impl Settle<'_> {
    pub(super) fn receipt(&self) -> &str {
        self.receipt.as_str()
    }

    pub(super) fn cost(&self) -> Result<Cost, Problem> {
        cost(self.cost.get())
    }
}

/// Several, each for itself; or together, all or nothing.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"checks\": [...]}"
)]
pub(super) struct Batch<'a> {
    #[serde(borrow)]
    pub(super) checks: Vec<Question<'a>>,
    #[serde(default)]
    pub(super) together: bool,
}

/// What a question is about.
pub(super) enum About<'a> {
    /// A policy of the book.
    Named(Subject<'a>),
    /// Limits that came along.
    Inline {
        limits: &'a str,
        key: &'a str,
        tenant: Option<&'a str>,
        cost: Cost,
    },
}

impl<'a> About<'a> {
    /// Whose count it is: those of others are never the same.
    pub(super) fn whose(&self) -> (Option<&'a str>, &'a [u8]) {
        let (tenant, key) = match self {
            Self::Named(subject) => (subject.tenant, subject.key),
            Self::Inline { key, tenant, .. } => (*tenant, key.as_bytes()),
        };
        (tenant.filter(|name| !name.is_empty()), key)
    }

    /// What is held to a policy of the book; `None` of anything else.
    pub(super) fn subject(&self) -> Option<Subject<'a>> {
        match self {
            Self::Named(subject) => Some(*subject),
            Self::Inline { .. } => None,
        }
    }
}

/// A body as a question or a batch of them.
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
            "there is no body: expected JSON such as {\"policy\": \"api\", \"key\": \"user:42\"}",
        ));
    }
    serde_json::from_slice(body)
        .map_err(|error| Problem::bad(format!("the body is not what was expected: {error}")))
}

/// What of a question does not belong to what is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost1 {
    /// It may say what the request costs.
    May,
    /// It takes nothing.
    Never,
}

impl<'a> Question<'a> {
    /// Checks all there is to check without asking anybody.
    pub(super) fn about(&'a self, may_cost: Cost1) -> Result<About<'a>, Problem> {
        let key = self.key.as_str();
        if key.is_empty() {
            return Err(Problem::bad("`key` is empty: expected who is limited"));
        }
        if key.len() > LONGEST_KEY {
            return Err(Problem::bad(format!(
                "`key` is longer than {LONGEST_KEY} bytes"
            )));
        }
        for (name, text) in [
            ("policy", &self.policy),
            ("tier", &self.tier),
            ("tenant", &self.tenant),
        ] {
            if text
                .as_ref()
                .is_some_and(|text| text.as_str().len() > LONGEST_NAME)
            {
                return Err(Problem::bad(format!(
                    "`{name}` is longer than {LONGEST_NAME} bytes"
                )));
            }
        }
        let cost = match (self.cost, may_cost) {
            (None, Cost1::May) => Cost::ONE,
            (None, Cost1::Never) => Cost::ZERO,
            (Some(_), Cost1::Never) => {
                return Err(Problem::bad("`cost` is of no use here: this takes nothing"));
            }
            (Some(number), Cost1::May) => cost(number.get())?,
        };
        let tenant = self.tenant.as_ref().map(Text::as_str);
        match (&self.policy, &self.limits) {
            (Some(policy), None) => {
                let tier = self.tier.as_ref().map(Text::as_str);
                let subject = Subject {
                    policy: policy.as_str(),
                    key: key.as_bytes(),
                    tier,
                    tenant,
                    cost,
                };
                Ok(About::Named(subject))
            }
            (None, Some(_)) if self.tier.is_some() => Err(Problem::bad(
                "`tier` is of a policy: expected `policy` in place of `limits`",
            )),
            (None, Some(limits)) => Ok(About::Inline {
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

/// A cost by its text, to the thousandth: a number that has been through a float is not what was written.
fn cost(text: &str) -> Result<Cost, Problem> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
        return Err(Problem::bad(
            "`cost` is not a number: expected one such as 1 or 2.5",
        ));
    }
    text.parse()
        .map_err(|error| Problem::bad(format!("`cost`: {error}")))
}
