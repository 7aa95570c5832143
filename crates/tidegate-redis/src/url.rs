//! Redis URLs: servers, credentials, TLS and settings.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::settings::{LeaseSettings, RedisSettings};

const DEFAULT_PORT: u16 = 6379;
/// The maximum timeout. Longer ones are reduced to it.
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);
const DEFAULT_SENTINEL_PORT: u16 = 26_379;
const LEASE_EXPECTED: &str = "lease is invalid: expected on, off or a lifetime from 10ms to 60s";
/// The lifetimes that a slice may have.
const LEASE_LIFETIMES: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(60);

/// The schemes, for error messages.
const SCHEMES: &str = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or rediss+cluster://";

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The servers that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Single(Address),
    /// One server, by its socket.
    Unix(PathBuf),
    /// Sentinels, which know the address of the primary with this name.
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
    },
    /// Nodes of a cluster, which know the others.
    Cluster(Vec<Address>),
}

/// Returns a node's host, or the host that was asked if the node does not know its own.
pub(crate) fn host_or<'a>(host: &'a str, asked: &'a str) -> &'a str {
    if matches!(host, "" | "?") {
        asked
    } else {
        host
    }
}

/// A user and a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// The TLS settings of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) is_insecure: bool,
}

/// A parsed and checked URL.
#[derive(Clone, Debug)]
pub(crate) struct RedisUrl {
    pub(crate) topology: Topology,
    pub(crate) credentials: Credentials,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) database: i64,
    pub(crate) tls: Option<Tls>,
    pub(crate) settings: RedisSettings,
}

/// The error for an invalid Redis URL.
///
/// It repeats no part of the URL except option names: in a mistyped URL any part may be the
/// password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RedisUrlError(String);

fn error<T>(message: impl Into<String>) -> Result<T, RedisUrlError> {
    Err(RedisUrlError(message.into()))
}

impl FromStr for RedisUrl {
    type Err = RedisUrlError;

    fn from_str(url: &str) -> Result<Self, RedisUrlError> {
        Self::parse(url, |_, _| Ok(false))
    }
}

impl RedisUrl {
    /// Parses a URL. `own_option` gets every option that is not listed here, and returns `Ok(true)`
    /// if it belongs to the caller.
    pub(crate) fn parse(
        url: &str,
        mut own_option: impl FnMut(&str, &str) -> Result<bool, String>,
    ) -> Result<Self, RedisUrlError> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return error(format!("not a URL: expected {SCHEMES}"));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return error("a `?` in the user or the password: expected it as %3F");
        }
        let (tls, kind) = match scheme {
            "redis" => (None, UrlKind::Single),
            "rediss" => (Some(Tls::default()), UrlKind::Single),
            "unix" | "redis+unix" => (None, UrlKind::Unix),
            "redis+sentinel" => (None, UrlKind::Sentinel),
            "rediss+sentinel" => (Some(Tls::default()), UrlKind::Sentinel),
            "redis+cluster" => (None, UrlKind::Cluster),
            "rediss+cluster" => (Some(Tls::default()), UrlKind::Cluster),
            _ => return error(format!("unknown scheme: expected {SCHEMES}")),
        };
        let (credentials, rest) = credentials(rest)?;
        let (topology, database) = topology(kind, rest)?;
        let mut url = Self {
            topology,
            credentials,
            sentinel_credentials: Credentials::default(),
            database,
            tls,
            settings: RedisSettings::default(),
        };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decoded(value)?;
            if !url.set(name, &value)? && !own_option(name, &value).map_err(RedisUrlError)? {
                return unknown_option(option, name);
            }
        }
        url.checked()
    }
}

