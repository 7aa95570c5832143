//! Rules as they are written: the files of envoyproxy/ratelimit, or its xDS resources. Nothing is
//! compiled yet.

use crate::yaml::Position;

/// The rules of one domain in one file or resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainSource {
    /// The name of the file or resource, for errors.
    pub(crate) name: String,
    pub(crate) domain: String,
    pub(crate) at: Option<Position>,
    pub(crate) descriptors: Vec<DescriptorSource>,
}

/// A rule, with the rules below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorSource {
    pub(crate) at: Option<Position>,
    pub(crate) key: String,
    /// The value. Empty for a rule that applies to every value.
    pub(crate) value: String,
    pub(crate) rate_limit: Option<LimitSource>,
    pub(crate) descriptors: Vec<DescriptorSource>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    pub(crate) detailed_metric: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: bool,
    pub(crate) metadata: Option<prost_types::Struct>,
}

/// The limit of a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitSource {
    pub(crate) at: Option<Position>,
    pub(crate) unit: String,
    pub(crate) requests_per_unit: u32,
    pub(crate) is_unlimited: bool,
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) extensions: LimitExtensions,
}

/// The settings that envoyproxy/ratelimit does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitExtensions {
    pub(crate) algorithm: Option<String>,
    pub(crate) burst: Option<u32>,
    pub(crate) debt: Option<u32>,
    pub(crate) unit_multiplier: Option<u32>,
}

/// The error for rules that are invalid. The text starts like that of envoyproxy/ratelimit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {message}{}", at.map(|at| format!(" ({at})")).unwrap_or_default())]
pub(crate) struct RuleError {
    pub(crate) file: String,
    pub(crate) message: String,
    pub(crate) at: Option<Position>,
}

impl RuleError {
    pub(crate) fn new(file: &str, message: impl Into<String>, at: Option<Position>) -> Self {
        Self {
            file: file.to_owned(),
            message: message.into(),
            at,
        }
    }
}
