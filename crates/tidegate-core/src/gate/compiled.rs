//! A book, worked out for a store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::tally::{PolicyCounters, Tally};
use super::verdict::Label;
use crate::book::{Book, Exception, Rules};
use crate::limiter::{CheckError, Limiter, Settings};
use crate::name::Name;
use crate::policy::Policy;
use crate::store::Store;

pub(super) struct Compiled<S: Store> {
    book: Book,
    /// In the order of their names: there are few, and they are found faster so than by a hash.
    policies: Vec<NamedPolicy<S>>,
}

/// A policy of the book: what its keys are held to.
pub(super) struct NamedPolicy<S: Store> {
    name: Name,
    is_shadow: bool,
    default: Arc<Held<S>>,
    tiers: BTreeMap<Name, Arc<Held<S>>>,
    exceptions: HashMap<Box<[u8]>, Arc<Held<S>>>,
    candidate: Option<Arc<Held<S>>>,
    tally: Arc<Tally>,
}

/// What some keys are held to.
pub(super) struct Held<S: Store> {
    pub(super) label: Arc<Label>,
    pub(super) to: To<S>,
}

pub(super) enum To<S: Store> {
    Limiter(Limiter<S>),
    Nothing,
    Blocked,
}

impl<S: Store> Compiled<S> {
    /// What is the same in the old book is taken over from it, with all that it remembers.
    pub(super) fn new(store: &Arc<S>, settings: &Settings, book: Book, old: Option<&Self>) -> Self {
        let named = |(name, rules): (&Name, &Rules)| {
            NamedPolicy::new(
                store,
                settings,
                name,
                rules,
                old.and_then(|old| old.find(name.as_str())),
            )
        };
        let policies = book.entries().map(named).collect();
        Self { book, policies }
    }

    pub(super) fn book(&self) -> &Book {
        &self.book
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = &NamedPolicy<S>> {
        self.policies.iter()
    }

    fn find(&self, name: &str) -> Option<&NamedPolicy<S>> {
        let at = self
            .policies
            .binary_search_by(|policy| policy.name.as_str().cmp(name))
            .ok()?;
        self.policies.get(at)
    }

    pub(super) fn policy(&self, name: &str) -> Result<&NamedPolicy<S>, CheckError> {
        self.find(name).ok_or_else(|| CheckError::UnknownPolicy {
            name: name.chars().filter(|c| !c.is_control()).take(64).collect(),
            known: match self
                .book
                .names()
                .map(Name::as_str)
                .collect::<Vec<_>>()
                .join(", ")
            {
                none if none.is_empty() => "none, as there are no policies".to_owned(),
                names => names,
            },
        })
    }
}

impl<S: Store> NamedPolicy<S> {
    fn new(
        store: &Arc<S>,
        settings: &Settings,
        name: &Name,
        rules: &Rules,
        old: Option<&Self>,
    ) -> Self {
        let mut settings = settings.clone();
        settings.failure = rules.failure.unwrap_or(settings.failure);
        let make =
            |old: Option<&Arc<Held<S>>>, policy: &Policy, tier: Option<&Name>, part: &str| {
                let namespace = format!("{name}{part}");
                if let Some(old) = old.filter(|old| old.is(policy, &namespace, &settings)) {
                    return Arc::clone(old);
                }
                let label = Arc::new(Label::new(
                    name.clone(),
                    tier.cloned(),
                    Some(policy.clone()),
                ));
                let limiter = Limiter::on(
                    Arc::clone(store),
                    policy.clone(),
                    namespace.into(),
                    settings.clone(),
                );
                Arc::new(Held {
                    label,
                    to: To::Limiter(limiter),
                })
            };
        let tier = |(tier, policy): (&Name, &Policy)| {
            let part = if rules.has_shared_tiers {
                String::new()
            } else {
                format!("~{tier}")
            };
            let old = old.and_then(|old| old.tiers.get(tier));
            (tier.clone(), make(old, policy, Some(tier), &part))
        };
        // Keys that are held to the same share it: there may be many.
        let mut shared: Vec<Arc<Held<S>>> = Vec::new();
        let mut exception = |key: &[u8], exception: &Exception| {
            let old = old.and_then(|old| old.exceptions.get(key));
            let bare = |to| {
                Arc::new(Held {
                    label: Arc::new(Label::new(name.clone(), None, None)),
                    to,
                })
            };
            match exception {
                Exception::Policy(policy) => {
                    let is_same = |held: &&Arc<Held<S>>| held.label.policy() == Some(policy);
                    if let Some(held) = shared.iter().find(is_same) {
                        return Arc::clone(held);
                    }
                    let held = make(old, policy, None, "");
                    shared.push(Arc::clone(&held));
                    held
                }
                Exception::Unlimited => bare(To::Nothing),
                Exception::Blocked => bare(To::Blocked),
            }
        };
        let old_candidate = old.and_then(|old| old.candidate.as_ref());
        Self {
            is_shadow: rules.is_shadow,
            default: make(old.map(|old| &old.default), &rules.default, None, ""),
            tiers: rules.tiers.iter().map(tier).collect(),
            exceptions: rules
                .exceptions
                .iter()
                .map(|(key, held)| (key.clone(), exception(key, held)))
                .collect(),
            candidate: rules
                .candidate
                .as_ref()
                .map(|policy| make(old_candidate, policy, None, "~~candidate")),
            tally: old.map_or_else(Arc::default, |old| Arc::clone(&old.tally)),
            name: name.clone(),
        }
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// What a key, with its tenant, is held to; and whether that is an exception.
    pub(super) fn held(&self, key: &[u8], tier: Option<&str>) -> (&Arc<Held<S>>, bool) {
        if !self.exceptions.is_empty()
            && let Some(held) = self.exceptions.get(key)
        {
            return (held, true);
        }
        (
            tier.and_then(|tier| self.tiers.get(tier))
                .unwrap_or(&self.default),
            false,
        )
    }

    pub(super) fn candidate(&self) -> Option<&Arc<Held<S>>> {
        self.candidate.as_ref()
    }

    /// Every limiter that may have counted a key.
    pub(super) fn limiters<'a>(
        &'a self,
        key: &[u8],
    ) -> impl Iterator<Item = &'a Limiter<S>> + use<'a, S> {
        let all = [&self.default].into_iter().chain(self.tiers.values());
        let all = all.chain(self.exceptions.get(key)).chain(&self.candidate);
        all.filter_map(|held| match &held.to {
            To::Limiter(limiter) => Some(limiter),
            To::Nothing | To::Blocked => None,
        })
    }

    pub(super) fn counters(&self) -> PolicyCounters {
        self.tally.snapshot(self.name.clone())
    }
}

impl<S: Store> Held<S> {
    fn is(&self, policy: &Policy, namespace: &str, settings: &Settings) -> bool {
        match &self.to {
            To::Limiter(limiter) => {
                let failure = limiter.failure_policy();
                limiter.policy() == policy
                    && limiter.namespace() == namespace
                    && failure.is_none_or(|failure| failure == settings.failure)
            }
            To::Nothing | To::Blocked => false,
        }
    }
}
