//! Stored keys by hand: the same keys that middleware derives from requests.

use std::net::IpAddr;

use super::write::{DIGEST_LENGTH, without_scheme, write_address};
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
