//! Converts the xDS resources of envoyproxy/ratelimit, which have a part of the files' settings.

use super::source::{DescriptorSource, DomainSource, LimitSource, RuleError};
use crate::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};

/// The maximum depth of descriptors.
const MAX_DEPTH: usize = 64;

/// Converts one resource.
///
/// # Errors
///
/// Returns an error if descriptors are nested too deeply.
pub(crate) fn domain_from_xds(config: &RateLimitConfig) -> Result<DomainSource, RuleError> {
    let descriptors = convert(&config.descriptors, 0)
        .map_err(|message| RuleError::new(&config.name, message, None))?;
    Ok(DomainSource {
        name: config.name.clone(),
        domain: config.domain.clone(),
        at: None,
        descriptors,
    })
}

fn convert(
    descriptors: &[RateLimitDescriptor],
    depth: usize,
) -> Result<Vec<DescriptorSource>, String> {
    if depth > MAX_DEPTH {
        return Err(format!(
            "nested too deeply: expected at most {MAX_DEPTH} levels"
        ));
    }
    let converted = descriptors.iter().map(|descriptor| {
        Ok(DescriptorSource {
            key: descriptor.key.clone(),
            value: descriptor.value.clone(),
            rate_limit: descriptor.rate_limit.as_ref().map(limit),
            descriptors: convert(&descriptor.descriptors, depth + 1)?,
            shadow_mode: descriptor.shadow_mode,
            detailed_metric: descriptor.detailed_metric,
            ..DescriptorSource::default()
        })
    });
    converted.collect()
}

fn limit(policy: &RateLimitPolicy) -> LimitSource {
    let replaces = policy.replaces.iter();
    LimitSource {
        unit: policy.unit().as_str_name().to_owned(),
        requests_per_unit: policy.requests_per_unit,
        is_unlimited: policy.unlimited,
        name: policy.name.clone(),
        replaces: replaces.map(|replaced| replaced.name.clone()).collect(),
        ..LimitSource::default()
    }
}

/// Converts a file to a resource, so that tests can send their files over xDS. Returns `None` if a
/// resource cannot express it.
#[cfg(feature = "manual-time")]
#[doc(hidden)] // For tests.
#[must_use]
pub fn xds_from_yaml(name: &str, text: &str) -> Option<RateLimitConfig> {
    let source = super::from_yaml::read(name, text).ok()?;
    Some(RateLimitConfig {
        name: source.name,
        domain: source.domain,
        descriptors: to_xds(&source.descriptors)?,
    })
}

#[cfg(feature = "manual-time")]
fn to_xds(descriptors: &[DescriptorSource]) -> Option<Vec<RateLimitDescriptor>> {
    use crate::proto::ratelimit::config::ratelimit::v3::{RateLimitReplace, RateLimitUnit};
    let converted = descriptors.iter().map(|source| {
        if source.quota_mode
            || source.share_threshold
            || source.value_to_metric
            || source.metadata.is_some()
        {
            return None;
        }
        let rate_limit = match &source.rate_limit {
            None => None,
            Some(limit) => {
                let extensions = &limit.extensions;
                let is_extended = extensions.algorithm.is_some()
                    || extensions.burst.is_some()
                    || extensions.debt.is_some()
                    || extensions.unit_multiplier.is_some();
                let unit = limit.unit.to_ascii_uppercase();
                let unit = match unit.as_str() {
                    "" => RateLimitUnit::Unknown,
                    name => RateLimitUnit::from_str_name(name)?,
                };
                if is_extended {
                    return None;
                }
                let replaces = limit.replaces.iter().cloned();
                Some(RateLimitPolicy {
                    unit: unit.into(),
                    requests_per_unit: limit.requests_per_unit,
                    unlimited: limit.is_unlimited,
                    name: limit.name.clone(),
                    replaces: replaces.map(|name| RateLimitReplace { name }).collect(),
                })
            }
        };
        Some(RateLimitDescriptor {
            key: source.key.clone(),
            value: source.value.clone(),
            rate_limit,
            descriptors: to_xds(&source.descriptors)?,
            shadow_mode: source.shadow_mode,
            detailed_metric: source.detailed_metric,
        })
    });
    converted.collect()
}
