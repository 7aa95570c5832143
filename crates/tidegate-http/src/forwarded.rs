//! Parses the addresses in forwarding headers from the right, where the nearest proxy writes.
//!
//! Everything works on bytes, and only the entry in use is decoded. Whatever a client writes to the
//! left of the proxy's entry, such as an invalid byte or an open quote, must not change how that
//! entry is parsed.

use std::net::{IpAddr, SocketAddr};

/// Returns the parts of a list from its end. Separators within quotes do not split, and escaped
/// quotes do not end a quote.
pub(crate) fn parts_from_the_right(list: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let text = rest?;
        let at = last_separator(text, separator);
        rest = at.and_then(|at| text.get(..at));
        let part = at.map_or(text, |at| text.get(at + 1..).unwrap_or_default());
        Some(part.trim_ascii())
    })
}

fn last_separator(text: &[u8], separator: u8) -> Option<usize> {
    let mut is_quoted = false;
    (0..text.len()).rev().find(|at| {
        let byte = text[*at];
        if byte == b'"' {
            let escapes = text[..*at]
                .iter()
                .rev()
                .take_while(|byte| **byte == b'\\')
                .count();
            is_quoted ^= escapes % 2 == 0;
        }
        byte == separator && !is_quoted
    })
}

/// Parses an entry of X-Forwarded-For: with or without a port, with or without brackets around
/// IPv6.
pub(crate) fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?;
    let entry = entry
        .strip_prefix('"')
        .and_then(|entry| entry.strip_suffix('"'))
        .unwrap_or(entry);
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Some(address);
    }
    if let Some(address) = entry
        .strip_prefix('[')
        .and_then(|entry| entry.strip_suffix(']'))
    {
        return address.parse().ok().map(IpAddr::V6);
    }
    entry.parse::<SocketAddr>().ok().map(|address| address.ip())
}

/// Parses the `for` parameter of a Forwarded element (RFC 7239). Other parameters may have any
/// content.
pub(crate) fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in parts_from_the_right(element, b';') {
        let Some(sign) = pair.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let (name, value) = pair.split_at(sign);
        if name.trim_ascii().eq_ignore_ascii_case(b"for") {
            // An element that names two addresses is invalid.
            if found.is_some() {
                return None;
            }
            found = Some(address(value.get(1..)?.trim_ascii())?);
        }
    }
    found
}
