//! The runtime of [`#[rate_limit]`](crate::rate_limit): its store and its error.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(feature = "axum")]
pub use axum_core::response::{IntoResponse, Response};
use tidegate_core::{
    AsKey, CheckError, Cost, CostError, Gate, KeyBuf, Limiter, MemoryStore, Name, Policy,
    PolicyError, PolicyLabel, PolicySet, PolicySetError, Rules, Store, Subject, Verdict,
};
use tidegate_http::Denial;

use crate::any_store::AnyStore;
use crate::connect::ConnectError;
use crate::store_url::StoreUrl;

/// Stand-ins without the feature `axum`, so that the compiler says what to do.
#[cfg(not(feature = "axum"))]
mod without_axum {
    use tidegate_core::Verdict;

    #[diagnostic::on_unimplemented(
        message = "#[rate_limit] on a function that does not return a `Result` needs the feature `axum` of tidegate",
        note = "return `Result<_, E>` where `E: From<tidegate::attribute::Limited>`, or give `denied = |limited| …`"
    )]
    #[doc(hidden)]
    pub trait IntoResponse {
        fn into_response(self) -> Response;
    }

    impl IntoResponse for super::Limited {
        fn into_response(self) -> Response {
            Response
        }
    }

    #[doc(hidden)]
    pub struct Response;

    #[doc(hidden)]
    pub fn with_headers(response: Response, _: &Verdict) -> Response {
        response
    }
}

#[cfg(not(feature = "axum"))]
#[doc(hidden)]
pub use without_axum::{IntoResponse, Response, with_headers};

/// A gate on the store of all limited functions, without policies.
static STORE: OnceLock<Gate<AnyStore>> = OnceLock::new();

/// The error of a call that was denied, or that could not be checked.
///
/// # Examples
///
/// ```
/// use tidegate::{attribute::Limited, rate_limit};
///
/// #[rate_limit("1/hour", key = user)]
/// async fn export(user: u64) -> Result<String, Limited> {
///     Ok(format!("the data of {user}"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(export(42).await.is_ok());
/// let limited = export(42).await.unwrap_err();
/// assert_eq!((limited.status(), limited.retry_after().unwrap().as_secs()), (429, 3_600));
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[error("{}", self.detail())]
pub struct Limited(LimitedCause);

/// Prints the display form, so that `unwrap` and a failing `main` show a readable message.
impl std::fmt::Debug for Limited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

#[derive(Clone)]
enum LimitedCause {
    Denied(Verdict),
    Failed(Arc<CheckError>),
}

impl Limited {
    fn denial(&self) -> Option<Denial<'_>> {
        match &self.0 {
            LimitedCause::Denied(verdict) => Denial::new(verdict),
            LimitedCause::Failed(_) => None,
        }
    }

    fn detail(&self) -> String {
        match &self.0 {
            LimitedCause::Failed(error) => error.to_string(),
            LimitedCause::Denied(_) => self
                .denial()
                .map_or_else(String::new, |denial| denial.detail()),
        }
    }

    /// Returns the verdict, or `None` if the call could not be checked, for example for an invalid
    /// cost.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.0 {
            LimitedCause::Denied(verdict) => Some(verdict),
            LimitedCause::Failed(_) => None,
        }
    }

    /// Returns the shortest wait after which the same call is allowed if nothing else happens, in
    /// whole seconds. Returns `None` if it is never allowed, or if the wait is unknown.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::attribute::Limited;
    /// use tidegate::rate_limit;
    ///
    /// #[rate_limit("fixed_window 1/365 days", key = user)]
    /// async fn export(user: u64) -> Result<(), Limited> {
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// assert!(export(42).await.is_ok());
    /// let limited = export(42).await.unwrap_err();
    /// assert!(limited.retry_after() > Some(Duration::ZERO));
    /// assert_eq!(limited.status(), 429);
    /// # }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.denial()?.retry_after().map(Duration::from_secs)
    }

    /// Returns the HTTP status for this error.
    ///
    /// | Status | Reason |
    /// |---|---|
    /// | 429 | the limit denied the call |
    /// | 503 | the store is unavailable, and the failure policy is closed |
    /// | 400 | the cost is invalid |
    /// | 500 | the limit could not be checked |
    #[must_use]
    pub fn status(&self) -> u16 {
        match &self.0 {
            LimitedCause::Failed(error) if matches!(**error, CheckError::Cost(_)) => 400,
            _ => self.denial().map_or(500, |denial| denial.status()),
        }
    }
}

