//! Compiles rules: checks them, and prepares a limiter for each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{AnyStore, Gate, Limiter, Name, Policy};

use super::pattern::Pattern;
use super::rules::{Domain, Domains, KeyRules, Rule, RuleLimit, RuleNode};
use super::source::{DescriptorSource, DomainSource, LimitExtensions, LimitSource, RuleError};
use super::stats::{RuleEntry, RuleStats, ShownValues, StatPath, stat_name};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

/// The largest number of requests per unit, and of debt.
pub(crate) const MAX_COUNT: u32 = 1_000_000_000;

/// The limit of the counter of a rule that denies every hit. Any usage is over the rule's limit, 0.
pub(crate) const BLOCKED: u32 = 1;

/// Compiles all domains. Rules that exist already keep their statistics.
///
/// # Errors
///
/// Returns the first error, with its file and position.
pub(crate) fn compile(
    sources: &[DomainSource],
    merges_domains: bool,
    gate: &Gate<AnyStore>,
    old: Option<&Domains>,
) -> Result<Domains, RuleError> {
    let mut compiler = Compiler {
        gate,
        file: "",
        domain: "",
        namespace: Arc::from(""),
        rules: Vec::new(),
        old: old.map_or_else(HashMap::new, |old| {
            let mut by_name: HashMap<String, Vec<Arc<RuleStats>>> = HashMap::new();
            for rule in &old.rules {
                let name = rule.stats.name().to_owned();
                by_name
                    .entry(name)
                    .or_default()
                    .push(Arc::clone(&rule.stats));
            }
            by_name
        }),
    };
    let mut domains = Domains::default();
    for source in sources {
        compiler.file = &source.name;
        if source.domain.is_empty() {
            return Err(compiler.error("config file cannot have empty domain", source.at));
        }
        let name = source.domain.as_str();
        if domains.by_name.contains_key(name) && !merges_domains {
            let message = format!(
                "duplicate domain '{name}' in config file: expected it once (envoy.merge_domains = true accepts several files)"
            );
            return Err(compiler.error(message, source.at));
        }
        let domain = domains
            .by_name
            .entry(name.into())
            .or_insert_with(|| Domain {
                namespace: service_namespace(name, "domain"),
                overrides: Mutex::default(),
                root: RuleNode::default(),
            });
        compiler.namespace = Arc::clone(&domain.namespace);
        compiler.domain = name;
        compiler.add(&mut domain.root, &source.descriptors, &Parents::default())?;
    }
    domains.rules = compiler.rules;
    Ok(domains)
}

/// Returns the namespace of the counters of a service and a domain in it. No two share one, and
/// none is that of a named policy.
pub(crate) fn service_namespace(domain: &str, service: &str) -> Arc<str> {
    match Name::new(domain) {
        Ok(name) => format!("{name}~~{service}").into(),
        Err(_) => {
            let digest = blake3::hash(domain.as_bytes()).to_hex();
            format!("{}~~{service}-digest", &digest[..32]).into()
        }
    }
}

/// The nodes above a rule.
#[derive(Clone, Default)]
struct Parents {
    rule: Vec<RuleEntry>,
    path: Vec<Box<str>>,
    /// Set if one of them has `value_to_metric`.
    shows_value: bool,
}

struct Compiler<'a> {
    gate: &'a Gate<AnyStore>,
    file: &'a str,
    domain: &'a str,
    namespace: Arc<str>,
    rules: Vec<Arc<Rule>>,
    old: HashMap<String, Vec<Arc<RuleStats>>>,
}

