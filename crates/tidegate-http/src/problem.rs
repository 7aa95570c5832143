//! Error responses as `application/problem+json` (RFC 9457).

use serde::Serialize;

/// The media type of a [`Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The body of an error response, as RFC 9457 defines it.
///
/// `violated_policies` and `retry_after` are extensions for denied requests.
#[derive(Clone, Debug, Serialize)]
pub struct Problem<'a> {
    /// A URI that identifies the type of error.
    pub r#type: String,
    /// A short summary, the same for every error of this type.
    pub title: &'a str,
    /// The HTTP status code.
    pub status: u16,
    /// An explanation of this occurrence.
    pub detail: String,
    /// The policies that denied the request.
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    pub violated_policies: Option<Vec<&'a str>>,
    /// The seconds until a retry is allowed; `None` inside means never or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Option<u64>>,
}

impl<'a> Problem<'a> {
    /// Creates a problem without a type of its own.
    #[must_use]
    pub fn new(status: u16, title: &'a str, detail: impl Into<String>) -> Self {
        Self {
            r#type: "about:blank".to_owned(),
            title,
            status,
            detail: detail.into(),
            violated_policies: None,
            retry_after: None,
        }
    }

    /// Returns the problem as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Text and numbers only, so serialization cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}
