//! A server in this process, on free ports. Dropping it shuts it down.
// Each test program uses a part of this module, and helpers panic when they fail.
#![allow(dead_code, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate::ManualClock;
use tidegate_server::config::Listen;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_server::{Config, ConfigSource, Listeners, run, run_at};
use tidegate_testkit::Folder;
use tidegate_testkit::http::{HttpAnswer, HttpClient};
use tidegate_testkit::redis::RedisServer;
use tokio::sync::oneshot;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct TestServer {
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) grpc: Option<SocketAddr>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Loads a configuration from a text, with all listeners on free ports.
pub(crate) fn config(text: &str) -> Config {
    let folder = Folder::new();
    let file = Some(folder.write("tidegate.toml", text).into());
    let mut config = ConfigSource {
        file,
        ..ConfigSource::default()
    }
    .load()
    .unwrap_or_else(|error| panic!("{error}"));
    config.http.listen = Listen::local(0);
    config.resp.listen = Listen::local(0);
    config.admin.listen = Listen::local(0);
    config
}

/// Returns the store setting for this Redis. The long timeout keeps a slow machine from applying
/// the failure policy.
pub(crate) fn on_redis(redis: &RedisServer) -> String {
    format!(
        "store.url = \"redis://127.0.0.1:{}/?timeout=5s\"\n",
        redis.port()
    )
}

impl TestServer {
    pub(crate) fn start(config: Config) -> Self {
        Self::start_with(config, None)
    }

    /// Starts a server that uses this clock.
    pub(crate) fn start_at(clock: &ManualClock, config: Config) -> Self {
        Self::start_with(config, Some(clock.clone()))
    }

    fn start_with(config: Config, clock: Option<ManualClock>) -> Self {
        let server = Self::launch(config, clock);
        // The listeners are already bound, so a connection waits until the server accepts it.
        assert_eq!(server.client().get("/readyz").unwrap().status, 200);
        server
    }

    /// Starts a server whose clock stands still.
    pub(crate) fn start_frozen(text: &str) -> Self {
        Self::start_at(&ManualClock::new(), config(text))
    }

    /// Starts a server that is not ready yet.
    pub(crate) fn start_unready(config: Config) -> Self {
        Self::launch(config, None)
    }

    /// Starts a server that does not accept plain HTTP.
    pub(crate) fn start_tls(config: Config) -> Self {
        Self::launch(config, None)
    }

    fn launch(config: Config, clock: Option<ManualClock>) -> Self {
        let listeners = Listeners::bind(&config).unwrap();
        let (http, resp, admin) = (
            listeners.http().unwrap(),
            listeners.resp().unwrap(),
            listeners.admin().unwrap(),
        );
        let grpc = listeners.grpc();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let shutdown = async { drop(ended.await) };
            let result = runtime.block_on(async {
                match clock {
                    Some(clock) => run_at(clock, config, listeners, shutdown).await,
                    None => run(config, listeners, None, || {}, shutdown).await,
                }
            });
            result.unwrap_or_else(|error| panic!("{error}"));
        });
        Self {
            http,
            resp,
            admin,
            grpc,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Starts the shutdown, without waiting for its end.
    pub(crate) fn begin_end(&mut self) {
        drop(self.end.take());
    }

    pub(crate) fn client(&self) -> HttpClient {
        HttpClient::connect(self.http).unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> HttpAnswer {
        self.client().post(path, body).unwrap()
    }

    pub(crate) fn admin(&self) -> HttpClient {
        HttpClient::connect(self.admin).unwrap()
    }

    /// Returns the value of a metric. The name includes the labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.admin().get("/metrics").unwrap().body;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }

    pub(crate) fn resp(&self) -> RespClient {
        RespClient::connect(self.resp)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

/// A blocking client of Envoy's rate limit service.
pub(crate) struct GrpcClient {
    runtime: tokio::runtime::Runtime,
    pub(crate) channel: tonic::transport::Channel,
}

impl GrpcClient {
    pub(crate) fn connect(server: &TestServer) -> Self {
        Self::connect_to(&format!("http://{}", server.grpc.unwrap()))
    }

    pub(crate) fn connect_to(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let endpoint = tonic::transport::Endpoint::new(url.to_owned()).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, channel }
    }

    pub(crate) fn should_rate_limit(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let answer = self.runtime.block_on(client.should_rate_limit(request))?;
        Ok(answer.into_inner())
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

/// A client that sends and reads raw bytes.
pub(crate) struct RespClient(pub(crate) TcpStream);

impl RespClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Sends a command and asserts the exact reply.
    pub(crate) fn expect(&mut self, command: &[u8], reply: &str) {
        self.send(command);
        let mut bytes = vec![0; reply.len()];
        self.0
            .read_exact(&mut bytes)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(command)));
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            reply,
            "{:?}",
            String::from_utf8_lossy(command)
        );
    }

    /// Reads a reply of five integers.
    pub(crate) fn five(&mut self) -> [i64; 5] {
        let mut numbers = [0; 5];
        assert_eq!(self.line(), "*5");
        for number in &mut numbers {
            *number = self.line().strip_prefix(':').unwrap().parse().unwrap();
        }
        numbers
    }

    /// Discards the last four of five integers.
    pub(crate) fn rest_of_five(&mut self) {
        (0..4).for_each(|_| drop(self.line()));
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0
                .read_exact(&mut byte)
                .unwrap_or_else(|error| panic!("{error} after {line:?}"));
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// Reads until the server closes the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        // A connection reset is an end, too.
        let _ = self.0.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Encodes a command as clients do.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let parts: Vec<String> = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect();
    let count = parts.len();
    format!("*{count}\r\n{}", parts.concat()).into_bytes()
}

/// Starts a server with one policy and a canary key whose count must not change.
pub(crate) fn canary_server() -> TestServer {
    let server = TestServer::start(config(
        "[policies.api]\nlimits = \"fixed_window 100/300 days\"\n",
    ));
    assert_eq!(
        server
            .post(
                "/v1/check",
                r#"{"policy": "api", "key": "canary", "cost": 3}"#
            )
            .json()["remaining"],
        97
    );
    server
}

/// Asserts that the server holds only the canary key, with an unchanged count, and that it did not
/// panic.
pub(crate) fn assert_unharmed(server: &TestServer, after: &str) {
    assert_eq!(
        server
            .post(
                "/v1/peek",
                r#"{"policy": "api", "key": "canary", "cost": 0}"#
            )
            .json()["remaining"],
        97,
        "{after}"
    );
    assert_eq!(server.metric("tidegate_memory_keys"), 1, "{after}");
    assert_eq!(server.metric("tidegate_panics_total"), 0, "{after}");
}