impl Compiler<'_> {
    fn error(&self, message: impl Into<String>, at: Option<crate::yaml::Position>) -> RuleError {
        RuleError::new(self.file, message, at)
    }

    fn add(
        &mut self,
        parent: &mut RuleNode,
        descriptors: &[DescriptorSource],
        parents: &Parents,
    ) -> Result<(), RuleError> {
        for source in descriptors {
            self.add_one(parent, source, parents)?;
        }
        Ok(())
    }

    fn add_one(
        &mut self,
        parent: &mut RuleNode,
        source: &DescriptorSource,
        parents: &Parents,
    ) -> Result<(), RuleError> {
        if source.key.is_empty() {
            return Err(self.error("descriptor has empty key", source.at));
        }
        let mut name = source.key.clone();
        if !source.value.is_empty() {
            name = format!("{name}_{}", source.value);
        }
        let mut here = parents.clone();
        here.rule
            .push((source.key.as_str().into(), source.value.as_str().into()));
        here.path.push(name.as_str().into());
        here.shows_value |= source.value_to_metric && !source.share_threshold;
        let keys = parent.keys.entry(source.key.as_str().into()).or_default();
        if keys.has(&source.value) {
            let path = stat_name(self.domain, &here.path);
            let message = format!("duplicate descriptor composite key '{path}'");
            return Err(self.error(message, source.at));
        }
        let limit = source.rate_limit.as_ref();
        let rule = limit
            .map(|limit| self.rule(source, limit, &here))
            .transpose()?;
        let pattern = Pattern::of(&source.value);
        if source.share_threshold && pattern.is_none() {
            let message = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but found key '{name}'"
            );
            return Err(self.error(message, source.at));
        }
        let mut node = RuleNode {
            rule: rule.map(Arc::new),
            is_shared: source.share_threshold,
            shows_value: source.value_to_metric,
            keys: HashMap::new(),
        };
        self.rules.extend(node.rule.clone());
        self.add(&mut node, &source.descriptors, &here)?;
        keys.insert(source.value.as_str(), pattern, node);
        Ok(())
    }

    fn rule(
        &self,
        source: &DescriptorSource,
        limit: &LimitSource,
        here: &Parents,
    ) -> Result<Rule, RuleError> {
        let unit = unit(&limit.unit);
        let (effect, shown) = if limit.is_unlimited {
            if unit.is_some() {
                let message = "should not specify rate limit unit when unlimited";
                return Err(self.error(message, limit.at));
            }
            (RuleLimit::Unlimited, RateLimit::default())
        } else {
            let unit = unit.ok_or_else(|| {
                self.error(
                    format!(
                        "invalid rate limit unit '{}': expected second, minute, hour, day, week, month or year",
                        limit.unit
                    ),
                    limit.at,
                )
            })?;
            self.limit(limit, unit, &here.path)?
        };
        if limit.replaces.iter().any(String::is_empty) {
            return Err(self.error("should not have an empty replaces entry", limit.at));
        }
        if limit.replaces.contains(&limit.name) {
            let message = "replaces should not contain name of same descriptor";
            return Err(self.error(message, limit.at));
        }
        Ok(Rule {
            limit: effect,
            shown: RateLimit {
                name: limit.name.clone(),
                ..shown
            },
            replaces: limit
                .replaces
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            is_shadow: source.shadow_mode,
            is_quota: source.quota_mode,
            metadata: source.metadata.clone(),
            stats: self.stats(source, here),
        })
    }

    /// Returns the statistics of a rule: those of the same rule before, if there was one.
    fn stats(&self, source: &DescriptorSource, here: &Parents) -> Arc<RuleStats> {
        let values = match (source.detailed_metric, here.shows_value) {
            (true, _) => ShownValues::All,
            (false, true) => ShownValues::Some,
            (false, false) => ShownValues::OfRules,
        };
        let path = StatPath::from(here.path.clone());
        let named = self.old.get(&stat_name(self.domain, &path));
        let mut named = named.into_iter().flatten();
        let is_same =
            |old: &&Arc<RuleStats>| old.values() == values && old.is_of(self.domain, &here.rule);
        match named.find(is_same) {
            Some(old) => Arc::clone(old),
            None => Arc::new(RuleStats::new(self.domain, &here.rule, path, values)),
        }
    }

    fn limit(
        &self,
        limit: &LimitSource,
        unit: Unit,
        path: &[Box<str>],
    ) -> Result<(RuleLimit, RateLimit), RuleError> {
        let multiplier = limit.extensions.unit_multiplier.unwrap_or(1);
        if limit.requests_per_unit > MAX_COUNT {
            let requests_per_unit = limit.requests_per_unit;
            tracing::warn!(
                rule = stat_name(self.domain, path),
                requests_per_unit,
                "requests_per_unit is too large, using 1,000,000,000"
            );
        }
        let shown = RateLimit {
            requests_per_unit: limit.requests_per_unit.min(MAX_COUNT),
            // Envoy would show the wrong window for a multiple of a unit.
            unit: if multiplier == 1 { unit } else { Unit::Unknown }.into(),
            name: String::new(),
        };
        if shown.requests_per_unit == 0 {
            let period = unit_period(unit).saturating_mul(multiplier.max(1));
            let limit = LimitSource {
                extensions: LimitExtensions::default(),
                ..limit.clone()
            };
            let limiter = self.limiter(&limit, BLOCKED, multiplier)?;
            return Ok((RuleLimit::Blocked(limiter, period), shown));
        }
        let limiter = self.limiter(limit, shown.requests_per_unit, multiplier)?;
        Ok((RuleLimit::Limited(limiter), shown))
    }

    fn limiter(
        &self,
        limit: &LimitSource,
        requests: u32,
        multiplier: u32,
    ) -> Result<Limiter<AnyStore>, RuleError> {
        let policy =
            policy(limit, requests, multiplier).map_err(|message| self.error(message, limit.at))?;
        Ok(self.gate.service_limiter(&self.namespace, policy))
    }
}

