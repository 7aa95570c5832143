//! Values that are checked while they are parsed, so that an error has a position.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate::{Policy, StoreUrl};

use super::mask::mask;

/// Parses a value that is written as a string.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?
        .parse()
        .map_err(de::Error::custom)
}

/// A listener's address: `"127.0.0.1:8080"`, or `"off"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String", example = "127.0.0.1:8080", example = &"off")]
pub enum Listen {
    /// No listener.
    Off,
    /// An address. Port 0 is any free port.
    At(SocketAddr),
}

impl Listen {
    /// Returns an address that only this machine can reach.
    #[must_use]
    pub const fn local(port: u16) -> Self {
        Self::At(SocketAddr::new(
            std::net::IpAddr::V4(Ipv4Addr::LOCALHOST),
            port,
        ))
    }

    /// Returns the address, or `None` if the listener is off.
    #[must_use]
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let numeric = text
            .strip_prefix("localhost:")
            .map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
        numeric.parse().map(Self::At).map_err(|_| {
            format!(
                "`{text}` is not an address: expected ADDRESS:PORT such as 127.0.0.1:8080 or 0.0.0.0:8080, or off"
            )
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// A duration: `"5s"`, `"500ms"`, `"2m"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String", example = "5s", example = "500ms")]
pub struct ConfigDuration(pub Duration);

impl ConfigDuration {
    pub(crate) const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for ConfigDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = |cause: String| {
            format!("`{text}` is not a duration ({cause}): expected one such as 5s or 500ms")
        };
        match humantime::parse_duration(text) {
            Ok(duration) if duration.is_zero() => Err(error("it is zero".to_owned())),
            Ok(duration) if duration > Duration::from_secs(86_400) => {
                Err(error("it is more than a day".to_owned()))
            }
            Ok(duration) => Ok(Self(duration)),
            Err(cause) => Err(error(cause.to_string())),
        }
    }
}

impl fmt::Display for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// The text of a policy: `"100/minute burst=20; 1000/hour"`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(
    with = "String",
    example = "100/minute",
    example = "10/second burst=50; fixed_window 10000/day"
)]
pub struct PolicyText(pub Policy);

impl FromStr for PolicyText {
    type Err = tidegate::PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for PolicyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The URL of a store. It is displayed without passwords.
#[derive(Clone, JsonSchema)]
#[schemars(
    with = "String",
    example = "memory://",
    example = "redis://127.0.0.1:6379/0"
)]
pub struct StoreUrlText {
    text: String,
    url: StoreUrl,
}

impl StoreUrlText {
    /// Returns the parsed URL.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// Returns the URL as it was written, with passwords.
    #[must_use]
    pub fn as_text(&self) -> &str {
        &self.text
    }
}

impl FromStr for StoreUrlText {
    type Err = tidegate::ConnectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self {
            url: text.parse::<StoreUrl>()?,
            text: text.to_owned(),
        })
    }
}

impl Default for StoreUrlText {
    #[allow(clippy::expect_used)] // Used by tests.
    fn default() -> Self {
        "memory://".parse().expect("a URL")
    }
}

impl PartialEq for StoreUrlText {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for StoreUrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask(&self.text))
    }
}

impl fmt::Debug for StoreUrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Serializes and deserializes types by their text.
macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer)
            }
        }

        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

as_text!(Listen, ConfigDuration, PolicyText, StoreUrlText);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_values_round_trip_and_invalid_ones_fail() {
        for text in ["off", "127.0.0.1:8080", "[::1]:0", "0.0.0.0:9090"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert_eq!(
            "localhost:80".parse::<Listen>().unwrap().to_string(),
            "127.0.0.1:80"
        );
        for text in [
            "",
            "8080",
            ":8080",
            "example.com:80",
            "127.0.0.1",
            "127.0.0.1:99999",
            "On",
        ] {
            assert!(text.parse::<Listen>().is_err(), "{text:?}");
        }
        for text in ["5s", "500ms", "1m 30s"] {
            assert_eq!(text.parse::<ConfigDuration>().unwrap().to_string(), text);
        }
        for text in ["", "5", "0s", "-1s", "2days", "1e9s"] {
            assert!(text.parse::<ConfigDuration>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn passwords_are_masked() {
        let url: StoreUrlText = "redis://user:pa@ss@127.0.0.1/".parse().unwrap();
        assert_eq!(url.to_string(), "redis://***@127.0.0.1/");
        assert!(!format!("{url:?}").contains("ss@1"));
        assert_eq!(StoreUrlText::default().to_string(), "memory://");
    }
}
