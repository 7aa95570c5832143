//! The Lua that decides, put together of one file an algorithm. A policy's script has those that it needs: the fewer
//! lines, the sooner Redis is through with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::{Algorithm, Policy};

/// A script and the name that Redis knows it by.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: Arc<str>,
    pub(crate) sha: Arc<str>,
}

/// A file of `lua/`, by the number that the scripts know it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Bucket = 1,
    FixedWindow = 2,
    SlidingWindowCounter = 3,
    SlidingWindowLog = 4,
}

impl From<Algorithm> for Kind {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::FixedWindow,
            Algorithm::SlidingWindowLog => Self::SlidingWindowLog,
            Algorithm::SlidingWindowCounter => Self::SlidingWindowCounter,
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => Self::Bucket,
        }
    }
}

impl Kind {
    const fn text(self) -> &'static str {
        match self {
            Self::Bucket => include_str!("lua/bucket.lua"),
            Self::FixedWindow => include_str!("lua/fixed_window.lua"),
            Self::SlidingWindowCounter => include_str!("lua/sliding_window_counter.lua"),
            Self::SlidingWindowLog => include_str!("lua/sliding_window_log.lua"),
        }
    }
}

impl Script {
    pub(crate) fn of(policy: &Policy) -> Self {
        let kinds: BTreeSet<Kind> = policy.limits().iter().map(|limit| limit.algorithm().into()).collect();
        let mut text = include_str!("lua/prelude.lua").to_owned();
        for kind in kinds {
            text.push_str(kind.text());
        }
        text.push_str(include_str!("lua/decide.lua"));
        let sha = redis::Script::new(&text).get_hash().into();
        Self { text: text.into(), sha }
    }
}
