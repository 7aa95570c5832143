//! The ways to check a key on Redis.

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use tidegate::store::Store;
use tidegate::{AnyStore, Connect, Key, Limiter, Policy, RedisStore};

/// Nine of ten keys are exhausted for a long time. The tenth has plenty left.
pub(super) const MOSTLY_DENIED: &str = "fixed_window 1_000_000/30 days";
const DENIED_KEYS: usize = super::KEYS;

/// One way to check a key.
#[derive(Clone)]
pub(super) enum Contender {
    Tidegate {
        limiter: Limiter<AnyStore>,
        name: &'static str,
    },
    /// EVALSHA of Tidegate's own script, one call per check, on one multiplexed connection. This is
    /// the hand-written equivalent.
    Raw {
        connection: MultiplexedConnection,
        words: Vec<Vec<u8>>,
        shape: (Vec<u8>, Vec<u8>),
    },
    /// INCR, the least work of a counter.
    Incr { connection: MultiplexedConnection },
}

impl Contender {
    pub(super) async fn tidegate(url: &str, policy: &str) -> anyhow::Result<Self> {
        let limiter = Limiter::connect(url, policy.parse()?).await?;
        let name = if url.contains("lease=on") {
            "tidegate, leases"
        } else if url.contains("deny_cache=0") {
            "tidegate, no deny cache"
        } else {
            "tidegate"
        };
        if policy == MOSTLY_DENIED {
            for key in (0..DENIED_KEYS).filter(|key| key % 10 != 0) {
                let _ = limiter.check(name_of(key)).cost(1_000_000).await?;
            }
        }
        Ok(Self::Tidegate { limiter, name })
    }

    pub(super) async fn raw(url: &str, policy: &str) -> anyhow::Result<Self> {
        let policy: Policy = policy.parse()?;
        let plan = RedisStore::connect(url).await?.plan(&policy, "");
        let (script, words) = plan.raw_call(Key::new(b"KEY")?);
        let mut connection = connect(url).await?;
        let _sha: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script)
            .query_async(&mut connection)
            .await?;
        let key = words.get(3).context("raw call: expected a key")?;
        let at = key
            .windows(3)
            .position(|three| three == b"KEY")
            .context("raw call: expected KEY in the key")?;
        let shape = (key[..at].to_vec(), key[at + 3..].to_vec());
        Ok(Self::Raw {
            connection,
            words,
            shape,
        })
    }

    pub(super) async fn incr(url: &str) -> anyhow::Result<Self> {
        Ok(Self::Incr {
            connection: connect(url).await?,
        })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Tidegate { name, .. } => name,
            Self::Raw { .. } => "raw EVALSHA of Tidegate's script",
            Self::Incr { .. } => "raw INCR",
        }
    }

    /// Runs one check.
    pub(super) async fn check(&mut self, key: &str) {
        match self {
            Self::Tidegate { limiter, .. } => {
                let decision = limiter
                    .check(key)
                    .await
                    .expect("the key and the cost are valid");
                assert_eq!(
                    decision.degraded(),
                    None,
                    "Redis did not reply in time, so the figure is invalid"
                );
            }
            Self::Raw {
                connection,
                words,
                shape,
            } => {
                let mut command = redis::Cmd::with_capacity(words.len(), 300);
                for (index, word) in words.iter().enumerate() {
                    if index == 3 {
                        command.arg([&shape.0, key.as_bytes(), &shape.1].concat());
                    } else {
                        command.arg(word.as_slice());
                    }
                }
                let value = connection
                    .send_packed_command(&command)
                    .await
                    .expect("Redis replies");
                assert!(value.extract_error().is_ok(), "the script succeeds");
            }
            Self::Incr { connection } => {
                let value = connection
                    .send_packed_command(redis::cmd("INCR").arg(key))
                    .await
                    .expect("Redis replies");
                assert!(value.extract_error().is_ok(), "INCR succeeds");
            }
        }
    }
}

pub(super) fn name_of(key: usize) -> String {
    format!("user:{key:06}")
}

/// Connects as a careful user of redis-rs would: without Nagle's delay, and with room for many
/// calls.
async fn connect(url: &str) -> anyhow::Result<MultiplexedConnection> {
    use redis::IntoConnectionInfo;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let client = redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
    let config = redis::AsyncConnectionConfig::new()
        .set_pipeline_buffer_size(1_024)
        .set_response_timeout(None);
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}
