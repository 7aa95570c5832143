//! Rejects requests of web pages. A page that a user of this machine visits can reach loopback
//! addresses.
//!
//! Browsers mark such requests: a request of another site has an `Origin` or a `Sec-Fetch-Site`,
//! and a page whose name resolves to 127.0.0.1 sends that name as `Host`.

use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::problem::Problem;

/// Rejects requests of other sites' pages.
pub(super) fn check_site(fields: &HeaderMap, hosts: &[String]) -> Result<(), Problem> {
    let refused = |detail: &'static str| Problem::new(StatusCode::FORBIDDEN, detail);
    if fields
        .get_all("sec-fetch-site")
        .iter()
        .any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
    {
        return Err(refused(
            "cross-site request (Sec-Fetch-Site): expected the same origin",
        ));
    }
    for origin in fields.get_all(ORIGIN) {
        let host = origin
            .to_str()
            .ok()
            .and_then(|text| text.split_once("://"))
            .map(|(_, authority)| authority);
        if !host.is_some_and(|authority| is_own(authority, hosts)) {
            return Err(refused(
                "cross-site request: expected an Origin that is one of `hosts`",
            ));
        }
    }
    Ok(())
}

/// Rejects host names that are neither loopback nor configured.
pub(super) fn check_host(head: &Parts, hosts: &[String]) -> Result<(), Problem> {
    let of_uri = head.uri.authority().map(|authority| authority.as_str());
    let mut of_fields = head
        .headers
        .get_all(HOST)
        .iter()
        .map(|value| value.to_str().unwrap_or_default());
    match of_uri
        .into_iter()
        .chain(&mut of_fields)
        .find(|authority| !is_own(authority, hosts))
    {
        None => Ok(()),
        Some(_) => {
            let detail = "unknown Host: expected a loopback address, localhost, or one of `hosts`";
            Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail))
        }
    }
}

/// Returns `true` if `host` or `host:port` is a loopback or configured name.
fn is_own(authority: &str, hosts: &[String]) -> bool {
    // The part before an `@` is a user, not a host.
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.parse::<IpAddr>()
        .is_ok_and(|address| address.to_canonical().is_loopback())
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_only_local_and_configured_names_are_accepted() {
        let hosts = ["limits.internal".to_owned()];
        for own in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "Limits.Internal:1",
        ] {
            assert!(is_own(own, &hosts), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "127.0.0.1.evil.example",
            "limits.internal.x",
            "localhost:80@evil.example",
        ] {
            assert!(!is_own(foreign, &hosts), "{foreign}");
        }
    }
}
