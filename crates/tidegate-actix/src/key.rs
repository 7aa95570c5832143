//! Keys of requests, see [`tidegate_http::key`].

use actix_web::HttpMessage;
use actix_web::dev::ServiceRequest;
pub use tidegate_http::key::{
    api_key, client_address, from_fn, global, header, of_address, of_api_key, of_header, of_path,
    path,
};

use crate::Actix;

/// A rule that derives the key of a request.
pub type RequestKey = tidegate_http::key::RequestKey<Actix>;

/// The key from a request extension that an earlier middleware has set, such as an authenticated
/// user. Requests without it share one key.
///
/// # Examples
///
/// ```
/// struct User { id: u64 }
///
/// let key = tidegate_actix::key::extension(|user: &User| format!("user:{}", user.id));
/// ```
pub fn extension<T: 'static>(key: impl Fn(&T) -> String + Send + Sync + 'static) -> RequestKey {
    from_fn(move |request: &ServiceRequest| request.extensions().get::<T>().map(&key))
}
