//! Rules in the form that requests are matched with: a tree, entry by entry.
//!
//! All domains are replaced at once, so a request never sees half of a configuration.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{AnyStore, Limiter};

use super::pattern::Pattern;
use super::stats::{RuleStats, ShownValues, StatPath};
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

/// All domains of a configuration.
#[derive(Default)]
pub(crate) struct Domains {
    pub(super) by_name: HashMap<Box<str>, Domain>,
    /// The digest of the sources, to detect changes.
    pub(crate) digest: String,
    /// Every rule that counts, in the order of the files.
    pub(super) rules: Vec<Arc<Rule>>,
}

/// The rules of one domain.
pub(crate) struct Domain {
    /// The namespace of its counters.
    pub(crate) namespace: Arc<str>,
    pub(super) root: RuleNode,
    /// The limiters of limits that came with descriptors.
    pub(super) overrides: Mutex<HashMap<OverrideLimit, Limiter<AnyStore>>>,
}

/// The maximum number of cached limiters of limits that came with descriptors.
const MAX_OVERRIDES: usize = 1_024;

/// A limit that came with a descriptor: requests per unit, unit and its multiplier.
pub(crate) type OverrideLimit = (u32, Unit, u32);

/// The rules below one entry.
#[derive(Default)]
pub(super) struct RuleNode {
    pub(super) rule: Option<Arc<Rule>>,
    /// Set if all values of a wildcard share a counter.
    pub(super) is_shared: bool,
    /// Set if the names of statistics show the value.
    pub(super) shows_value: bool,
    pub(super) keys: HashMap<Box<str>, KeyRules>,
}

/// The rules of one key.
#[derive(Default)]
pub(super) struct KeyRules {
    pub(super) exact: HashMap<Box<str>, RuleNode>,
    /// In the order of the file. The first match applies.
    pub(super) wildcards: Vec<(Pattern, RuleNode)>,
    /// For values without a rule of their own.
    pub(super) any: Option<Box<RuleNode>>,
}

/// A rule with a limit.
pub(crate) struct Rule {
    pub(crate) limit: RuleLimit,
    /// The limit as responses show it.
    pub(crate) shown: RateLimit,
    /// The names of rules that this one replaces.
    pub(crate) replaces: Vec<Box<str>>,
    pub(crate) is_shadow: bool,
    pub(crate) is_quota: bool,
    pub(crate) metadata: Option<prost_types::Struct>,
    pub(crate) stats: Arc<RuleStats>,
}

/// The effect of a rule.
pub(crate) enum RuleLimit {
    /// Allows everything and counts nothing.
    Unlimited,
    /// Denies every hit: 0 requests per unit, of this length. Charges are counted all the same, so
    /// that later looks are over the limit.
    Blocked(Limiter<AnyStore>, Duration),
    Limited(Limiter<AnyStore>),
}

/// The patterns of entries whose values share a counter, by the entry's place.
pub(crate) type SharedPatterns<'a> = SmallVec<[Option<&'a str>; 4]>;

/// The rule that applies to a descriptor.
pub(crate) struct RuleMatch<'a> {
    pub(crate) rule: &'a Arc<Rule>,
    pub(crate) shared: SharedPatterns<'a>,
}

impl Domains {
    pub(crate) fn domain(&self, name: &str) -> Option<&Domain> {
        self.by_name.get(name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns every rule that counts.
    pub(crate) fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }
}

impl Domain {
    /// Returns the limiter of a limit that came with a descriptor, a cached one if there is one.
    pub(crate) fn override_limiter(
        &self,
        limit: OverrideLimit,
        create: impl FnOnce() -> Result<Limiter<AnyStore>, String>,
    ) -> Result<Limiter<AnyStore>, String> {
        let mut cached = self
            .overrides
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = cached.get(&limit) {
            return Ok(limiter.clone());
        }
        let limiter = create()?;
        if cached.len() >= MAX_OVERRIDES {
            cached.clear();
        }
        cached.insert(limit, limiter.clone());
        Ok(limiter)
    }

    /// Returns the rule of a descriptor: the one at its last entry, if there is one.
    pub(crate) fn find<'a>(
        &'a self,
        entries: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    ) -> Option<RuleMatch<'a>> {
        let mut node = &self.root;
        let mut shared = SharedPatterns::new();
        for (key, value) in entries {
            let (next, pattern) = node.keys.get(key)?.find(value)?;
            shared.push(pattern.filter(|_| next.is_shared));
            node = next;
        }
        let rule = node.rule.as_ref()?;
        Some(RuleMatch { rule, shared })
    }

    /// Returns the name of the statistics of a descriptor, with the values that it shows.
    pub(super) fn stat_path(&self, entries: &[Entry], values: ShownValues) -> StatPath {
        let mut node = Some(&self.root);
        let parts = entries.iter().map(|Entry { key, value }| {
            let keys = node.and_then(|node| node.keys.get(key.as_str()));
            let found = keys.and_then(|keys| keys.find(value));
            node = found.map(|(next, _)| next);
            let shows_value = node.is_some_and(|node| node.shows_value && !node.is_shared);
            let is_exact = keys.is_some_and(|keys| keys.exact.contains_key(value.as_str()));
            let pattern = found.and_then(|(_, pattern)| pattern);
            let shown = match pattern {
                _ if values == ShownValues::All || is_exact || shows_value => value.as_str(),
                Some(pattern) => pattern,
                None => "",
            };
            match shown {
                "" => key.as_str().into(),
                shown => format!("{key}_{shown}").into(),
            }
        });
        parts.collect()
    }
}

impl KeyRules {
    fn find(&self, value: &str) -> Option<(&RuleNode, Option<&str>)> {
        // An empty value has no rule of its own.
        if let Some(node) = self.exact.get(value) {
            return Some((node, None));
        }
        let mut wildcards = self.wildcards.iter();
        if let Some((pattern, node)) = wildcards.find(|(pattern, _)| pattern.matches(value)) {
            return Some((node, Some(pattern.text())));
        }
        Some((self.any.as_deref()?, None))
    }
}
