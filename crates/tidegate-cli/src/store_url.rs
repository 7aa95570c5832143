//! Stores by their URL. The one place that knows which there are.

use std::str::FromStr;

use anyhow::{Context, bail};
use tidegate::MemoryStore;

/// Which store, as `--store` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// `memory://`, with `?max_keys=N` if need be.
    Memory { max_keys: u64 },
}

impl FromStr for StoreUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> anyhow::Result<Self> {
        let (scheme, rest) = url.split_once("://").context("expected a URL such as memory://")?;
        match scheme {
            "memory" => memory(rest),
            other => bail!("unknown store `{other}://`: expected memory://"),
        }
    }
}

fn memory(rest: &str) -> anyhow::Result<StoreUrl> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !place.trim_end_matches('/').is_empty() {
        bail!("memory:// is in this process and has no host or path: expected memory:// or memory://?max_keys=N");
    }
    let mut max_keys = MemoryStore::DEFAULT_MAX_KEYS;
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("max_keys", count)) => {
                max_keys = count.replace('_', "").parse().context("max_keys is not a number of keys")?;
            }
            _ => bail!("unknown option `{option}` of memory://: expected max_keys=N"),
        }
    }
    Ok(StoreUrl::Memory { max_keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let memory = |max_keys| StoreUrl::Memory { max_keys };
        assert_eq!("memory://".parse::<StoreUrl>().unwrap(), memory(1_000_000));
        assert_eq!("memory:///".parse::<StoreUrl>().unwrap(), memory(1_000_000));
        assert_eq!("memory://?max_keys=20_000_000".parse::<StoreUrl>().unwrap(), memory(20_000_000));
        let bad = [
            "",
            "memory",
            "memory:/",
            "mem://",
            "redis://localhost/",
            "memory://host",
            "memory://?max_keys=",
            "memory://?keys=1",
            "memory://?max_keys=-1",
        ];
        for url in bad {
            assert!(url.parse::<StoreUrl>().is_err(), "{url:?}");
        }
    }
}