/// Returns the error for an unknown option. The option is repeated only if it looks like one: it may
/// be a part of a password that contains a `?`.
fn unknown_option<T>(option: &str, name: &str) -> Result<T, RedisUrlError> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let shown = if option.contains('=') && name.bytes().all(is_letter) {
        format!(" `{name}`")
    } else {
        String::new()
    };
    error(format!(
        "unknown option{shown}: expected prefix, timeout, connect_timeout, max_waiting, lease, \
         lease_share, sentinel_user, sentinel_password, ca, cert, key or insecure; for a limiter also failure, \
         instances, deny_cache or lazy"
    ))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

fn decoded(text: &str) -> Result<String, RedisUrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| {
        RedisUrlError("a percent-encoded part is not UTF-8: expected UTF-8".to_owned())
    })
}

/// Parses `user:password@`, `:password@` or nothing. The last `@` counts, so a password may contain
/// one.
fn credentials(rest: &str) -> Result<(Credentials, &str), RedisUrlError> {
    let Some((credentials, rest)) = rest.rsplit_once('@') else {
        return Ok((Credentials::default(), rest));
    };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let some = |text: &str| -> Result<Option<String>, RedisUrlError> {
        if text.is_empty() {
            Ok(None)
        } else {
            decoded(text).map(Some)
        }
    };
    let (user, password) = match (some(user), some(password)) {
        (Ok(user), Ok(password)) => (user, password),
        _ => {
            return error(
                "the user or the password is not UTF-8 after percent-decoding: expected UTF-8",
            );
        }
    };
    if user.is_some() && password.is_none() {
        return error("a user without a password: expected user:password@ or :password@");
    }
    Ok((Credentials { user, password }, rest))
}

fn topology(kind: UrlKind, rest: &str) -> Result<(Topology, i64), RedisUrlError> {
    if kind == UrlKind::Unix {
        let path = decoded(rest)?;
        if path.is_empty() {
            return error("no path to a socket: expected unix:///run/redis/redis.sock");
        }
        return Ok((Topology::Unix(path.into()), 0));
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let default_port = if kind == UrlKind::Sentinel {
        DEFAULT_SENTINEL_PORT
    } else {
        DEFAULT_PORT
    };
    let addresses = hosts
        .split(',')
        .map(|host| address(host, default_port))
        .collect::<Result<Vec<_>, _>>()?;
    match kind {
        UrlKind::Sentinel => {
            let (master, number) = path.split_once('/').unwrap_or((path, ""));
            let master = decoded(master)?;
            if master.is_empty() {
                return error(
                    "no name of a primary: expected redis+sentinel://host:26379,host:26379/NAME",
                );
            }
            Ok((
                Topology::Sentinel {
                    sentinels: addresses,
                    master,
                },
                database(number)?,
            ))
        }
        UrlKind::Cluster if database(path)? != 0 => {
            error("a database other than 0: expected 0, the only one of a Redis Cluster")
        }
        UrlKind::Cluster => Ok((Topology::Cluster(addresses), 0)),
        UrlKind::Single | UrlKind::Unix => match <[Address; 1]>::try_from(addresses) {
            Ok([address]) => Ok((Topology::Single(address), database(path)?)),
            Err(_) => {
                error("several hosts: expected one, or redis+sentinel:// or redis+cluster://")
            }
        },
    }
}

fn database(text: &str) -> Result<i64, RedisUrlError> {
    match text.trim_end_matches('/') {
        "" => Ok(0),
        number => number.parse::<u16>().map(i64::from).map_err(|_| {
            RedisUrlError("the database is invalid: expected a number such as 0".to_owned())
        }),
    }
}

/// Parses `host`, `host:port`, `[::1]` or `[::1]:port`.
pub(crate) fn address(text: &str, default_port: u16) -> Result<Address, RedisUrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
            None => return error("the host is invalid: expected [address]:port"),
        },
        None => text.rsplit_once(':').unwrap_or((text, "")),
    };
    if host.contains(':') && !text.starts_with('[') {
        return error("the host is invalid: expected an IPv6 address in brackets, as [::1]:6379");
    }
    let port = match port {
        "" => default_port,
        port => port.parse().map_err(|_| {
            RedisUrlError("the port is invalid: expected a number, as in host:6379".to_owned())
        })?,
    };
    let host = if host.is_empty() {
        "127.0.0.1".to_owned()
    } else {
        decoded(host)?
    };
    Ok(Address { host, port })
}

