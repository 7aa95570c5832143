//! What proxies write of who is behind them, read from the right: what stands there is by those nearest to us.

use std::net::{IpAddr, SocketAddr};

/// The entries of a list, from its end: commas within quotes do not part them. Whatever stands to the left of an entry, an
/// open quote say, does not change how it is read.
pub(crate) fn entries_from_the_right(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut is_quoted = false;
        let comma = text.bytes().rposition(|byte| {
            is_quoted ^= byte == b'"';
            byte == b',' && !is_quoted
        });
        let entry = comma.map_or(text, |at| text.get(at + 1..).unwrap_or_default());
        rest = comma.and_then(|at| text.get(..at));
        Some(entry.trim_matches([' ', '\t']))
    })
}

/// The address of an entry of X-Forwarded-For: with or without a port, brackets around an IPv6 one or not.
pub(crate) fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.strip_prefix('"').and_then(|entry| entry.strip_suffix('"')).unwrap_or(entry);
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Some(address);
    }
    if let Some(address) = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']')) {
        return address.parse().ok().map(IpAddr::V6);
    }
    entry.parse::<SocketAddr>().ok().map(|address| address.ip())
}

/// The address of an element of Forwarded (RFC 7239): its `for`.
pub(crate) fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in element.split(';') {
        let (name, value) = pair.split_once('=')?;
        if name.trim_matches([' ', '\t']).eq_ignore_ascii_case("for") {
            // One that names two is of nobody that writes such.
            if found.is_some() {
                return None;
            }
            found = Some(address(value.trim_matches([' ', '\t']))?);
        }
    }
    found
}
