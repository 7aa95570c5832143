//! What [`#[rate_limit]`](crate::rate_limit) runs on.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(feature = "axum")]
pub use axum_core::response::{IntoResponse, Response};
use tidegate_core::{
    Book, BookError, CheckError, Cost, CostError, Gate, MemoryStore, Name, PolicyError, Rules,
    Subject, Verdict,
};
use tidegate_http::Denial;

use crate::any_store::AnyStore;
use crate::connect::{ConnectError, StoreUrl};

/// Where there is no axum: so that the compiler says what to do.
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
    pub fn told(response: Response, _: &Verdict) -> Response {
        response
    }
}

#[cfg(not(feature = "axum"))]
#[doc(hidden)]
pub use without_axum::{IntoResponse, Response, told};

/// A gate on the store of all limited functions, with no policy of its own.
static STORE: OnceLock<Gate<AnyStore>> = OnceLock::new();

/// A call that a limit denied, or that could not be checked.
#[derive(Clone, thiserror::Error)]
#[error("{}", self.detail())]
pub struct Limited(Cause);

/// As it is displayed: what `unwrap` and a `main` that fails print is for people, too.
impl std::fmt::Debug for Limited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

#[derive(Clone)]
enum Cause {
    Denied(Verdict),
    Failed(Arc<CheckError>),
}

impl Limited {
    fn denial(&self) -> Option<Denial<'_>> {
        match &self.0 {
            Cause::Denied(verdict) => Denial::of(verdict),
            Cause::Failed(_) => None,
        }
    }

    fn detail(&self) -> String {
        match &self.0 {
            Cause::Failed(error) => error.to_string(),
            Cause::Denied(_) => self
                .denial()
                .map_or_else(String::new, |denial| denial.detail()),
        }
    }

    /// What the limit said; `None` if it could not be asked, because the cost is not one say.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.0 {
            Cause::Denied(verdict) => Some(verdict),
            Cause::Failed(_) => None,
        }
    }

    /// The shortest wait after which the same call is allowed, if nothing else comes, in whole seconds; `None` if it never
    /// will be, or nobody knows.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.denial()?.retry_after().map(Duration::from_secs)
    }

    /// The status of an answer that tells of it: 429, or 503 where the store is gone and nothing is let through without it;
    /// 400 where the cost is not one, 500 where the limit could not be asked.
    #[must_use]
    pub fn status(&self) -> u16 {
        match &self.0 {
            Cause::Failed(error) if matches!(**error, CheckError::Cost(_)) => 400,
            _ => self.denial().map_or(500, |denial| denial.status()),
        }
    }
}

/// 429 with problem+json, Retry-After and the RateLimit fields.
#[cfg(feature = "axum")]
impl IntoResponse for Limited {
    fn into_response(self) -> Response {
        use http::{HeaderValue, StatusCode, header};
        let Some(denial) = self.denial() else {
            let status =
                StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return (status, self.to_string()).into_response();
        };
        let mut response = denial.problem().into_response();
        *response.status_mut() =
            StatusCode::from_u16(denial.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = denial.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        told(response, denial.verdict())
    }
}

/// An answer, with what its client is told.
#[cfg(feature = "axum")]
#[doc(hidden)] // For the macro.
pub fn told(mut response: Response, verdict: &Verdict) -> Response {
    let written = tidegate_http::Written::default();
    for field in tidegate_http::fields(
        verdict,
        tidegate_http::Dialect::default(),
        false,
        None,
        &written,
    ) {
        if let Ok(value) = http::HeaderValue::from_maybe_shared(field.value) {
            response.headers_mut().append(field.name, value);
        }
    }
    response
}

/// Why the store of limited functions could not be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreChoiceError {
    /// The store cannot be had.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Something was limited before, in memory, or it was chosen before.
    #[error("the store of #[rate_limit] is in use: choose it once, before the first limited call")]
    InUse,
}

/// Chooses where the counts of all `#[rate_limit]` functions are kept, by a URL as in [`Connect`](crate::Connect): once, at
/// the start of the program. Where it is not chosen they are in memory.
///
/// # Errors
/// If the URL is not one, the store cannot be reached, or one is in use.
pub async fn connect(url: &str) -> Result<(), StoreChoiceError> {
    let gate = StoreUrl::read(url)?.gate(Book::new()).await?;
    STORE.set(gate).map_err(|_| StoreChoiceError::InUse)
}

#[allow(clippy::expect_used)] // As any allocation of this size in Rust does.
fn store() -> &'static Gate<AnyStore> {
    STORE.get_or_init(|| {
        let memory = MemoryStore::builder()
            .build()
            .expect("46 MB of address space");
        Gate::new(AnyStore::Memory(memory), Book::new())
    })
}

/// A limited function.
#[doc(hidden)] // For the macro.
pub struct LimitedFunction {
    path: fn() -> &'static str,
    policy: &'static str,
    tiers: &'static [(&'static str, &'static str)],
    gate: OnceLock<(Name, Gate<AnyStore>)>,
}

/// What the macro has read before, and cannot be wrong.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Book(#[from] BookError),
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
        }
    }

    #[allow(missing_docs)]
    pub fn call(&self) -> Call<'_> {
        Call {
            function: self,
            key: None,
            cost: Ok(Cost::ONE),
            tier: None,
        }
    }

    #[allow(clippy::expect_used)] // The macro has read it all before.
    fn gate(&self) -> &(Name, Gate<AnyStore>) {
        self.gate.get_or_init(|| {
            let name = name((self.path)());
            let book = self.book(&name).expect("the macro has read it");
            (name, store().with_book(book))
        })
    }

    fn book(&self, name: &Name) -> Result<Book, Unread> {
        let mut rules = Rules::new(self.policy.parse()?);
        for (tier, policy) in self.tiers {
            rules = rules.tier(tier, policy.parse()?)?;
        }
        Ok(Book::new().with(name.as_str(), rules)?)
    }
}

/// The path of the function that an item is in.
#[doc(hidden)] // For the macro.
pub fn path_of<T>(item: &T) -> &'static str {
    let path = std::any::type_name_of_val(item);
    // From the body of the async function on it is not its path any more.
    path.split("::{{closure}}").next().unwrap_or(path)
}

/// A name of a function's path. Where that has to be written in another way, or cut, a digest of it is added.
#[allow(clippy::expect_used)] // Of what names are made of, and not too long.
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

/// FNV-1a, of 64 bits: the same in every process, and for every version of the compiler.
fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A call of a limited function.
#[doc(hidden)] // For the macro.
#[must_use]
pub struct Call<'a> {
    function: &'a LimitedFunction,
    key: Option<String>,
    cost: Result<Cost, CostError>,
    tier: Option<String>,
}

#[allow(missing_docs)] // For the macro.
impl Call<'_> {
    pub fn key(mut self, key: &impl Display) -> Self {
        self.key = Some(key.to_string());
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
        let failed = |error| Limited(Cause::Failed(Arc::new(error)));
        let cost = self.cost.map_err(|error| failed(error.into()))?;
        // All calls without a key, or with an empty one, share one that no other is.
        let key = self
            .key
            .filter(|key| !key.is_empty())
            .unwrap_or_else(|| "\0".to_owned());
        let subject = Subject {
            cost,
            tier: self.tier.as_deref(),
            ..Subject::new(name.as_str(), &key)
        };
        match gate.decide(&[subject]).await {
            Ok(verdict) if verdict.is_allowed() => Ok(verdict),
            Ok(verdict) => Err(Limited(Cause::Denied(verdict))),
            Err(error) => Err(failed(error)),
        }
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
