//! Keys of requests: which client a request counts for.
//!
//! Keys of different kinds never collide: a user with the name `192.0.2.7` is not that address.
//! Requests that lack a part of their key, for example a header, share one key. They are limited
//! together, so omitting the header does not bypass the limit.
//!
//! The functions of this module create a [`RequestKey`]. For each there is one that returns the
//! stored key, such as [`of_header`], for exceptions and for checks by hand.

mod stored;
mod template;
mod write;

pub(crate) use write::Presence;

use std::sync::Arc;

use smallvec::SmallVec;
pub use stored::{of_address, of_api_key, of_both, of_fn, of_global, of_header, of_path};
use template::Template;

use crate::client_address::ClientAddress;
use crate::framework::Framework;

/// The bytes of a key.
pub(crate) type KeyBytes = SmallVec<[u8; 64]>;

/// A rule that derives the key of a request. The functions of this module create it.
#[must_use]
pub struct RequestKey<F: Framework>(KeySource<F>);

enum KeySource<F: Framework> {
    Global,
    Address(ClientAddress),
    Header(Box<str>),
    /// A secret in a header, stored as a digest.
    Secret(Box<str>),
    Path(Template),
    Closure(Closure<F>),
    Or(Box<[RequestKey<F>; 2]>),
    And(Box<[RequestKey<F>; 2]>),
}

type Closure<F> = Arc<dyn Fn(&<F as Framework>::Request) -> Option<String> + Send + Sync>;

/// One key for all requests: a limit on the service as a whole.
///
/// # Examples
///
/// ```
/// use tidegate::tower::{Limits, key};
///
/// // At most 1,000 requests a second to the service.
/// let limits = Limits::memory("1_000/second".parse()?, key::global());
/// # let _ = limits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn global<F: Framework>() -> RequestKey<F> {
    RequestKey(KeySource::Global)
}

/// The address of the peer. Behind proxies use [`ClientAddress::behind`], which is a key too.
///
/// # Examples
///
/// ```
/// use tidegate::tower::{Limits, key};
///
/// let limits = Limits::memory("100/minute".parse()?, key::client_address());
/// # let _ = limits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn client_address<F: Framework>() -> RequestKey<F> {
    ClientAddress::peer().into()
}

/// The value of a header that a trusted party sets, such as a gateway that authenticates users. A
/// client that can set the header can choose its key. Requests without the header, or with two of
/// it, share one key.
///
/// # Panics
///
/// Panics if `name` is not a valid header name.
///
/// # Examples
///
/// ```
/// use tidegate::tower::{Limits, key};
///
/// let limits = Limits::memory("100/minute".parse()?, key::header("x-user-id"));
/// # let _ = limits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn header<F: Framework>(name: &str) -> RequestKey<F> {
    RequestKey(KeySource::Header(header_name(name)))
}

/// The API key in a header, with or without `Bearer `. Only its digest is stored, so secrets stay
/// out of stores and logs.
///
/// The API key is not verified. A client that invents keys gets a new limit for each. Verify keys in
/// an earlier layer, or add a limit by address.
///
/// # Panics
///
/// Panics if `header` is not a valid header name.
///
/// # Examples
///
/// ```
/// use tidegate::tower::{Limits, key};
///
/// let limits = Limits::memory("100/minute".parse()?, key::api_key("authorization"));
/// # let _ = limits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn api_key<F: Framework>(header: &str) -> RequestKey<F> {
    RequestKey(KeySource::Secret(header_name(header)))
}

/// The value of a path parameter: `path("/users/{id}/posts", "id")`. The template matches from the
/// start, segment by segment, and the path may be longer. Requests to other paths share one key.
///
/// # Panics
///
/// Panics if the template does not have the parameter.
///
/// # Examples
///
/// ```
/// use tidegate::tower::{Limits, key};
///
/// let limits = Limits::memory("100/minute".parse()?, key::path("/users/{id}", "id"));
/// # let _ = limits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[allow(clippy::panic)] // Documented.
pub fn path<F: Framework>(template: &str, parameter: &str) -> RequestKey<F> {
    match Template::new(template, parameter) {
        Some(template) => RequestKey(KeySource::Path(template)),
        None => panic!("the path `{template}` has no parameter `{{{parameter}}}`"),
    }
}

/// The key that a closure returns. Requests for which it returns `None` share one key.
pub fn from_fn<F: Framework>(
    key: impl Fn(&F::Request) -> Option<String> + Send + Sync + 'static,
) -> RequestKey<F> {
    RequestKey(KeySource::Closure(Arc::new(key)))
}

/// Returns a header name in lower case.
#[allow(clippy::panic)] // A mistake in the program, found when it starts.
pub(crate) fn header_name(name: &str) -> Box<str> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_valid) {
        panic!("`{name}` is not a valid header name");
    }
    name.to_ascii_lowercase().into()
}

impl<F: Framework> RequestKey<F> {
    /// Uses another key for requests that lack this one: `header("x-user").or(client_address())`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let key = key::header("x-user-id").or(key::client_address());
    /// let limits = Limits::memory("100/minute".parse()?, key);
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn or(self, other: impl Into<Self>) -> Self {
        Self(KeySource::Or(Box::new([self, other.into()])))
    }

    /// Combines two keys: `path("/users/{id}", "id").and(client_address())` limits each pair.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// // Each client has its own limit for each user's page.
    /// let key = key::path("/users/{id}", "id").and(key::client_address());
    /// let limits = Limits::memory("100/minute".parse()?, key);
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn and(self, other: impl Into<Self>) -> Self {
        Self(KeySource::And(Box::new([self, other.into()])))
    }
}

impl<F: Framework> From<ClientAddress> for RequestKey<F> {
    fn from(address: ClientAddress) -> Self {
        Self(KeySource::Address(address))
    }
}

impl<F: Framework> std::fmt::Debug for RequestKey<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = match &self.0 {
            KeySource::Global => "global",
            KeySource::Address(_) => "client address",
            KeySource::Header(_) => "header",
            KeySource::Secret(_) => "API key",
            KeySource::Path(_) => "path",
            KeySource::Closure(_) => "closure",
            KeySource::Or(_) => "first present of two",
            KeySource::And(_) => "both of two",
        };
        f.debug_tuple("RequestKey").field(&source).finish()
    }
}
