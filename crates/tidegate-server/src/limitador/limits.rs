//! Limits by namespace, compiled. All are replaced at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tidegate::{AnyStore, Gate, Limiter, Policy};

use super::expression::Expression;
use super::from_yaml::LimitadorSource;
use crate::descriptors::{MAX_COUNT, RuleError, service_namespace};

/// All limits.
pub(crate) struct Limitador {
    by_namespace: HashMap<Box<str>, Namespace>,
    /// The digest of the file, to detect changes.
    pub(crate) digest: String,
}

/// The limits of one namespace.
pub(crate) struct Namespace {
    pub(crate) limits: Vec<Arc<LimitadorLimit>>,
    pub(crate) counters: Arc<CallCounters>,
}

/// The calls of a namespace.
#[derive(Default)]
pub(crate) struct CallCounters {
    pub(crate) authorized_calls: AtomicU64,
    pub(crate) authorized_hits: AtomicU64,
    pub(crate) limited_calls: AtomicU64,
}

/// One limit.
pub(crate) struct LimitadorLimit {
    pub(crate) id: Option<Box<str>>,
    pub(crate) name: Option<Box<str>>,
    pub(crate) max_value: u64,
    pub(crate) seconds: u64,
    pub(super) conditions: Vec<Expression>,
    pub(super) variables: Vec<Expression>,
    /// The start of its counters' keys: a digest of its seconds, conditions and variables.
    pub(super) identity: Box<str>,
    /// `None` if it denies everything.
    pub(super) limiter: Option<Limiter<AnyStore>>,
}

impl LimitadorLimit {
    pub(super) fn period(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Returns the texts of the conditions and of the variables.
    pub(crate) fn expressions(&self) -> [Vec<&str>; 2] {
        [&self.conditions, &self.variables].map(|all| all.iter().map(Expression::text).collect())
    }
}

impl Limitador {
    /// Compiles limits. Namespaces that exist already keep their counters.
    pub(super) fn compile(
        file: &str,
        sources: Vec<LimitadorSource>,
        digest: String,
        gate: &Gate<AnyStore>,
        old: Option<&Self>,
    ) -> Result<Self, RuleError> {
        let mut by_namespace: HashMap<Box<str>, Namespace> = HashMap::new();
        for source in sources {
            let namespace = source.namespace.clone();
            let at = Some(source.at);
            let limit = limit(source, gate).map_err(|error| RuleError::new(file, error, at))?;
            let old = old.and_then(|old| old.by_namespace.get(namespace.as_str()));
            let namespace = by_namespace
                .entry(namespace.as_str().into())
                .or_insert_with(|| Namespace {
                    limits: Vec::new(),
                    counters: old.map(|old| Arc::clone(&old.counters)).unwrap_or_default(),
                });
            // The identity of a limit is that of its counters: of two equal ones the last applies.
            namespace
                .limits
                .retain(|other| other.identity != limit.identity);
            namespace.limits.push(Arc::new(limit));
        }
        Ok(Self {
            by_namespace,
            digest,
        })
    }

    pub(crate) fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.by_namespace.get(name)
    }

    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&str, &Namespace)> {
        let all = self.by_namespace.iter();
        all.map(|(name, namespace)| (&**name, namespace))
    }
}

fn limit(source: LimitadorSource, gate: &Gate<AnyStore>) -> Result<LimitadorLimit, String> {
    let compiled = |texts: &[String]| -> Result<Vec<Expression>, String> {
        texts.iter().map(|text| Expression::new(text)).collect()
    };
    let (conditions, variables) = (compiled(&source.conditions)?, compiled(&source.variables)?);
    let max_value = source.max_value.min(MAX_COUNT.into());
    if max_value < source.max_value {
        let (namespace, max_value) = (&source.namespace, source.max_value);
        tracing::warn!(
            namespace,
            max_value,
            "max_value is too large, using 1,000,000,000"
        );
    }
    let limiter = match max_value {
        0 => None,
        _ => {
            let policy = policy(max_value, source.seconds)?;
            let namespace = service_namespace(&source.namespace, "limitador");
            Some(gate.service_limiter(&namespace, policy))
        }
    };
    Ok(LimitadorLimit {
        identity: identity(&source).into(),
        id: source.id.map(Into::into),
        name: source.name.map(Into::into),
        max_value,
        seconds: source.seconds,
        conditions,
        variables,
        limiter,
    })
}

/// Returns the policy of a limit: a window that opens with the first hit. Reports count beyond the
/// limit.
fn policy(max_value: u64, seconds: u64) -> Result<Policy, String> {
    let text =
        format!("fixed_window {max_value}/{seconds} seconds anchor=first_hit debt={MAX_COUNT}");
    text.parse::<Policy>().map_err(|error| {
        let message = error.to_string();
        let first = message.lines().next().unwrap_or_default();
        format!("the limit is invalid: {first}")
    })
}

/// Returns the identity of a limit within its namespace: its seconds, conditions and variables, in
/// any order. The maximum may change without a new counter.
fn identity(source: &LimitadorSource) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&source.seconds.to_le_bytes());
    for texts in [&source.conditions, &source.variables] {
        let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        texts.sort_unstable();
        hasher.update(&(texts.len() as u64).to_le_bytes());
        for text in texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
    hasher.finalize().to_hex().chars().take(16).collect()
}
