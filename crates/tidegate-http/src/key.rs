//! Which key a request has.
//!
//! Keys of different kinds never meet: a user by the name of `192.0.2.7` is not the address. Of what a request lacks, a
//! header say, all that lack it share one key: they are held to the limit together, and nobody gets past it.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use smallvec::SmallVec;

use crate::address::ClientAddress;
use crate::framework::Framework;

/// The bytes of a key.
pub(crate) type KeyBytes = SmallVec<[u8; 64]>;

/// Which key a request has: made by the functions of this module.
#[must_use]
pub struct Key<F: Framework>(Kind<F>);

enum Kind<F: Framework> {
    Everybody,
    Address(ClientAddress),
    Header(Box<str>),
    /// A secret in a header: known by its digest.
    Secret(Box<str>),
    Path(Template),
    Closure(Closure<F>),
    Or(Box<[Key<F>; 2]>),
    And(Box<[Key<F>; 2]>),
}

type Closure<F> = Arc<dyn Fn(&<F as Framework>::Request) -> Option<String> + Send + Sync>;

/// Whether a request has what its key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Has {
    Key,
    Nothing,
}

/// Nobody has said who is at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPeer;

/// One key for everybody: a limit on the service as a whole.
pub fn everybody<F: Framework>() -> Key<F> {
    Key(Kind::Everybody)
}

/// The client's address: the peer's. For services behind proxies, [`ClientAddress::behind`] is a key, too.
pub fn client_address<F: Framework>() -> Key<F> {
    ClientAddress::peer().into()
}

/// The value of a header that somebody trusted sets, such as a gateway that has authenticated the user. A client that can
/// set it itself can choose its key. Requests without it, or with two of it, share one key.
///
/// # Panics
/// If it is not the name of a header: a mistake in the program, found when it starts.
pub fn header<F: Framework>(name: &str) -> Key<F> {
    Key(Kind::Header(header_name(name)))
}

/// The API key in a header, `Bearer ` before it or not. Only its digest is kept: secrets stay out of stores and logs.
///
/// It is not looked up anywhere: who makes keys up gets a new limit for each. Check them in a layer before this one, or
/// have a limit by address beside it.
///
/// # Panics
/// If it is not the name of a header: a mistake in the program, found when it starts.
pub fn api_key<F: Framework>(header: &str) -> Key<F> {
    Key(Kind::Secret(header_name(header)))
}

/// The name of a header, as they are compared.
#[allow(clippy::panic)] // A mistake in the program, found when it starts.
pub(crate) fn header_name(name: &str) -> Box<str> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_good) {
        panic!("`{name}` is not the name of a header");
    }
    name.to_ascii_lowercase().into()
}

/// The value of a parameter in the path: `path("/users/{id}/posts", "id")`. It matches from the beginning, segment by
/// segment, and the path may go on. Requests to other paths share one key.
///
/// # Panics
/// If the template has no such parameter: a mistake in the program, found when it starts.
#[allow(clippy::panic)] // Said above.
pub fn path<F: Framework>(template: &str, parameter: &str) -> Key<F> {
    match Template::new(template, parameter) {
        Some(template) => Key(Kind::Path(template)),
        None => panic!("the path `{template}` has no parameter `{{{parameter}}}`"),
    }
}

/// Whatever a closure makes of the request. Requests that it makes nothing of share one key.
pub fn from_fn<F: Framework>(
    key: impl Fn(&F::Request) -> Option<String> + Send + Sync + 'static,
) -> Key<F> {
    Key(Kind::Closure(Arc::new(key)))
}

/// A key of [`header`] as it is stored: for exceptions, and to ask a gate by hand.
#[must_use]
pub fn of_header(name: &str, value: &str) -> String {
    format!("header:{}:{value}", header_name(name))
}

/// A key of [`api_key`] as it is stored: for exceptions, and to ask a gate by hand.
#[must_use]
pub fn of_api_key(header: &str, secret: &str) -> String {
    let digest = blake3::hash(without_scheme(secret.as_bytes())).to_hex();
    format!(
        "key:{}:{}",
        header_name(header),
        digest.get(..48).unwrap_or_default()
    )
}

/// A key of [`path`] as it is stored: for exceptions, and to ask a gate by hand.
#[must_use]
pub fn of_path(template: &str, parameter: &str, value: &str) -> String {
    format!("path:{}:{value}", path_source(template, parameter))
}

