//! The formats of rate limit headers.

/// The format of the headers that report limits and usage.
///
/// There is no standard yet. `draft-ietf-httpapi-ratelimit-headers` has changed its headers several
/// times, and each of these formats is in use.
///
/// # Examples
///
/// ```
/// use tidegate::tower::HeaderFormat;
///
/// assert_eq!(HeaderFormat::default().name(), "draft-11");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderFormat {
    /// `RateLimit-Policy: "api";q=100;w=60` and `RateLimit: "api";r=50;t=30`: revisions 08 to 11 of
    /// the draft.
    #[default]
    Draft11,
    /// `RateLimit: limit=100, remaining=50, reset=5` and `RateLimit-Policy: 100;w=60`.
    Draft07,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` and
    /// `RateLimit-Policy: 100;w=60`.
    Draft06,
    /// `X-RateLimit-Limit: 100, 100;w=60;name="api"`, `X-RateLimit-Remaining` and
    /// `X-RateLimit-Reset`, as Envoy writes them.
    Envoy,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, as most services write
    /// them.
    Legacy(ResetFormat),
    /// Only `Retry-After`.
    Off,
}

/// The meaning of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds since 1970, as GitHub, Laravel and Flask-Limiter write.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

impl HeaderFormat {
    /// Returns the name used in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Draft11 => "draft-11",
            Self::Draft07 => "draft-07",
            Self::Draft06 => "draft-06",
            Self::Envoy => "envoy",
            Self::Legacy(_) => "legacy",
            Self::Off => "off",
        }
    }

    /// Returns the headers that a page of another origin must be allowed to read.
    pub(crate) const fn exposed(self) -> &'static str {
        match self {
            Self::Draft11 | Self::Draft07 => "RateLimit, RateLimit-Policy, Retry-After",
            Self::Draft06 => {
                "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, RateLimit-Policy, Retry-After"
            }
            Self::Envoy | Self::Legacy(_) => {
                "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After"
            }
            Self::Off => "Retry-After",
        }
    }
}
