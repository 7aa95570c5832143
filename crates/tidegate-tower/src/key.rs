//! Keys of requests, see [`tidegate_http::key`].

pub use tidegate_http::key::{
    of_address, of_api_key, of_both, of_fn, of_global, of_header, of_path,
};

use http::request::Parts;

use crate::Tower;

/// A rule that derives the key of a request.
pub type RequestKey = tidegate_http::key::RequestKey<Tower>;

/// The key that a closure returns. Requests for which it returns `None` share one key.
///
/// # Examples
///
/// ```
/// use tidegate::tower::key;
///
/// // One limit per host name.
/// let key = key::from_fn(|request| request.uri.host().map(str::to_owned));
/// # let _ = key;
/// ```
pub fn from_fn(key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> RequestKey {
    tidegate_http::key::from_fn(key)
}

/// The key from a request extension that an earlier layer has set, such as an authenticated user.
/// Requests without it share one key.
///
/// # Examples
///
/// ```
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let key = tidegate::tower::key::extension(|user: &User| format!("user:{}", user.id));
/// ```
pub fn extension<T: Send + Sync + 'static>(
    key: impl Fn(&T) -> String + Send + Sync + 'static,
) -> RequestKey {
    from_fn(move |request| request.extensions.get::<T>().map(&key))
}

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
pub fn global() -> RequestKey {
    tidegate_http::key::global()
}

/// The address of the peer. Behind proxies use [`ClientAddress::behind`](crate::ClientAddress::behind), which is a key too.
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
pub fn client_address() -> RequestKey {
    tidegate_http::key::client_address()
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
pub fn header(name: &str) -> RequestKey {
    tidegate_http::key::header(name)
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
pub fn api_key(header: &str) -> RequestKey {
    tidegate_http::key::api_key(header)
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
pub fn path(template: &str, parameter: &str) -> RequestKey {
    tidegate_http::key::path(template, parameter)
}
