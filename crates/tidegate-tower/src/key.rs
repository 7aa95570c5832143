//! Which key a request has: see [`tidegate_http::key`].

pub use tidegate_http::key::{
    api_key, client_address, everybody, from_fn, header, of_address, of_api_key, of_header,
    of_path, path,
};

use crate::Tower;

/// Which key a request has.
pub type Key = tidegate_http::key::Key<Tower>;

/// What an earlier layer has put among the request's extensions, the user that it has authenticated say. Requests without
/// it share one key.
///
/// ```
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let key = tidegate_tower::key::extension(|user: &User| format!("user:{}", user.id));
/// ```
pub fn extension<T: Send + Sync + 'static>(
    key: impl Fn(&T) -> String + Send + Sync + 'static,
) -> Key {
    from_fn(move |request: &http::request::Parts| request.extensions.get::<T>().map(&key))
}
