//! Keys of requests, see [`tidegate_http::key`].

pub use tidegate_http::key::{
    api_key, client_address, global, header, of_address, of_api_key, of_header, of_path, path,
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
