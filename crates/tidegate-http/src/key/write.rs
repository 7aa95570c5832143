//! Writes the key of a request. Its first bytes name the kind of key, so kinds never collide.

use std::fmt::Write as _;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use smallvec::SmallVec;

use super::{KeyBytes, KeySource, RequestKey, template::Template};
use crate::client_address::ClientAddress;
use crate::error::RequestError;
use crate::framework::Framework;

/// The presence of the parts of a key in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Present,
    Missing,
}

/// The key of all requests. A limiter without keys has the same.
pub(super) const GLOBAL: &str = "global";

/// The hexadecimal digits of a secret's digest that are stored: 192 bits, which cannot be forged.
pub(super) const DIGEST_LENGTH: usize = 48;

impl<F: Framework> RequestKey<F> {
    /// Appends the key of a request.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::NoPeer`] if the key needs the peer's address and it is missing.
    pub(crate) fn write(
        &self,
        request: &F::Request,
        key: &mut KeyBytes,
    ) -> Result<Presence, RequestError> {
        match &self.0 {
            KeySource::Global => Ok(push_value(key, Some(GLOBAL.as_bytes()))),
            KeySource::Address(client) => {
                let address = client.of::<F>(request).ok_or(RequestError::NoPeer)?;
                write_address(client, address, key);
                Ok(Presence::Present)
            }
            KeySource::Header(name) => {
                push_prefix(key, "header:", name);
                Ok(push_value(key, header_value::<F>(request, name)))
            }
            KeySource::Secret(name) => Ok(write_secret::<F>(request, name, key)),
            KeySource::Path(template) => Ok(write_path(template, F::path(request), key)),
            KeySource::Closure(closure) => Ok(write_closure(closure(request), key)),
            KeySource::Or(keys) => write_first(keys, request, key),
            KeySource::And(keys) => write_both(keys, request, key),
        }
    }
}

fn write_secret<F: Framework>(request: &F::Request, name: &str, key: &mut KeyBytes) -> Presence {
    let secret = header_value::<F>(request, name).map(without_scheme);
    let digest = secret
        .filter(|secret| !secret.is_empty())
        .map(|secret| blake3::hash(secret).to_hex());
    push_prefix(key, "key:", name);
    let digest = digest.as_ref().map(|digest| digest.as_bytes());
    push_value(key, digest.and_then(|digest| digest.get(..DIGEST_LENGTH)))
}

fn write_path(template: &Template, path: &str, key: &mut KeyBytes) -> Presence {
    let value: Option<SmallVec<[u8; 64]>> = template
        .find(path)
        .map(|value| percent_decode_str(value).collect());
    push_prefix(key, "path:", &template.source);
    push_value(key, value.as_deref())
}

pub(super) fn write_closure(value: Option<String>, key: &mut KeyBytes) -> Presence {
    let value = value.filter(|value| !value.is_empty());
    if value.as_deref().is_none_or(is_ambiguous) {
        key.extend_from_slice(b"fn:");
    }
    push_value(key, value.as_ref().map(String::as_bytes))
}

fn write_first<F: Framework>(
    [first, second]: &[RequestKey<F>; 2],
    request: &F::Request,
    key: &mut KeyBytes,
) -> Result<Presence, RequestError> {
    let length = key.len();
    if first.write(request, key)? == Presence::Present {
        return Ok(Presence::Present);
    }
    key.truncate(length);
    second.write(request, key)
}

fn write_both<F: Framework>(
    [first, second]: &[RequestKey<F>; 2],
    request: &F::Request,
    key: &mut KeyBytes,
) -> Result<Presence, RequestError> {
    let mut part = KeyBytes::new();
    let first = first.write(request, &mut part)?;
    // The length tells where the first part ends, so no two pairs collide.
    let _ = write!(KeyWriter(key), "{}:", part.len());
    key.extend_from_slice(&part);
    let second = second.write(request, key)?;
    Ok(match first {
        Presence::Present => Presence::Present,
        Presence::Missing => second,
    })
}

/// Appends an address that is already truncated to its prefix.
pub(super) fn write_address(client: &ClientAddress, address: IpAddr, key: &mut KeyBytes) {
    if let IpAddr::V4(address) = address {
        return write_octets(address.octets(), key);
    }
    key.extend_from_slice(b"ip:");
    // Writing to a vector cannot fail.
    let _ = match client.prefix_bits(address) {
        Some(bits) => write!(KeyWriter(key), "{address}/{bits}"),
        None => write!(KeyWriter(key), "{address}"),
    };
}

/// Writes `ip:` and an IPv4 address like its `Display`, in a tenth of the time: this runs for every
/// request.
fn write_octets(octets: [u8; 4], key: &mut KeyBytes) {
    let mut text = *b"ip:.................";
    let mut end = 3;
    let mut put = |byte: u8| {
        if let Some(place) = text.get_mut(end) {
            *place = byte;
        }
        end += 1;
    };
    for (index, octet) in octets.into_iter().enumerate() {
        if index > 0 {
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

/// Appends the kind of a key and its source.
fn push_prefix(key: &mut KeyBytes, kind: &str, source: &str) {
    key.extend_from_slice(kind.as_bytes());
    key.extend_from_slice(source.as_bytes());
    key.push(b':');
}

fn push_value(key: &mut KeyBytes, value: Option<&[u8]>) -> Presence {
    match value.filter(|value| !value.is_empty()) {
        Some(value) => {
            key.extend_from_slice(value);
            Presence::Present
        }
        None => Presence::Missing,
    }
}

/// Returns `true` if a closure's key looks like one of another kind.
fn is_ambiguous(value: &str) -> bool {
    let rest = value.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_pair = rest.len() < value.len() && rest.starts_with(':');
    let kinds = ["ip:", "header:", "key:", "path:", "fn:"];
    is_pair || value == GLOBAL || kinds.iter().any(|kind| value.starts_with(kind))
}

/// Returns the value of a header that occurs exactly once.
fn header_value<'a, F: Framework>(request: &'a F::Request, name: &str) -> Option<&'a [u8]> {
    let mut values = SmallVec::new();
    F::headers(request, name, &mut values);
    match values[..] {
        [value] => Some(value),
        _ => None,
    }
}

pub(super) fn without_scheme(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => rest.trim_ascii(),
        _ => value.trim_ascii(),
    }
}

/// Writes formatted text to a key.
struct KeyWriter<'a>(&'a mut KeyBytes);

impl std::fmt::Write for KeyWriter<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_like_their_display_format() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let address = std::net::Ipv4Addr::from_bits(bits);
            let mut key = KeyBytes::new();
            write_octets(address.octets(), &mut key);
            assert_eq!(key.as_slice(), format!("ip:{address}").as_bytes());
        }
    }
}
