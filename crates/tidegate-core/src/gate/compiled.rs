//! A set of policies, prepared for a store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::counters::{PolicyCounters, PolicyTally};
use super::verdict::PolicyLabel;
use crate::limiter::{CheckError, Limiter, RemoteSettings};
use crate::name::Name;
use crate::policy::Policy;
use crate::policy_set::{Exception, PolicySet, Rules};
use crate::store::Store;

pub(super) struct CompiledPolicies<S: Store> {
    set: PolicySet,
    /// Sorted by name. There are few policies, so a binary search is faster than a hash.
    policies: Vec<NamedPolicy<S>>,
}

/// A named policy with the rules for its keys.
pub(super) struct NamedPolicy<S: Store> {
    name: Name,
    is_shadow: bool,
    rejects_unknown_tiers: bool,
    default: Arc<Rule<S>>,
    tiers: BTreeMap<Name, Arc<Rule<S>>>,
    exceptions: HashMap<Box<[u8]>, Arc<Rule<S>>>,
    candidate: Option<Arc<Rule<S>>>,
    counters: Arc<PolicyTally>,
}

/// The rule for some keys of a policy.
pub(super) struct Rule<S: Store> {
    pub(super) label: Arc<PolicyLabel>,
    pub(super) action: RuleAction<S>,
}

pub(super) enum RuleAction<S: Store> {
    Limit(Limiter<S>),
    Allow,
    Block,
}

impl<S: Store> CompiledPolicies<S> {
    /// Prepares a set. Rules that are unchanged are taken over from the old set, with their deny
    /// cache.
    pub(super) fn new(
        store: &Arc<S>,
        settings: &RemoteSettings,
        set: PolicySet,
        old: Option<&Self>,
    ) -> Self {
        let policies = set
            .entries()
            .map(|(name, rules)| {
                let old = old.and_then(|old| old.find(name.as_str()));
                let mut settings = settings.clone();
                settings.failure = rules.failure.unwrap_or(settings.failure);
                settings.has_leases &= rules.has_leases;
                let compiler = RuleCompiler {
                    store,
                    settings,
                    name,
                };
                compiler.policy(rules, old)
            })
            .collect();
        Self { set, policies }
    }

    pub(super) fn set(&self) -> &PolicySet {
        &self.set
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = &NamedPolicy<S>> {
        self.policies.iter()
    }

    fn find(&self, name: &str) -> Option<&NamedPolicy<S>> {
        let index = self
            .policies
            .binary_search_by(|policy| policy.name.as_str().cmp(name))
            .ok()?;
        self.policies.get(index)
    }

    pub(super) fn policy(&self, name: &str) -> Result<&NamedPolicy<S>, CheckError> {
        self.find(name).ok_or_else(|| {
            let known: Vec<&str> = self.set.names().map(Name::as_str).collect();
            CheckError::UnknownPolicy {
                name: printable(name),
                expected: if known.is_empty() {
                    "no policies are configured".to_owned()
                } else {
                    format!("expected one of {}", known.join(", "))
                },
            }
        })
    }
}

/// Returns the start of a text from outside, without control characters.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// Prepares the rules of one named policy.
struct RuleCompiler<'a, S: Store> {
    store: &'a Arc<S>,
    settings: RemoteSettings,
    name: &'a Name,
}

impl<S: Store> RuleCompiler<'_, S> {
    fn policy(&self, rules: &Rules, old: Option<&NamedPolicy<S>>) -> NamedPolicy<S> {
        let old_candidate = old.and_then(|old| old.candidate.as_ref());
        let old_default = old.map(|old| &old.default);
        NamedPolicy {
            name: self.name.clone(),
            is_shadow: rules.is_shadow,
            rejects_unknown_tiers: rules.rejects_unknown_tiers,
            default: self.limit(old_default, &rules.default, None, ""),
            tiers: self.tiers(rules, old),
            exceptions: self.exceptions(rules, old),
            candidate: rules
                .candidate
                .as_ref()
                .map(|policy| self.limit(old_candidate, policy, None, "~~candidate")),
            counters: old.map_or_else(Arc::default, |old| Arc::clone(&old.counters)),
        }
    }

    fn tiers(&self, rules: &Rules, old: Option<&NamedPolicy<S>>) -> BTreeMap<Name, Arc<Rule<S>>> {
        let compile = |(tier, policy): (&Name, &Policy)| {
            let suffix = if rules.has_shared_tiers {
                String::new()
            } else {
                format!("~{tier}")
            };
            let old = old.and_then(|old| old.tiers.get(tier));
            (tier.clone(), self.limit(old, policy, Some(tier), &suffix))
        };
        rules.tiers.iter().map(compile).collect()
    }

    fn exceptions(
        &self,
        rules: &Rules,
        old: Option<&NamedPolicy<S>>,
    ) -> HashMap<Box<[u8]>, Arc<Rule<S>>> {
        // Keys with the same exception share one rule, since there may be many.
        let mut shared: Vec<Arc<Rule<S>>> = Vec::new();
        let mut compile = |key: &[u8], exception: &Exception| match exception {
            Exception::Policy(policy) => {
                let is_same = |rule: &&Arc<Rule<S>>| rule.label.policy() == Some(policy);
                if let Some(rule) = shared.iter().find(is_same) {
                    return Arc::clone(rule);
                }
                let old = old.and_then(|old| old.exceptions.get(key));
                let rule = self.limit(old, policy, None, "");
                shared.push(Arc::clone(&rule));
                rule
            }
            Exception::Unlimited => self.rule(None, None, RuleAction::Allow),
            Exception::Blocked => self.rule(None, None, RuleAction::Block),
        };
        rules
            .exceptions
            .iter()
            .map(|(key, exception)| (key.clone(), compile(key, exception)))
            .collect()
    }

    /// Returns a rule that limits keys, the old one if nothing has changed.
    fn limit(
        &self,
        old: Option<&Arc<Rule<S>>>,
        policy: &Policy,
        tier: Option<&Name>,
        suffix: &str,
    ) -> Arc<Rule<S>> {
        let namespace = format!("{}{suffix}", self.name);
        if let Some(old) = old.filter(|old| old.is_same(policy, &namespace, &self.settings)) {
            return Arc::clone(old);
        }
        let limiter = Limiter::on(
            Arc::clone(self.store),
            policy.clone(),
            namespace.into(),
            self.settings.clone(),
        );
        self.rule(tier, Some(policy), RuleAction::Limit(limiter))
    }

    fn rule(
        &self,
        tier: Option<&Name>,
        policy: Option<&Policy>,
        action: RuleAction<S>,
    ) -> Arc<Rule<S>> {
        let label = PolicyLabel::new(self.name.clone(), tier.cloned(), policy.cloned());
        Arc::new(Rule {
            label: Arc::new(label),
            action,
        })
    }
}

