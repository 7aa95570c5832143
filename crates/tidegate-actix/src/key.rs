//! Keys of requests, see [`tidegate_http::key`].

use actix_web::HttpMessage;
use actix_web::dev::ServiceRequest;
pub use tidegate_http::key::{
    api_key, client_address, global, header, of_address, of_api_key, of_header, of_path, path,
};

use crate::Actix;

/// A rule that derives the key of a request.
pub type RequestKey = tidegate_http::key::RequestKey<Actix>;

/// The key that a closure returns. Requests for which it returns `None` share one key.
///
/// # Examples
///
/// ```
/// use tidegate::actix::key;
///
/// // One limit per host name.
/// let key = key::from_fn(|request| request.uri().host().map(str::to_owned));
/// # let _ = key;
/// ```
pub fn from_fn(
    key: impl Fn(&ServiceRequest) -> Option<String> + Send + Sync + 'static,
) -> RequestKey {
    tidegate_http::key::from_fn(key)
}

/// The key from a request extension that an earlier middleware has set, such as an authenticated
/// user. Requests without it share one key.
///
/// # Examples
///
/// ```
/// struct User { id: u64 }
///
/// let key = tidegate::actix::key::extension(|user: &User| format!("user:{}", user.id));
/// ```
pub fn extension<T: 'static>(key: impl Fn(&T) -> String + Send + Sync + 'static) -> RequestKey {
    from_fn(move |request| request.extensions().get::<T>().map(&key))
}
