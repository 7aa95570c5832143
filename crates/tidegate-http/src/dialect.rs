//! In which header fields clients are told.

/// In which header fields clients are told what is left. There is no standard yet: `draft-ietf-httpapi-ratelimit-headers`
/// has changed its fields again and again, and each of these is what some of the web speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit-Policy: "api";q=100;w=60` and `RateLimit: "api";r=50;t=30`: revisions 08 to 11 of the draft.
    #[default]
    Draft11,
    /// `RateLimit: limit=100, remaining=50, reset=5` and `RateLimit-Policy: 100;w=60`.
    Draft07,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` and `RateLimit-Policy: 100;w=60`.
    Draft06,
    /// `X-RateLimit-Limit: 100, 100;w=60;name="api"`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, as Envoy writes them.
    Envoy,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, as most of the web writes them.
    Legacy(Reset),
    /// None but `Retry-After`.
    Off,
}

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reset {
    /// Seconds since 1970, as GitHub, Laravel and Flask-Limiter write.
    #[default]
    Epoch,
    /// Seconds from now on.
    Delta,
}

impl Dialect {
    /// Its name, as configurations write it.
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

    /// The fields that a page of another origin has to be allowed to read.
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