/// Responds with 429, problem+json, Retry-After and the RateLimit headers.
#[cfg(feature = "axum")]
impl IntoResponse for Limited {
    fn into_response(self) -> Response {
        use http::StatusCode;
        let verdict = match &self.0 {
            LimitedCause::Denied(verdict) => verdict,
            LimitedCause::Failed(_) => {
                let status = StatusCode::from_u16(self.status());
                let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return (status, self.to_string()).into_response();
            }
        };
        match crate::tower::denied_response(verdict) {
            Some(response) => response.map(axum_core::body::Body::from),
            None => StatusCode::TOO_MANY_REQUESTS.into_response(),
        }
    }
}

/// Adds the rate limit headers to a response.
#[cfg(feature = "axum")]
#[doc(hidden)] // For the macro.
pub fn with_headers(mut response: Response, verdict: &Verdict) -> Response {
    use tidegate_http::{HeaderFormat, PolicyHeaderCache, add_headers, rate_limit_headers};
    let cache = PolicyHeaderCache::default();
    let headers = rate_limit_headers(verdict, HeaderFormat::default(), false, None, &cache);
    add_headers(response.headers_mut(), headers);
    response
}

/// The error for a store that cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetStoreError {
    /// The store cannot be created.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A limited function was called before, or the store was set before.
    #[error(
        "the store of #[rate_limit] is already in use: expected one call of connect, before the first limited function"
    )]
    InUse,
}

/// Sets the store of all `#[rate_limit]` functions, by a URL as in [`Connect`](crate::Connect).
///
/// Call it once, at the start of the program. By default the counters are in memory.
///
/// # Errors
///
/// Returns an error if the URL is invalid, if the store cannot be reached, or if a store is in use.
///
/// # Examples
///
/// ```no_run
/// use tidegate::attribute::{self, Limited};
/// use tidegate::rate_limit;
///
/// #[rate_limit("5/minute", key = user)]
/// async fn export(user: u64) -> Result<(), Limited> {
///     Ok(())
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     attribute::connect("redis://127.0.0.1/").await?;
///     export(42).await?;
///     Ok(())
/// }
/// ```
pub async fn connect(url: &str) -> Result<(), SetStoreError> {
    let gate = url.parse::<StoreUrl>()?.gate(PolicySet::new()).await?;
    STORE.set(gate).map_err(|_| SetStoreError::InUse)
}

#[allow(clippy::expect_used)] // Fails only if memory is exhausted.
fn store() -> &'static Gate<AnyStore> {
    STORE.get_or_init(|| {
        let memory = MemoryStore::builder()
            .build()
            .expect("46 MB of address space");
        Gate::new(AnyStore::Memory(memory), PolicySet::new())
    })
}

/// A limited function.
#[doc(hidden)] // For the macro.
pub struct LimitedFunction {
    path: fn() -> &'static str,
    policy: &'static str,
    tiers: &'static [(&'static str, &'static str)],
    gate: OnceLock<(Name, Gate<AnyStore>)>,
    label: OnceLock<Arc<PolicyLabel>>,
}

/// The error for arguments that the macro has already checked.
#[derive(Debug, thiserror::Error)]
enum InvalidAttribute {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    PolicySet(#[from] PolicySetError),
}

impl LimitedFunction {
    #[must_use]
    #[allow(missing_docs)]
    pub const fn new(
        path: fn() -> &'static str,
        policy: &'static str,
        tiers: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self {
            path,
            policy,
            tiers,
            gate: OnceLock::new(),
            label: OnceLock::new(),
        }
    }

    #[allow(missing_docs)]
    pub fn call(&self) -> LimitedCall<'_> {
        LimitedCall {
            function: self,
            key: None,
            cost: Ok(Cost::ONE),
            tier: None,
        }
    }

    /// Returns the label of the decisions of a program's limiter.
    fn label(&self, policy: &Policy) -> Arc<PolicyLabel> {
        let name = || name((self.path)());
        let label = || Arc::new(PolicyLabel::new(name(), None, Some(policy.clone())));
        let cached = self.label.get_or_init(label);
        // Another limiter may be used in the next call.
        if cached.policy() == Some(policy) {
            Arc::clone(cached)
        } else {
            label()
        }
    }

    #[allow(clippy::expect_used)] // The macro has validated the arguments.
    fn gate(&self) -> &(Name, Gate<AnyStore>) {
        self.gate.get_or_init(|| {
            let name = name((self.path)());
            let policies = self.policies(&name).expect("the macro has read it");
            (name, store().with_policies(policies))
        })
    }