/// The template and parameter of a path, so that no two of them meet: a `:` or `%` in them is escaped.
fn path_source(template: &str, parameter: &str) -> Box<str> {
    let escaped = |text: &str| text.replace('%', "%25").replace(':', "%3A");
    format!("{}:{}", escaped(template), escaped(parameter)).into()
}

/// A key of [`client_address`] or a [`ClientAddress`] as it is stored: for exceptions, and to ask a gate by hand.
#[must_use]
pub fn of_address(known_by: &ClientAddress, address: IpAddr) -> String {
    let mut key = KeyBytes::new();
    // An address is always a key.
    let _ = write_address(known_by, known_by.known_as(address), &mut key);
    String::from_utf8_lossy(&key).into_owned()
}

impl<F: Framework> Key<F> {
    /// This key, or where the request lacks it another: `header("x-user").or(client_address())`.
    pub fn or(self, other: impl Into<Self>) -> Self {
        Self(Kind::Or(Box::new([self, other.into()])))
    }

    /// Both keys as one: `path("/users/{id}", "id").and(client_address())` limits each pair.
    pub fn and(self, other: impl Into<Self>) -> Self {
        Self(Kind::And(Box::new([self, other.into()])))
    }

    /// Adds the key's bytes. What they begin with says of which kind they are.
    pub(crate) fn write(&self, request: &F::Request, key: &mut KeyBytes) -> Result<Has, NoPeer> {
        match &self.0 {
            Kind::Everybody => Ok(add_if_any(key, Some(b"everybody"))),
            Kind::Address(address) => {
                write_address(address, address.of::<F>(request).ok_or(NoPeer)?, key)
            }
            Kind::Header(name) => {
                named(key, "header:", name);
                Ok(add_if_any(key, header_value::<F>(request, name)))
            }
            Kind::Secret(name) => {
                let secret = header_value::<F>(request, name).map(without_scheme);
                let digest = secret
                    .filter(|secret| !secret.is_empty())
                    .map(|secret| blake3::hash(secret).to_hex());
                named(key, "key:", name);
                // 192 bits of it: nobody finds another key with the same.
                Ok(add_if_any(
                    key,
                    digest
                        .as_ref()
                        .and_then(|digest| digest.as_bytes().get(..48)),
                ))
            }
            Kind::Path(template) => {
                let value = template.find(F::path(request));
                let value: Option<SmallVec<[u8; 64]>> =
                    value.map(|value| percent_decode_str(value).collect());
                named(key, "path:", &template.source);
                Ok(add_if_any(key, value.as_deref()))
            }
            Kind::Closure(closure) => {
                let value = closure(request).filter(|value| !value.is_empty());
                if value
                    .as_ref()
                    .is_none_or(|value| is_like_another_kind(value))
                {
                    key.extend_from_slice(b"fn:");
                }
                Ok(add_if_any(key, value.as_ref().map(String::as_bytes)))
            }
            Kind::Or(keys) => {
                let [first, second] = &**keys;
                let length = key.len();
                if first.write(request, key)? == Has::Key {
                    return Ok(Has::Key);
                }
                key.truncate(length);
                second.write(request, key)
            }
            Kind::And(keys) => {
                let [first, second] = &**keys;
                let mut one = KeyBytes::new();
                let has_first = first.write(request, &mut one)?;
                // Its length says where the first ends: no two pairs meet.
                let _ = write!(Text(key), "{}:", one.len());
                key.extend_from_slice(&one);
                let has_second = second.write(request, key)?;
                Ok(if has_first == Has::Key {
                    Has::Key
                } else {
                    has_second
                })
            }
        }
    }
}

impl<F: Framework> From<ClientAddress> for Key<F> {
    fn from(address: ClientAddress) -> Self {
        Self(Kind::Address(address))
    }
}

impl<F: Framework> std::fmt::Debug for Key<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.0 {
            Kind::Everybody => "everybody",
            Kind::Address(_) => "client address",
            Kind::Header(_) => "header",
            Kind::Secret(_) => "API key",
            Kind::Path(_) => "path",
            Kind::Closure(_) => "closure",
            Kind::Or(_) => "one or another",
            Kind::And(_) => "both of two",
        };
        f.debug_tuple("Key").field(&kind).finish()
    }
}

fn write_address(
    known_by: &ClientAddress,
    address: IpAddr,
    key: &mut KeyBytes,
) -> Result<Has, NoPeer> {
    key.extend_from_slice(b"ip:");
    // Writing into memory does not fail.
    let _ = match (address, known_by.bits(address)) {
        (IpAddr::V4(address), _) => {
            write_octets(address.octets(), key);
            Ok(())
        }
        (address, Some(bits)) => write!(Text(key), "{address}/{bits}"),
        (address, None) => write!(Text(key), "{address}"),
    };
    Ok(Has::Key)
}