impl<S: Store> NamedPolicy<S> {
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    pub(super) fn counters(&self) -> &Arc<PolicyTally> {
        &self.counters
    }

    /// Returns the rule for an encoded key, and whether it is an exception.
    pub(super) fn rule(
        &self,
        key: &[u8],
        tier: Option<&str>,
    ) -> Result<(&Arc<Rule<S>>, bool), CheckError> {
        match self.known_rule(key, tier) {
            Some(found) => Ok(found),
            None => self.unknown_tier(tier.unwrap_or_default()),
        }
    }

    /// Like [`rule`](Self::rule). Returns `None` if the tier is unknown, and does not count it.
    pub(super) fn known_rule(
        &self,
        key: &[u8],
        tier: Option<&str>,
    ) -> Option<(&Arc<Rule<S>>, bool)> {
        if !self.exceptions.is_empty()
            && let Some(rule) = self.exceptions.get(key)
        {
            return Some((rule, true));
        }
        match tier.filter(|tier| !tier.is_empty()) {
            None => Some((&self.default, false)),
            Some(tier) => Some((self.tiers.get(tier)?, false)),
        }
    }

    /// Fails if the policy rejects the tier.
    pub(super) fn ensure_tier(&self, tier: Option<&str>) -> Result<(), CheckError> {
        match tier.filter(|tier| !tier.is_empty() && self.rejects_unknown_tiers) {
            Some(tier) if !self.tiers.contains_key(tier) => self.unknown_tier(tier).map(drop),
            _ => Ok(()),
        }
    }

    /// Counts an unknown tier. It uses the default limits, unless the policy rejects it.
    #[cold]
    fn unknown_tier(&self, tier: &str) -> Result<(&Arc<Rule<S>>, bool), CheckError> {
        self.counters.count_unknown_tier();
        if !self.rejects_unknown_tiers {
            return Ok((&self.default, false));
        }
        let known: Vec<&str> = self.tiers.keys().map(Name::as_str).collect();
        Err(CheckError::UnknownTier {
            policy: self.name.to_string(),
            tier: printable(tier),
            expected: match known[..] {
                [] => "the policy has no tiers".to_owned(),
                _ => format!("expected one of {}", known.join(", ")),
            },
        })
    }

    pub(super) fn candidate(&self) -> Option<&Arc<Rule<S>>> {
        self.candidate.as_ref()
    }

    /// Returns every limiter that may have counted a key.
    pub(super) fn limiters<'a>(
        &'a self,
        key: &[u8],
    ) -> impl Iterator<Item = &'a Limiter<S>> + use<'a, S> {
        let rules = [&self.default].into_iter().chain(self.tiers.values());
        let rules = rules.chain(self.exceptions.get(key)).chain(&self.candidate);
        rules.filter_map(|rule| rule.limiter())
    }

    pub(super) fn snapshot(&self) -> PolicyCounters {
        self.counters.snapshot(self.name.clone())
    }
}

impl<S: Store> Rule<S> {
    pub(super) fn limiter(&self) -> Option<&Limiter<S>> {
        match &self.action {
            RuleAction::Limit(limiter) => Some(limiter),
            RuleAction::Allow | RuleAction::Block => None,
        }
    }

    fn is_same(&self, policy: &Policy, namespace: &str, settings: &RemoteSettings) -> bool {
        self.limiter().is_some_and(|limiter| {
            let failure = limiter.failure_policy();
            limiter.policy() == policy
                && limiter.namespace() == namespace
                && failure.is_none_or(|failure| {
                    failure == settings.failure && limiter.has_leases() == settings.has_leases
                })
        })
    }
}