    fn policies(&self, name: &Name) -> Result<PolicySet, InvalidAttribute> {
        let mut rules = Rules::new(self.policy.parse()?);
        for (tier, policy) in self.tiers {
            rules = rules.tier(tier, policy.parse()?)?;
        }
        Ok(PolicySet::new().with(name.as_str(), rules)?)
    }
}

/// Returns the path of the function that an item is in.
#[doc(hidden)] // For the macro.
pub fn path_of<T>(item: &T) -> &'static str {
    let path = std::any::type_name_of_val(item);
    // The rest is the body of the async function.
    path.split("::{{closure}}").next().unwrap_or(path)
}

/// Returns a valid name for a function's path. If the path must be changed or cut, a digest is
/// added.
#[allow(clippy::expect_used)] // Characters that a name may have, within its length.
fn name(path: &str) -> Name {
    if let Ok(name) = Name::new(path) {
        return name;
    }
    let plain = path
        .replace("<impl ", "")
        .replace('>', "")
        .replace("::", ".");
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if plain.len() <= 64 && plain.chars().all(is_good) {
        return Name::new(&plain).expect("a name");
    }
    let text: String = plain
        .chars()
        .map(|c| if is_good(c) { c } else { '_' })
        .collect();
    let tail = text.get(text.len().saturating_sub(47)..).unwrap_or(&text);
    Name::new(&format!("{tail}-{:016x}", digest(path.as_bytes()))).expect("a name")
}

/// Returns the 64-bit FNV-1a hash, which is the same in every process and compiler version.
fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A call of a limited function.
#[doc(hidden)] // For the macro.
#[must_use]
pub struct LimitedCall<'a> {
    function: &'a LimitedFunction,
    key: Option<KeyBuf<'static>>,
    cost: Result<Cost, CostError>,
    tier: Option<String>,
}

#[allow(missing_docs)] // For the macro.
impl LimitedCall<'_> {
    pub fn key<K: AsKey + ?Sized>(mut self, key: &K) -> Self {
        self.key = Some(key.as_key().into_owned());
        self
    }

    pub fn cost<C: TryInto<Cost, Error: Into<CostError>>>(mut self, cost: C) -> Self {
        self.cost = cost.try_into().map_err(Into::into);
        self
    }

    pub fn tier(mut self, tier: &impl Display) -> Self {
        self.tier = Some(tier.to_string());
        self
    }

    #[allow(clippy::missing_errors_doc)]
    pub async fn check(self) -> Result<Verdict, Limited> {
        let (name, gate) = self.function.gate();
        let failed = |error| Limited(LimitedCause::Failed(Arc::new(error)));
        let cost = self.cost.map_err(|error| failed(error.into()))?;
        let subject = Subject {
            cost,
            tier: self.tier.as_deref(),
            ..Subject::new(name.as_str(), key_or_shared(self.key))
        };
        allowed(gate.decide(&[subject]).await)
    }

    /// Checks with a limiter of the program instead of the function's own policy.
    #[allow(clippy::missing_errors_doc)]
    pub async fn check_with<S: Store>(self, limiter: &Limiter<S>) -> Result<Verdict, Limited> {
        let failed = |error| Limited(LimitedCause::Failed(Arc::new(error)));
        let cost = self.cost.map_err(|error| failed(error.into()))?;
        let label = self.function.label(limiter.policy());
        let checked = limiter.check(key_or_shared(self.key)).cost(cost).await;
        allowed(checked.map(|decision| Verdict::from_decision(label, decision)))
    }
}

/// Returns the key. All calls without a key, or with an empty one, share a key that no other call
/// has.
fn key_or_shared(key: Option<KeyBuf<'static>>) -> KeyBuf<'static> {
    key.filter(|key| !key.as_bytes().is_empty())
        .unwrap_or_else(|| KeyBuf::from("\0"))
}

fn allowed(checked: Result<Verdict, CheckError>) -> Result<Verdict, Limited> {
    match checked {
        Ok(verdict) if verdict.is_allowed() => Ok(verdict),
        Ok(verdict) => Err(Limited(LimitedCause::Denied(verdict))),
        Err(error) => Err(Limited(LimitedCause::Failed(Arc::new(error)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_names_and_never_meet() {
        assert_eq!(name("search").as_str(), "search");
        assert_eq!(
            name("app::handlers::search").as_str(),
            "app.handlers.search"
        );
        assert_eq!(name("app::<impl app::A>::get").as_str(), "app.app.A.get");
        let long = ["a", "b"].map(|start| name(&format!("{start}{}", "::module".repeat(20))));
        let foreign = ["app::größe", "app::grüße"].map(name);
        assert!(
            long[0] != long[1] && foreign[0] != foreign[1],
            "{long:?} {foreign:?}"
        );
    }
}
