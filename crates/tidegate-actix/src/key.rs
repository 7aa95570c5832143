//! Which key a request has: see [`tidegate_http::key`].

use actix_web::HttpMessage;
use actix_web::dev::ServiceRequest;
pub use tidegate_http::key::{
    api_key, client_address, everybody, from_fn, header, of_address, of_api_key, of_header,
    of_path, path,
};

use crate::Actix;

/// Which key a request has.
pub type Key = tidegate_http::key::Key<Actix>;

/// What an earlier middleware has put among the request's extensions, the user that it has authenticated say. Requests
/// without it share one key.
pub fn extension<T: 'static>(key: impl Fn(&T) -> String + Send + Sync + 'static) -> Key {
    from_fn(move |request: &ServiceRequest| request.extensions().get::<T>().map(&key))
}