impl KeyRules {
    fn has(&self, value: &str) -> bool {
        match value {
            "" => self.any.is_some(),
            _ => {
                let mut wildcards = self.wildcards.iter();
                self.exact.contains_key(value)
                    || wildcards.any(|(pattern, _)| pattern.text() == value)
            }
        }
    }

    fn insert(&mut self, value: &str, pattern: Option<Pattern>, node: RuleNode) {
        match (value, pattern) {
            ("", _) => self.any = Some(Box::new(node)),
            (_, Some(pattern)) => self.wildcards.push((pattern, node)),
            (_, None) => drop(self.exact.insert(value.into(), node)),
        }
    }
}

/// Returns the unit with this name, in upper or lower case.
fn unit(name: &str) -> Option<Unit> {
    Unit::from_str_name(&name.to_ascii_uppercase()).filter(|unit| *unit != Unit::Unknown)
}

/// Returns the length of a unit.
pub(crate) fn unit_period(unit: Unit) -> Duration {
    const DAY: u64 = 86_400;
    Duration::from_secs(match unit {
        Unit::Unknown | Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 3_600,
        Unit::Day => DAY,
        Unit::Week => 7 * DAY,
        Unit::Month => 30 * DAY,
        Unit::Year => 365 * DAY,
    })
}

/// Returns the policy of a limit.
///
/// Without an algorithm it is the fixed window of envoyproxy/ratelimit, which counts without bound
/// beyond the limit. Other algorithms have a debt of their capacity.
fn policy(limit: &LimitSource, requests: u32, multiplier: u32) -> Result<Policy, String> {
    let extensions = &limit.extensions;
    let algorithm = extensions.algorithm.as_deref().unwrap_or("fixed_window");
    let burst = extensions.burst.map(|burst| format!(" burst={burst}"));
    let unit = limit.unit.to_ascii_lowercase();
    let text = format!(
        "{algorithm} {requests}/{multiplier} {unit}{}",
        burst.unwrap_or_default()
    );
    let with_debt = |debt: u32| format!("{text} debt={debt}").parse::<Policy>();
    let policy = match extensions.debt {
        Some(debt) => with_debt(debt),
        None if algorithm.eq_ignore_ascii_case("fixed_window") => with_debt(MAX_COUNT),
        // A slow bucket may have no room for a debt.
        None => with_debt(extensions.burst.unwrap_or(requests)).or_else(|_| with_debt(0)),
    };
    policy.map_err(|error| {
        let message = error.to_string();
        message.lines().next().unwrap_or_default().to_owned()
    })
}

/// Returns the policy of a limit that came with a descriptor: a fixed window.
pub(crate) fn override_policy(
    requests: u32,
    unit: Unit,
    multiplier: u32,
) -> Result<Policy, String> {
    let limit = LimitSource {
        unit: unit.as_str_name().to_owned(),
        ..LimitSource::default()
    };
    policy(&limit, requests.min(MAX_COUNT), multiplier)
}
