//! Subjects: a key under a named policy, with its tenant, tier and cost.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::key::{EmptyKey, IntoKey, Key, KeyBuf};

/// One key under one named policy, and the cost of the request there.
///
/// # Examples
///
/// ```
/// use tidegate::{Cost, Subject};
///
/// let subject = Subject { tier: Some("premium"), cost: Cost::try_from(3)?, ..Subject::new("api", "user:42") };
/// assert_eq!(subject.policy, "api");
/// # Ok::<(), tidegate::CostError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The name of the policy.
    pub policy: &'a str,
    /// The key.
    pub key: KeyBuf<'a>,
    /// The tier. Without one, or if the policy does not have it, the default limits apply.
    pub tier: Option<&'a str>,
    /// The tenant. The same key of two tenants is two clients. An empty name means no tenant.
    pub tenant: Option<&'a str>,
    /// The cost of the request.
    pub cost: Cost,
}

impl<'a> Subject<'a> {
    /// Creates a subject of cost 1 without tier or tenant.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules, Subject};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// let subject = Subject { tenant: Some("acme"), ..Subject::new("api", "user:42") };
    /// let (verdict, _receipt) = gate.admit(&[subject]).await?;
    /// assert!(verdict.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new(policy: &'a str, key: impl IntoKey<'a>) -> Self {
        Self {
            policy,
            key: key.into_key(),
            tier: None,
            tenant: None,
            cost: Cost::ONE,
        }
    }
}

/// A subject that owns its parts.
pub(crate) struct OwnedSubject {
    policy: String,
    key: KeyBuf<'static>,
    tier: Option<String>,
    tenant: Option<String>,
    cost: Cost,
}

impl OwnedSubject {
    pub(crate) fn of(subject: &Subject<'_>) -> Self {
        Self {
            policy: subject.policy.to_owned(),
            key: subject.key.clone().into_owned(),
            tier: subject.tier.map(str::to_owned),
            tenant: subject.tenant.map(str::to_owned),
            cost: subject.cost,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        let (tier, tenant) = (self.tier.as_deref(), self.tenant.as_deref());
        Subject {
            policy: &self.policy,
            key: self.key.borrowed(),
            tier,
            tenant,
            cost: self.cost,
        }
    }
}

/// The bytes of a key with its tenant, on the stack if they are short.
pub(crate) type KeyBytes = SmallVec<[u8; 64]>;

/// A key as it is stored. Most keys are stored unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EncodedKey<'a> {
    Plain(&'a [u8]),
    WithTenant(KeyBytes),
}

impl std::ops::Deref for EncodedKey<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::WithTenant(bytes) => bytes,
        }
    }
}

/// The bytes before a tenant, and between a tenant and the key.
pub(crate) const TENANT: u8 = b'@';
const END: u8 = b'/';
/// The bytes between a tenant and a key of several parts. A tenant contains no such sequence,
/// because its percent signs are escaped.
const PARTS: &[u8] = b"%:";

/// Returns `true` if a key without a tenant is stored unchanged.
#[inline]
pub(crate) fn is_plain(key: &KeyBuf<'_>) -> bool {
    !key.is_composite() && key.as_bytes().first() != Some(&TENANT)
}

/// Returns the key of a subject if it is stored unchanged.
#[inline]
pub(crate) fn plain_key<'a>(subject: &'a Subject<'_>) -> Option<&'a [u8]> {
    let has_tenant = subject.tenant.is_some_and(|tenant| !tenant.is_empty());
    let key = subject.key.as_bytes();
    (!has_tenant && !key.is_empty() && is_plain(&subject.key)).then_some(key)
}

