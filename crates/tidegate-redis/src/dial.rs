//! Establishes connections: to a server, or to the primary that sentinels report.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult,
    TlsCertificates, Value,
};
use rustls::crypto::CryptoProvider;
use tokio::time::timeout;

use crate::settings::RedisSettings;
use crate::url::{Address, Credentials, RedisUrl, Topology};

/// A callback for a lost connection, called once.
pub(crate) type OnLoss = Arc<dyn Fn() + Send + Sync>;

/// Establishes connections to the servers of a URL.
#[derive(Clone)]
pub(crate) struct Dialer {
    url: Arc<RedisUrl>,
    certificates: Option<Arc<TlsCertificates>>,
}

/// The server that a connection leads to.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    Node(Address),
    Unix(std::path::PathBuf),
    Primary {
        sentinels: Vec<Address>,
        master: String,
    },
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(Address { host, port }) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Primary { master, .. } => write!(f, "{master}, from its sentinels"),
        }
    }
}

impl Dialer {
    /// Creates a dialer.
    ///
    /// # Errors
    ///
    /// Returns an error if a TLS file cannot be read.
    pub(crate) fn new(url: RedisUrl) -> std::io::Result<Self> {
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path).map_err(|error| {
                std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })
        };
        let certificates = match &url.tls {
            None => None,
            Some(tls) => {
                // A program that contains several crypto providers must choose one.
                if CryptoProvider::get_default().is_none() {
                    // Another thread may have installed one just now.
                    let _ = rustls::crypto::ring::default_provider().install_default();
                }
                let client_tls = match (&tls.certificate, &tls.key) {
                    (Some(certificate), Some(key)) => Some(ClientTlsConfig {
                        client_cert: read(certificate)?,
                        client_key: read(key)?,
                    }),
                    _ => None,
                };
                let root_cert = tls.ca.as_ref().map(read).transpose()?;
                Some(Arc::new(TlsCertificates {
                    client_tls,
                    root_cert,
                }))
            }
        };
        Ok(Self {
            url: Arc::new(url),
            certificates,
        })
    }

    /// Returns the destination of a URL that is not a cluster.
    pub(crate) fn destination(&self) -> Option<Destination> {
        match &self.url.topology {
            Topology::Single(address) => Some(Destination::Node(address.clone())),
            Topology::Unix(path) => Some(Destination::Unix(path.clone())),
            Topology::Sentinel { sentinels, master } => Some(Destination::Primary {
                sentinels: sentinels.clone(),
                master: master.clone(),
            }),
            Topology::Cluster(_) => None,
        }
    }

    /// Connects and sends HELLO, within the connect timeout.
    pub(crate) async fn dial(
        &self,
        to: &Destination,
        on_loss: OnLoss,
    ) -> RedisResult<MultiplexedConnection> {
        let dialled = async {
            match to {
                Destination::Node(address) => {
                    self.connect(self.tcp(address), &self.url.credentials, on_loss)
                        .await
                }
                Destination::Unix(path) => {
                    self.connect(
                        ConnectionAddr::Unix(path.clone()),
                        &self.url.credentials,
                        on_loss,
                    )
                    .await
                }
                Destination::Primary { sentinels, master } => {
                    self.dial_primary(sentinels, master, on_loss).await
                }
            }
        };
        match timeout(self.url.settings.connect_timeout, dialled).await {
            Ok(result) => result,
            Err(_) => Err(failed(
                "no answer within connect_timeout (default 500 ms): does it hang, or does it expect TLS?",
            )),
        }
    }

    /// Asks the sentinels in turn, and uses the first primary that confirms its role.
    async fn dial_primary(
        &self,
        sentinels: &[Address],
        master: &str,
        on_loss: OnLoss,
    ) -> RedisResult<MultiplexedConnection> {
        let mut last = failed("no sentinel answered");
        for sentinel in sentinels {
            let found = async {
                let address = self.primary_known_to(sentinel, master).await?;
                self.connect_to_primary(&address, Arc::clone(&on_loss))
                    .await
            };
            // A sentinel that hangs must leave time for the others.
            match timeout(self.url.settings.connect_timeout / 2, found).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => last = error,
                Err(_) => {
                    last = failed(
                        "a sentinel, or the primary that it reported, did not answer in time",
                    )
                }
            }
        }
        Err(last)
    }

    /// Connects to a primary. An isolated sentinel may still report an old one.
    async fn connect_to_primary(
        &self,
        address: &Address,
        on_loss: OnLoss,
    ) -> RedisResult<MultiplexedConnection> {
        let mut connection = self
            .connect(self.tcp(address), &self.url.credentials, on_loss)
            .await?;
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
            _ => Err(failed(
                "the primary that the sentinels reported is still a replica",
            )),
        }
    }

    async fn primary_known_to(&self, sentinel: &Address, master: &str) -> RedisResult<Address> {
        let mut connection = self
            .connect(
                self.tcp(sentinel),
                &self.url.sentinel_credentials,
                Arc::new(|| {}),
            )
            .await?;
        let command = redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(master)
            .to_owned();
        match command
            .query_async::<Option<(String, u16)>>(&mut connection)
            .await?
        {
            Some((host, port)) => Ok(Address { host, port }),
            None => Err(failed("the sentinels know no primary with this name")),
        }
    }

    fn tcp(&self, address: &Address) -> ConnectionAddr {
        let Address { host, port } = address.clone();
        match &self.url.tls {
            Some(tls) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: tls.is_insecure,
                tls_params: None,
            },
            None => ConnectionAddr::Tcp(host, port),
        }
    }

    async fn connect(
        &self,
        address: ConnectionAddr,
        credentials: &Credentials,
        on_loss: OnLoss,
    ) -> RedisResult<MultiplexedConnection> {
        // With RESP3 a lost connection is noticed without traffic.
        let mut hello = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
        let is_sentinel = std::ptr::eq(credentials, &self.url.sentinel_credentials);
        if !is_sentinel {
            hello = hello.set_db(self.url.database);
        }
        if let Some(user) = &credentials.user {
            hello = hello.set_username(user);
        }
        if let Some(password) = &credentials.password {
            hello = hello.set_password(password);
        }
        let info = address
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(hello);
        let client = match &self.certificates {
            Some(certificates) => Client::build_with_tls(info, (**certificates).clone())?,
            None => Client::open(info)?,
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(64)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    on_loss();
                }
                Ok::<(), std::convert::Infallible>(())
            });
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    pub(crate) fn url(&self) -> &RedisUrl {
        &self.url
    }

    pub(crate) fn settings(&self) -> &RedisSettings {
        &self.url.settings
    }
}

/// Returns an error as text that says what to do.
pub(crate) fn describe(error: &RedisError) -> String {
    let text = error.to_string();
    if text.contains("NOAUTH") {
        return "it requires a password: expected redis://:password@host/ or redis://user:password@host/"
            .to_owned();
    }
    match error.kind() {
        ErrorKind::Parse => "it does not speak the Redis protocol (TLS needs rediss://)".to_owned(),
        ErrorKind::Client => text.trim_end_matches(" - Client").to_owned(),
        _ => text,
    }
}

fn failed(message: &'static str) -> RedisError {
    (ErrorKind::Client, message).into()
}
