//! Keys of requests, see [`tidegate_http::key`].

pub use tidegate_http::key::{
    api_key, client_address, from_fn, global, header, of_address, of_api_key, of_header, of_path,
    path,
};

use crate::Tower;

/// A rule that derives the key of a request.
pub type RequestKey = tidegate_http::key::RequestKey<Tower>;

/// The key from a request extension that an earlier layer has set, such as an authenticated user.
/// Requests without it share one key.
///
/// # Examples
///
/// ```
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let key = tidegate_tower::key::extension(|user: &User| format!("user:{}", user.id));
/// ```
pub fn extension<T: Send + Sync + 'static>(
    key: impl Fn(&T) -> String + Send + Sync + 'static,
) -> RequestKey {
    from_fn(move |request: &http::request::Parts| request.extensions.get::<T>().map(&key))
}
