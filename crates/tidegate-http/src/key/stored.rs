//! Stored keys by hand: the same keys that middleware derives from requests.

use std::net::IpAddr;

use super::write::{DIGEST_LENGTH, GLOBAL, without_scheme, write_address, write_closure};
use super::{KeyBytes, header_name, template};
use crate::client_address::ClientAddress;

/// Returns the stored key of [`header`](super::header), for exceptions and for checks by hand.
///
/// # Examples
///
/// ```
/// assert_eq!(tidegate::tower::key::of_header("X-User", "42"), "header:x-user:42");
/// ```
#[must_use]
pub fn of_header(name: &str, value: &str) -> String {
    format!("header:{}:{value}", header_name(name))
}

/// Returns the stored key of [`api_key`](super::api_key), for exceptions and for checks by hand.
///
/// # Examples
///
/// ```
/// let key = tidegate::tower::key::of_api_key("x-api-key", "secret");
/// assert!(key.starts_with("key:x-api-key:") && !key.contains("secret"));
/// ```
#[must_use]
pub fn of_api_key(header: &str, secret: &str) -> String {
    let digest = blake3::hash(without_scheme(secret.as_bytes())).to_hex();
    let digest = digest.get(..DIGEST_LENGTH).unwrap_or_default();
    format!("key:{}:{digest}", header_name(header))
}

/// Returns the stored key of [`path`](super::path), for exceptions and for checks by hand.
///
/// # Examples
///
/// ```
/// let key = tidegate::tower::key::of_path("/users/{id}", "id", "42");
/// assert_eq!(key, "path:/users/{id}:id:42");
/// ```
#[must_use]
pub fn of_path(template: &str, parameter: &str, value: &str) -> String {
    format!("path:{}:{value}", template::source(template, parameter))
}

/// Returns the stored key of [`client_address`](super::client_address) or a [`ClientAddress`], for
/// exceptions and for checks by hand.
///
/// # Examples
///
/// ```
/// use tidegate::tower::{ClientAddress, key::of_address};
///
/// let key = of_address(&ClientAddress::peer(), "2001:db8::7".parse()?);
/// assert_eq!(key, "ip:2001:db8::/64");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[must_use]
pub fn of_address(client: &ClientAddress, address: IpAddr) -> String {
    let mut key = KeyBytes::new();
    write_address(client, client.truncated(address), &mut key);
    String::from_utf8_lossy(&key).into_owned()
}

/// Returns the stored key of [`global`](super::global), for exceptions and for checks by hand.
///
/// # Examples
///
/// ```
/// assert_eq!(tidegate::tower::key::of_global(), "global");
/// ```
#[must_use]
pub fn of_global() -> String {
    GLOBAL.to_owned()
}

/// Returns the stored key of a closure ([`from_fn`](super::from_fn)) or an extension, for exceptions
/// and for checks by hand. `None` is the key of requests for which the closure returns `None`.
///
/// # Examples
///
/// ```
/// use tidegate::tower::key::of_fn;
///
/// assert_eq!(of_fn(Some("user:42")), "user:42");
/// // A value that looks like a key of another kind is marked.
/// assert_eq!(of_fn(Some("ip:192.0.2.7")), "fn:ip:192.0.2.7");
/// ```
#[must_use]
pub fn of_fn(value: Option<&str>) -> String {
    let mut key = KeyBytes::new();
    write_closure(value.map(str::to_owned), &mut key);
    String::from_utf8_lossy(&key).into_owned()
}

/// Returns the stored key of two keys ([`RequestKey::and`](super::RequestKey::and)), for exceptions
/// and for checks by hand.
///
/// # Examples
///
/// ```
/// use tidegate::tower::key::{of_both, of_header, of_path};
///
/// let key = of_both(&of_header("x-user", "42"), &of_path("/files/{id}", "id", "7"));
/// assert_eq!(key, "16:header:x-user:42path:/files/{id}:id:7");
/// ```
#[must_use]
pub fn of_both(first: &str, second: &str) -> String {
    format!("{}:{first}{second}", first.len())
}