/// Returns the stored form of a key: injective, so no two pairs of tenant and key collide.
///
/// - With a tenant: `@acme/user:42`. A slash or percent sign in the tenant is written as `%2F` or
///   `%25`.
/// - Without a tenant: the key itself, or `@/` and the key if the key starts with `@`.
/// - A key of several parts: `@acme%:user:42`, or `@%:user:42` without a tenant.
///
/// This is the only encoding of keys. Gates, servers, middleware and limiters all use it.
///
/// # Errors
///
/// Returns an error if the key is empty.
#[inline]
pub(crate) fn encoded<'a>(
    tenant: Option<&str>,
    key: &'a KeyBuf<'_>,
) -> Result<EncodedKey<'a>, EmptyKey> {
    let tenant = tenant.unwrap_or_default();
    if tenant.is_empty() && is_plain(key) {
        return Ok(EncodedKey::Plain(Key::new(key.as_bytes())?.as_bytes()));
    }
    encoded_with(tenant, key)
}

fn encoded_with<'a>(tenant: &str, key: &KeyBuf<'_>) -> Result<EncodedKey<'a>, EmptyKey> {
    let is_composite = key.is_composite();
    let key = Key::new(key.as_bytes())?.as_bytes();
    let mut bytes = KeyBytes::new();
    bytes.push(TENANT);
    for byte in tenant.bytes() {
        match byte {
            END => bytes.extend_from_slice(b"%2F"),
            b'%' => bytes.extend_from_slice(b"%25"),
            other => bytes.push(other),
        }
    }
    if is_composite {
        bytes.extend_from_slice(PARTS);
    } else {
        bytes.push(END);
    }
    bytes.extend_from_slice(key);
    Ok(EncodedKey::WithTenant(bytes))
}

/// Returns the stored form of a key, for Tidegate's server.
#[doc(hidden)]
pub fn encoded_key<'a>(
    tenant: Option<&str>,
    key: &'a KeyBuf<'_>,
) -> Result<Cow<'a, [u8]>, EmptyKey> {
    Ok(match encoded(tenant, key)? {
        EncodedKey::Plain(bytes) => Cow::Borrowed(bytes),
        EncodedKey::WithTenant(bytes) => Cow::Owned(bytes.to_vec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of tenant and key has its own counter, and gates and limiters use the same one.
    #[test]
    fn a7_tenants_and_keys_count_apart_through_every_way_in() {
        use crate::{Gate, Limiter, MemoryStore, Name, PolicySet, Rules, Store};
        let tenants = ["", "a", "a/b", "a%2Fb", "@", "%", "/", "acme"];
        let keys = [
            "k", "/k", "@k", "@/k", "@a/k", "a/k", "@acme/k", "b/k", "%2Fk", "@@/k", "//k", "@",
        ];
        let policy: crate::Policy = "fixed_window 1000/hour".parse().unwrap();
        let gate = Gate::memory(
            PolicySet::new()
                .with("api", Rules::new(policy.clone()))
                .unwrap(),
        );
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
        // A limiter's key never addresses a tenant's counter, even on the same store.
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
    fn tenants_and_keys_never_collide() {
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
            "@%:k", ":k", "%:k", "@a%:k",
        ];
        let mut seen = std::collections::HashSet::new();
        for tenant in tenants {
            for key in keys {
                for key in [key.into_key(), [key].into_key(), (key, "").into_key()] {
                    let bytes = encoded(tenant, &key).unwrap().to_vec();
                    assert!(seen.insert(bytes), "{tenant:?} {key:?}");
                }
            }
        }
        let stored = |tenant, key: KeyBuf<'_>| encoded(tenant, &key).unwrap().to_vec();
        assert_eq!(stored(Some(""), "user:42".into_key()), b"user:42");
        assert_eq!(stored(Some("acme"), "user:42".into_key()), b"@acme/user:42");
        assert_eq!(
            stored(Some("acme"), ("user", 42).into_key()),
            b"@acme%:user:42"
        );
        assert_eq!(stored(None, ("user", 42).into_key()), b"@%:user:42");
        assert!(encoded(Some("acme"), &"".into_key()).is_err());
    }
}