/// As it is displayed, in a tenth of the time: this is done for every request.
fn write_octets(octets: [u8; 4], key: &mut KeyBytes) {
    let mut text = [b'.'; 16];
    let mut end = 0;
    let mut put = |byte: u8| {
        if let Some(place) = text.get_mut(end) {
            *place = byte;
        }
        end += 1;
    };
    for (number, octet) in octets.into_iter().enumerate() {
        if number > 0 {
            put(b'.');
        }
        if octet >= 100 {
            put(b'0' + octet / 100);
        }
        if octet >= 10 {
            put(b'0' + octet / 10 % 10);
        }
        put(b'0' + octet % 10);
    }
    key.extend_from_slice(text.get(..end).unwrap_or_default());
}

/// Of what kind a key is, and where it comes from.
fn named(key: &mut KeyBytes, kind: &str, source: &str) {
    key.extend_from_slice(kind.as_bytes());
    key.extend_from_slice(source.as_bytes());
    key.push(b':');
}

fn add_if_any(key: &mut KeyBytes, value: Option<&[u8]>) -> Has {
    match value.filter(|value| !value.is_empty()) {
        Some(value) => {
            key.extend_from_slice(value);
            Has::Key
        }
        None => Has::Nothing,
    }
}

/// Whether what a closure made could be taken for a key of another kind.
fn is_like_another_kind(value: &str) -> bool {
    let digits = value.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_pair = digits.len() < value.len() && digits.starts_with(':');
    is_pair
        || value == "everybody"
        || ["ip:", "header:", "key:", "path:", "fn:"]
            .iter()
            .any(|kind| value.starts_with(kind))
}

/// The value of a header that is there once.
fn header_value<'a, F: Framework>(request: &'a F::Request, name: &str) -> Option<&'a [u8]> {
    let mut values = SmallVec::new();
    F::headers(request, name, &mut values);
    match values[..] {
        [value] => Some(value),
        _ => None,
    }
}

fn without_scheme(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => rest.trim_ascii(),
        _ => value.trim_ascii(),
    }
}

/// A path with a parameter in it.
struct Template {
    /// The part of its keys that tells it from other paths and parameters.
    source: Box<str>,
    /// Segments before the parameter; `None` for those that may be anything.
    before: Vec<Option<Box<str>>>,
    after: Vec<Option<Box<str>>>,
}

impl Template {
    fn new(template: &str, parameter: &str) -> Option<Self> {
        let segments: Vec<&str> = template.trim_matches('/').split('/').collect();
        let is_parameter = |segment: &&str| {
            segment
                .strip_prefix('{')
                .and_then(|name| name.strip_suffix('}'))
                == Some(parameter)
        };
        let at = segments.iter().position(is_parameter)?;
        let read = |segments: &[&str]| {
            segments
                .iter()
                .map(|segment| (!segment.starts_with('{')).then(|| Box::from(*segment)))
                .collect()
        };
        let source = path_source(template, parameter);
        Some(Self {
            source,
            before: read(segments.get(..at)?),
            after: read(segments.get(at + 1..)?),
        })
    }

    fn find<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut segments = path.strip_prefix('/')?.split('/');
        let fits = |wanted: &Option<Box<str>>, segment: Option<&str>| {
            segment
                .is_some_and(|segment| wanted.as_deref().is_none_or(|wanted| same(wanted, segment)))
        };
        if !self
            .before
            .iter()
            .all(|wanted| fits(wanted, segments.next()))
        {
            return None;
        }
        let value = segments.next()?;
        self.after
            .iter()
            .all(|wanted| fits(wanted, segments.next()))
            .then_some(value)
    }
}

/// However a segment is written, it is the same to who reads it.
fn same(wanted: &str, segment: &str) -> bool {
    wanted == segment || (segment.contains('%') && percent_decode_str(segment).eq(wanted.bytes()))
}

/// Text into a key.
struct Text<'a>(&'a mut KeyBytes);

impl std::fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_displayed() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let address = std::net::Ipv4Addr::from_bits(bits);
            let mut key = KeyBytes::new();
            write_octets(address.octets(), &mut key);
            assert_eq!(key.as_slice(), address.to_string().as_bytes());
        }
    }
}