impl RedisUrl {
    /// Sets an option. Returns `false` if the option is unknown.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, RedisUrlError> {
        let settings = &mut self.settings;
        match name {
            "prefix" => settings.prefix = value.to_owned(),
            "timeout" => {
                settings.timeout = duration(name, value)?;
                settings.has_timeout = true;
            }
            "connect_timeout" => settings.connect_timeout = duration(name, value)?,
            "max_waiting" => settings.max_waiting = number(name, value)?,
            "lease" => set_lease(&mut settings.lease, value)?,
            "lease_share" => settings.lease.share = number(name, value)? as u64,
            "sentinel_user" => self.sentinel_credentials.user = Some(value.to_owned()),
            "sentinel_password" => self.sentinel_credentials.password = Some(value.to_owned()),
            "ca" | "cert" | "key" | "insecure" => match &mut self.tls {
                Some(tls) => tls.set(name, value)?,
                None => {
                    return error(format!(
                        "`{name}` is a TLS option: expected rediss:// instead of redis://"
                    ));
                }
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the settings of the URL and of the builder.
    pub(crate) fn checked(mut self) -> Result<Self, RedisUrlError> {
        self.settings.timeout = self.settings.timeout.min(MAX_TIMEOUT);
        self.settings.connect_timeout = self.settings.connect_timeout.min(MAX_TIMEOUT);
        if self.settings.prefix.contains(['{', '}']) {
            return error(
                "a prefix with braces would put all keys into one cluster slot: expected no braces",
            );
        }
        let lease = &self.settings.lease;
        if !LEASE_LIFETIMES.contains(&lease.lifetime) {
            return error(LEASE_EXPECTED);
        }
        if !(1..=100).contains(&lease.share) {
            return error("lease_share: expected a percentage from 1 to 100");
        }
        if self.settings.max_waiting == 0 {
            return error("max_waiting=0: expected at least 1");
        }
        if self.settings.timeout.is_zero() || self.settings.connect_timeout.is_zero() {
            return error("timeout=0: expected at least 1ms");
        }
        if let Some(Tls {
            certificate, key, ..
        }) = &self.tls
            && certificate.is_some() != key.is_some()
        {
            return error("`cert` without `key`, or `key` without `cert`: expected both");
        }
        Ok(self)
    }
}

impl Tls {
    fn set(&mut self, name: &str, value: &str) -> Result<(), RedisUrlError> {
        match name {
            "ca" => self.ca = Some(value.into()),
            "cert" => self.certificate = Some(value.into()),
            "key" => self.key = Some(value.into()),
            _ => {
                self.is_insecure = match value {
                    "" | "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return error("insecure is invalid: expected true or false"),
                }
            }
        }
        Ok(())
    }
}

fn number(name: &str, value: &str) -> Result<usize, RedisUrlError> {
    value
        .replace('_', "")
        .parse()
        .map_err(|_| RedisUrlError(format!("{name} is invalid: expected a whole number")))
}

/// Parses `on`, `off` or the lifetime of a slice.
fn set_lease(lease: &mut LeaseSettings, value: &str) -> Result<(), RedisUrlError> {
    lease.is_on = value != "off";
    if !matches!(value, "on" | "off" | "") {
        lease.lifetime = duration("lease", value).or_else(|_| error(LEASE_EXPECTED))?;
    }
    Ok(())
}

/// Parses `50ms` or `2s`. A bare number is milliseconds.
fn duration(name: &str, text: &str) -> Result<Duration, RedisUrlError> {
    let (number, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let duration = number.parse().ok().and_then(|number: u32| match unit {
        "ms" | "" => Some(Duration::from_millis(u64::from(number))),
        "s" => Some(Duration::from_secs(u64::from(number))),
        _ => None,
    });
    duration.ok_or_else(|| {
        RedisUrlError(format!(
            "{name} is invalid: expected a time such as 50ms or 2s"
        ))
    })
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> RedisUrl {
        url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn at(host: &str, port: u16) -> Address {
        Address {
            host: host.to_owned(),
            port,
        }
    }

    #[test]
    fn places() {
        assert_eq!(
            read("redis://").topology,
            Topology::Single(at("127.0.0.1", 6379))
        );
        assert_eq!(
            read("redis://db.example/").topology,
            Topology::Single(at("db.example", 6379))
        );
        assert_eq!(
            read("rediss://[::1]:7000/2").topology,
            Topology::Single(at("::1", 7000))
        );
        assert_eq!(read("rediss://h/2").database, 2);
        assert_eq!(
            read("unix:///run/redis.sock").topology,
            Topology::Unix("/run/redis.sock".into())
        );
        let sentinels = vec![at("a", 1), at("b", 26_379)];
        let sentinel = Topology::Sentinel {
            sentinels,
            master: "mymaster".to_owned(),
        };
        assert_eq!(read("redis+sentinel://a:1,b/mymaster/3").topology, sentinel);
        assert_eq!(
            read("redis+cluster://a:1,b").topology,
            Topology::Cluster(vec![at("a", 1), at("b", 6379)])
        );
    }

    #[test]
    fn logins_and_options() {
        let url = read(
            "rediss://me:p%40ss@h/?prefix=app:&timeout=20ms&connect_timeout=2s&ca=/ca.pem&insecure",
        );
        assert_eq!(
            url.credentials,
            Credentials {
                user: Some("me".to_owned()),
                password: Some("p@ss".to_owned())
            }
        );
        assert_eq!(
            (&*url.settings.prefix, url.settings.timeout),
            ("app:", Duration::from_millis(20))
        );
        assert_eq!(url.settings.connect_timeout, Duration::from_secs(2));
        let tls = Tls {
            ca: Some("/ca.pem".into()),
            is_insecure: true,
            ..Tls::default()
        };
        assert_eq!(url.tls, Some(tls));
        assert_eq!(
            read("redis://:s@cret@h").credentials.password.as_deref(),
            Some("s@cret")
        );
        assert!(!format!("{:?}", read("redis://me:hidden@h").credentials).contains("hidden"));
    }

    #[test]
    fn bad_urls_name_the_expected_value() {
        let cases = [
            ("", "expected redis://"),
            ("http://h", "unknown scheme"),
            ("redis://a,b", "redis+cluster://"),
            ("redis://h/x", "the database is invalid"),
            ("redis://h:99999", "the port is invalid"),
            ("redis://::1", "brackets"),
            ("redis://me@h", "without a password"),
            ("redis://:p?ss@h", "%3F"),
            ("redis+sentinel://h", "name of a primary"),
            ("redis+cluster://h/1", "expected 0"),
            ("unix://", "socket"),
            ("redis://h?timeout=soon", "50ms"),
            ("redis://h?timeout=0", "at least 1ms"),
            ("redis://h?ca=x", "rediss://"),
            ("rediss://h?cert=x", "expected both"),
            ("redis://h?prefix={a}", "expected no braces"),
            ("redis://h?max_waiting=many", "whole number"),
            ("redis://h?max_waiting=0", "at least 1"),
            ("rediss://h?insecure=perhaps", "true or false"),
            ("redis://h?colour=blue", "unknown option `colour`"),
        ];
        for (url, expected) in cases {
            let message = url
                .parse::<RedisUrl>()
                .err()
                .unwrap_or_else(|| panic!("{url} was accepted"))
                .to_string();
            assert!(message.contains(expected), "{url}: {message}");
        }
    }
}
