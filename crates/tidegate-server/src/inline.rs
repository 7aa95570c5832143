//! Limits that come with a request: worked out once, and found again by each thread for itself.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{AnyStore, BucketLimit, Gate, Label, Limiter, Name, Policy, PolicyError, Rate};

/// How many of each kind a thread keeps. Whoever sends more different limits than that has them worked out again.
const KEPT: usize = 1_024;
/// Longer ones are no limits that anybody has written.
const LONGEST_TEXT: usize = 512;

/// Limits that came as text.
#[derive(Clone)]
pub(crate) struct Inline {
    pub(crate) label: Arc<Label>,
    pub(crate) limiter: Limiter<AnyStore>,
}

/// A bucket by its numbers, as Redis clients send them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BucketNumbers {
    pub(crate) burst: u64,
    pub(crate) count: u64,
    pub(crate) period: Duration,
}

#[derive(Default)]
struct Kept {
    texts: HashMap<Box<str>, Inline>,
    buckets: HashMap<BucketNumbers, Limiter<AnyStore>>,
    /// The bucket that was asked for last: most often it is asked for again.
    last: Option<(BucketNumbers, Limiter<AnyStore>)>,
    /// Whose store they are on.
    of: usize,
}

thread_local! {
    static KEPT_HERE: RefCell<Kept> = RefCell::default();
}

impl Kept {
    /// Forgets what is of another server: of a test that ran on this thread before.
    fn of(&mut self, gate: &Gate<AnyStore>) -> &mut Self {
        let store = std::ptr::from_ref(gate.store()) as usize;
        if self.of != store {
            *self = Self {
                of: store,
                ..Self::default()
            };
        }
        self
    }
}

fn keep<K: Hash + Eq, V: Clone>(kept: &mut HashMap<K, V>, key: K, value: V) -> V {
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(key, value.clone());
    value
}

impl Inline {
    /// Limits by their text.
    pub(crate) fn find(gate: &Gate<AnyStore>, text: &str) -> Result<Self, String> {
        KEPT_HERE.with_borrow_mut(|kept| {
            let kept = kept.of(gate);
            if let Some(found) = kept.texts.get(text) {
                return Ok(found.clone());
            }
            if text.len() > LONGEST_TEXT {
                return Err(format!("limits are longer than {LONGEST_TEXT} characters"));
            }
            let policy: Policy = text
                .parse()
                .map_err(|error: PolicyError| error.to_string())?;
            let name = Name::new("limits").map_err(|error| error.to_string())?;
            let label = Arc::new(Label::new(name, None, Some(policy.clone())));
            Ok(keep(
                &mut kept.texts,
                text.into(),
                Self {
                    label,
                    limiter: gate.limiter(policy),
                },
            ))
        })
    }
}

impl BucketNumbers {
    /// The limiter of these numbers.
    pub(crate) fn find(self, gate: &Gate<AnyStore>) -> Result<Limiter<AnyStore>, PolicyError> {
        KEPT_HERE.with_borrow_mut(|kept| {
            let kept = kept.of(gate);
            if let Some((numbers, limiter)) = &kept.last
                && *numbers == self
            {
                return Ok(limiter.clone());
            }
            let limiter = match kept.buckets.get(&self) {
                Some(limiter) => limiter.clone(),
                None => {
                    let limit = BucketLimit::new(Rate::new(self.count, self.period), self.burst)?;
                    keep(&mut kept.buckets, self, gate.bucket(limit))
                }
            };
            kept.last = Some((self, limiter.clone()));
            Ok(limiter)
        })
    }
}
