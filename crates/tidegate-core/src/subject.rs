//! Who is asked about: a key under a named policy, its tenant and tier.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::key::{EmptyKey, Key};

/// One key under one named policy, and what a request costs there.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The name of the policy.
    pub policy: &'a str,
    /// Who.
    pub key: &'a [u8],
    /// Of which tier; the default's where there is none, or it is not named in the policy.
    pub tier: Option<&'a str>,
    /// Of which tenant: the same key of another one is somebody else. An empty name is none.
    pub tenant: Option<&'a str>,
    /// What the request costs.
    pub cost: Cost,
}

impl<'a> Subject<'a> {
    /// A request of cost 1, without tier or tenant.
    #[must_use]
    pub fn new<K: AsRef<[u8]> + ?Sized>(policy: &'a str, key: &'a K) -> Self {
        Self {
            policy,
            key: key.as_ref(),
            tier: None,
            tenant: None,
            cost: Cost::ONE,
        }
    }
}

/// A subject that is carried elsewhere.
pub(crate) struct OwnedSubject {
    policy: String,
    key: KeyBytes,
    tier: Option<String>,
    tenant: Option<String>,
    cost: Cost,
}

impl OwnedSubject {
    pub(crate) fn of(subject: &Subject<'_>) -> Self {
        Self {
            policy: subject.policy.to_owned(),
            key: KeyBytes::from_slice(subject.key),
            tier: subject.tier.map(str::to_owned),
            tenant: subject.tenant.map(str::to_owned),
            cost: subject.cost,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        let (tier, tenant) = (self.tier.as_deref(), self.tenant.as_deref());
        Subject {
            policy: &self.policy,
            key: &self.key,
            tier,
            tenant,
            cost: self.cost,
        }
    }
}

/// A key with its tenant, on the stack where it is short.
pub(crate) type KeyBytes = SmallVec<[u8; 64]>;

/// A key as it is stored: most are as they came.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Composed<'a> {
    Plain(&'a [u8]),
    WithTenant(KeyBytes),
}

impl std::ops::Deref for Composed<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::WithTenant(bytes) => bytes,
        }
    }
}

/// What stands before a tenant, and between it and the key.
const TENANT: u8 = b'@';
const END: u8 = b'/';

/// Returns true if a key without a tenant is stored as it is.
#[inline]
pub(crate) fn is_plain(key: Key<'_>) -> bool {
    key.as_bytes().first() != Some(&TENANT)
}

/// A key with its tenant, so that no two of them meet: `@acme/user:42`. A slash or percent sign in the tenant is written as
/// `%2F` or `%25`. A key without a tenant is as it is, or, where it begins like one with a tenant, `@/` and itself.
///
/// This is the one encoding for every way into a store: gates, servers and middleware, and limiters for keys without a
/// tenant.
#[inline]
pub(crate) fn composed<'a>(tenant: Option<&str>, key: Key<'a>) -> Composed<'a> {
    let tenant = tenant.unwrap_or_default();
    if tenant.is_empty() && is_plain(key) {
        return Composed::Plain(key.as_bytes());
    }
    let key = key.as_bytes();
    let mut bytes = KeyBytes::new();
    bytes.push(TENANT);
    for byte in tenant.bytes() {
        match byte {
            END => bytes.extend_from_slice(b"%2F"),
            b'%' => bytes.extend_from_slice(b"%25"),
            other => bytes.push(other),
        }
    }
    bytes.push(END);
    bytes.extend_from_slice(key);
    Composed::WithTenant(bytes)
}

/// The same, for servers of Tidegate's own: a key that is counted beside the named policies.
#[doc(hidden)]
pub fn composed_key<'a>(tenant: Option<&str>, key: &'a [u8]) -> Result<Cow<'a, [u8]>, EmptyKey> {
    Ok(match composed(tenant, Key::new(key)?) {
        Composed::Plain(bytes) => Cow::Borrowed(bytes),
        Composed::WithTenant(bytes) => Cow::Owned(bytes.to_vec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of tenant and key counts for itself, through every way in, and all ways agree on it.
    #[test]
    fn a7_tenants_and_keys_count_apart_through_every_way_in() {
        use crate::{Book, Gate, Limiter, MemoryStore, Name, Rules, Store};
        let tenants = ["", "a", "a/b", "a%2Fb", "@", "%", "/", "acme"];
        let keys = [
            "k", "/k", "@k", "@/k", "@a/k", "a/k", "@acme/k", "b/k", "%2Fk", "@@/k", "//k", "@",
        ];
        let policy: crate::Policy = "fixed_window 1000/hour".parse().unwrap();
        let gate = Gate::memory(Book::new().with("api", Rules::new(policy.clone())).unwrap());
        let clock = crate::ManualClock::new();
        let store = MemoryStore::builder().clock(clock).build().unwrap();
        let limiter = Limiter::builder(store, policy.clone())
            .namespace(Name::new("api").unwrap())
            .build();
        let mut expected = 0;
        for tenant in tenants {
            for key in keys {
                expected += 1;
                let verdict = gate
                    .check("api", key)
                    .tenant(tenant)
                    .cost(expected)
                    .now()
                    .unwrap();
                assert_eq!(
                    verdict.remaining(),
                    Some(1_000 - expected),
                    "{tenant} {key}"
                );
                if tenant.is_empty() {
                    let decision = limiter.check(key).cost(expected).now().unwrap();
                    assert_eq!(decision.remaining(), 1_000 - expected, "{key}");
                    let batch = limiter
                        .check_many(&[(key, 0), ("beside", 0)])
                        .now()
                        .unwrap();
                    assert_eq!(batch[0].remaining(), 1_000 - expected, "{key}");
                }
            }
        }
        // A key of a limiter is never one of a tenant, though both are on one store.
        let plan = gate.store().plan(&policy, "api");
        let store_look = |bytes: &[u8]| {
            gate.store()
                .check(&plan, Key::new(bytes).unwrap(), Cost::ZERO)
                .remaining()
        };
        assert!(store_look(b"@acme/k") < 1_000);
        assert!(!Store::is_remote(gate.store()));
        limiter.reset("@acme/k").now().unwrap();
        assert_eq!(
            limiter.check("@acme/k").cost(0).now().unwrap().remaining(),
            1_000
        );
    }

    #[test]
    fn no_two_of_tenant_and_key_meet() {
        let tenants = [
            None,
            Some("a"),
            Some("a/b"),
            Some("a%2Fb"),
            Some("@"),
            Some("%"),
            Some("/"),
        ];
        let keys = [
            "k", "/k", "@k", "@/k", "@a/k", "a/k", "@a%2Fb/k", "b/k", "%2Fk", "@@/k", "//k",
        ];
        let mut seen = std::collections::HashSet::new();
        for tenant in tenants {
            for key in keys {
                let bytes = composed(tenant, Key::new(key.as_bytes()).unwrap()).to_vec();
                assert!(seen.insert(bytes), "{tenant:?} {key}");
            }
        }
        let plain = composed(Some(""), Key::new(b"user:42").unwrap());
        assert_eq!(&plain[..], b"user:42");
        assert_eq!(
            &composed(Some("acme"), Key::new(b"user:42").unwrap())[..],
            b"@acme/user:42"
        );
    }
}
