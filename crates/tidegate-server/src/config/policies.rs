//! Policies in a configuration file.

use std::collections::BTreeMap;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{Exception, PolicySet, Rules};

use super::{FailureMode, PolicyText};

/// One policy.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyConfig {
    /// The limits for keys without a tier or an exception.
    pub limits: PolicyText,
    /// The limits of each tier.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tiers: BTreeMap<String, PolicyText>,
    /// Carries usage over when a key changes tier, for windows and logs. By default each tier
    /// counts separately.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared_tiers: bool,
    /// Rejects requests with a tier that the policy does not have. By default they use the default
    /// limits, and the metric `tidegate_unknown_tiers` counts them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reject_unknown_tiers: bool,
    /// Counts and reports, and never denies.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shadow: bool,
    /// Limits to try: counted and reported, but not enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<PolicyText>,
    /// The answer when the store is unavailable. The default is the store's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureMode>,
    /// Set to false to decide every check in Redis, also if the store's URL has `lease`.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub lease: bool,
    /// The rules for single keys, whatever their tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<ExceptionConfig>,
}

/// The rule for one key.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExceptionConfig {
    /// The key.
    pub key: String,
    /// Its tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its own limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PolicyText>,
    /// Allows every request.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unlimited: bool,
    /// Denies every request.
    #[serde(default, skip_serializing_if = "is_false")]
    pub blocked: bool,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_true(value: &bool) -> bool {
    *value
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_false(value: &bool) -> bool {
    !value
}

pub(super) fn policy_set(
    policies: &BTreeMap<String, PolicyConfig>,
    instances: u32,
) -> Result<PolicySet, String> {
    policies
        .iter()
        .try_fold(PolicySet::new(), |policies, (name, policy)| {
            let rules = policy
                .rules(instances)
                .map_err(|error| format!("policies.{name}: {error}"))?;
            policies
                .with(name, rules)
                .map_err(|error| format!("policies: {error}"))
        })
}

impl PolicyConfig {
    fn rules(&self, instances: u32) -> Result<Rules, String> {
        let mut rules = Rules::new(self.limits.0.clone());
        for (tier, limits) in &self.tiers {
            rules = rules
                .tier(tier, limits.0.clone())
                .map_err(|error| format!("tiers: {error}"))?;
        }
        for (number, exception) in self.exceptions.iter().enumerate() {
            rules = exception
                .added_to(rules)
                .map_err(|error| format!("exceptions[{number}]: {error}"))?;
        }
        if self.shared_tiers {
            rules = rules.shared_tiers();
        }
        if self.reject_unknown_tiers {
            rules = rules.reject_unknown_tiers();
        }
        if self.shadow {
            rules = rules.shadow();
        }
        if let Some(candidate) = &self.candidate {
            rules = rules.candidate(candidate.0.clone());
        }
        if let Some(failure) = self.failure {
            rules = rules.failure_policy(failure.policy(instances));
        }
        if !self.lease {
            rules = rules.without_leases();
        }
        Ok(rules)
    }
}

impl ExceptionConfig {
    fn added_to(&self, rules: Rules) -> Result<Rules, String> {
        let exception = match (&self.limits, self.unlimited, self.blocked) {
            (Some(limits), false, false) => Exception::Policy(limits.0.clone()),
            (None, true, false) => Exception::Unlimited,
            (None, false, true) => Exception::Blocked,
            _ => {
                return Err(
                    "expected one of `limits`, `unlimited = true` and `blocked = true`".to_owned(),
                );
            }
        };
        if looks_like_network(&self.key) {
            return Err(format!(
                "the key `{}` looks like a network: expected a single key, such as one address",
                self.key
            ));
        }
        let added = match &self.tenant {
            Some(tenant) => rules.tenant_exception(tenant, &self.key, exception),
            None => rules.exception(&self.key, exception),
        };
        added.map_err(|error| error.to_string())
    }
}

/// Returns `true` for a key such as `10.0.0.0/8`. An exception applies to one key, so it would never
/// match the addresses of the network.
///
/// `ip:2001:db8::/64` is one key: middleware stores IPv6 addresses in this form.
fn looks_like_network(key: &str) -> bool {
    let (is_stored, address) = match key.strip_prefix("ip:") {
        Some(address) => (true, address),
        None => (false, key),
    };
    match address.parse::<IpNet>() {
        Ok(IpNet::V4(network)) => network.prefix_len() < 32,
        Ok(IpNet::V6(network)) => !is_stored && network.prefix_len() < 128,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_not_keys() {
        for key in ["10.0.0.0/8", "ip:10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0"] {
            assert!(looks_like_network(key), "{key}");
        }
        for key in [
            "ip:10.0.0.1",
            "10.0.0.1",
            "ip:2001:db8::/64",
            "user/8",
            "10.0.0.1/32",
        ] {
            assert!(!looks_like_network(key), "{key}");
        }
    }
}
